// One head's weights on the sample, unpacked only when the head is opened.

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function attentionMap(maps, key) {
  const reading = el("p", { class: "reading", "aria-live": "off" });
  const canvas = el("canvas", { width: maps.side, height: maps.side, role: "img", "aria-label": "Attention map: queries top to bottom, keys left to right" });
  const span = maps.length / maps.side;
  const text = span > 1
    ? `The first ${whole(maps.length)} tokens; each cell is the mean of ${tick(span)} × ${tick(span)} weights.`
    : `The first ${whole(maps.length)} tokens; each cell is one weight.`;
  const side = el("div", { class: "map-side" }, el("p", { text: `${text} Queries top to bottom, keys left to right; colour is the square root of the weight.` }), reading);
  const node = el("div", { class: "map-box" }, canvas, side);
  const self = { node, cells: null };

  self.paint = () => {
    if (!self.cells) return;
    const context = canvas.getContext("2d");
    const image = context.createImageData(maps.side, maps.side);
    const ramp = theme().ramp;
    const colours = [...Array(256).keys()].map((level) => rampColour(ramp, level / 255));
    self.cells.forEach((level, i) => image.data.set([...colours[level], 255], 4 * i));
    context.putImageData(image, 0, 0);
    canvas.dataset.painted = "true";
  };
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = (offset, size) => Math.min(maps.side - 1, Math.max(0, Math.floor((offset / size) * maps.side)));
    const [row, column] = [at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)];
    if (!self.cells) return;
    const weight = maps.peak[key] * (self.cells[row * maps.side + column] / 255) ** 2;
    const label = (index) => `${Math.round(index * span)}${maps.labels[index] ? ` “${maps.labels[index]}”` : ""}`;
    reading.textContent = `query ${label(row)} → key ${label(column)}: ${short(weight)}`;
  });
  unpack(maps.data[key]).then((cells) => {
    self.cells = cells;
    self.paint();
  });
  return self;
}
