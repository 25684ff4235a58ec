// One head: its numbers, entropy and distance along the text, entropy against length, its map.

function profile(state) {
  const node = el("section", { class: "card", id: "profile", "aria-label": said("Head profile"), tabindex: "-1" });
  const self = { node, map: null };

  self.show = () => {
    const [layer, head] = state.selected;
    const scan = state.scan;
    const measure = scan.measures[state.length];
    self.map = null;
    node.replaceChildren(
      el("div", { class: "card-head" }, title(layer, head), steps(layer, head)),
      values(measure, layer, head),
      el(
        "div",
        { class: "profile-grid" },
        figure("Entropy along the text", `By query position at length ${whole(measure.length)}; the band runs from one-hot (0) to uniform (log n).`, positionChart(scan, measure, layer, head)),
        figure("Entropy against length", "Measured, predicted from the spread of the scores, and under each scale rule.", lengthChart(scan, layer, head)),
        figure("Attended distance", `Mean distance of the keys looked at, at length ${whole(measure.length)}.`, distanceChart(scan, measure, layer, head)),
        mapFigure(scan, layer, head),
      ),
    );
  };

  function title(layer, head) {
    const badges = state.findingsOf(layer, head).map((finding) => badge(finding.severity, finding.name));
    return el(
      "div",
      {},
      el("div", { class: "profile-title" }, el("h2", { id: "profile-title", text: headName(layer, head) }), el("span", { class: "module", text: state.scan.layers[layer].name })),
      badges.length ? el("div", { class: "profile-badges" }, ...badges) : null,
    );
  }

  function steps(layer, head) {
    const move = (by) => {
      const all = state.scan.layers.flatMap((part, l) => [...Array(part.heads).keys()].map((h) => [l, h]));
      const kept = state.filter ? all.filter(([l, h]) => state.filter.has(`${l}.${h}`)) : all;
      const now = kept.findIndex(([l, h]) => l === layer && h === head);
      state.select(...kept[(now + by + kept.length) % kept.length], false);
    };
    const button = (label, path, by) =>
      el("button", { class: "icon-button", type: "button", title: said(label), "aria-label": said(label), onclick: () => move(by) }, icon(stroke(path)));
    return el("div", { class: "steps" }, button("Previous head", "M15 5l-7 7 7 7", -1), button("Next head", "M9 5l7 7-7 7", 1));
  }

  function values(measure, layer, head) {
    const slope = state.scan.slopes[layer][head];
    const cells = state.statistics
      .filter((statistic) => statistic.shown && statistic.name !== "slope" && measure.statistics[statistic.name])
      .map((statistic) => value(statistic.label, measure.statistics[statistic.name][layer][head], statistic.unit, statistic.meaning));
    return el("dl", { class: "values" }, ...cells, value(slopeName(slope), slope.value, "", said("0 is invariant, 1 spreads over all keys")));
  }

  const value = (label, number, unit, meaning) =>
    el("div", { class: "value", title: meaning }, el("dt", { text: label }), el("dd", {}, short(number), el("small", { text: unit ? ` ${unit}` : "" })));

  function mapFigure(scan, layer, head) {
    const key = `${layer}.${head}`;
    if (!scan.maps?.data[key]) return figure("Attention map", "Not kept for this head.", el("p", { class: "empty", text: said("Only the maps that fit a small page are kept, heads with findings first.") }));
    self.map = attentionMap(scan.maps, key);
    return figure("Attention map", "", self.map.node);
  }

  themeState.listeners.push(() => self.map?.paint());
  return self;
}

// A figure that can be saved, unless it is words only.
function figure(title, text, content, about = title) {
  const save = content.matches(".empty") ? null : saveFigure(content, about);
  return el("figure", { class: "figure" }, el("figcaption", {}, el("div", {}, el("h3", { text: said(title) }), text ? el("p", { text: said(text) }) : null), save), content);
}

const plot = (build, height = 290) => livePlot(build, height).node;

// A plot whose data may change: `redraw` asks `build` again.
function livePlot(build, height) {
  const node = el("div");
  const option = (width) => {
    const built = build();
    return { grid: { left: 52, right: 18, top: 26, bottom: belowPlot(built, width) }, ...built };
  };
  return { node, redraw: mount(node, option, { height }).redraw };
}

const pairs = (xs, ys) => xs.map((x, i) => [x, ys[i]]);

function positionChart(scan, measure, layer, head) {
  const { positions, visible, entropy } = measure.profiles[layer];
  const most = visible.map((n) => Math.log(Math.max(n, 1)));
  return plot(() => {
    const t = theme();
    return {
      xAxis: positionAxis("Query position"),
      yAxis: valueAxis("nats", { min: 0 }),
      tooltip: lineTip((x) => `Position ${whole(Math.round(x))}`),
      legend: legend(["this head", "uniform (log n)", "random scores, spread 1"].map(said)),
      series: [
        line(said("uniform (log n)"), pairs(positions, most), 0, { colour: t.muted, dash: "solid", width: 1, z: 1, area: { color: t.band } }),
        line(said("random scores, spread 1"), pairs(positions, most.map((h) => Math.max(0, h - 0.5))), 1, { width: 1.5, z: 2 }),
        line(said("this head"), pairs(positions, entropy[head]), 0, { width: 2.5, z: 4 }),
      ],
    };
  });
}

function distanceChart(scan, measure, layer, head) {
  const { positions, visible, distance } = measure.profiles[layer];
  return plot(() => ({
    xAxis: positionAxis("Query position"),
    yAxis: valueAxis("tokens", { min: 0 }),
    tooltip: lineTip((x) => `Position ${whole(Math.round(x))}`),
    legend: legend(["this head", "uniform attention"].map(said)),
    series: [
      line(said("uniform attention"), pairs(positions, visible.map((seen, i) => uniformDistance(positions[i], seen ?? 1, scan.layers[layer].causal))), 1, { colour: theme().muted, width: 1.5, z: 1 }),
      line(said("this head"), pairs(positions, distance[head]), 0, { width: 2.5 }),
    ],
  }));
}

// Mean |i - j| over n keys: the last n up to the query, or all of a text of n.
const uniformDistance = (i, n, causal) => (causal ? (n - 1) / 2 : (i * (i + 1) + (n - 1 - i) * (n - i)) / (2 * n));

function lengthChart(scan, layer, head) {
  const xs = scan.lengths.map(Math.log2);
  const measured = scan.measures.map((measure) => measure.statistics.entropy[layer][head]);
  const rules = scan.predictions.rules.map(said);
  const curves = scan.predictions.curves[layer][head];
  return plot(() => ({
    xAxis: lengthAxis(scan.lengths),
    yAxis: valueAxis("nats", { min: 0 }),
    tooltip: lineTip((x) => `${whole(Math.round(2 ** x))} tokens`),
    legend: legend([`*${said("measured")}`, ...rules, said("uniform")]),
    series: [
      line(said("uniform"), pairs(xs, scan.predictions.uniform[layer]), 0, { colour: theme().muted, dash: "solid", width: 1, z: 1, area: { color: theme().band } }),
      ...rules.map((rule, i) => line(rule, pairs(xs, curves[i]), i + 1)),
      line(said("measured"), pairs(xs, measured), 0, { symbol: "circle", width: 2.5, z: 5, markLine: trainedLine(scan.model.trained_length, scan.lengths) }),
    ],
  }));
}
