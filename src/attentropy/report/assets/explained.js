// What a finding means, in the page itself: a window with the words and two pictures.

let explanations = {};
let openedName = "";

function startExplanations(found) {
  explanations = found ?? {};
  inAddress("explain", () => openedName, (name) => (name in explanations ? openExplanation(name) : closeExplanation()));
}

const explainLink = (name) =>
  name in explanations
    ? el("a", { class: "explain-link", href: `#${new URLSearchParams({ explain: name })}`, text: "What this means", "aria-label": `What ${name} means`, onclick: (event) => chooseExplanation(event, name) })
    : null;

function chooseExplanation(event, name) {
  event.preventDefault();
  openExplanation(name);
  noteChoices();
}

function closeExplanation() {
  document.getElementById("explained")?.close();
}

const EXPLAINED_PARTS = [["How it is measured", "measured"], ["Threshold, and why", "threshold"], ["When it is harmless", "harmless"], ["What to do", "remedy"]];

function openExplanation(name) {
  document.getElementById("explained")?.remove();
  const one = explanations[name];
  const close = el("button", { class: "icon-button", type: "button", "aria-label": "Close", text: "×", onclick: closeExplanation });
  const parts = EXPLAINED_PARTS.flatMap(([title, key]) => [el("dt", { text: title }), el("dd", { text: one[key] })]);
  const dialog = el(
    "dialog",
    { id: "explained", class: "card", "aria-label": name },
    el("div", { class: "card-head" }, el("h2", { text: name }), close),
    el("p", { text: one.meaning }),
    el("div", { class: "pictures" }, explainedPicture("Healthy", one.healthy), explainedPicture("With this finding", one.ill)),
    el("dl", { class: "facts" }, ...parts),
  );
  dialog.addEventListener("close", () => {
    openedName = "";
    noteChoices();
    dialog.remove();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  openedName = name;
  dialog.showModal();
}

const explainedPicture = (title, picture) =>
  el(
    "figure",
    {},
    el("img", { src: `data:image/svg+xml,${encodeURIComponent(picture.svg)}`, alt: picture.caption, width: 120, height: 120 }),
    el("figcaption", {}, el("b", { text: `${title}. ` }), el("span", { text: picture.caption })),
  );
