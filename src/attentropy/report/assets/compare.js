// Two scans side by side: before and after, or model against model.

function comparePage(state) {
  const { scan, other } = state;
  const side = (tag, one) =>
    el(
      "section",
      { class: "card" },
      el("div", { class: "eyebrow" }, el("span", { class: "tag", text: tag }), one.model.name),
      el("p", { class: "headline", text: one.headline }),
      tilesOf(one.tiles),
    );
  return el(
    "div",
    { class: "page" },
    el("div", { class: "versus" }, side("A", scan), side("B", other)),
    el(
      "div",
      { class: "two" },
      chartCard("Entropy against length", "Median over heads.", versusChart(scan, other, "nats", (measure) => quantile(measure.statistics.entropy.flat(), 0.5), { min: 0 })),
      chartCard("Text perplexity against length", "Lower is better.", versusChart(scan, other, "perplexity", (measure) => measure.perplexity, { scale: true })),
    ),
    comparable(state)
      ? el("section", { class: "card" }, el("div", { class: "card-head" }, el("div", {}, el("h2", { text: "Heads that differ most" }), el("p", { text: "By entropy, A − B, at the longest length both have. The heatmap's Difference shows all." }))), changesTable(scan, other))
      : el("section", { class: "card" }, el("p", { class: "empty", text: "The two models have different layers and heads, so heads are not compared one by one." })),
  );
}

function versusChart(scan, other, unit, read, range) {
  const lengths = [...new Set([...scan.lengths, ...other.lengths])].sort((a, b) => a - b);
  const points = (one) => one.measures.map((measure) => [Math.log2(measure.length), read(measure)]);
  return plot(() => ({
    xAxis: lengthAxis(lengths),
    yAxis: valueAxis(unit, range),
    tooltip: lineTip((x) => `${whole(Math.round(2 ** x))} tokens`),
    legend: legend(["*A", "*B"]),
    series: [line("A", points(scan), 0, { symbol: "circle", width: 2.5 }), line("B", points(other), 1, { symbol: "diamond", size: 9 })],
  }), 300);
}

function changesTable(scan, other) {
  const length = scan.lengths.filter((one) => other.lengths.includes(one)).pop();
  if (length === undefined) return el("p", { class: "empty", text: "The scans share no length." });
  const of = (one) => one.measures.find((measure) => measure.length === length).statistics.entropy;
  const [a, b] = [of(scan), of(other)];
  const rows = a.flatMap((row, layer) => row.map((value, head) => [layer, head, value, b[layer][head]]));
  rows.sort((x, y) => Math.abs(y[2] - y[3]) - Math.abs(x[2] - x[3]));
  return table(
    ["Head", { number: "A" }, { number: "B" }, { number: "A − B" }],
    rows.slice(0, 12).map(([layer, head, x, y]) => [headName(layer, head), { number: short(x) }, { number: short(y) }, { number: short(x - y) }]),
  );
}
