// One text: tokens shaded by a statistic, and the keys that a chosen token looks at.

const SHOWS = [
  { value: "keys", label: "Looks at" },
  { value: "readers", label: "Is looked at by" },
  { value: "statistic", label: "Statistic" },
];

function startText(payload) {
  const view = textView(payload);
  buildShell(payload.name, [{ id: "text", title: payload.picture ? "Picture" : "Text", node: view.node }]);
  document.getElementById("foot").textContent = said(payload.served
    ? "Made by attentropy. This page asks its own server, and no other."
    : "Made by attentropy. This file needs no network and sends nothing.");
  view.paint();
}

// `prefix` tells names in the address and of controls from those of other tabs.
function textView(payload, prefix = "") {
  const { tokens, layers, sides } = payload;
  const data = textData(payload);
  const state = { statistic: "entropy", scope: data.first, token: null, show: "keys" };
  const { node: text, spans } = tokenSpans(payload);
  const made = payload.generated ? generatedCard(payload, (token) => choose({ token })) : null;
  const statistic = el("select", { id: `${prefix}statistic` }, ...payload.statistics.map((one) => el("option", { value: one.name, text: one.label })));
  const scope = el("select", { id: `${prefix}head` }, ...scopeOptions(layers, data));
  const show = el("div");
  const [ramp, low, high] = [el("div", { class: "ramp" }), el("span"), el("span")];
  const meaning = el("p", { class: "meaning" });
  const side = el("section", { class: "card token-side", id: "token", "aria-live": "polite" });
  const find = el("input", { id: `${prefix}find`, type: "search", placeholder: payload.picture ? "9.5" : said("word or 9.5"), "aria-label": said("Find a token, or a head such as 9.5") });
  const node = el(
    "div",
    { class: "page" },
    el(
      "section",
      { class: "card" },
      el("div", { class: "card-head" }, el("div", {}, el("h1", { class: "text-title", text: said("Where does attention look?") }), el("p", { text: textFacts(payload, data) }), oddLayers(payload.odd))),
      el("div", { class: "controls" }, field("Head", scope), field("Shade by", statistic), field("Find", find), show),
    ),
    el(
      "div",
      { class: "columns text-columns" },
      el("section", { class: "card" }, text, el("div", { class: "legend" }, low, ramp, high), meaning),
      side,
    ),
    made?.node,
  );

  // What the shades show: weights of the chosen token, or the statistic.
  async function shades() {
    const described = payload.statistics.find((one) => one.name === state.statistic);
    if (state.token === null || state.show === "statistic" || !data.knows(state.scope)) {
      const values = await data.floats(state.scope, state.statistic);
      return { values: spans.map((_, i) => values[i] ?? null), described, ...colouring({ ...described, shades: null }, [[values]]) };
    }
    const values = spans.map(() => null);
    const other = lookedAt(state.token, state.scope, state.show);
    for (let i = other.start; i < other.start + other.count; i++) values[i] = 0;
    (await data.look(state.scope, state.token, state.show)).rows.forEach(([place, weight]) => (values[place] = weight));
    const top = Math.max(1e-9, ...values);
    const whose = state.show === "keys" ? "of the token" : "to the token";
    return { values, described: { low: "", high: "", meaning: said(`The largest weights ${whose} in the frame; colour grows with the square root of the weight.`) }, range: [0, top], share: (value) => Math.sqrt(value / top) };
  }

  // The side whose tokens a token of this layer looks at, or is looked at by.
  function lookedAt(token, chosen, direction) {
    if (sides.length === 1 || layers[chosen.split(".")[0]].kind !== "cross") return sides.find((one) => token < one.start + one.count);
    return sides[direction === "keys" ? 0 : 1];
  }

  let turn = 0;
  let values = [];
  async function paint() {
    const now = ++turn;
    try {
      const shown = await shades();
      if (now !== turn) return; // something else was chosen meanwhile
      shadeTokens(spans, shown, { over: Boolean(payload.picture) });
      text.querySelectorAll(".chosen").forEach((span) => span.classList.remove("chosen"));
      spans[state.token]?.classList.add("chosen");
      values = shown.values;
      ramp.style.background = `linear-gradient(90deg, ${theme().ramp.join(", ")})`;
      low.textContent = `${shown.described.low} ${short(shown.range[0])}`;;
      high.textContent = `${short(shown.range[1])} ${shown.described.high}`;;
      meaning.textContent = shown.described.meaning;
      await paintSide();
      await made?.paint(state.scope, state.token);
      text.dataset.painted = `${state.scope} ${state.token} ${state.show} ${state.statistic}`;
    } catch (error) {
      if (now === turn) side.replaceChildren(el("h2", { text: said("No answer") }), el("p", { class: "empty", text: String(error.message) }));
    }
  }

  async function paintSide() {
    const { token, scope: chosen } = state;
    if (token === null) {
      const what = payload.picture ? "a patch" : "a word";
      side.replaceChildren(el("h2", { text: said("Choose a token") }), el("p", { class: "hint", text: said(`Click ${what}, or use the arrow keys. [ and ] go to the head before and after.`) }));
      return;
    }
    const numbers = await Promise.all(payload.statistics.map(async (one) => [one.label, (await data.floats(chosen, one.name))[token] ?? null]));
    const parts = [
      el("h2", { text: payload.picture ? tokens[token] : `${token} “${shownToken(tokens[token])}”` }),
      el("p", { class: "hint", text: scopeName(layers, chosen) }),
      el("dl", { class: "facts token-facts" }, ...numbers.flatMap(([label, value]) => [el("dt", { text: label }), el("dd", { text: short(value) })])),
    ];
    if (!data.knows(chosen)) parts.push(el("p", { class: "empty", text: said(data.heads.length ? "Press ] for a head whose weights are known." : "No weights are in this file.") }));
    else for (const one of SHOWS.slice(0, 2)) parts.push(await lookList(one));
    side.replaceChildren(...parts);
  }

  async function lookList({ value, label }) {
    const { rows, rest } = await data.look(state.scope, state.token, value);
    const top = Math.max(1e-9, ...rows.map(([, weight]) => weight));
    const item = ([place, weight]) => {
      const bar = el("span", { class: "look-bar" });
      bar.style.width = `${(100 * weight) / top}%`;
      return el(
        "li",
        {},
        el("button", { class: "look", type: "button", "data-token": place, onclick: () => choose({ token: place }) }, el("span", { class: "look-place", text: place }), el("span", { class: "look-token", text: shownToken(tokens[place]).replace(/^ +$/, "␣") }), el("b", { text: shownWeight(weight) }), bar),
      );
    };
    return el(
      "div",
      { class: "looks", id: `looks-${value}` },
      el("h3", { text: said(label) }),
      rows.length ? el("ol", {}, ...rows.map(item)) : el("p", { class: "empty", text: said("Nothing.") }),
      el("p", { class: "hint rest", text: said(`all others together: ${short(rest)}`) }),
    );
  }

  function setControls() {
    statistic.value = state.statistic;
    scope.value = state.scope;
    show.replaceChildren(segments("What the shades show", SHOWS.map(({ value, label }) => ({ value, label: said(label) })), state.show, (value) => choose({ show: value })));
  }

  function choose(change) {
    Object.assign(state, change);
    setControls();
    noteChoices();
    if (change.token !== undefined && change.token !== null) spans[state.token].scrollIntoView({ block: "nearest" });
    return paint();
  }

  const restore = (name, has, read = (text) => text) =>
    inAddress(`${prefix}${name}`, () => String(state[name] ?? ""), (text) => (text === "" || has(text)) && choose({ [name]: read(text) }));
  restore("statistic", (text) => payload.statistics.some((one) => one.name === text));
  restore("scope", (text) => data.scopes.includes(text));
  restore("show", (text) => SHOWS.some((one) => one.value === text));
  restore("token", (text) => /^\d+$/.test(text) && Number(text) < tokens.length, (text) => (text === "" ? null : Number(text)));

  // The next token that holds the text, or the head of such a name.
  function search() {
    const wanted = find.value.toLowerCase();
    const head = headOf(wanted, layers.map((layer) => layer.heads));
    if (head && data.scopes.includes(headText(head))) return choose({ scope: headText(head) });
    const from = (state.token ?? -1) + 1;
    const order = [...Array(tokens.length).keys()].map((i) => (from + i) % tokens.length);
    const found = wanted.trim() ? order.find((i) => tokens[i].toLowerCase().includes(wanted)) : undefined;
    announce(found === undefined ? "Not found" : `Token ${found} ${tokens[found]}`);
    find.setAttribute("aria-invalid", String(found === undefined));
    return found === undefined ? null : choose({ token: found });
  }

  function press(event) {
    if (node.hidden || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input, .segments, .tabs")) return;
    const from = state.token ?? -1;
    const turnHead = { "[": -1, "]": 1 }[event.key];
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const along = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (turnHead && data.heads.length) {
      const at = data.heads.indexOf(state.scope);
      choose({ scope: data.heads[at < 0 ? 0 : (at + turnHead + data.heads.length) % data.heads.length] });
    } else if (sideways) choose({ token: Math.min(Math.max(from + sideways, 0), tokens.length - 1) });
    else if (along) choose({ token: from < 0 ? 0 : tokenAcross(spans, from, along) });
    else return;
    event.preventDefault();
    announce(`${scopeName(layers, state.scope)}${state.token === null ? "" : `, token ${state.token} ${tokens[state.token]}`}`);
  }

  text.addEventListener("click", (event) => {
    const hit = event.target.closest(".token");
    if (hit) choose({ token: Number(hit.dataset.token) === state.token ? null : Number(hit.dataset.token) });
  });
  text.addEventListener("mouseover", (event) => {
    const hit = event.target.closest(".token");
    if (!hit) return;
    const index = Number(hit.dataset.token);
    hit.title = `${payload.picture ? tokens[index] : index}${Number.isFinite(values[index]) ? `: ${short(values[index])}` : ""}`;
  });
  statistic.addEventListener("change", () => choose({ statistic: statistic.value, show: "statistic" }));
  scope.addEventListener("change", () => choose({ scope: scope.value }));
  document.addEventListener("keydown", press);
  find.addEventListener("keydown", (event) => event.key === "Enter" && search());
  themeState.listeners.push(paint);
  setControls();
  return { node, paint };
}

const textFacts = ({ tokens, layers, left, unshown, generated, served }, { heads }) =>
  [
    said(`${whole(tokens.length)} tokens${left ? ` of ${whole(tokens.length + left)}` : ""}`),
    ...(generated ? [said(`${whole(tokens.length - generated.start)} of them generated`)] : []),
    said(`${whole(layers.reduce((sum, layer) => sum + layer.heads, 0))} heads in ${whole(layers.length)} layers`),
    said(served ? "exact weights of every head, from the model" : `exact weights of ${whole(heads.length)} ${heads.length === 1 ? "head" : "heads"}`) + (unshown ? said(` (${whole(unshown)} more had no room)`) : ""),
  ].join(" · ");

function oddLayers(odd) {
  const names = Object.keys(odd ?? {});
  if (!names.length) return null;
  return el("p", { class: "hint", text: said(`Not shown: ${names.map((name) => `${name} (${odd[name]})`).join("; ")}.`) });
}

function scopeName(layers, scope) {
  if (scope === "all") return said("Mean of all heads");
  const [layer, head] = scope.split(".");
  const { name, kind } = layers[layer];
  const about = `${name}${kind === "cross" ? said(", cross-attention") : ""}`;
  return head === undefined ? said(`Layer ${layer} · mean of its heads (${about})`) : `${headName(layer, head)} (${about})`;
}

function scopeOptions(layers, { heads, scopes }) {
  const option = (value) => el("option", { value, text: scopeName(layers, value) });
  const group = (label, values) => el("optgroup", { label: said(label) }, ...values.map(option));
  const means = scopes.filter((scope) => scope !== "all" && !heads.includes(scope));
  return [...(heads.length ? [group("Heads with their weights", heads)] : []), group("Means", ["all", ...means])];
}
