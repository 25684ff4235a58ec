// Figures as SVG and PNG, tables as CSV: made in the page, saved by the browser, nothing is sent.

const PNG_SCALE = 2;
const SAVED = { margin: 16, title: 30, ramp: { width: 180, height: 10 } };

const slug = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 80) || "attentropy";

function download(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  announce(`Saved ${name}`);
}

const saveButton = (kind, what, act) =>
  el("button", { class: "save", type: "button", text: kind, title: said(`Save ${what} as ${kind}`), "aria-label": said(`Save ${what} as ${kind}`), onclick: act });

// Buttons that save what `node` shows: a chart, or a canvas. `title` may be a function.
function saveFigure(node, title) {
  const named = () => (typeof title === "function" ? title() : title);
  const what = typeof title === "function" ? "the figure" : title;
  const save = (kind, make) => saveButton(kind, what, async () => download(await make(pictureOf(node, named())), fileName(named(), kind)));
  return el("div", { class: "saves" }, save("SVG", (picture) => new Blob([picture.svg], { type: "image/svg+xml" })), save("PNG", pngOf));
}

const fileName = (title, kind) => `${slug(document.title.split(" · ")[0])}-${slug(title)}.${kind.toLowerCase()}`;

// One SVG with the title on top, the drawing, and below it the scale of colours if there is one.
function pictureOf(node, title) {
  const { inner, width, height } = drawingOf(node);
  const { margin, title: above } = SAVED;
  const [t, font] = [theme(), getComputedStyle(document.body).fontFamily.replace(/"/g, "'")];
  const scale = scaleOf(node, { x: margin, y: margin + above + height + 18, colour: t.muted });
  const size = [width + 2 * margin, height + 2 * margin + above + (scale ? 26 : 0)];
  const svg = [
    `<svg xmlns="${SVG_NAMESPACE}" xmlns:xlink="http://www.w3.org/1999/xlink" width="${size[0]}" height="${size[1]}" viewBox="0 0 ${size.join(" ")}" font-family="${escaped(font)}">`,
    `<rect width="100%" height="100%" fill="${t.surface}"/>`,
    `<text x="${margin}" y="${margin + 14}" font-size="15" font-weight="600" fill="${t.ink}">${escaped(said(title))}</text>`,
    `<g transform="translate(${margin} ${margin + above})">${inner}</g>${scale}</svg>`,
  ].join("");
  return { svg, width: size[0], height: size[1] };
}

function drawingOf(node) {
  const canvas = node.querySelector("canvas");
  if (canvas) {
    const side = Math.max(canvas.width, 512);
    return { inner: `<image width="${side}" height="${side}" style="image-rendering:pixelated" href='${canvas.toDataURL()}'/>`, width: side, height: side };
  }
  const drawn = node.querySelector(".chart svg, svg");
  const copy = drawn.cloneNode(true);
  copy.setAttribute("xmlns", SVG_NAMESPACE);
  copy.removeAttribute("style");
  return { inner: new XMLSerializer().serializeToString(copy), width: drawn.width.baseVal.value, height: drawn.height.baseVal.value };
}

function scaleOf(node, { x, y, colour }) {
  const ramp = node.querySelector(".ramp");
  if (!ramp) return "";
  const colours = ramp.dataset.colours.split(" ");
  const stops = colours.map((one, i) => `<stop offset="${i / (colours.length - 1)}" stop-color="${one}"/>`).join("");
  const { width, height } = SAVED.ramp;
  const [low, high] = [ramp.previousElementSibling.textContent, ramp.nextElementSibling.textContent];
  const text = (at, anchor, words) => `<text x="${at}" y="${y + 9}" text-anchor="${anchor}" font-size="12" fill="${colour}">${escaped(words)}</text>`;
  const from = x + 8 + pixels(low);
  return `<defs><linearGradient id="ramp">${stops}</linearGradient></defs>${text(from - 8, "end", low)}<rect x="${from}" y="${y}" width="${width}" height="${height}" rx="5" fill="url(#ramp)"/>${text(from + width + 8, "start", high)}`;
}

const escaped = (text) => text.replace(/[&<>"]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[letter]);

async function pngOf({ svg, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = el("canvas", { width: width * PNG_SCALE, height: height * PNG_SCALE });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

// Rows of cells as `table` takes them, as CSV; texts that a spreadsheet would run are marked as text.
function csvOf(rows) {
  const cell = (value) => {
    const inner = isNumber(value) ? value.value ?? value.number : value;
    if (inner === null || inner === undefined || inner === NONE) return "";
    const text = typeof inner === "number" ? String(inner) : String(inner).replace(/^(?=[=+@\t]|-(?!\d))/, "'");
    return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
}

const saveTable = (title, rows) =>
  el("div", { class: "saves" }, saveButton("CSV", title, () => download(new Blob([csvOf(rows())], { type: "text/csv" }), fileName(title, "CSV"))));
