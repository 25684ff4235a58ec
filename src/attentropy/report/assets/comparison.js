// Scans side by side: the difference of every head, one head over the lengths, the largest changes.

const ROWS_OF_CHANGES = 60;

function startComparison(payload) {
  const state = comparisonState(payload);
  buildShell(state.scans.map((scan) => scan.name).join(" · "), [{ id: "compare", title: "Compare", node: comparisonPage(state) }]);
  document.getElementById("foot").textContent = "Made by attentropy. This file needs no network and sends nothing.";
}

function comparisonState({ scans, statistics }) {
  const heads = (scan) => JSON.stringify(scan.layers.map((layer) => layer.heads));
  const state = { scans, statistics, statistic: "entropy", first: 0, other: scans.length - 1, mode: "difference", selected: null };
  state.alike = scans.every((scan) => heads(scan) === heads(scans[0]));
  state.described = () => statistics.find((one) => one.name === state.statistic);
  state.lengths = scans[0].lengths.filter((length) => scans.every((scan) => scan.lengths.includes(length)));
  state.length = state.lengths[state.lengths.length - 1];
  state.table = (index, length = state.length) => scans[index].measures.find((measure) => measure.length === length).statistics[state.statistic];
  state.gap = () => {
    const [a, b] = [state.table(state.first), state.table(state.other)];
    return b.map((row, layer) => row.map((value, head) => (value === null || a[layer][head] === null ? null : value - a[layer][head])));
  };
  return state;
}

function comparisonPage(state) {
  const { scans } = state;
  const cards = scans.map((scan) =>
    el("section", { class: "card" }, el("div", { class: "eyebrow", text: scan.name }), el("p", { class: "headline", text: scan.headline }), scans.length > 3 ? null : tilesOf(scan.tiles)));
  const top = el("div", { class: "versus" }, ...cards.slice(0, 4));
  const charts = el(
    "div",
    { class: "two" },
    chartCard("Entropy against length", "Median over heads.", scansChart(scans, "nats", (measure) => quantile(measure.statistics.entropy.flat(), 0.5), { min: 0 })),
    chartCard("Text perplexity against length", "Lower is better.", scansChart(scans, "perplexity", (measure) => measure.perplexity, { scale: true })),
  );
  const why = !state.alike
    ? "The models have different layers and heads, so heads are not compared one by one."
    : "The scans share no length, so heads are not compared one by one.";
  const heads = state.alike && state.lengths.length ? headsCompared(state) : [el("section", { class: "card" }, el("p", { class: "empty", text: why }))];
  return el("div", { class: "page" }, el("h1", { class: "hidden-visually", text: "Scans compared" }), ...heads, top, charts);
}

// One line for each scan.
function scansChart(scans, unit, read, range) {
  const lengths = [...new Set(scans.flatMap((scan) => scan.lengths))].sort((a, b) => a - b);
  const points = (scan) => scan.measures.map((measure) => [Math.log2(measure.length), read(measure)]);
  return plot(() => ({
    xAxis: lengthAxis(lengths),
    yAxis: valueAxis(unit, range),
    tooltip: lineTip((x) => `${whole(Math.round(2 ** x))} tokens`),
    legend: legend(scans.map((scan) => `*${scan.name}`)),
    series: scans.map((scan, order) => line(scan.name, points(scan), order, { symbol: order % 2 ? "diamond" : "circle", size: 8 })),
  }), 300);
}

function headsCompared(state) {
  const { scans } = state;
  const title = el("h2");
  const meaning = el("p", { class: "meaning" });
  const drawn = heatmap(comparisonView(state));
  const changes = el("div", { id: "changes" });
  const headTitle = el("h2", { id: "head-title" });
  const headChart = plot(() => headOverlaid(state), 300);
  const update = () => {
    const described = state.described();
    title.textContent = `${described.label}, head by head`;
    meaning.textContent = `${described.formula} — ${described.meaning}`;
    headTitle.textContent = headName(...state.selected);
    changes.replaceChildren(changesOf(state));
    drawn.redraw();
    redrawAll();
  };
  state.select = (layer, head) => {
    state.selected = [layer, head];
    announce(`${headName(layer, head)} opened`);
    update();
  };
  const set = (name, value) => {
    state[name] = value;
    update();
  };
  const choice = (id, options, chosen, take) =>
    el("select", { id, onchange: (event) => take(event.target.value) }, ...options.map(([value, text]) => el("option", { value, text, selected: value === chosen })));
  const names = scans.map((scan, index) => [index, scan.name]);
  const field = (label, control) => el("label", { class: "field" }, el("span", { text: label }), control);
  const other = choice("other", names, state.other, (value) => move(Number(value)));
  const slider = el("input", { type: "range", id: "scan", min: 0, max: scans.length - 1, value: state.other, "aria-label": "Scan" });
  const output = el("output", { text: scans[state.other].name });
  const move = (index) => {
    other.value = slider.value = index;
    output.textContent = scans[index].name;
    slider.setAttribute("aria-valuetext", output.textContent);
    modes.replaceChildren(modesOf());
    set("other", index);
  };
  slider.addEventListener("input", () => move(Number(slider.value)));
  const modesOf = () =>
    segments("What the colours show", [
      { label: scans[state.first].name, value: "first" },
      { label: scans[Number(slider.value)].name, value: "other" },
      { label: "Difference", value: "difference" },
    ], state.mode, (value) => set("mode", value));
  const modes = el("div", {}, modesOf());
  const first = choice("first", names, state.first, (value) => {
    state.first = Number(value);
    modes.replaceChildren(modesOf());
    update();
  });
  const card = el(
    "section",
    { class: "card", "aria-label": "Heads" },
    el("div", { class: "card-head" }, el("div", {}, title, meaning)),
    el(
      "div",
      { class: "controls" },
      field("Statistic", choice("statistic", state.statistics.map((one) => [one.name, one.label]), state.statistic, (value) => set("statistic", value))),
      el("div", { class: "field" }, "Length", segments("Length", state.lengths.map((length) => ({ label: whole(length), value: length })), state.length, (value) => set("length", value))),
      field("From", first),
      field("To", other),
      modes,
    ),
    scans.length > 2 ? el("div", { class: "slider" }, slider, output) : null,
    el("div", { style: "height: 14px" }),
    drawn.node,
  );
  const table = el("section", { class: "card" }, el("div", { class: "card-head" }, el("div", {}, el("h2", { text: "Heads by change" }), el("p", { text: "The largest change first; a click opens the head." }))), changes);
  const head = el("section", { class: "card", "aria-label": "The chosen head" }, el("div", { class: "card-head" }, el("div", {}, headTitle, el("p", { text: "The same head of all scans, over the lengths." }))), headChart);
  const [layer, number] = sortedChanges(state)[0] ?? [0, 0];
  state.selected = [layer, number];
  update();
  return [card, el("div", { class: "two" }, table, head)];
}

function comparisonView(state) {
  const current = () => {
    const described = state.described();
    const named = { title: described.label, low: described.low, high: described.high };
    const [a, b] = [state.table(state.first), state.table(state.other)];
    if (state.mode !== "difference") return { ...named, table: state.mode === "first" ? a : b, ...colouring(described, [a, b]) };
    const [from, to] = [state.scans[state.first].name, state.scans[state.other].name];
    const gap = state.gap();
    return { title: `${described.label}, ${to} − ${from}`, low: "fell", high: "rose", table: gap, ...difference([gap]) };
  };
  return {
    layers: state.scans[0].layers.map((layer) => layer.heads),
    current,
    filter: null,
    filterName: "",
    get selected() { return state.selected; },
    clearFilter: () => {},
    select: (layer, head) => state.select(layer, head),
    findingsOf: () => [],
  };
}

function sortedChanges(state) {
  const [a, b] = [state.table(state.first), state.table(state.other)];
  const rows = state.gap().flatMap((row, layer) => row.map((gap, head) => [layer, head, a[layer][head], b[layer][head], gap]));
  return rows.filter((row) => row[4] !== null).sort((x, y) => Math.abs(y[4]) - Math.abs(x[4]));
}

function changesOf(state) {
  const rows = sortedChanges(state);
  const made = table(
    ["Head", { number: state.scans[state.first].name }, { number: state.scans[state.other].name }, { number: "Change" }],
    rows.slice(0, ROWS_OF_CHANGES).map(([layer, head, x, y, gap]) => [headName(layer, head), { number: short(x) }, { number: short(y) }, { number: short(gap) }]),
  );
  [...made.querySelectorAll("tbody tr")].forEach((row, index) => {
    const [layer, head] = rows[index];
    const name = row.firstChild;
    name.replaceChildren(el("button", { class: "link", type: "button", text: name.textContent }));
    row.classList.add("change");
    row.setAttribute("aria-selected", String(same(state.selected, layer, head)));
    row.addEventListener("click", () => state.select(layer, head));
  });
  made.classList.add("changes");
  return made;
}

function headOverlaid(state) {
  const [layer, head] = state.selected ?? [0, 0];
  const described = state.described();
  const lengths = [...new Set(state.scans.flatMap((scan) => scan.lengths))].sort((a, b) => a - b);
  const points = (index) => state.scans[index].lengths.map((length) => [Math.log2(length), state.table(index, length)[layer][head]]);
  return {
    xAxis: lengthAxis(lengths),
    yAxis: valueAxis(described.unit || described.symbol, { scale: true }),
    tooltip: lineTip((x) => `${whole(Math.round(2 ** x))} tokens`),
    legend: legend(state.scans.map((scan) => `*${scan.name}`)),
    series: state.scans.map((scan, index) => line(scan.name, points(index), index, { symbol: index % 2 ? "diamond" : "circle", size: 8 })),
  };
}
