// The frame around the pages: brand, tabs, theme, print.


function brandMark() {
  const svg = icon(
    { d: "M2 19c4 0 5.2-14 10-14s6 14 10 14", fill: "none", stroke: "currentColor", "stroke-width": "2.4", "stroke-linecap": "round" },
    { d: "M6 19c2.6 0 3.4-6 6-6s3.4 6 6 6z", fill: "currentColor", opacity: "0.35" },
  );
  svg.style.color = "var(--accent)";
  return svg;
}

function buildShell(name, pages) {
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": said("Pages of the report") });
  pages.forEach((page) => {
    page.node.id = `page-${page.id}`;
    page.node.dataset.title = said(page.title);
    page.node.setAttribute("role", "tabpanel");
    page.node.setAttribute("aria-labelledby", `tab-${page.id}`);
    tabs.append(
      el("button", {
        class: "tab", type: "button", role: "tab", id: `tab-${page.id}`, text: said(page.title),
        "aria-controls": page.node.id, onclick: () => show(page.id, true),
      }),
    );
    document.getElementById("main").append(page.node);
  });
  const show = (id, chosen = false) => {
    shown = id;
    pages.forEach((page) => {
      const here = page.id === id;
      page.node.hidden = !here;
      const tab = document.getElementById(`tab-${page.id}`);
      tab.setAttribute("aria-selected", String(here));
      tab.tabIndex = here ? 0 : -1;
    });
    if (!chosen) return;
    noteChoices();
    scrollTo(0, 0);
  };
  tabs.addEventListener("keydown", (event) => moveTab(event, pages, show));
  const model = el("div", { class: "top-model", text: name, title: name });
  const brand = el("div", { class: "brand" }, brandMark(), el("span", { text: "attentropy" }));
  document.getElementById("top").append(
    el("div", { class: "top-row" }, brand, model, tabs, actions()),
  );
  let shown = pages[0].id;
  show(shown);
  inAddress("tab", () => shown, (id) => pages.some((page) => page.id === id) && show(id));
}

const POLL = 2000; // milliseconds between questions to the server of a served page

// Ask the page's own server for fresh data, if it has one.
function poll(take) {
  const address = document.body.dataset.live;
  if (!address) return;
  let state = null;
  const ask = async () => {
    try {
      const headers = state ? { "If-None-Match": state } : {};
      const answer = document.hidden ? null : await fetch(address, { cache: "no-store", headers });
      if (answer?.ok) {
        state = answer.headers.get("ETag");
        take(inLanguage(await answer.json()));
      }
    } catch {
      // the server is away; the page keeps what it has and asks again
    }
    setTimeout(ask, POLL); // the next question waits for this answer
  };
  setTimeout(ask, POLL);
}

function moveTab(event, pages, show) {
  const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!move) return;
  const now = pages.findIndex((page) => `tab-${page.id}` === document.activeElement.id);
  const next = pages[(now + move + pages.length) % pages.length];
  show(next.id, true);
  document.getElementById(`tab-${next.id}`).focus();
}

// The other language, by its own name.
function languageButton() {
  const [text, lang] = languageState.name === "zh" ? ["English", "en"] : ["中文", "zh-CN"];
  return el("button", { class: "language", type: "button", id: "language", text, lang, onclick: switchLanguage });
}

function actions() {
  const moon = icon(stroke("M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z"));
  const printer = icon(stroke("M7 8V3h10v5M7 17H4v-7a2 2 0 0 1 2-2h12a2 2 0 0 1 2 2v7h-3M7 14h10v7H7z"));
  const button = (label, image, act) =>
    el("button", { class: "icon-button", type: "button", title: said(label), "aria-label": said(label), onclick: act }, image);
  return el(
    "div",
    { class: "actions" },
    languageButton(),
    button("Switch between light and dark", moon, toggleTheme),
    button("Print the report", printer, () => print()),
  );
}
