// One row for each token that the model made, with numbers of the chosen head, layer or all heads.

const MADE = [
  ["surprise", "Surprise", "−log p of the token"],
  ["entropy", "Entropy", "of the query that chose it"],
  ["varentropy", "Varentropy", "of the same query"],
  ["top_probability", "Largest weight", "of the same query"],
];

function generatedCard(payload, choose) {
  const { generated, tokens, layers } = payload;
  const body = el("tbody");
  const rows = tokens.slice(generated.start).map((token, step) => {
    const cells = MADE.map(() => el("td", { class: "number made-cell" }));
    const open = el("button", { class: "link made-token", type: "button", text: shownToken(token), onclick: () => choose(generated.start + step) });
    body.append(el("tr", { "data-step": step }, el("td", { class: "number", text: String(step) }), el("td", {}, open), ...cells));
    return cells;
  });
  const head = el("tr", {}, el("th", { class: "number", text: said("Step") }), el("th", { text: said("Token") }), ...MADE.map(([, label, title]) => el("th", { class: "number", text: said(label), title: said(title) })));
  const about = el("p", { class: "hint" });
  const node = el(
    "section",
    { class: "card", id: "generated" },
    el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Generated tokens") }), about)),
    el("div", { class: "scroll made-scroll" }, el("table", {}, el("thead", {}, head), body)),
  );
  const numbers = Promise.all(MADE.map(([name]) => unpackFloats(name === "surprise" ? generated.surprise : generated.numbers[name])));
  const starts = generated.layers.reduce((sum, [, heads]) => [...sum, sum.at(-1) + heads], [0]);

  // Columns of the scope among all heads that took part; null where it took none.
  function columns(scope) {
    if (scope === "all") return [0, starts.at(-1)];
    const [layer, one] = scope.split(".");
    const at = generated.layers.findIndex(([name]) => name === layers[layer].name);
    if (at < 0) return null;
    return one === undefined ? [starts[at], starts[at + 1]] : [starts[at] + Number(one), starts[at] + Number(one) + 1];
  }

  async function paint(scope, token) {
    const all = await numbers;
    const range = columns(scope);
    const width = starts.at(-1);
    about.textContent = said(range
      ? `${whole(rows.length)} tokens, the most likely one each time. Attention: ${scopeName(layers, scope)}.`
      : `${scopeName(layers, scope)} takes no part in choosing tokens.`);
    MADE.forEach(([name], column) => {
      const values = rows.map((_, step) => {
        if (name === "surprise") return all[column][step];
        if (!range) return null;
        const part = all[column].slice(step * width + range[0], step * width + range[1]);
        return part.reduce((sum, value) => sum + value, 0) / part.length;
      });
      const top = Math.max(1e-9, ...values.filter((value) => value !== null && Number.isFinite(value)));
      values.forEach((value, step) => {
        const cell = rows[step][column];
        cell.textContent = short(value);
        cell.style.setProperty("--share", `${Math.max(0, Math.min(100, (100 * (value ?? 0)) / top))}%`);
      });
    });
    [...body.children].forEach((row, step) => row.setAttribute("aria-selected", String(generated.start + step === token)));
    node.dataset.painted = scope;
  }
  return { node, paint };
}
