// Building the page. Text only ever enters through textContent: names are untrusted.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function icon(...paths) {
  const svg = document.createElementNS(SVG_NAMESPACE, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  for (const attributes of paths) {
    const path = document.createElementNS(SVG_NAMESPACE, "path");
    for (const [name, value] of Object.entries(attributes)) path.setAttribute(name, value);
    svg.append(path);
  }
  return svg;
}

const stroke = (d) => ({
  d,
  fill: "none",
  stroke: "currentColor",
  "stroke-width": "2",
  "stroke-linecap": "round",
  "stroke-linejoin": "round",
});

const announce = (text) => {
  document.getElementById("announcer").textContent = said(text);
};

// A choice of a few values as a row of buttons that arrow keys move through; `mark` shows a value.
function segments(label, options, chosen, choose) {
  const group = el("div", { class: "segments", role: "radiogroup", "aria-label": said(label) });
  const markAt = (index) => {
    [...group.children].forEach((button, i) => {
      button.setAttribute("aria-checked", String(i === index));
      button.tabIndex = i === index ? 0 : -1;
    });
  };
  const pick = (index) => {
    markAt(index);
    choose(options[index].value);
  };
  options.forEach((option, index) => {
    group.append(
      el("button", {
        class: "segment",
        type: "button",
        role: "radio",
        text: option.label,
        "data-value": option.value,
        onclick: () => pick(index),
      }),
    );
  });
  group.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const now = [...group.children].indexOf(document.activeElement);
    const next = (now + move + options.length) % options.length;
    group.children[next].focus();
    pick(next);
  });
  group.mark = (value) => markAt(Math.max(0, options.findIndex((option) => option.value === value)));
  group.mark(chosen);
  return group;
}

// A choice of many values; [value, text] each.
const menu = (id, options, chosen, choose) =>
  el("select", { id, onchange: (event) => choose(event.target.value) }, ...options.map(([value, text]) => el("option", { value, text, selected: value === chosen })));

const field = (label, control) => el("label", { class: "field" }, el("span", { text: said(label) }), control);

function codeBlock(text) {
  const button = el("button", { class: "copy", type: "button", text: said("Copy"), "aria-label": said("Copy the call") });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = said("Copied");
    } catch {
      button.textContent = "Ctrl+C";
      getSelection().selectAllChildren(block.firstChild);
    }
    setTimeout(() => (button.textContent = said("Copy")), 1600);
  });
  const block = el("div", { class: "code" }, el("span", { text }), button);
  return block;
}

// A cell with a number: as people read it, and whole for files.
const num = (value, format = short) => ({ number: format(value), value });
const isNumber = (cell) => typeof cell === "object" && cell !== null && "number" in cell;

// A table that can be saved, with more rows than it shows if `all` has more. A cell is a text,
// `num(value)` or { formula }.
function table(title, head, rows, all = rows) {
  const cell = (tag, value) => {
    if (isNumber(value)) return el(tag, { class: "number", text: value.number });
    return el(tag, value?.formula === undefined ? { text: value } : { class: "formula", text: value.formula });
  };
  const body = rows.map((row) => el("tr", {}, ...row.map((value) => cell("td", value))));
  const plain = () => [head, ...all].map((row) => row.map((value) => value?.formula ?? value));
  return el(
    "div",
    { class: "table" },
    saveTable(title, plain),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...head.map((value) => cell("th", value)))), el("tbody", {}, ...body))),
  );
}
