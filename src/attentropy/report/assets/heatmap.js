// Layers by heads. Layers run left to right, heads top to bottom; arrow keys move, Enter opens.

const MARGIN = { left: 46, right: 8, top: 6, bottom: 44 };

function heatmap(view) {
  const node = el("div", { class: "heatmap", tabindex: "0", role: "application" });
  const ramp = el("div", { class: "ramp" });
  const [low, high] = [el("span"), el("span")];
  const note = el("span", { class: "filter-note" });
  const numbers = el("details", { class: "numbers" }, el("summary", { text: said("The same numbers as a table") }));
  const scale = el("div", { class: "legend" }, low, ramp, high, note);
  const self = { node: el("div", {}, node, scale, numbers), cursor: null };
  scale.append(saveFigure(self.node, () => view.current().title));

  const columns = view.layers.length;
  const rows = Math.max(...view.layers);
  const cell = (width) => Math.min(150, (width - MARGIN.left - MARGIN.right) / columns);
  const rowHeight = () => Math.max(printing ? 10 : 15, Math.min(58, Math.round((printing ? 250 : 400) / rows)));
  const chart = mount(node, (width) => option(width), {
    height: () => rows * rowHeight() + MARGIN.top + MARGIN.bottom,
    ready: (drawn, entry) => listen(drawn, entry),
  });

  function option(width) {
    const shown = view.current();
    const t = theme();
    const colours = shown.diverging ? t.diverging : t.ramp;
    const label = rowHeight() >= 22 && cell(width) >= 40;
    const plotted = cell(width) * columns;
    node.dataset.plot = JSON.stringify({ ...MARGIN, cellWidth: plotted / columns, cellHeight: rowHeight() });
    paintLegend(shown, colours);
    return {
      grid: { left: MARGIN.left, top: MARGIN.top, width: plotted, height: rows * rowHeight() },
      xAxis: category("Layer", view.layers.map((_, i) => i), 28),
      yAxis: { ...category("Head", [...Array(rows).keys()], 30), inverse: true, nameRotate: languageState.name === "zh" ? 0 : 90 },
      visualMap: { show: false, type: "continuous", min: 0, max: 1, dimension: 2, inRange: { color: colours } },
      tooltip: tooltip((item) => cellTip(shown, item.value), "item"),
      series: [
        {
          type: "heatmap",
          data: cells(shown, colours, label),
          itemStyle: { borderColor: t.surface, borderWidth: 2, borderRadius: 4 },
          label: { show: label, fontSize: 11, formatter: (item) => short(item.value[3]) },
          emphasis: { itemStyle: { borderColor: t.mark, borderWidth: 2 } },
          progressive: 0,
        },
      ],
    };
  }

  function cells(shown, colours, label) {
    const t = theme();
    const filter = view.filter;
    const [data, marks] = [[], []];
    view.layers.forEach((heads, layer) => {
      for (let head = 0; head < heads; head++) {
        const value = shown.table[layer][head];
        if (value === null || value === undefined) {
          data.push({ value: [layer, head, 0, null], visualMap: false, itemStyle: { color: t.grid }, label: { color: t.muted, show: label } });
          continue;
        }
        const share = shown.share(value);
        const kept = !filter || filter.has(`${layer}.${head}`);
        const marked = same(view.selected, layer, head) || same(self.cursor, layer, head);
        const [r, g, b] = rampColour(colours, share);
        const ink = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10151c" : "#ffffff";
        (marked ? marks : data).push({
          value: [layer, head, share, value],
          itemStyle: { opacity: kept ? 1 : 0.13, ...(marked && { borderColor: t.mark, borderWidth: 2.5 }) },
          label: { color: kept ? ink : "transparent", show: label },
        });
      }
    });
    return [...data, ...marks]; // drawn last, so that the frame is not covered
  }

  function category(name, data, gap) {
    return axis({
      axis: { type: "category", data, name: said(name), nameLocation: "middle", nameGap: gap, axisLine: { show: false }, splitArea: { show: false } },
      label: { formatter: undefined, interval: data.length > 16 ? (index) => index % Math.ceil(data.length / 16) === 0 : 0 },
    });
  }

  function paintLegend(shown, colours) {
    ramp.style.background = `linear-gradient(90deg, ${colours.join(", ")})`;
    ramp.dataset.colours = colours.join(" ");
    low.textContent = `${shown.low} ${short(shown.range[0])}`;;
    high.textContent = `${short(shown.range[1])} ${shown.high}`;;
    note.replaceChildren();
    const filter = view.filter;
    if (filter) {
      note.append(
        said(`${plural(filter.size, "head")}: ${view.filterName} `),
        el("button", { class: "link", type: "button", text: said("show all"), onclick: () => view.clearFilter() }),
      );
    }
    node.setAttribute("aria-label", said(`${shown.title}, by layer and head. Arrow keys move, Enter opens a head.`));
    if (numbers.open) fillTable(shown);
  }

  function fillTable(shown) {
    const head = [said("Head"), ...view.layers.map((_, layer) => ({ number: `L${layer}` }))];
    const body = [...Array(rows).keys()].map((row) => [
      String(row),
      ...view.layers.map((heads, layer) => (row < heads ? num(shown.table[layer][row]) : { number: "" })),
    ]);
    numbers.replaceChildren(numbers.firstChild, table(shown.title, head, body));
  }

  const cellTip = (shown, [layer, head, , value]) =>
    tip(headName(layer, head), [
      [null, shown.title, short(value)],
      ...view.findingsOf(layer, head).map((finding) => [null, said(finding.severity), said(finding.name)]),
    ]);

  function listen(drawn, entry) {
    if (entry.listening) return;
    entry.listening = true;
    drawn.on("click", (event) => view.select(event.value[0], event.value[1]));
  }

  node.addEventListener("keydown", (event) => {
    const move = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (event.key === "Enter" && self.cursor) view.select(...self.cursor);
    if (!move) return;
    event.preventDefault();
    const from = self.cursor ?? view.selected ?? [0, 0];
    const layer = Math.min(Math.max(from[0] + move[0], 0), columns - 1);
    const head = Math.min(Math.max(from[1] + move[1], 0), view.layers[layer] - 1);
    self.cursor = [layer, head];
    const shown = view.current();
    announce(`${headName(layer, head)}: ${shown.title} ${short(shown.table[layer][head])}`);
    chart.redraw();
  });
  node.addEventListener("blur", () => {
    self.cursor = null;
    chart.redraw();
  });
  numbers.addEventListener("toggle", () => numbers.open && fillTable(view.current()));
  self.redraw = chart.redraw;
  return self;
}

const same = (pair, layer, head) => pair !== null && pair !== undefined && pair[0] === layer && pair[1] === head;

// How a statistic maps to colour, the same at every length so that lengths compare.
function colouring(statistic, tables) {
  const numbers = tables.flat(2).filter((value) => value !== null && Number.isFinite(value));
  let [from, to] = numbers.length ? [Math.min(...numbers), Math.max(...numbers)] : [0, 1];
  const shades = statistic.shades;
  if (shades && to - from > 0.4 * (shades[1] - shades[0])) [from, to] = shades;
  const logarithmic = statistic.scale === "log" && from > 0;
  const bend = logarithmic ? Math.log : (value) => value;
  const width = bend(to) - bend(from) || 1;
  return { range: [from, to], share: (value) => Math.min(Math.max((bend(value) - bend(from)) / width, 0), 1) };
}

function difference(tables) {
  const numbers = tables.flat(2).filter((value) => value !== null && Number.isFinite(value));
  const top = Math.max(1e-12, ...numbers.map(Math.abs));
  return { range: [-top, top], share: (value) => 0.5 + value / top / 2, diverging: true };
}
