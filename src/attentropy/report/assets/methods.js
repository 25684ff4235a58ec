// Every formula, and the exact call that made these numbers.

function methodsPage(state) {
  const { scan } = state;
  const facts = el("dl", { class: "facts" });
  const fact = (name, value) => value !== null && value !== undefined && value !== "" && facts.append(el("dt", { text: said(name) }), el("dd", { text: value }));
  fact("Model", `${scan.model.name} (${scan.model.architecture}, ${scan.model.kind})`);
  fact("Source", scan.model.source);
  fact("Parameters", whole(scan.model.parameters));
  fact("Trained length", scan.model.trained_length && whole(scan.model.trained_length));
  fact("Longest input", scan.model.maximum_length && whole(scan.model.maximum_length));
  fact("Precision", said(`${scan.model.dtype} on ${scan.model.device}, ${plural(scan.facts.threads, "thread")}`));
  fact("Note", said(scan.model.note));
  fact("Text", said(`${said(scan.input.description)}: ${whole(scan.input.tokens)} tokens (${scan.input.tokenizer})`));
  fact("Files", scan.input.files.join(", "));
  fact("SHA-256 of the tokens", scan.input.sha256);
  fact("Made", said(`${scan.facts.created} in ${duration(scan.facts.seconds)}`));
  fact("With", said(`attentropy ${scan.facts.attentropy}, torch ${scan.facts.torch}, schema ${scan.facts.schema}`));
  return el(
    "div",
    { class: "page" },
    el("section", { class: "card prose" }, el("h2", { text: said("The exact call") }), codeBlock(scan.facts.command), el("p", {}), el("p", { text: said("The same from Python:") }), codeBlock(scan.facts.call)),
    el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", { text: said("What was measured") })), facts),
    el(
      "section",
      { class: "card long" },
      el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Statistics") }), el("p", { text: said("p is one row of attention (one query), s its logits, n the number of keys the query sees, i and j positions. Natural logarithms. A head’s number is the mean over all rows that had a choice (n ≥ 2); those marked * are taken on evenly spaced rows of each forward pass.") }))),
      statisticTable(state.statistics),
    ),
    coverageCard(scan),
    theoryCard(scan),
  );
}

function coverageCard(scan) {
  if (!scan.coverage.length) return null;
  const rows = scan.coverage.map((row) =>
    el("tr", {}, el("td", { text: row.module || said("(the model)") }), el("td", { text: said(row.status) }), el("td", { text: said(row.why) })),
  );
  const head = el("tr", {}, ...["Module", "Seen", "Why"].map((text) => el("th", { text: said(text) })));
  return el(
    "section",
    { class: "card long" },
    el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Coverage") }), el("p", { text: said("What was seen of each module with attention. Verified: the model’s own output was compared. Beside: the model’s own function serves, and its softmax is observed. Partly, unseen: numbers are missing here, for the reason given.") }))),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows))),
  );
}

const BETTER = { low: "low", high: "high", neither: "" };

function statisticTable(statistics) {
  const rows = statistics.map((statistic) => [
    statistic.label + (statistic.sampled === "always" ? " *" : ""),
    { formula: statistic.formula },
    statistic.meaning,
    `${statistic.low} → ${statistic.high}`,
    said(BETTER[statistic.better]),
  ]);
  return table("Statistics", ["Statistic", "Formula", "Meaning", "Low → high", "Better"].map(said), rows);
}

function theoryCard(scan) {
  const rows = scan.predictions.methods.map(([name, formula, meaning]) => [said(name), { formula: said(formula) }, said(meaning)]);
  return el(
    "section",
    { class: "card long" },
    el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Length, theory and scale rules") }), el("p", { text: said(`Predictions start from the measure at ${whole(scan.predictions.reference)} tokens.`) }))),
    table("Scale rules", ["Rule", "Formula", "Meaning"].map(said), rows),
  );
}
