// Entropy and perplexity against length, before and after calibration.

function lengthPage(state) {
  const scan = state.scan;
  const parts = [
    el(
      "div",
      { class: "two" },
      chartCard("Entropy against length", "Median over heads, with the middle 80 % of heads as a band.", entropyOverLength(scan)),
      scan.measures.some((measure) => measure.perplexity !== null)
        ? chartCard("Text perplexity against length", scan.plan ? "Lower is better. Calibration is tried on the beginnings of the longest windows, before and after." : "exp of the mean loss per token; lower is better.", perplexityOverLength(scan))
        : chartCard("Text perplexity against length", "This model predicts no next token, so it has no perplexity.", el("p", { class: "empty", text: said("Not a causal language model.") })),
    ),
    chartCard("Growth of each head", slopeText(scan), slopeChart(state)),
    el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", { text: said("Lengths") })), lengthTable(scan)),
  ];
  if (scan.plan) parts.splice(1, 0, planCard(scan));
  if (scan.remedies.length) parts.splice(1, 0, remedyCard(scan));
  if (scan.measures.some((measure) => measure.loss_by_position.length)) parts.splice(1, 0, chartCard("Loss by position", lossText(scan), lossByPosition(scan)));
  return el("div", { class: "page" }, ...parts);
}

// A card with a chart that can be saved, unless it is words only.
function chartCard(title, text, content) {
  const save = content.matches(".empty") ? null : saveFigure(content, title);
  return el("section", { class: "card", "aria-label": said(title) }, el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said(title) }), el("p", { text: said(text) })), save), content);
}

function entropyOverLength(scan) {
  const xs = scan.lengths.map(Math.log2);
  const at = (share) => scan.measures.map((measure) => quantile(measure.statistics.entropy.flat(), share));
  const [low, middle, high] = [at(0.1), at(0.5), at(0.9)];
  const calibrated = scan.plan?.effects ?? [];
  const uniform = scan.lengths.map((_, i) => Math.max(...scan.predictions.uniform.map((layer) => layer[i])));
  return plot(() => {
    const t = theme();
    const clear = { colour: "transparent", width: 0, stack: "band", silent: true, z: 1 };
    return {
      xAxis: lengthAxis(scan.lengths),
      yAxis: valueAxis("nats", { min: 0 }),
      tooltip: lineTip((x) => `${whole(Math.round(2 ** x))} tokens`),
      legend: legend([`*${said("median")}`, said("uniform"), ...(calibrated.length ? [said("mean before"), `*${said("mean calibrated")}`] : [])]),
      series: [
        line("\u0000low", pairs(xs, low), 0, clear),
        line("\u0000band", pairs(xs, above(high, low)), 0, { ...clear, area: { color: t.band } }),
        line(said("uniform"), pairs(xs, uniform), 0, { colour: t.muted, dash: "solid", width: 1 }),
        line(said("median"), pairs(xs, middle), 0, { symbol: "circle", width: 2.5, z: 5, markLine: trainedLine(scan.model.trained_length, scan.lengths) }),
        ...(calibrated.length
          ? [
              line(said("mean before"), calibrated.map((row) => [Math.log2(row.length), row.entropy_before]), 1),
              line(said("mean calibrated"), calibrated.map((row) => [Math.log2(row.length), row.entropy_after]), 2, { symbol: "diamond", size: 9, dash: "solid" }),
            ]
          : []),
      ],
    };
  }, 330);
}

function perplexityOverLength(scan) {
  const measured = scan.measures.map((measure) => [Math.log2(measure.length), measure.perplexity]);
  const rows = (scan.plan?.effects ?? []).filter((row) => row.perplexity_after !== null);
  const tried = (name) => rows.map((row) => [Math.log2(row.length), row[name]]);
  const names = ["all windows", ...(rows.length ? ["the same text, before", "the same text, calibrated"] : [])].map((name) => `*${said(name)}`);
  return plot(() => ({
    xAxis: lengthAxis(scan.lengths),
    yAxis: valueAxis("perplexity", { scale: true }),
    tooltip: lineTip((x) => `${whole(Math.round(2 ** x))} tokens`),
    legend: legend(names),
    series: [
      line(said("all windows"), measured, 0, { symbol: "circle", width: rows.length ? 1.5 : 2.5, markLine: trainedLine(scan.model.trained_length, scan.lengths) }),
      ...(rows.length
        ? [
            line(said("the same text, before"), tried("perplexity_before"), 1, { symbol: "rect", width: 2.5 }),
            line(said("the same text, calibrated"), tried("perplexity_after"), 2, { symbol: "diamond", size: 10, width: 2.5, dash: "solid" }),
          ]
        : []),
    ],
  }), 330);
}

function lossText(scan) {
  const beside = scan.verdict?.excess.length ? ` The line of truncation is the same text read with at most ${whole(scan.model.trained_length)} tokens.` : "";
  return `The mean loss of the tokens at each position of their windows, one line for each length: where a line rises, the model breaks.${beside}`;
}

function lossByPosition(scan) {
  const middle = (bucket) => (bucket.start + bucket.stop - 1) / 2;
  const longest = scan.lengths[scan.lengths.length - 1];
  const trained = scan.model.trained_length;
  const excess = scan.verdict?.excess ?? [];
  const known = scan.measures.filter((measure) => measure.loss_by_position.length);
  const last = known.length - 1;
  return plot(() => ({
    xAxis: axis({ label: { formatter: whole }, axis: { type: "value", min: 0, max: longest, name: said("Position (tokens)"), nameLocation: "middle", nameGap: 26 } }),
    yAxis: valueAxis("nats per token", { scale: true }),
    tooltip: lineTip((x) => `position ${whole(Math.round(x))}`),
    legend: legend([...known.map((measure) => `*${whole(measure.length)}`), ...(excess.length ? [said("truncation")] : [])]),
    series: [
      ...known.map((measure, i) =>
        line(whole(measure.length), measure.loss_by_position.map((bucket) => [middle(bucket), bucket.loss]), i, { width: i === last ? 2.5 : 1.25, ...(i === last && trained && trained < longest ? { markLine: trainedAt(trained, trained) } : {}) })),
      ...(excess.length ? [line(said("truncation"), excess.map((part) => [middle(part), part.change.before]), known.length, { dash: "solid", width: 2 })] : []),
    ],
  }), 330);
}

function remedyCard(scan) {
  const rows = scan.remedies.map((one) => [
    said(one.name),
    num(one.change.before),
    num(one.change.after),
    num(one.change.error),
    num(one.perplexity_before),
    num(one.perplexity_after),
    said(one.helps ? "yes" : "no"),
  ]);
  const length = whole(scan.remedies[0].length);
  return el(
    "section",
    { class: "card", "aria-label": said("Remedies") },
    el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Tried remedies") }), el("p", { text: said(`Each was run on the text at ${length} tokens, the best first. One helps if the loss past the trained length falls by more than two standard errors.`) }))),
    table("Tried remedies", [said("Remedy"), ...["Loss before", "after", "Standard error", "Perplexity before", "after"].map((number) => ({ number: said(number) })), said("Helps")], rows),
  );
}

const slopeName = (slope) => said(slope.against === "visible" ? "Slope of H on log visible" : "Slope of H on log n");

function slopeText(scan) {
  const windowed = scan.slopes.flat().some((slope) => slope.against === "visible");
  const window = windowed ? " Diamonds are heads that a window limits: theirs is against the keys that they can see." : "";
  return `Slope of entropy on log n, n the length of the text, head by head: 0 is invariant, 1 spreads over all keys. It describes a head and is not a fault.${window} Choose a point to open its head.`;
}

function slopeChart(state) {
  const points = state.scan.slopes.flatMap((row, layer) =>
    row.map((slope, head) => ({ value: [layer + (row.length > 1 ? (head / (row.length - 1) - 0.5) * 0.5 : 0), slope.value, layer, head], symbol: slope.against === "visible" ? "diamond" : "circle" })).filter((point) => point.value[1] !== null),
  );
  const node = el("div");
  mount(
    node,
    () => {
      const t = theme();
      const guide = (at, text) => ({ yAxis: at, label: { formatter: text, color: t.muted, position: "insideEndTop", fontSize: 11.5 } });
      return {
        grid: { left: 44, right: 18, top: 20, bottom: 44 },
        xAxis: axis({ axis: { type: "value", min: -0.6, max: state.scan.layers.length - 0.4, interval: 1, name: said("Layer"), nameLocation: "middle", nameGap: 26 }, label: { formatter: (value) => (Number.isInteger(value) ? String(value) : ""), customValues: state.layers.map((_, i) => i) } }),
        yAxis: valueAxis("", {}),
        tooltip: tooltip((item) => tip(headName(item.value[2], item.value[3]), [[null, slopeName(state.scan.slopes[item.value[2]][item.value[3]]), short(item.value[1])]]), "item"),
        series: [
          {
            type: "scatter", data: points, symbolSize: 9,
            itemStyle: { color: t.accent, opacity: 0.75, borderColor: t.surface, borderWidth: 1 },
            markLine: { silent: true, symbol: "none", lineStyle: { color: t.muted, type: [4, 4] }, data: [guide(0, said("invariant")), guide(1, said("spreads over all"))] },
          },
        ],
      };
    },
    {
      height: 260,
      ready: (chart, entry) => {
        if (entry.listening) return;
        entry.listening = true;
        chart.on("click", (event) => {
          if (event.componentType !== "series") return;
          document.getElementById("tab-overview").click();
          state.select(event.value[2], event.value[3]);
        });
      },
    },
  );
  return node;
}

function lengthTable(scan) {
  const head = ["Length", "Sequences", "Tokens", "Median entropy", "Normalised", "Perplexity", "Seconds"].map((number) => ({ number: said(number) }));
  const rows = scan.measures.map((measure) => [
    num(measure.length, whole),
    num(measure.sequences, whole),
    num(measure.tokens, whole),
    num(quantile(measure.statistics.entropy.flat(), 0.5)),
    num(quantile(measure.statistics.normalized_entropy.flat(), 0.5)),
    num(measure.perplexity),
    num(measure.seconds),
  ]);
  return table("Lengths", head, rows);
}

function planCard(scan) {
  const found = scan.plan;
  const rows = found.effects.map((row) => [
    whole(row.length),
    num(row.entropy_before),
    num(row.entropy_after),
    num(row.perplexity_before),
    num(row.perplexity_after),
  ]);
  const heads = found.unheld.map((pair) => headText(pair)).join(", ");
  const unheld = heads ? ` ${said(`Heads whose scores have too small a range to be held: ${heads}.`)}` : "";
  return el(
    "section",
    { class: "card", "aria-label": said("Calibration") },
    el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Calibration") }), el("p", { text: said(`Holds each head's ${found.hold} at its value for ${whole(found.reference)} tokens.`) + unheld }))),
    found.call ? codeBlock(found.call) : null,
    table("Calibration", [said("Length"), ...["Entropy before", "after", "Perplexity before", "after"].map((number) => ({ number: said(number) }))], rows),
  );
}
