// Read the data, build the pages.

function start() {
  const payload = JSON.parse(document.getElementById("payload").textContent);
  startTheme();
  startLanguage();
  inLanguage(payload);
  startExplanations(payload.explained);
  if (payload.kind === "run") startRun(payload);
  else if (payload.kind === "index") startShelf(payload);
  else if (payload.kind === "text") startText(payload);
  else if (payload.kind === "comparison") startComparison(payload);
  else startScan(payload);
  startAddress();
  themeState.listeners.push(redrawAll);
  document.documentElement.dataset.ready = "true";
}

function startScan(payload) {
  const state = scanState(payload);
  const text = payload.text ? textView(payload.text, "text-") : null;
  const pages = [
    { id: "overview", title: "Overview", node: overviewPage(state) },
    { id: "length", title: "Length", node: lengthPage(state) },
    ...(text ? [{ id: "text", title: "Text", node: text.node }] : []),
    ...(state.other ? [{ id: "compare", title: "Compare", node: comparisonPage(comparisonState({ entries: [state.other, state.scan], statistics: state.statistics }, "compare-")) }] : []),
    { id: "methods", title: "Methods", node: methodsPage(state) },
  ];
  buildShell(state.scan.model.name, pages);
  text?.paint();
  reloadOnChange();
  document.getElementById("foot").textContent = said(`Made by attentropy ${state.scan.facts.attentropy}. This file needs no network and sends nothing.`);
}

// A served scan that is still being made: load it again when its file has changed.
function reloadOnChange() {
  let first = null;
  poll((fresh) => {
    first ??= fresh.stamp;
    if (fresh.stamp !== first) location.reload();
  });
}

start();
