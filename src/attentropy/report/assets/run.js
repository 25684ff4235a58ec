// A training run: the heatmap moves with the step; curves, loss and alarms share the time axis.

function startRun(payload) {
  const state = runState(payload);
  const page = el("div", { class: "page" });
  const methods = el("div", { class: "page" }, el("section", { class: "card long" }, el("div", { class: "card-head" }, el("h2", { text: "Statistics" })), statisticTable(state.statistics)));
  buildShell(state.run.name, [{ id: "run", title: "Run", node: page }, { id: "methods", title: "Methods", node: methods }]);
  const build = () => page.replaceChildren(runSummary(state), runHeatmap(state), ...runCharts(state));
  build();
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
  const state = { payload, statistic: first?.name, selected: null, filter: null, filterName: "", alarm: null };
  state.take = (fresh) => {
    const atEnd = state.run === undefined || state.step === lastKnown(state.run, state.statistic);
    state.payload = fresh;
    state.run = fresh.run;
    state.statistics = fresh.statistics;
    state.layers = fresh.run.layers.map((layer) => layer.heads);
    if (atEnd) state.step = lastKnown(fresh.run, state.statistic);
  };
  state.take(payload);
  return state;
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
    { label: "Steps", value: whole(run.steps[run.steps.length - 1] ?? 0), note: run.total > run.steps.length ? `${whole(run.total)} samples, shown as ${whole(run.steps.length)} means` : `${whole(run.total)} samples` },
    { label: "Loss", value: losses.length ? short(losses[losses.length - 1][1]) : NONE, note: losses.length && run.losses[run.losses.length - 1][1] === null ? "last finite value" : "last value" },
    { label: "Alarms", value: whole(run.alerts.length), note: run.alerts.length ? `last at step ${whole(run.alerts[run.alerts.length - 1].step)}` : "none rang" },
    ...(run.gaps.length ? [{ label: "Not written", value: whole(run.gaps.length), note: `steps ${run.gaps.map(([first, last]) => `${whole(first)} to ${whole(last)}`).slice(0, 3).join(", ")}` }] : []),
    { label: "Heads", value: whole(state.layers.reduce((sum, heads) => sum + heads, 0)), note: `${run.layers.length} layers` },
  ];
  const text = el(
    "div",
    { class: "summary-text" },
    el("div", { class: "eyebrow", text: `Training run${run.running ? " · running" : ""}${run.started ? ` · ${run.started.slice(0, 10)}` : ""}` }),
    el("h1", { class: "headline", text: run.headline }),
    el("div", { class: "chips" }, el("span", { class: "chip", text: run.name })),
  );
  return el("section", { class: "card summary", "aria-label": "Summary" }, text, tilesOf(tiles));
}

function runHeatmap(state) {
  const run = state.run;
  if (!run.steps.length) return el("section", { class: "card" }, el("p", { class: "empty", text: "No sample has been recorded yet." }));
  const drawn = heatmap(runView(state));
  const output = el("output");
  const slider = el("input", { type: "range", id: "step", min: 0, max: run.steps.length - 1, value: state.step, "aria-label": "Step" });
  state.moveTo = (index) => {
    state.step = index;
    slider.value = index;
    output.textContent = `step ${whole(run.steps[index])}`;
    slider.setAttribute("aria-valuetext", output.textContent);
    drawn.redraw();
  };
  state.redrawMap = drawn.redraw;
  slider.addEventListener("input", () => state.moveTo(Number(slider.value)));
  const select = el("select", { id: "statistic", onchange: (event) => {
    state.statistic = event.target.value;
    drawn.redraw();
    state.redrawCurves?.();
  } }, ...state.statistics.map((one) => el("option", { value: one.name, text: one.label, selected: one.name === state.statistic })));
  const card = el(
    "section",
    { class: "card", "aria-label": "Heads" },
    el("div", { class: "card-head" }, el("div", {}, el("h2", { text: "Every head" }), el("p", { text: "Move the step; choose a head to draw it below." })), el("label", { class: "field", for: "statistic" }, "Statistic", select)),
    el("div", { class: "slider" }, slider, output),
    el("div", { style: "height: 12px" }),
    drawn.node,
  );
  state.moveTo(state.step);
  return el("div", { class: "columns" }, card, alarmsCard(state));
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
    clearFilter: () => chooseAlarm(state, null),
    select: (layer, head) => {
      state.selected = same(state.selected, layer, head) ? null : [layer, head];
      state.redrawMap();
      state.redrawCurves();
    },
    findingsOf: (layer, head) => state.run.alerts.filter((alarm) => alarm.heads.some((pair) => same(pair, layer, head))),
  };
}

function alarmsCard(state) {
  state.alarmButtons = state.run.alerts.map((alarm, index) =>
    el(
      "button",
      { class: "finding", type: "button", "aria-pressed": "false", onclick: () => chooseAlarm(state, state.alarm === index ? null : index) },
      el("div", { class: "finding-top" }, badge(alarm.severity, alarm.severity), el("span", { text: alarm.name }), el("span", { class: "count", text: `step ${whole(alarm.step)}` })),
      el("div", { class: "finding-evidence", text: alarm.text }),
    ),
  );
  const list = state.alarmButtons.length
    ? el("ul", { class: "findings-list" }, ...state.alarmButtons.map((button) => el("li", {}, button)))
    : el("p", { class: "empty", text: "No alarm has rung." });
  return el("section", { class: "card findings", "aria-label": "Alarms" }, el("div", { class: "card-head" }, el("div", {}, el("h2", { text: "Alarms" }), el("p", { text: "Choose one to go to its step and heads." }))), list);
}

function chooseAlarm(state, index) {
  const alarm = index === null ? null : state.run.alerts[index];
  state.alarm = index;
  state.filter = alarm?.heads.length ? new Set(alarm.heads.map(([layer, head]) => `${layer}.${head}`)) : null;
  state.filterName = alarm?.name ?? "";
  state.alarmButtons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
  if (!alarm) return state.redrawMap();
  const gaps = state.run.steps.map((step) => Math.abs(step - alarm.step));
  return state.moveTo(gaps.indexOf(Math.min(...gaps)));
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
    has("max_logit") && state.statistic !== "max_logit" ? chart("Maximum logit", "Growth foretells instability.", () => spreadChart(state, "max_logit")) : null,
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
    data: state.run.alerts.map((alarm) => ({ xAxis: alarm.step, lineStyle: { color: colour[alarm.severity], type: alarm.severity === "critical" ? "solid" : [5, 4], width: 1.5 } })),
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
  const names = ["median", "largest head", "smallest head", ...(chosen ? [chosen] : [])];
  return {
    xAxis: stepAxis(state),
    yAxis: valueAxis(""),
    tooltip: lineTip((x) => `Step ${whole(x)}`),
    legend: legend(names),
    series: [
      line("\u0000low", pairs(steps, low), 0, clear),
      line("\u0000band", pairs(steps, above(high, low)), 0, { ...clear, area: { color: t.band } }),
      line("median", pairs(steps, middle), 0, { width: 2.5, markLine: alarmLines(state) }),
      line("largest head", pairs(steps, top), 1, { width: 1.5 }),
      line("smallest head", pairs(steps, bottom), 3, { width: 1.5 }),
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
    legend: legend(["loss"]),
    series: [line("loss", state.run.losses, 0, { width: 1.8, markLine: alarmLines(state) })],
  };
}
