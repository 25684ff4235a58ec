// One text: tokens shaded by a statistic, and the keys that a chosen token looks at.

const SHOWS = [
  { value: "keys", label: "Looks at" },
  { value: "readers", label: "Is looked at by" },
  { value: "statistic", label: "Statistic" },
];

function startText(payload) {
  const view = textView(payload);
  buildShell(payload.name, [{ id: "text", title: "Text", node: view.node }]);
  themeState.listeners.push(view.paint);
  document.getElementById("foot").textContent = "Made by attentropy. This file needs no network and sends nothing.";
  view.paint();
}

// 16-bit floats and integers, all low bytes before all high ones.
async function unpackWords(text) {
  const bytes = await unpack(text);
  return { bytes, words: (width, count) => Array.from({ length: count }, (_, i) => {
    let value = 0;
    for (let plane = width - 1; plane >= 0; plane--) value = value * 256 + bytes[plane * count + i];
    return value;
  }) };
}

function halfFloat(word) {
  const [sign, exponent, fraction] = [word & 0x8000 ? -1 : 1, (word >> 10) & 31, word & 1023];
  if (exponent === 31) return fraction ? null : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

async function unpackFloats(text) {
  const { bytes, words } = await unpackWords(text);
  return words(2, bytes.length / 2).map(halfFloat);
}

async function unpackPlaces(text, wide) {
  const { bytes, words } = await unpackWords(text);
  const [width, none] = wide ? [4, 0xffffffff] : [2, 0xffff];
  return words(width, bytes.length / width).map((place) => (place === none ? -1 : place));
}

function textView(payload) {
  const { tokens, layers } = payload;
  const telling = Object.keys(payload.looks); // the most telling head first
  const heads = [...telling].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const first = { statistic: "entropy", scope: telling[0] ?? "all", token: null, show: "keys" };
  const state = { ...first };
  const cache = new Map();
  const remember = (key, make) => cache.get(key) ?? cache.set(key, make()).get(key);

  const floats = (scope, name) =>
    name === "surprise"
      ? remember("surprise", () => unpackFloats(payload.surprise))
      : remember(`${scope} ${name}`, () => unpackFloats(payload.scopes[scope][name]));
  const looks = (scope, show) =>
    remember(`${scope} looks ${show}`, async () => {
      const one = payload.looks[scope];
      const names = show === "keys" ? ["keys", "weights", "rest"] : ["readers", "reader_weights", "reader_rest"];
      const places = await unpackPlaces(one[names[0]], tokens.length >= 0xffff);
      return { places, weights: await unpackFloats(one[names[1]]), rest: await unpackFloats(one[names[2]]) };
    });
  const listed = ({ places, weights }, token) =>
    Array.from({ length: places.length / tokens.length }, (_, rank) => rank * tokens.length + token)
      .filter((at) => places[at] >= 0)
      .map((at) => [places[at], weights[at]]);

  const spans = tokens.map((token, index) => el("span", { class: "token", "data-token": index, text: shownToken(token) }));
  const text = el("div", { class: "text", id: "text", tabindex: "0", role: "application", "aria-label": "The text. Arrow keys move the token, brackets the head." });
  spans.forEach((span, index) => {
    text.append(span);
    if (tokens[index].includes("\n")) text.append(document.createElement("br"));
  });
  const statistic = el("select", { id: "statistic" }, ...payload.statistics.map((one) => el("option", { value: one.name, text: one.label })));
  const scope = el("select", { id: "head" }, ...scopeOptions(layers, payload.scopes, heads));
  const show = el("div");
  const [ramp, low, high] = [el("div", { class: "ramp" }), el("span"), el("span")];
  const meaning = el("p", { class: "meaning" });
  const side = el("section", { class: "card token-side", id: "token", "aria-live": "polite" });
  const field = (label, control) => el("label", { class: "field" }, el("span", { text: label }), control);
  const node = el(
    "div",
    { class: "page" },
    el(
      "section",
      { class: "card" },
      el("div", { class: "card-head" }, el("div", {}, el("h1", { class: "text-title", text: "Where does attention look?" }), el("p", { text: textFacts(payload) }))),
      el("div", { class: "controls" }, field("Head", scope), field("Shade by", statistic), show),
    ),
    el(
      "div",
      { class: "columns text-columns" },
      el("section", { class: "card" }, text, el("div", { class: "legend" }, low, ramp, high), meaning),
      side,
    ),
  );

  // What the shades show: weights of the chosen token, or the statistic.
  async function shades() {
    const described = payload.statistics.find((one) => one.name === state.statistic);
    if (state.token === null || state.show === "statistic" || !payload.looks[state.scope]) {
      const values = await floats(state.scope, state.statistic);
      return { values: spans.map((_, i) => values[i] ?? null), described, ...colouring({ ...described, shades: null }, [[values]]) };
    }
    const values = spans.map(() => 0);
    listed(await looks(state.scope, state.show), state.token).forEach(([place, weight]) => (values[place] = weight));
    const top = Math.max(1e-9, ...values);
    const words = state.show === "keys" ? "of the token" : "to the token";
    return { values, described: { low: "", high: "", meaning: `The largest weights ${words} in the frame; colour grows with the square root of the weight.` }, range: [0, top], share: (value) => Math.sqrt(value / top) };
  }

  let turn = 0;
  async function paint() {
    const now = ++turn;
    const shown = await shades();
    if (now !== turn) return; // something else was chosen meanwhile
    const colours = theme().ramp;
    shown.values.forEach((value, index) => {
      const known = value !== null && Number.isFinite(value);
      const [r, g, b] = known ? rampColour(colours, shown.share(value)) : [0, 0, 0];
      const style = spans[index].style;
      style.background = known ? `rgb(${r} ${g} ${b})` : "transparent";
      style.color = known ? (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10151c" : "#ffffff") : "";
      spans[index].title = known ? `${index}: ${short(value)}` : String(index);
    });
    spans.forEach((span, index) => span.classList.toggle("chosen", index === state.token));
    ramp.style.background = `linear-gradient(90deg, ${colours.join(", ")})`;
    low.textContent = `${shown.described.low} ${short(shown.range[0])}`;
    high.textContent = `${short(shown.range[1])} ${shown.described.high}`;
    meaning.textContent = shown.described.meaning;
    await paintSide();
    text.dataset.painted = `${state.scope} ${state.token} ${state.show} ${state.statistic}`;
  }

  async function paintSide() {
    const { token, scope: chosen } = state;
    if (token === null) {
      side.replaceChildren(el("h2", { text: "Choose a token" }), el("p", { class: "hint", text: "Click a word, or use the arrow keys. [ and ] go to the head before and after." }));
      return;
    }
    const numbers = await Promise.all(payload.statistics.map(async (one) => [one.label, (await floats(chosen, one.name))[token] ?? null]));
    const parts = [
      el("h2", { text: `${token} “${tokens[token]}”` }),
      el("p", { class: "hint", text: scopeName(layers, chosen) }),
      el("dl", { class: "facts token-facts" }, ...numbers.flatMap(([label, value]) => [el("dt", { text: label }), el("dd", { text: short(value) })])),
    ];
    if (!payload.looks[chosen]) parts.push(el("p", { class: "empty", text: heads.length ? "Press ] for a head whose weights are in this file." : "No weights are in this file." }));
    else for (const one of SHOWS.slice(0, 2)) parts.push(await lookList(one));
    side.replaceChildren(...parts);
  }

  async function lookList({ value, label }) {
    const found = await looks(state.scope, value);
    const rows = listed(found, state.token);
    const top = Math.max(1e-9, ...rows.map(([, weight]) => weight));
    const item = ([place, weight]) => {
      const bar = el("span", { class: "look-bar" });
      bar.style.width = `${(100 * weight) / top}%`;
      return el(
        "li",
        {},
        el("button", { class: "look", type: "button", "data-token": place, onclick: () => choose({ token: place }) }, el("span", { class: "look-place", text: place }), el("span", { class: "look-token", text: shownToken(tokens[place]).replace(/^ +$/, "␣") }), el("b", { text: weight.toPrecision(3) }), bar),
      );
    };
    return el(
      "div",
      { class: "looks", id: `looks-${value}` },
      el("h3", { text: label }),
      rows.length ? el("ol", {}, ...rows.map(item)) : el("p", { class: "empty", text: "Nothing." }),
      el("p", { class: "hint rest", text: `all others together: ${short(found.rest[state.token])}` }),
    );
  }

  function choose(change) {
    Object.assign(state, change);
    statistic.value = state.statistic;
    scope.value = state.scope;
    show.replaceChildren(segments("What the shades show", SHOWS, state.show, (value) => choose({ show: value })));
    noteChoices();
    if (change.token !== undefined && change.token !== null) spans[state.token].scrollIntoView({ block: "nearest" });
    return paint();
  }

  const restore = (name, has) => inAddress(name, () => String(state[name] ?? ""), (text) => (text === "" || has(text)) && choose({ [name]: name === "token" ? (text === "" ? null : Number(text)) : text }));
  restore("statistic", (text) => payload.statistics.some((one) => one.name === text));
  restore("scope", (text) => Object.hasOwn(payload.scopes, text));
  restore("show", (text) => SHOWS.some((one) => one.value === text));
  restore("token", (text) => Number.isInteger(Number(text)) && Number(text) >= 0 && Number(text) < tokens.length);

  // The token above or below: of the next line, the one that is nearest.
  function across(from, direction) {
    const box = spans[from].getBoundingClientRect();
    let [best, nearest, line] = [from, Infinity, null];
    for (let i = from + direction; i >= 0 && i < tokens.length; i += direction) {
      const other = spans[i].getBoundingClientRect();
      if (Math.abs(other.top - box.top) < box.height / 2) continue;
      line ??= other.top;
      if (Math.abs(other.top - line) > box.height / 2) break;
      const away = Math.abs(other.left - box.left);
      if (away < nearest) [best, nearest] = [i, away];
    }
    return best;
  }

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input, .segments, .tabs")) return;
    const from = state.token ?? -1;
    const turnHead = { "[": -1, "]": 1 }[event.key];
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const along = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (turnHead && heads.length) {
      const at = heads.indexOf(state.scope);
      choose({ scope: heads[at < 0 ? 0 : (at + turnHead + heads.length) % heads.length] });
    } else if (sideways) choose({ token: Math.min(Math.max(from + sideways, 0), tokens.length - 1) });
    else if (along) choose({ token: from < 0 ? 0 : across(from, along) });
    else return;
    event.preventDefault();
    announce(`${scopeName(layers, state.scope)}${state.token === null ? "" : `, token ${state.token} ${tokens[state.token]}`}`);
  }

  text.addEventListener("click", (event) => {
    const hit = event.target.closest(".token");
    if (hit) choose({ token: Number(hit.dataset.token) === state.token ? null : Number(hit.dataset.token) });
  });
  statistic.addEventListener("change", () => choose({ statistic: statistic.value, show: "statistic" }));
  scope.addEventListener("change", () => choose({ scope: scope.value }));
  document.addEventListener("keydown", press);
  return { node, paint };
}

const shownToken = (token) => (token.replace(/\n/g, "↵") || "∅");

const textFacts = ({ tokens, layers, looks, left, unshown }) =>
  [
    `${whole(tokens.length)} tokens${left ? ` of ${whole(tokens.length + left)}` : ""}`,
    `${whole(layers.reduce((sum, layer) => sum + layer.heads, 0))} heads in ${whole(layers.length)} layers`,
    `exact weights of ${whole(Object.keys(looks).length)} heads${unshown ? ` (${whole(unshown)} more had no room)` : ""}`,
  ].join(" · ");

function scopeName(layers, scope) {
  if (scope === "all") return "Mean of all heads";
  const [layer, head] = scope.split(".");
  const { name, kind } = layers[layer];
  const about = `${name}${kind === "cross" ? ", cross-attention" : ""}`;
  return head === undefined ? `Layer ${layer} · mean of its heads (${about})` : `${headName(layer, head)} (${about})`;
}

function scopeOptions(layers, scopes, heads) {
  const option = (value) => el("option", { value, text: scopeName(layers, value) });
  const group = (label, values) => el("optgroup", { label }, ...values.map(option));
  const means = Object.keys(scopes).filter((scope) => !heads.includes(scope));
  return [...(heads.length ? [group("Heads with their weights", heads)] : []), group("Means", ["all", ...means.filter((scope) => scope !== "all")])];
}
