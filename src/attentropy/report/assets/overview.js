// The first page: summary, heatmap, findings, the chosen head.

function scanState(payload) {
  const scan = payload.scan;
  const state = {
    payload, scan, other: payload.other, statistics: payload.statistics,
    statistic: "normalized_entropy", length: scan.home, mode: "this",
    selected: firstHead(scan), filterIndex: null, only: { search: "", low: "", high: "" },
    sort: "", listed: false,
    layers: scan.layers.map((layer) => layer.heads),
    get filter() { return filtered(state); },
    get filterName() { return filterNames(state); },
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
  state.numbers = (name = state.statistic) => scan.measures[state.length].statistics[name];
  state.known = () => state.statistics.filter((one) => scan.measures[0]?.statistics[one.name]?.some((row) => row.some((value) => value !== null)));
  return state;
}

function overviewPage(state) {
  const map = heatmapCard(state);
  const found = findingsCard(state);
  const head = profile(state);
  // Everything that changes goes through here, so that the page and its address follow.
  const change = (changes, { replace = false } = {}) => {
    Object.assign(state, changes);
    state.refresh();
    noteChoices({ replace });
  };
  state.change = change;
  let profiled = "";
  state.refresh = () => {
    map.update();
    found.mark();
    const now = `${state.selected} ${state.length}`;
    if (now !== profiled) head.show();
    profiled = now;
  };
  state.toggleFilter = (index) => {
    const finding = state.scan.findings[index];
    const on = state.filterIndex !== index;
    announce(on ? `Showing ${plural(finding.heads.length, "head")}: ${finding.name}` : "Showing all heads");
    change({ filterIndex: on ? index : null });
  };
  state.clearFilter = () => change({ filterIndex: null, only: { search: "", low: "", high: "" } });
  state.limit = (name, text) => change({ only: { ...state.only, [name]: text } }, { replace: true });
  state.sortBy = (sort) => change({ sort });
  state.select = (layer, h, scroll = true) => {
    announce(`${headName(layer, h)} opened`);
    change({ selected: [layer, h] });
    if (scroll) head.node.scrollIntoView({ block: "nearest", behavior: "smooth" });
  };
  scanChoices(state);
  state.refresh();
  return el("div", { class: "page" }, summaryCard(state.scan), el("div", { class: "columns" }, map.node, found.node), head.node);
}

function scanChoices(state) {
  const kept = (name, read, parse) => inAddress(name, read, (text) => {
    const parsed = parse(text);
    if (parsed !== undefined) state.change(parsed);
  });
  const known = state.known().map((one) => one.name);
  const lengths = state.scan.lengths.map(String);
  kept("statistic", () => state.statistic, (text) => (known.includes(text) ? { statistic: text } : undefined));
  kept("length", () => lengths[state.length] ?? "", (text) => (lengths.includes(text) ? { length: lengths.indexOf(text) } : undefined));
  kept("show", () => state.mode, (text) => (comparable(state) && ["this", "other", "difference"].includes(text) ? { mode: text } : undefined));
  kept("head", () => headText(state.selected), (text) => {
    const pair = headOf(text, state.layers);
    return pair ? { selected: pair } : undefined;
  });
  const findings = state.scan.findings.map((finding) => finding.name);
  kept("finding", () => findings[state.filterIndex] ?? "", (text) => ({ filterIndex: findings.includes(text) ? findings.indexOf(text) : null }));
  for (const name of ["search", "low", "high"]) kept(name, () => state.only[name], (text) => ({ only: { ...state.only, [name]: text } }));
  kept("sort", () => state.sort, (text) => (text === "" || known.includes(text.replace(/^-/, "")) ? { sort: text } : undefined));
  kept("heads", () => (state.listed ? "table" : ""), (text) => ({ listed: text === "table" }));
}

function firstHead(scan) {
  const finding = scan.findings.find((one) => one.heads.length > 0 && /grows/.test(one.name)) ?? scan.findings.find((one) => one.heads.length > 0);
  return finding ? finding.heads[0] : [0, 0];
}

function summaryCard(scan) {
  const facts = [
    `${plural(scan.layers.length, "layer")} × ${plural(Math.max(...scan.layers.map((layer) => layer.heads)), "head")}`,
    said(`${count(scan.model.parameters)} parameters`),
    scan.model.trained_length ? said(`trained at ${whole(scan.model.trained_length)}`) : null,
    said(`${scan.model.dtype} on ${scan.model.device}`),
    said(`${count(scan.input.tokens)} tokens of ${said(scan.input.description)}`),
    said(scan.model.note) || null,
  ].filter(Boolean);
  const text = el(
    "div",
    { class: "summary-text" },
    el("div", { class: "eyebrow", text: said(`Attention scan · ${scan.facts.created.slice(0, 10)}`) }),
    el("h1", { class: "headline", text: said(scan.headline) }),
    ...scan.sentences.map((sentence) => el("p", { text: said(sentence) })),
    el("div", { class: "chips" }, ...facts.map((fact) => el("span", { class: "chip", text: fact }))),
  );
  return el("section", { class: "card summary", "aria-label": said("Summary") }, text, tilesOf(scan.tiles), adviceOf(scan.advice));
}

const tilesOf = (tiles) =>
  el(
    "div",
    { class: "tiles" },
    ...tiles.map((tile) =>
      el("div", { class: "tile" }, el("div", { class: "tile-label", text: said(tile.label) }), el("div", { class: "tile-value", text: tile.value }), el("div", { class: "tile-note", text: said(tile.note) })),
    ),
  );

const adviceOf = (advice) =>
  advice.length
    ? el(
        "div",
        { class: "todo" },
        el("h2", { text: said("What to do") }),
        ...advice.slice(0, 2).map((item) => el("div", {}, el("p", { class: "todo-text", text: said(item.text) }), item.call ? codeBlock(item.call) : null)),
      )
    : null;

function heatmapCard(state) {
  const meaning = el("p", { class: "meaning" });
  const drawn = heatmap(viewOf(state));
  const heads = headsTable(state);
  const statistic = menu("statistic", state.known().map((one) => [one.name, one.label]), state.statistic, (value) => state.change({ statistic: value }));
  const lengths = segments("Length", state.scan.lengths.map((length, i) => ({ label: whole(length), value: i })), state.length, (value) => state.change({ length: value }));
  const modes = comparable(state)
    ? segments("Compare", [{ label: state.scan.name, value: "this" }, { label: state.other.name, value: "other" }, { label: said("Difference"), value: "difference" }], state.mode, (value) => state.change({ mode: value }))
    : null;
  const search = searchField("search", () => state.only.search, {
    search: (text) => state.limit("search", text),
    open: () => {
      const [first] = findHeads(state.only.search, state.scan.layers);
      if (first) state.select(...first);
    },
  });
  const range = rangeFields((side) => state.only[side], (side, text) => state.limit(side, text));
  const update = () => {
    const one = state.statisticNow();
    meaning.textContent = `${one.formula} — ${one.meaning}`;;
    statistic.value = state.statistic;
    lengths.mark(state.length);
    modes?.mark(state.mode);
    search.show();
    range.show();
    drawn.redraw();
    heads.update();
  };
  const node = el(
    "section",
    { class: "card", "aria-label": said("Heads") },
    el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Every head") }), meaning)),
    el("div", { class: "controls" }, field("Statistic", statistic), el("div", { class: "field" }, said("Length"), lengths), modes, search.node, range.node),
    el("div", { style: "height: 14px" }),
    drawn.node,
    heads.node,
  );
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
    if (state.mode === "other") return { ...named, title: `${statistic.label}, ${state.other.name}`, table, ...colouring(statistic, [...mine, ...theirs]) };
    const gap = changeOf(table, mine[state.length]);
    return { ...named, title: `${statistic.label}, ${state.scan.name} − ${state.other.name}`, low: said("lower"), high: said("higher"), table: gap, ...difference([gap]) };
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
