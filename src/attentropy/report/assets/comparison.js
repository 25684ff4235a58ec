// Scans and runs side by side: the difference of every head, one head over lengths, steps and
// entries, the largest changes.

const ROWS_OF_CHANGES = 60;
const MANY = 6; // lines of more entries than this are a ramp of colours, most of them not named

function startComparison(payload) {
  const state = comparisonState(payload);
  buildShell(state.entries.map((entry) => entry.name).join(" · "), [{ id: "compare", title: "Compare", node: comparisonPage(state) }]);
  document.getElementById("foot").textContent = said("Made by attentropy. This file needs no network and sends nothing.");
}

// `prefix` goes before ids and names in the address, where the page has other controls too.
function comparisonState({ entries, statistics }, prefix = "") {
  const heads = (entry) => JSON.stringify(entry.layers.map((layer) => layer.heads));
  const known = statistics.filter((one) => entries.every((entry) => entry.measures[0]?.statistics[one.name]));
  const state = { entries, prefix, statistics: known, statistic: "entropy", first: 0, other: entries.length - 1, mode: "difference", search: "" };
  state.alike = entries.every((entry) => heads(entry) === heads(entries[0]));
  state.described = () => known.find((one) => one.name === state.statistic);
  state.places = sharedPlaces(entries);
  state.place = state.places.length - 1;
  state.table = (index) => entries[index].measures[state.places[state.place].at[index]].statistics[state.statistic];
  state.gap = () => changeOf(state.table(state.first), state.table(state.other));
  state.selected = null;
  return state;
}

const changeOf = (from, to) => to.map((row, l) => row.map((value, h) => (value === null || from[l][h] === null ? null : value - from[l][h])));

// Where entries compare: lengths that all scans have, steps that all runs have, and the last of each.
function sharedPlaces(entries) {
  const at = (entry) => entry.lengths ?? entry.steps;
  if (entries.some((entry) => !at(entry).length)) return [];
  const scans = entries.filter((entry) => entry.lengths).length;
  const word = scans ? whole : (step) => said(`step ${whole(step)}`);
  const shared = scans === 0 || scans === entries.length ? at(entries[0]).filter((x) => entries.every((entry) => at(entry).includes(x))) : [];
  const places = shared.map((x) => ({ label: word(x), value: String(x), at: entries.map((entry) => at(entry).indexOf(x)) }));
  const last = entries.map((entry) => at(entry).length - 1);
  const listed = places.length > 0 && String(places[places.length - 1].at) === String(last);
  return scans === entries.length || listed ? places : [...places, { label: said("last"), value: "last", at: last }];
}

function comparisonPage(state) {
  const { entries } = state;
  const cards = entries.slice(0, 4).map((entry) =>
    el("section", { class: "card" }, el("div", { class: "eyebrow", text: entry.name }), el("p", { class: "headline", text: said(entry.headline) }), entries.length > 3 ? null : tilesOf(entry.tiles)));
  const why = !state.alike
    ? "The models have different layers and heads, so heads are not compared one by one."
    : "The scans share no length, so heads are not compared one by one.";
  const heads = state.alike && state.places.length ? headsCompared(state) : [el("section", { class: "card" }, el("p", { class: "empty", text: said(why) }))];
  return el("div", { class: "page" }, el("h1", { class: "hidden-visually", text: said("Scans and runs compared") }), ...heads, el("div", { class: "versus" }, ...cards), el("div", { class: "two" }, ...wholeCharts(state)));
}

// Charts of whole models: those of scans over lengths, those of runs over steps.
function wholeCharts({ entries }) {
  const scans = entries.filter((entry) => entry.lengths);
  const runs = entries.filter((entry) => entry.steps);
  const median = (measure) => quantile(measure.statistics.entropy.flat(), 0.5);
  return [
    ...(scans.length ? [chartCard("Entropy against length", "Median over heads.", entriesChart(scans, "nats", median, { min: 0 }))] : []),
    ...(scans.some((scan) => scan.measures.some((measure) => measure.perplexity !== null)) ? [chartCard("Text perplexity against length", "Lower is better.", entriesChart(scans, "perplexity", (measure) => measure.perplexity, { scale: true }))] : []),
    ...(runs.length ? [chartCard("Entropy against step", "Median over heads.", entriesChart(runs, "nats", median, { min: 0 }))] : []),
    ...(runs.some((run) => run.losses.length) ? [chartCard("Loss against step", "As given to the monitors.", lossesChart(runs))] : []),
  ];
}

// One line for each entry; all of them scans, or all of them runs.
function entriesChart(entries, unit, read, range, marked = () => false) {
  return plot(() => ({
    ...entryAxis(entries),
    yAxis: valueAxis(unit, range),
    legend: legend(namedLines(entries, marked).map((name) => `*${name}`)),
    series: entries.map((entry, order) => entryLine(entries, order, entryPoints(entry, (_, i) => read(entry.measures[i])), marked(entry))),
  }), 300);
}

const lossesChart = (runs) =>
  plot(() => ({
    ...entryAxis(runs),
    yAxis: valueAxis("loss", { scale: true }),
    legend: legend(namedLines(runs, () => false)),
    series: runs.map((run, order) => entryLine(runs, order, run.losses, false)),
  }), 300);

const entryPoints = (entry, read) => (entry.lengths ?? entry.steps).map((x, i) => [entry.lengths ? Math.log2(x) : x, read(x, i)]);

function entryAxis(entries) {
  const xs = [...new Set(entries.flatMap((entry) => entry.lengths ?? entry.steps))].sort((a, b) => a - b);
  if (entries[0].lengths) return { xAxis: lengthAxis(xs), tooltip: lineTip((x) => `${whole(Math.round(2 ** x))} tokens`) };
  return { xAxis: positionAxis("Step", { min: xs[0], max: xs[xs.length - 1] }), tooltip: lineTip((x) => `Step ${whole(x)}`) };
}

const namedLines = (entries, marked) =>
  entries.filter((entry, i) => entries.length <= MANY || i === 0 || i === entries.length - 1 || marked(entry)).map((entry) => entry.name);

function entryLine(entries, order, points, marked) {
  const many = entries.length > MANY;
  const [r, g, b] = rampColour(theme().ramp.slice(1), entries.length > 1 ? order / (entries.length - 1) : 0);
  const coloured = many ? { colour: `rgb(${r}, ${g}, ${b})`, dash: "solid", width: 1.25 } : {};
  return line(entries[order].name, points, order, { symbol: points.length > 16 ? "none" : order % 2 ? "diamond" : "circle", size: many ? 5 : 8, ...coloured, ...(marked && many ? { width: 3, z: 6 } : {}) });
}

function headsCompared(state) {
  const { entries, prefix } = state;
  const id = (name) => prefix + name;
  const [title, headTitle, meaning] = [el("h2"), el("h2", { id: id("head-title") }), el("p", { class: "meaning" })];
  const drawn = heatmap(comparisonView(state));
  const changes = el("div", { id: id("changes") });
  const names = entries.map((entry, index) => [index, entry.name]);
  const set = (change, options) => {
    Object.assign(state, change);
    update();
    noteChoices(options);
  };
  state.select = (layer, head) => {
    announce(`${headName(layer, head)} opened`);
    set({ selected: [layer, head] });
  };
  state.clear = () => set({ search: "" });

  const statistic = menu(id("statistic"), state.statistics.map((one) => [one.name, one.label]), state.statistic, (value) => set({ statistic: value }));
  const place = placeControl(state, (index, options) => set({ place: index }, options));
  const first = menu(id("first"), names, state.first, (value) => set({ first: Number(value) }));
  const other = menu(id("other"), names, state.other, (value) => set({ other: Number(value) }));
  const slider = el("input", { type: "range", id: id("scan"), min: 0, max: entries.length - 1, value: state.other, "aria-label": said("Scan") });
  slider.addEventListener("input", () => set({ other: Number(slider.value) }, { replace: true }));
  const output = el("output");
  const modes = el("div");
  const search = searchField(id("search"), () => state.search, {
    search: (text) => set({ search: text }, { replace: true }),
    open: () => {
      const [found] = findHeads(state.search, entries[0].layers);
      if (found) state.select(...found);
    },
  });

  function update() {
    const described = state.described();
    title.textContent = said(`${described.label}, head by head`);
    meaning.textContent = `${described.formula} — ${described.meaning}`;;
    headTitle.textContent = headName(...state.selected);
    [statistic.value, first.value, other.value, slider.value] = [state.statistic, state.first, state.other, state.other];
    output.textContent = entries[state.other].name;
    slider.setAttribute("aria-valuetext", output.textContent);
    place.show();
    search.show();
    modes.replaceChildren(modesOf(state, (value) => set({ mode: value })));
    changes.replaceChildren(changesOf(state));
    drawn.redraw();
    charts.forEach((chart) => chart.redraw());
  }

  const card = el(
    "section",
    { class: "card", "aria-label": said("Heads") },
    el("div", { class: "card-head" }, el("div", {}, title, meaning)),
    el("div", { class: "controls" }, field("Statistic", statistic), place.node, field("From", first), field("To", other), modes, search.node),
    entries.length > 2 ? el("div", { class: "slider" }, slider, output) : null,
    el("div", { style: "height: 14px" }),
    drawn.node,
  );
  const charts = headCharts(state);
  const list = el("section", { class: "card" }, el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Heads by change") }), el("p", { text: said("The largest change first; a click opens the head.") }))), changes);
  const head = el("section", { class: "card", "aria-label": said("The chosen head") }, el("div", { class: "card-head" }, headTitle), ...charts.map((chart) => chart.node));
  state.selected = sortedChanges(state)[0]?.slice(0, 2) ?? [0, 0];
  comparisonChoices(state, set);
  update();
  return [card, el("div", { class: "two" }, list, head)];
}

// Lengths as buttons; of many steps a slider.
function placeControl(state, move) {
  const { places, prefix } = state;
  const word = said(state.entries[0].lengths ? "Length" : "Step");
  if (places.length <= 8) {
    const made = segments(word, places.map((one, i) => ({ label: one.label, value: i })), state.place, (value) => move(value));
    return { node: el("div", { class: "field" }, word, made), show: () => made.mark(state.place) };
  }
  const slider = el("input", { type: "range", id: `${prefix}place`, min: 0, max: places.length - 1, "aria-label": word });
  const output = el("span", { class: "place" });
  slider.addEventListener("input", () => move(Number(slider.value), { replace: true }));
  const show = () => {
    slider.value = state.place;
    output.textContent = places[state.place].label;
    slider.setAttribute("aria-valuetext", output.textContent);
  };
  return { node: el("label", { class: "field" }, word, slider, output), show };
}

const modesOf = (state, choose) =>
  segments("What the colours show", [
    { label: state.entries[state.first].name, value: "first" },
    { label: state.entries[state.other].name, value: "other" },
    { label: said("Difference"), value: "difference" },
  ], state.mode, choose);

function comparisonChoices(state, set) {
  const layers = state.entries[0].layers.map((layer) => layer.heads);
  const values = state.places.map((place) => place.value);
  const kept = (name, read, parse) => inAddress(state.prefix + name, read, (text) => {
    const parsed = parse(text);
    if (parsed !== undefined) set(parsed);
  });
  const named = (name) => kept(name, () => String(state[name]), (text) => (state.entries[text] ? { [name]: Number(text) } : undefined));
  kept("statistic", () => state.statistic, (text) => (state.statistics.some((one) => one.name === text) ? { statistic: text } : undefined));
  kept("length", () => values[state.place], (text) => (values.includes(text) ? { place: values.indexOf(text) } : undefined));
  named("first");
  named("other");
  kept("show", () => state.mode, (text) => (["first", "other", "difference"].includes(text) ? { mode: text } : undefined));
  kept("head", () => headText(state.selected), (text) => {
    const pair = headOf(text, layers);
    return pair ? { selected: pair } : undefined;
  });
  kept("search", () => state.search, (text) => ({ search: text }));
}

function comparisonView(state) {
  const current = () => {
    const described = state.described();
    const named = { title: described.label, low: described.low, high: described.high };
    const [a, b] = [state.table(state.first), state.table(state.other)];
    const [from, to] = [state.entries[state.first].name, state.entries[state.other].name];
    if (state.mode !== "difference") return { ...named, title: `${described.label}, ${state.mode === "first" ? from : to}`, table: state.mode === "first" ? a : b, ...colouring(described, [a, b]) };
    const gap = state.gap();
    return { title: `${described.label}, ${to} − ${from}`, low: said("fell"), high: said("rose"), table: gap, ...difference([gap]) };
  };
  return {
    layers: state.entries[0].layers.map((layer) => layer.heads),
    current,
    get filter() { return state.search.trim() ? new Set(findHeads(state.search, state.entries[0].layers).map(headText)) : null; },
    get filterName() { return `“${state.search.trim()}”`; },
    get selected() { return state.selected; },
    clearFilter: () => state.clear(),
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
  const cells = rows.map(([layer, head, x, y, gap]) => [headName(layer, head), num(x), num(y), num(gap)]);
  const titles = [said("Head"), { number: state.entries[state.first].name }, { number: state.entries[state.other].name }, { number: said("Change") }];
  const made = table(said(`${state.described().label} by change`), titles, cells.slice(0, ROWS_OF_CHANGES), cells);
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

// The chosen head: over lengths, over steps, and over the entries where there are many.
function headCharts(state) {
  const { entries } = state;
  const value = (entry) => (_, i) => entry.measures[i].statistics[state.statistic][state.selected[0]][state.selected[1]];
  const marked = (entry) => entry === entries[state.first] || entry === entries[state.other];
  const over = (some) => () => ({
    ...entryAxis(some),
    yAxis: valueAxis(state.described().unit || state.described().symbol, { scale: true }),
    legend: legend(namedLines(some, marked).map((name) => `*${name}`)),
    series: some.map((entry, order) => entryLine(some, order, entryPoints(entry, value(entry)), marked(entry))),
  });
  const along = () => ({
    xAxis: axis({ axis: { type: "category", data: entries.map((entry) => entry.name) }, label: { formatter: undefined, interval: "auto" } }),
    yAxis: valueAxis(state.described().unit || state.described().symbol, { scale: true }),
    tooltip: tooltip((items) => tip(items[0].name, items.map((item) => [item.color, state.described().label, short(item.value)]))),
    series: [line(state.places[state.place].label, entries.map((_, i) => state.table(i)[state.selected[0]][state.selected[1]]), 0, { symbol: "circle", width: 2.5 })],
  });
  const [scans, runs] = [entries.filter((entry) => entry.lengths), entries.filter((entry) => entry.steps)];
  const about = (what) => () => said(`${headName(...state.selected)}, ${state.described().label.toLowerCase()} over ${what}`);
  const chart = (text, build, what) => {
    const made = livePlot(build, 280);
    return { redraw: made.redraw, node: el("figure", { class: "figure" }, el("figcaption", {}, el("p", { text: said(text) }), saveFigure(made.node, about(what))), made.node) };
  };
  return [
    ...(scans.length ? [chart("Over the lengths, in every scan.", over(scans), "lengths")] : []),
    ...(runs.length ? [chart("Over the steps, in every run.", over(runs), "steps")] : []),
    ...(entries.length > 2 ? [chart("From the first to the last.", along, "scans")] : []),
  ];
}
