// Everything that is chosen is in the page's address, such as #tab=length&statistic=entropy&head=9.5,
// so that a link opens what its sender saw, and back and forward work. What was never changed is
// left out of the address.

const choices = new Map();
let restoring = false;

// A choice: how it is read as text, and how it is restored from text (which may be anything).
function inAddress(name, read, restore) {
  choices.set(name, { read, restore, initial: read() });
}

const asked = () => new URLSearchParams(location.hash.slice(1));

// Put what is chosen now into the address; a new entry of the history unless `replace`.
function noteChoices({ replace = false } = {}) {
  if (restoring) return;
  const chosen = new URLSearchParams();
  for (const [name, { read, initial }] of choices) {
    const text = read();
    if (text !== initial) chosen.set(name, text);
  }
  if (String(chosen) === String(asked())) return;
  history[replace ? "replaceState" : "pushState"](null, "", `#${chosen}`);
}

// Make the page what its address says. An address that is only a name is a tab, or a place in the page.
function restoreChoices() {
  const name = location.hash.slice(1);
  const isName = name !== "" && !name.includes("=");
  if (isName && !document.getElementById(`tab-${name}`)) return;
  const wanted = isName ? new URLSearchParams({ tab: name }) : asked();
  restoring = true;
  for (const [choice, { read, restore, initial }] of choices) {
    const text = wanted.get(choice) ?? initial;
    if (text !== read()) restore(text);
  }
  restoring = false;
}

function startAddress() {
  restoreChoices();
  addEventListener("popstate", restoreChoices);
}

// The text of a pair [layer, head], and the pair of such a text if these layers have it.
const headText = (pair) => (pair ? pair.join(".") : "");

function headOf(text, layers) {
  const found = /^\s*(?:l|layer)?\s*(\d+)\s*[., :·hH]+\s*(?:ead)?\s*(\d+)\s*$/i.exec(text ?? "");
  const [layer, head] = found ? [Number(found[1]), Number(found[2])] : [-1, -1];
  return head >= 0 && head < (layers[layer] ?? 0) ? [layer, head] : null;
}
