// The first page: summary, heatmap, findings, the chosen head.

function scanState(payload) {
  const scan = payload.scan;
  const state = {
    payload, scan, other: payload.other, statistics: payload.statistics,
    statistic: "normalized_entropy", length: scan.home, mode: "this",
    selected: null, filter: null, filterIndex: null, filterName: "",
    layers: scan.layers.map((layer) => layer.heads),
  };
  const index = new Map();
  scan.findings.forEach((finding) =>
    finding.heads.forEach(([layer, head]) => {
      const key = `${layer}.${head}`;
      index.set(key, [...(index.get(key) ?? []), finding]);
    }),
  );
  state.findingsOf = (layer, head) => index.get(`${layer}.${head}`) ?? [];
  state.statisticNow = () => state.statistics.find((statistic) => statistic.name === state.statistic);
  return state;
}

function overviewPage(state) {
  const map = heatmapCard(state);
  const found = findingsCard(state);
  const head = profile(state);
  const redraw = () => {
    map.update();
    found.mark();
  };
  state.refresh = () => {
    redraw();
    if (state.selected) head.show();
  };
  state.toggleFilter = (index) => {
    const finding = state.scan.findings[index];
    const on = state.filterIndex !== index;
    state.filterIndex = on ? index : null;
    state.filterName = finding.name;
    state.filter = on ? new Set(finding.heads.map(([layer, h]) => `${layer}.${h}`)) : null;
    announce(on ? `Showing ${finding.heads.length} heads: ${finding.name}` : "Showing all heads");
    redraw();
  };
  state.clearFilter = () => state.filterIndex !== null && state.toggleFilter(state.filterIndex);
  state.select = (layer, h, scroll = true) => {
    state.selected = [layer, h];
    announce(`${headName(layer, h)} opened`);
    redraw();
    head.show();
    if (scroll) head.node.scrollIntoView({ block: "nearest", behavior: "smooth" });
  };
  state.selected = firstHead(state.scan);
  head.show();
  found.mark();
  return el("div", { class: "page" }, summaryCard(state.scan), el("div", { class: "columns" }, map.node, found.node), head.node);
}

function firstHead(scan) {
  const finding = scan.findings.find((one) => one.heads.length > 0 && /grows/.test(one.name)) ?? scan.findings.find((one) => one.heads.length > 0);
  return finding ? finding.heads[0] : [0, 0];
}

function summaryCard(scan) {
  const facts = [
    `${scan.layers.length} layers × ${Math.max(...scan.layers.map((layer) => layer.heads))} heads`,
    `${count(scan.model.parameters)} parameters`,
    scan.model.trained_length ? `trained at ${whole(scan.model.trained_length)}` : null,
    `${scan.model.dtype} on ${scan.model.device}`,
    `${count(scan.input.tokens)} tokens of ${scan.input.description}`,
    scan.model.note || null,
  ].filter(Boolean);
  const text = el(
    "div",
    { class: "summary-text" },
    el("div", { class: "eyebrow", text: `Attention scan · ${scan.facts.created.slice(0, 10)}` }),
    el("h1", { class: "headline", text: scan.headline }),
    ...scan.sentences.map((sentence) => el("p", { text: sentence })),
    el("div", { class: "chips" }, ...facts.map((fact) => el("span", { class: "chip", text: fact }))),
  );
  return el("section", { class: "card summary", "aria-label": "Summary" }, text, tilesOf(scan.tiles), adviceOf(scan.advice));
}

const tilesOf = (tiles) =>
  el(
    "div",
    { class: "tiles" },
    ...tiles.map((tile) =>
      el("div", { class: "tile" }, el("div", { class: "tile-label", text: tile.label }), el("div", { class: "tile-value", text: tile.value }), el("div", { class: "tile-note", text: tile.note })),
    ),
  );

const adviceOf = (advice) =>
  advice.length
    ? el(
        "div",
        { class: "todo" },
        el("h2", { text: "What to do" }),
        ...advice.map((item) => el("div", {}, el("p", { class: "todo-text", text: item.text }), item.call ? codeBlock(item.call) : null)),
      )
    : null;

function heatmapCard(state) {
  const meaning = el("p", { class: "meaning" });
  const view = viewOf(state);
  const drawn = heatmap(view);
  const update = () => {
    const statistic = state.statisticNow();
    meaning.textContent = `${statistic.formula} — ${statistic.meaning}`;
    drawn.redraw();
  };
  const known = state.statistics.filter((statistic) => state.scan.measures[0]?.statistics[statistic.name]);
  const select = el("select", {
    id: "statistic",
    onchange: (event) => {
      state.statistic = event.target.value;
      update();
    },
  }, ...known.map((statistic) => el("option", { value: statistic.name, text: statistic.label, selected: statistic.name === state.statistic })));
  const lengths = segments("Length", state.scan.lengths.map((length, i) => ({ label: whole(length), value: i })), state.length, (value) => {
    state.length = value;
    state.refresh();
  });
  const modes = comparable(state)
    ? segments("Compare", [{ label: "This", value: "this" }, { label: "Other", value: "other" }, { label: "Difference", value: "difference" }], "this", (value) => {
        state.mode = value;
        update();
      })
    : null;
  const node = el(
    "section",
    { class: "card", "aria-label": "Heads" },
    el("div", { class: "card-head" }, el("div", {}, el("h2", { text: "Every head" }), meaning)),
    el("div", { class: "controls" }, el("label", { class: "field", for: "statistic" }, "Statistic", select), el("div", { class: "field" }, "Length", lengths), modes),
    el("div", { style: "height: 14px" }),
    drawn.node,
  );
  update();
  return { node, update };
}

// What the heatmap draws now: the statistic, at the length, of this scan, the other, or between.
function viewOf(state) {
  const tableOf = (scan, length) => scan.measures[length].statistics[state.statistic];
  const current = () => {
    const statistic = state.statisticNow();
    const lengths = state.scan.lengths.map((_, i) => i);
    const mine = lengths.map((i) => tableOf(state.scan, i));
    const named = { title: statistic.label, low: statistic.low, high: statistic.high };
    if (state.mode === "this") return { ...named, table: mine[state.length], ...colouring(statistic, mine) };
    const theirs = lengths.map((i) => matching(state, i)).filter(Boolean);
    const table = matching(state, state.length);
    if (state.mode === "other") return { ...named, table, ...colouring(statistic, [...mine, ...theirs]) };
    const minus = (a, b) => a.map((row, l) => row.map((value, h) => (value === null || b[l][h] === null ? null : value - b[l][h])));
    const gap = minus(mine[state.length], table);
    return { ...named, title: `${statistic.label}, this − other`, low: "lower here", high: "higher here", table: gap, ...difference([gap]) };
  };
  // The other scan's table at the same length, or at its nearest.
  function matching(now, index) {
    const target = Math.log(now.scan.lengths[index]);
    const gaps = now.other.lengths.map((length) => Math.abs(Math.log(length) - target));
    return tableOf(now.other, gaps.indexOf(Math.min(...gaps)));
  }
  return {
    layers: state.layers,
    current,
    get filter() { return state.filter; },
    get filterName() { return state.filterName; },
    get selected() { return state.selected; },
    clearFilter: () => state.clearFilter(),
    select: (layer, head) => state.select(layer, head),
    findingsOf: state.findingsOf,
  };
}

const comparable = (state) =>
  Boolean(state.other) &&
  state.other.lengths.length > 0 &&
  JSON.stringify(state.other.layers.map((layer) => layer.heads)) === JSON.stringify(state.layers);
