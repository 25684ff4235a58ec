// What a finding means, in the page itself: a window with the words and two pictures.

let explanations = {};
let openedName = "";

function startExplanations(found) {
  explanations = found ?? {};
  inAddress("explain", () => openedName, (name) => (name in explanations ? openExplanation(name) : closeExplanation()));
}

const explainLink = (name) =>
  name in explanations
    ? el("a", { class: "explain-link", href: `#${new URLSearchParams({ explain: name })}`, text: said("What this means"), "aria-label": `${said("What this means")}: ${said(name)}`, onclick: (event) => chooseExplanation(event, name) })
    : null;

function chooseExplanation(event, name) {
  event.preventDefault();
  openExplanation(name);
  noteChoices();
}

function closeExplanation() {
  document.getElementById("explained")?.close();
}

const explainedParts = () => [[said("How it is measured"), "measured"], [said("Threshold, and why"), "threshold"], [said("When it is harmless"), "harmless"], [said("What to do"), "remedy"]];

function openExplanation(name) {
  document.getElementById("explained")?.remove();
  const one = explanations[name];
  const close = el("button", { class: "icon-button", type: "button", "aria-label": said("Close"), text: "×", onclick: closeExplanation });
  const parts = explainedParts().flatMap(([title, key]) => [el("dt", { text: title }), el("dd", { text: said(one[key]) })]);
  const dialog = el(
    "dialog",
    { id: "explained", class: "card", "aria-label": said(name) },
    el("div", { class: "card-head" }, el("h2", { text: said(name) }), close),
    el("p", { text: said(one.meaning) }),
    el("div", { class: "pictures" }, explainedPicture(said("Healthy head"), one.healthy), explainedPicture(said("With this finding"), one.ill)),
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
    el("img", { src: `data:image/svg+xml,${encodeURIComponent(picture.svg)}`, alt: said(picture.caption), width: 120, height: 120 }),
    el("figcaption", {}, el("b", { text: `${title}: ` }), el("span", { text: said(picture.caption) })),
  );
