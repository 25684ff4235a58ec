// All heads as a table: a click on a title sorts, a click on a row opens the head.

const ROWS_OF_HEADS = 100; // shown at first

function headsTable(state) {
  const body = el("div", { id: "heads" });
  const details = el("details", { class: "heads" }, el("summary", { text: said("All heads: sort them, save them") }), body);
  const columns = () => state.known();
  const valueOf = (name, [layer, head]) => state.numbers(name)[layer][head];
  let complete = false;

  const sorted = () => {
    const filter = state.filter;
    const all = state.scan.layers.flatMap((part, layer) => [...Array(part.heads).keys()].map((head) => [layer, head]));
    const kept = filter ? all.filter((pair) => filter.has(headText(pair))) : all;
    const name = state.sort.replace(/^-/, "");
    if (!name) return kept;
    const sign = state.sort.startsWith("-") ? -1 : 1;
    const last = (value) => (value === null ? Infinity : sign * value); // heads without a number stand last
    return kept.sort((a, b) => last(valueOf(name, a)) - last(valueOf(name, b)) || a[0] - b[0] || a[1] - b[1]);
  };

  const title = (one) => {
    const down = state.sort === `-${one.name}`;
    const now = state.sort === one.name ? "ascending" : down ? "descending" : "none";
    const next = down ? one.name : `-${one.name}`;
    return el(
      "th",
      { class: "number", "aria-sort": now },
      el("button", { class: "sort", type: "button", text: `${one.label}${{ ascending: " ↑", descending: " ↓", none: "" }[now]}`, "data-sort": one.name, onclick: () => state.sortBy(next) }),
    );
  };

  const row = (pair) =>
    el(
      "tr",
      { class: "change", "aria-selected": String(same(state.selected, ...pair)), onclick: () => state.select(...pair) },
      el("td", {}, el("button", { class: "link", type: "button", text: headText(pair) })),
      el("td", { class: "module", text: state.scan.layers[pair[0]].name }),
      ...columns().map((one) => el("td", { class: "number", text: short(valueOf(one.name, pair)) })),
    );

  const csv = () => [
    ["Head", "Layer", ...columns().map((one) => one.name)],
    ...sorted().map((pair) => [headText(pair), state.scan.layers[pair[0]].name, ...columns().map((one) => num(valueOf(one.name, pair)))]),
  ];

  const build = () => {
    const rows = sorted();
    const shown = complete ? rows : rows.slice(0, ROWS_OF_HEADS);
    const more = rows.length - shown.length;
    body.replaceChildren(
      saveTable("all heads", csv),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", { text: said("Head") }), el("th", { text: said("Layer") }), ...columns().map(title))), el("tbody", {}, ...shown.map(row)))),
      rows.length ? "" : el("p", { class: "empty", text: said("No head is left.") }),
      more ? el("button", { class: "link", type: "button", text: said(`Show ${whole(more)} more`), onclick: () => { complete = true; build(); } }) : "",
    );
  };

  details.addEventListener("toggle", () => {
    state.listed = details.open;
    noteChoices();
    if (details.open) build();
  });
  const update = () => {
    if (details.open !== state.listed) details.open = state.listed; // its toggle builds
    else if (details.open) build();
  };
  return { node: details, update };
}
