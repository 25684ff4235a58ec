// Sentences in the language of the reader. The page holds English and a table of phrases, such as
// "{n:number} tokens"; a finished sentence finds its phrase as in attentropy/core/language/phrases.py.

const NUMBER = "[-+−]?[0-9][0-9.,]*(?:e[-+]?[0-9]+)?(?: ± [0-9.]+)?%?|nan|inf|–";
const INSIDE = { number: NUMBER, word: "\\S+" };
const PLACE = /\{(\w+)(?::(number|word|told|list))?\}/g;
const SENTENCE = /(?<=[.!?]) (?=[A-Z0-9-])/;
const languageState = { name: "en", known: new Map(), patterns: [] };

function startLanguage() {
  const root = document.documentElement;
  const own = root.lang.startsWith("zh") ? "zh" : "en";
  const wanted = asked().get("lang") ?? own;
  languageState.name = wanted === "zh" ? "zh" : "en";
  root.lang = languageState.name === "zh" ? "zh-CN" : "en";
  if (languageState.name !== "en") readPhrases(JSON.parse(document.getElementById("phrases").textContent));
  document.querySelector(".skip").textContent = said("Skip to the report");
  // what the page shows is made once, so that another language is the same address, loaded again
  choices.set("lang", { read: () => languageState.name, restore: (text) => ["en", "zh"].includes(text) && location.reload(), initial: own });
}

function switchLanguage() {
  languageState.name = languageState.name === "zh" ? "en" : "zh";
  noteChoices();
  location.reload();
}

function readPhrases(table) {
  // how much a phrase says: characters outside of its places, then places for numbers alone
  const says = (phrase) => phrase.replace(PLACE, "").length + [...phrase.matchAll(PLACE)].filter(([, , kind]) => INSIDE[kind]).length / 1000;
  const [whole, parts] = [[], []];
  for (const entry of Object.entries(table)) (entry[0].match(PLACE) ? parts : whole).push(entry);
  languageState.known = new Map(whole);
  languageState.patterns = parts.sort((a, b) => says(b[0]) - says(a[0])).map(([phrase, translation]) => ({ ...patternOf(phrase), translation }));
}

function patternOf(phrase) {
  const plain = (text) => text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
  const places = [...phrase.matchAll(PLACE)];
  let [source, end] = ["", 0];
  for (const place of places) {
    source += `${plain(phrase.slice(end, place.index))}(${(INSIDE[place[2]] ?? ".+?").replace(/\((?!\?)/g, "(?:")})`;
    end = place.index + place[0].length;
  }
  return { pattern: new RegExp(`^${source}${plain(phrase.slice(end))}$`, "s"), places: places.map(([, name, kind]) => [name, kind]) };
}

// A text of the page in the language of the reader; itself where nobody has translated it.
function said(text) {
  if (languageState.name === "en" || typeof text !== "string" || text === "") return text;
  return knownPhrase(text) ?? sentencesOf(text) ?? text;
}

function knownPhrase(text) {
  const known = languageState.known.get(text);
  if (known !== undefined) return known;
  for (const { pattern, places, translation } of languageState.patterns) {
    const found = pattern.exec(text);
    if (!found) continue;
    const values = Object.fromEntries(places.map(([name, kind], i) => [name, placed(found[i + 1], kind)]));
    return translation.replace(PLACE, (_, name) => values[name]);
  }
  return null;
}

const placed = (text, kind) => (kind === "list" ? text.split(", ").map(said).join("、") : kind === "told" ? said(text) : text);

function sentencesOf(text) {
  const parts = text.split(SENTENCE);
  const told = parts.map(knownPhrase);
  return told.some((one) => one !== null) ? told.map((one, i) => one ?? `${parts[i]} `).join("").trim() : null;
}

// What a payload says of its statistics, in the language of the reader.
function inLanguage(payload) {
  for (const part of [payload, payload.text]) {
    for (const one of part?.statistics ?? []) for (const name of ["label", "formula", "meaning", "low", "high", "unit"]) one[name] = said(one[name]);
  }
  return payload;
}
