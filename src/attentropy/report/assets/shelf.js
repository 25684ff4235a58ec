// The list of a served folder: scans and runs, newest first.

function startShelf(payload) {
  const page = el("div", { class: "page" });
  buildShell(payload.root, [{ id: "list", title: "Scans and runs", node: page }]);
  let shown = null;
  const build = (fresh) => {
    const text = JSON.stringify(fresh.entries);
    if (text === shown) return;
    shown = text;
    page.replaceChildren(...(fresh.entries.length ? fresh.entries.map(shelfEntry) : [emptyShelf()]));
  };
  build(payload);
  poll(build);
}

const emptyShelf = () =>
  el("section", { class: "card" }, el("h2", { text: said("Nothing here yet") }), el("p", { class: "empty", text: said("attentropy scan --out DIR puts a scan here; a Monitor puts its run here.") }));

function shelfEntry(entry) {
  const address = `/${entry.kind}/${entry.id.split("/").map(encodeURIComponent).join("/")}`;
  const changed = new Date(entry.changed * 1000).toLocaleString();
  return el(
    "a",
    { class: "card shelf-entry", href: address },
    el("div", { class: "eyebrow", text: [said(entry.kind), entry.running ? said("running") : "", changed].filter(Boolean).join(" · ") }),
    el("h2", { text: entry.name }),
    el("p", { text: said(entry.headline) }),
    el("div", { class: "chips" }, ...entry.facts.map((fact) => el("span", { class: "chip", text: said(fact) })), el("span", { class: "chip", text: entry.id })),
  );
}
