// Which heads are meant: by a finding, by a search, by the range of the chosen statistic.

// Heads that a text finds: 9.5 is one head, another text is a part of a layer's name.
function findHeads(text, layers) {
  const one = headOf(text, layers.map((layer) => layer.heads));
  if (one) return [one];
  const part = text.trim().toLowerCase();
  return layers.flatMap((layer, index) =>
    layer.name.toLowerCase().includes(part) ? [...Array(layer.heads).keys()].map((head) => [index, head]) : [],
  );
}

// A field that finds heads while one types; Enter opens the first of them.
function searchField(id, read, { search, open }) {
  const input = el("input", { type: "search", id, placeholder: said("9.5, or a layer"), "aria-label": said("Find a head: 9.5, or a part of a layer's name"), spellcheck: "false", autocomplete: "off" });
  input.addEventListener("input", () => search(input.value));
  input.addEventListener("keydown", (event) => event.key === "Enter" && open());
  return { node: field("Find", input), show: () => input.value !== read() && (input.value = read()) };
}

// The least and the most of the chosen statistic; an empty field is no limit.
function rangeFields(read, change) {
  const input = (side, label) => {
    const made = el("input", { type: "number", step: "any", id: `range-${side}`, "aria-label": said(label) });
    made.addEventListener("input", () => change(side, made.value));
    return made;
  };
  const [low, high] = [input("low", "At least"), input("high", "At most")];
  const show = () => [[low, "low"], [high, "high"]].forEach(([made, side]) => made.value !== read(side) && (made.value = read(side)));
  return { node: el("div", { class: "field range" }, el("span", { text: said("Only from") }), low, said("to"), high), show };
}

// The heads that pass everything that is chosen, as a set of texts; null if nothing is.
function filtered(state) {
  const { search, low, high } = state.only;
  const sets = [];
  if (state.filterIndex !== null) sets.push(new Set(state.scan.findings[state.filterIndex].heads.map(headText)));
  if (search.trim()) sets.push(new Set(findHeads(search, state.scan.layers).map(headText)));
  if (low !== "" || high !== "") {
    const inside = (value) => value !== null && (low === "" || value >= Number(low)) && (high === "" || value <= Number(high));
    const numbers = state.numbers();
    sets.push(new Set(numbers.flatMap((row, layer) => row.flatMap((value, head) => (inside(value) ? [`${layer}.${head}`] : [])))));
  }
  if (!sets.length) return null;
  return new Set([...sets[0]].filter((head) => sets.every((one) => one.has(head))));
}

function filterNames(state) {
  const { search, low, high } = state.only;
  const range = [low === "" ? "" : `≥ ${low}`, high === "" ? "" : `≤ ${high}`].filter(Boolean).join(", ");
  return [
    state.filterIndex === null ? "" : said(state.scan.findings[state.filterIndex].name),
    search.trim() && `“${search.trim()}”`,
    range && `${state.statisticNow().label} ${range}`,
  ].filter(Boolean).join(", ");
}
