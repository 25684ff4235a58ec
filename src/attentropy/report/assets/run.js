// A training run: the heatmap moves with the step; curves, loss and alarms share the time axis.

function startRun(payload) {
  const state = runState(payload);
  const page = el("div", { class: "page" });
  const methods = el("div", { class: "page" }, el("section", { class: "card long" }, el("div", { class: "card-head" }, el("h2", { text: said("Statistics") })), statisticTable(state.statistics)));
  buildShell(state.run.name, [{ id: "run", title: "Run", node: page }, { id: "methods", title: "Methods", node: methods }]);
  const build = () => page.replaceChildren(runSummary(state), runHeatmap(state), ...runCharts(state));
  build();
  runChoices(state);
  poll((fresh) => {
    if (JSON.stringify(fresh.run) === JSON.stringify(state.run)) return;
    state.take(fresh);
    const [x, y] = [scrollX, scrollY];
    build();
    scrollTo(x, y);
  });
}

function runState(payload) {
  const first = payload.statistics.find((one) => one.name === "normalized_entropy") ?? payload.statistics[0];
  const state = {
    payload, statistic: first?.name, selected: null, alarm: null, search: "",
    get filter() { return runFilter(state); },
    get filterName() { return [said(state.run.episodes[state.alarm]?.name), state.search.trim() && `“${state.search.trim()}”`].filter(Boolean).join(", "); },
  };
  state.take = (fresh) => {
    const atEnd = state.run === undefined || state.atEnd();
    state.payload = fresh;
    state.run = fresh.run;
    state.statistics = fresh.statistics;
    state.layers = fresh.run.layers.map((layer) => layer.heads);
    if (atEnd) state.step = lastKnown(fresh.run, state.statistic);
  };
  state.atEnd = () => state.step === lastKnown(state.run, state.statistic);
  state.take(payload);
  return state;
}

function runFilter(state) {
  const heads = state.run.episodes[state.alarm]?.heads ?? [];
  const sets = [];
  if (heads.length) sets.push(new Set(heads.map(headText)));
  if (state.search.trim()) sets.push(new Set(findHeads(state.search, state.run.layers).map(headText)));
  return sets.length ? new Set([...sets[0]].filter((head) => sets.every((one) => one.has(head)))) : null;
}

function runChoices(state) {
  if (!state.run.steps.length) return;
  const steps = () => state.run.steps.map(String);
  const newest = String(state.run.steps[state.step]);
  inAddress("statistic", () => state.statistic, (text) => state.statistics.some((one) => one.name === text) && state.choose({ statistic: text }));
  inAddress("alarm", () => String(state.alarm ?? ""), (text) => chooseAlarm(state, state.run.episodes[text] ? Number(text) : null));
  inAddress("step", () => (state.atEnd() ? newest : steps()[state.step]), (text) => state.choose({ step: steps().includes(text) ? steps().indexOf(text) : lastKnown(state.run, state.statistic) }));
  inAddress("head", () => headText(state.selected), (text) => state.choose({ selected: headOf(text, state.layers) }));
  inAddress("search", () => state.search, (text) => state.choose({ search: text }));
}

// The newest step that has a number at all: a run that broke is shown as it last was.
function lastKnown(run, key) {
  const tables = run.metrics[key] ?? [];
  const known = tables.findLastIndex((table) => table.flat().some((value) => value !== null));
  return known >= 0 ? known : run.steps.length - 1;
}

function runSummary(state) {
  const run = state.run;
  const losses = run.losses.filter((point) => point[1] !== null);
  const tiles = [
    { label: "Steps", value: whole(run.steps[run.steps.length - 1] ?? 0), note: run.total > run.steps.length ? `${whole(run.total)} samples, shown as ${whole(run.steps.length)} means` : plural(run.total, "sample") },
    { label: "Loss", value: losses.length ? short(losses[losses.length - 1][1]) : NONE, note: losses.length && run.losses[run.losses.length - 1][1] === null ? "last finite value" : "last value" },
    { label: "Alarms", value: whole(run.episodes.length), note: run.alerts.length ? `last at step ${whole(run.alerts[run.alerts.length - 1].step)}` : "none rang" },
    ...(run.gaps.length ? [{ label: "Not written", value: whole(run.gaps.length), note: `steps ${run.gaps.map(([first, last]) => `${whole(first)} to ${whole(last)}`).slice(0, 3).join(", ")}` }] : []),
    { label: "Heads", value: whole(state.layers.reduce((sum, heads) => sum + heads, 0)), note: plural(run.layers.length, "layer") },
  ];
  const text = el(
    "div",
    { class: "summary-text" },
    el("div", { class: "eyebrow", text: [said("Training run"), run.running ? said("running") : "", (run.started ?? "").slice(0, 10)].filter(Boolean).join(" · ") }),
    el("h1", { class: "headline", text: said(run.headline) }),
    el("div", { class: "chips" }, el("span", { class: "chip", text: run.name })),
  );
  return el("section", { class: "card summary", "aria-label": said("Summary") }, text, tilesOf(tiles));
}

function runHeatmap(state) {
  const run = state.run;
  if (!run.steps.length) return el("section", { class: "card" }, el("p", { class: "empty", text: said("No sample has been recorded yet.") }));
  const drawn = heatmap(runView(state));
  const alarms = alarmsCard(state);
  const output = el("output");
  const slider = el("input", { type: "range", id: "step", min: 0, max: run.steps.length - 1, value: state.step, "aria-label": said("Step") });
  slider.addEventListener("input", () => state.choose({ step: Number(slider.value) }, { replace: true }));
  const statistic = menu("statistic", state.statistics.map((one) => [one.name, one.label]), state.statistic, (value) => state.choose({ statistic: value }));
  const search = searchField("search", () => state.search, {
    search: (text) => state.choose({ search: text }, { replace: true }),
    open: () => state.choose({ selected: findHeads(state.search, run.layers)[0] ?? state.selected }),
  });
  const show = () => {
    slider.value = state.step;
    output.textContent = said(`step ${whole(run.steps[state.step])}`);
    slider.setAttribute("aria-valuetext", output.textContent);
    statistic.value = state.statistic;
    search.show();
    alarms.mark();
    drawn.redraw();
  };
  state.choose = (change, options) => {
    Object.assign(state, change);
    show();
    if ("statistic" in change || "selected" in change) state.redrawCurves?.();
    noteChoices(options);
  };
  const card = el(
    "section",
    { class: "card", "aria-label": said("Heads") },
    el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Every head") }), el("p", { text: said("Move the step; choose a head to draw it below.") }))),
    el("div", { class: "controls" }, field("Statistic", statistic), search.node),
    el("div", { class: "slider" }, slider, output),
    el("div", { style: "height: 12px" }),
    drawn.node,
  );
  show();
  return el("div", { class: "columns" }, card, alarms.node);
}

function runView(state) {
  return {
    layers: state.layers,
    current: () => {
      const statistic = state.statistics.find((one) => one.name === state.statistic);
      const tables = state.run.metrics[state.statistic];
      return { title: statistic.label, low: statistic.low, high: statistic.high, table: tables[state.step], ...colouring(statistic, tables) };
    },
    get filter() { return state.filter; },
    get filterName() { return state.filterName; },
    get selected() { return state.selected; },
    clearFilter: () => state.choose({ alarm: null, search: "" }),
    select: (layer, head) => state.choose({ selected: same(state.selected, layer, head) ? null : [layer, head] }),
    findingsOf: (layer, head) => state.run.episodes.filter((alarm) => alarm.heads.some((pair) => same(pair, layer, head))),
  };
}

function alarmsCard(state) {
  const when = (one) => said(one.first === one.last ? `step ${whole(one.first)}` : `steps ${whole(one.first)}–${whole(one.last)}`);
  const buttons = state.run.episodes.map((one, index) =>
    el(
      "button",
      { class: "finding", type: "button", onclick: () => chooseAlarm(state, state.alarm === index ? null : index) },
      el("div", { class: "finding-top" }, badge(one.severity, one.severity), el("span", { text: said(one.name) }), el("span", { class: "count", text: when(one) })),
      el("div", { class: "finding-evidence", text: said(one.text) }),
    ),
  );
  const list = buttons.length
    ? el("ul", { class: "findings-list", tabindex: "0", "aria-label": said("Alarms") }, ...buttons.map((button, index) => el("li", {}, button, explainLink(state.run.episodes[index].name))))
    : el("p", { class: "empty", text: said("No alarm has rung.") });
  const node = el("section", { class: "card findings", "aria-label": said("Alarms") }, el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Alarms") }), el("p", { text: said("Choose one to go to its step and heads.") }))), list);
  return { node, mark: () => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === state.alarm))) };
}

// An alarm, and the step at which it first rang.
function chooseAlarm(state, index) {
  const alarm = state.run.episodes[index];
  const gaps = state.run.steps.map((step) => Math.abs(step - (alarm?.first ?? 0)));
  state.choose(alarm ? { alarm: index, step: gaps.indexOf(Math.min(...gaps)) } : { alarm: null });
}

function runCharts(state) {
  if (!state.run.steps.length) return [];
  const redraws = [];
  const chart = (title, text, build) => {
    const node = el("div");
    redraws.push(mount(node, (width) => {
      const option = build();
      return { grid: { left: 52, right: 20, top: 26, bottom: belowPlot(option, width) }, ...option };
    }, { height: 270 }).redraw);
    return chartCard(title, text, node);
  };
  state.redrawCurves = () => redraws.forEach((redraw) => redraw());
  const has = (key) => Boolean(state.run.metrics[key]);
  const cards = [
    chart("The chosen statistic", "Median over heads, and the middle 80 % as a band.", () => spreadChart(state, state.statistic)),
    has("max_logit") && state.statistic !== "max_logit" ? chart("Maximum logit", "Growth often comes before instability.", () => spreadChart(state, "max_logit")) : null,
    has("entropy") ? chart("Entropy", "Median over heads, and the middle 80 % as a band.", () => spreadChart(state, "entropy")) : null,
    state.run.losses.length ? chart("Loss", "As given to the monitor.", () => lossChart(state)) : null,
  ];
  return [el("div", { class: "two" }, ...cards.filter(Boolean))];
}

const stepAxis = (state) =>
  positionAxis("Step", { min: state.run.steps[0], max: Math.max(state.run.steps[state.run.steps.length - 1], ...state.run.losses.map((point) => point[0])) });

function alarmLines(state) {
  const t = theme();
  const colour = { critical: t.series[1], warning: t.series[4], note: t.muted };
  return {
    silent: true, symbol: "none", label: { show: false },
    data: state.run.episodes.map((alarm) => ({ xAxis: alarm.first, lineStyle: { color: colour[alarm.severity], type: alarm.severity === "critical" ? "solid" : [5, 4], width: 1.5 } })),
  };
}

function spreadChart(state, key) {
  const steps = state.run.steps;
  const tables = state.run.metrics[key].map((table) => table.flat());
  const at = (share) => tables.map((numbers) => quantile(numbers, share));
  const [low, middle, high] = [at(0.1), at(0.5), at(0.9)];
  const [bottom, top] = [state.run.lows[key], state.run.highs[key]]; // of every sample, also of those taken together
  const t = theme();
  const clear = { colour: "transparent", width: 0, stack: "band", silent: true, z: 1 };
  const chosen = state.selected && headName(...state.selected);
  const names = [...["median", "largest head", "smallest head"].map(said), ...(chosen ? [chosen] : [])];
  return {
    xAxis: stepAxis(state),
    yAxis: valueAxis(""),
    tooltip: lineTip((x) => `Step ${whole(x)}`),
    legend: legend(names),
    series: [
      line("\u0000low", pairs(steps, low), 0, clear),
      line("\u0000band", pairs(steps, above(high, low)), 0, { ...clear, area: { color: t.band } }),
      line(said("median"), pairs(steps, middle), 0, { width: 2.5, markLine: alarmLines(state) }),
      line(said("largest head"), pairs(steps, top), 1, { width: 1.5 }),
      line(said("smallest head"), pairs(steps, bottom), 3, { width: 1.5 }),
      ...(chosen ? [line(chosen, pairs(steps, state.run.metrics[key].map((table) => table[state.selected[0]][state.selected[1]])), 2, { dash: "solid", z: 6 })] : []),
    ],
  };
}

function lossChart(state) {
  const known = state.run.losses.map((point) => point[1]).filter((loss) => loss !== null);
  const exploded = Math.min(...known) > 0 && Math.max(...known) > 100 * Math.min(...known);
  return {
    xAxis: stepAxis(state),
    yAxis: valueAxis("", exploded ? { type: "log" } : { scale: true }),
    tooltip: lineTip((x) => `Step ${whole(x)}`),
    legend: legend([said("loss")]),
    series: [line(said("loss"), state.run.losses, 0, { width: 1.8, markLine: alarmLines(state) })],
  };
}
