// Tokens on the page: words of one text or of two, or patches over a picture.

const SIDES = { text: "The text", source: "Source, read by the encoder", target: "Target, read by the decoder", picture: "The picture" };
// A weight as it is known: 16-bit floats end at 6e-8.
const shownWeight = (weight) => (weight === 0 ? "< 6e-8" : weight < 1e-3 ? weight.toExponential(2) : weight.toPrecision(3));
const shownToken = (token) => token.replace(/\n/g, "↵") || "∅";

function tokenSpans({ tokens, sides, picture, generated }) {
  const spans = tokens.map((token, index) =>
    el("span", { class: generated && index >= generated.start ? "token made" : "token", "data-token": index, text: picture ? null : shownToken(token) }),
  );
  const node = el("div", { class: "text", id: "text", tabindex: "0", role: "application", "aria-label": said("The tokens. Arrow keys move the token, brackets the head.") });
  if (picture) node.append(...patches(spans, tokens, picture));
  else sides.forEach((side) => node.append(...words(spans, tokens, side, sides.length > 1)));
  return { node, spans };
}

function words(spans, tokens, { name, start, count }, named) {
  const block = el("div", { class: "text-side", "data-side": name });
  for (let i = start; i < start + count; i++) {
    block.append(spans[i]);
    if (tokens[i].includes("\n")) block.append(document.createElement("br"));
  }
  return named ? [el("h3", { text: said(SIDES[name] ?? name) }), block] : [block];
}

function patches(spans, tokens, { png, rows, columns, before }) {
  const grid = el("div", { class: "patches", role: "img", "aria-label": said("The picture, with one cell for each patch") });
  grid.style.backgroundImage = `url(data:image/png;base64,${png})`;
  grid.style.gridTemplate = `repeat(${rows}, 1fr) / repeat(${columns}, 1fr)`;
  grid.append(...spans.slice(before));
  const first = spans.slice(0, before);
  first.forEach((span, i) => (span.textContent = tokens[i]));
  return before ? [el("div", { class: "text-side" }, ...first), grid] : [grid];
}

// The token above or below: of the next line, the one that is nearest.
function tokenAcross(spans, from, direction) {
  const box = spans[from].getBoundingClientRect();
  let [best, nearest, line] = [from, Infinity, null];
  for (let i = from + direction; i >= 0 && i < spans.length; i += direction) {
    const other = spans[i].getBoundingClientRect();
    if (Math.abs(other.top - box.top) < box.height / 2) continue;
    line ??= other.top;
    if (Math.abs(other.top - line) > box.height / 2) break;
    const away = Math.abs(other.left - box.left);
    if (away < nearest) [best, nearest] = [i, away];
  }
  return best;
}

const LEVELS = 64; // colours that tokens are told apart by

function tokenColours(over) {
  return Array.from({ length: LEVELS }, (_, level) => {
    const [r, g, b] = rampColour(theme().ramp, level / (LEVELS - 1));
    const cover = over ? 0.12 + (0.7 * level) / (LEVELS - 1) : 1; // a picture stays visible where little is
    return [`rgb(${r} ${g} ${b} / ${cover.toFixed(2)})`, 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10151c" : "#ffffff"];
  });
}

// Colours of all tokens: `share` places a known value on the ramp. Only what changes is touched.
function shadeTokens(spans, { values, share }, { over }) {
  const colours = tokenColours(over);
  values.forEach((value, index) => {
    const known = value !== null && value !== undefined && Number.isFinite(value);
    const [background, ink] = known ? colours[Math.round(share(value) * (LEVELS - 1))] : ["transparent", ""];
    const span = spans[index];
    if (span.shade === background) return;
    span.shade = background;
    span.style.background = background;
    span.style.color = ink;
  });
}
