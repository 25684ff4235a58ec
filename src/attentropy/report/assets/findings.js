// What is notable, most serious first; choosing one filters the heatmap.

const SEVERITY = {
  critical: { d: "M12 2 23 21H1z" },
  warning: { d: "M12 1 23 12 12 23 1 12z" },
  note: { d: "M12 2a10 10 0 1 0 0 20 10 10 0 0 0 0-20z" },
};

const badge = (severity, text) =>
  el("span", { class: `badge ${severity}` }, icon({ ...SEVERITY[severity], fill: "currentColor" }), el("span", { text: said(text) }));

function findingsCard(state) {
  const buttons = [];
  const items = state.scan.findings.map((finding, index) => {
    const button = el(
      "button",
      { class: "finding", type: "button", "aria-pressed": "false", "data-finding": finding.name, onclick: () => state.toggleFilter(index) },
      el("div", { class: "finding-top" }, badge(finding.severity, finding.severity), el("span", { text: said(finding.name) }), el("span", { class: "count", text: plural(finding.heads.length, "head") })),
      el("div", { class: "finding-evidence", text: said(finding.evidence) }),
      el("div", { class: "finding-advice", text: said(finding.advice) }),
    );
    buttons.push(button);
    return el("li", {}, button, explainLink(finding.name));
  });
  const list = items.length
    ? el("ul", { class: "findings-list" }, ...items)
    : el("p", { class: "empty", text: said("Nothing notable: every head is inside the usual ranges.") });
  const node = el(
    "section",
    { class: "card findings", "aria-label": said("Findings") },
    el("div", { class: "card-head" }, el("div", {}, el("h2", { text: said("Findings") }), el("p", { text: said("Choose one to see only its heads.") }))),
    list,
  );
  const mark = () => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(state.filterIndex === i)));
  return { node, mark };
}
