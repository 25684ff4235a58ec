// Every chart is a function of the theme that gives an ECharts option; this file keeps them alive.

const PRINT_WIDTH = 690; // CSS pixels between the margins of A4
const PRINT_HEIGHT = 0.72; // of the height on screen
const registry = new Set();
let printing = false;

// Draw `build()` into `node` whenever it is shown, resized or the theme changes.
function mount(node, build, { height = 260, ready = null } = {}) {
  sweep();
  const entry = { node, build, ready, height, chart: null, width: 0 };
  node.classList.add("chart");
  registry.add(entry);
  new ResizeObserver(() => draw(entry)).observe(node);
  return { redraw: () => draw(entry, true), entry };
}

function draw(entry, force = false) {
  const width = entry.printWidth ?? entry.node.clientWidth;
  if (!entry.node.isConnected || width === 0) return;
  if (!force && width === entry.width && entry.chart) return;
  entry.width = width;
  const height = typeof entry.height === "function" ? entry.height(width) : entry.height * (printing ? PRINT_HEIGHT : 1);
  entry.node.style.height = `${height}px`;
  entry.chart ??= echarts.init(entry.node, null, { renderer: "svg", width, height });
  entry.chart.resize({ width, height });
  const base = { animation: false, textStyle: { fontFamily: getComputedStyle(document.body).fontFamily } };
  entry.chart.setOption({ ...base, ...entry.build(width, height) }, { notMerge: true });
  entry.ready?.(entry.chart, entry);
}

// Let go of charts whose part of the page was replaced.
function sweep() {
  for (const entry of registry) {
    if (!entry.chart || entry.node.isConnected) continue;
    entry.chart.dispose();
    registry.delete(entry);
  }
}

const redrawAll = () => registry.forEach((entry) => draw(entry, true));

function fitForPrint() {
  printing = true;
  for (const entry of registry) {
    const half = entry.node.closest(".two, .profile-grid, .versus");
    entry.printWidth = half ? PRINT_WIDTH / 2 - 40 : PRINT_WIDTH - 30;
    draw(entry, true);
  }
}

function fitForScreen() {
  printing = false;
  for (const entry of registry) {
    entry.printWidth = undefined;
    draw(entry, true);
  }
}

function axis(extra = {}) {
  const t = theme();
  return {
    axisLine: { show: true, lineStyle: { color: t.line } },
    axisTick: { show: false },
    axisLabel: { color: t.muted, fontSize: 12, formatter: tick, hideOverlap: true, ...extra.label },
    splitLine: { show: extra.split ?? false, lineStyle: { color: t.grid } },
    nameTextStyle: { color: t.muted, fontSize: 12 },
    ...extra.axis,
  };
}

const valueAxis = (name, more = {}) =>
  axis({
    split: true,
    axis: { type: "value", name: said(name), nameLocation: "end", nameGap: 12, nameTextStyle: { color: theme().muted, align: "left", fontSize: 12 }, axisLine: { show: false }, ...more },
  });

const positionAxis = (name, more = {}) =>
  axis({ axis: { type: "value", name: said(name), nameLocation: "middle", nameGap: 26, min: 0, max: "dataMax", ...more }, label: { formatter: whole } });

// Lengths on a logarithmic axis whose ticks are exactly the lengths measured.
function lengthAxis(lengths) {
  const ticks = lengths.map((length) => Math.log2(length));
  const label = { formatter: (value) => whole(Math.round(2 ** value)), customValues: ticks };
  return axis({
    label,
    axis: {
      type: "value", name: said("Length n (tokens, log scale)"), nameLocation: "middle", nameGap: 26,
      min: ticks[0], max: ticks.length > 1 ? ticks[ticks.length - 1] : ticks[0] + 1,
      axisTick: { show: true, customValues: ticks, lineStyle: { color: theme().line } },
    },
  });
}

function trainedLine(trained, lengths) {
  const inside = trained && trained > lengths[0] && trained <= lengths[lengths.length - 1];
  return inside ? trainedAt(trained, Math.log2(trained)) : undefined;
}

function trainedAt(trained, x) {
  const t = theme();
  return {
    silent: true, symbol: "none",
    lineStyle: { color: t.muted, type: [2, 3], width: 1 },
    label: { formatter: said(`trained at ${whole(trained)}`), color: t.muted, fontSize: 11.5, position: "end", rotate: 0 },
    data: [{ xAxis: x }],
  };
}

function tip(title, rows) {
  return el(
    "div",
    { class: "tip" },
    el("div", { class: "tip-title", text: title }),
    ...rows.map(([colour, label, value]) => {
      const dot = el("span", { class: "tip-dot" });
      if (colour) dot.style.background = colour;
      return el("div", { class: "tip-row" }, colour ? dot : null, el("span", { text: label }), el("b", { text: value }));
    }),
  );
}

function tooltip(format, trigger = "axis") {
  const t = theme();
  return {
    trigger, confine: true, backgroundColor: t.surface, borderColor: t.line, borderWidth: 1,
    padding: [8, 12], textStyle: { color: t.ink, fontSize: 13 }, transitionDuration: 0,
    axisPointer: { type: "line", lineStyle: { color: t.muted, type: "dashed" } },
    formatter: format,
  };
}

// The tooltip of line charts: one row per named series.
const lineTip = (title) =>
  tooltip((items) =>
    tip(
      said(title(items[0].value[0])),
      items.filter((item) => !item.seriesName.startsWith("\u0000")).map((item) => [item.color, item.seriesName, short(item.value[1])]),
    ),
  );

// A name that starts with "*" has markers on its line.
const legend = (names) => ({
  data: names.map((name) => (name.startsWith("*") ? { name: name.slice(1) } : { name, itemStyle: { opacity: 0 } })),
  bottom: 0, left: 0, itemWidth: 26, itemHeight: 9, itemGap: 16,
  textStyle: { color: theme().soft, fontSize: 12 }, inactiveColor: theme().line,
});

// The pixels below a plot of this width: labels and name of the axis, and the lines of the legend.
const belowPlot = (option, width) => 43 + 28 * legendLines(option, width);

function legendLines(option, width) {
  let [lines, used] = [1, 0];
  for (const { name } of option.legend?.data ?? []) {
    const size = 48 + pixels(name);
    if (used > 0 && used + size > width) [lines, used] = [lines + 1, 0];
    used += size;
  }
  return lines;
}

// The height of a band over its lower edge; a gap where either is missing.
const above = (high, low) => high.map((value, i) => (value === null || low[i] === null ? null : value - low[i]));

const DASHES = ["solid", [6, 4], [2, 3], [10, 4, 2, 4], [12, 5]];

function line(name, points, order, more = {}) {
  const colour = more.colour ?? theme().series[order % 5];
  return {
    name, type: "line", data: points, symbol: more.symbol ?? "none", symbolSize: more.size ?? 7,
    connectNulls: true, z: more.z ?? 3,
    lineStyle: { color: colour, width: more.width ?? 2, type: more.dash ?? DASHES[order % 5] },
    itemStyle: { color: colour }, areaStyle: more.area, markLine: more.markLine, stack: more.stack,
    emphasis: { disabled: true }, silent: more.silent,
  };
}
