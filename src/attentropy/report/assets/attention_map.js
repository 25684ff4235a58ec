// One head's weights on the sample, with tokens on its axes; unpacked only when the head is opened.

const MAP_EDGE = 68; // pixels for the words of each axis
const MAP_CLOSEST = 6; // tokens in a row at the closest zoom
const MAP_WORD = 12; // pixels that a word takes on its axis

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function attentionMap(maps, key) {
  const { side } = maps;
  const span = maps.length / side; // tokens in a cell; 1 unless the file pooled them
  const reading = el("p", { class: "reading", "aria-live": "polite" });
  const canvas = el("canvas", { tabindex: "0", role: "application", "aria-label": said("Attention map: queries top to bottom, keys left to right. Plus and minus zoom, arrow keys move.") });
  const cellText = span > 1 ? `each cell is the mean of ${tick(span)} × ${tick(span)} weights` : "each cell is one weight";
  const text = said(`The first ${whole(maps.length)} tokens; ${cellText}. Queries top to bottom, keys left to right; colour is the square root of the weight. Zoom with the wheel, drag to move.`);
  const button = (label, words, act) => el("button", { class: "map-button", type: "button", text: label, title: words, "aria-label": words, onclick: act });
  const tools = el("div", { class: "map-tools" }, button("+", said("Zoom in"), () => zoom(0.5)), button("−", said("Zoom out"), () => zoom(2)), button(said("All"), said("The whole map"), () => look(0, 0, side)));
  const node = el("div", { class: "map-box" }, el("div", { class: "map-frame" }, canvas, tools), el("div", { class: "map-side" }, el("p", { text }), reading));
  const view = { left: 0, top: 0, count: side }; // the cells that are shown
  const full = el("canvas", { width: side, height: side });
  const self = { node, cells: null, paint };

  function look(left, top, count) {
    view.count = Math.min(side, Math.max(Math.min(MAP_CLOSEST, side), count));
    view.left = Math.min(Math.max(left, 0), side - view.count);
    view.top = Math.min(Math.max(top, 0), side - view.count);
    draw();
  }

  // Zoom about a point of the plot, given as shares of it.
  function zoom(factor, x = 0.5, y = 0.5) {
    const count = Math.min(side, Math.max(Math.min(MAP_CLOSEST, side), view.count * factor));
    look(view.left + x * (view.count - count), view.top + y * (view.count - count), count);
  }

  function paint() {
    if (!self.cells) return;
    const context = full.getContext("2d");
    const image = context.createImageData(side, side);
    const colours = [...Array(256).keys()].map((level) => rampColour(theme().ramp, level / 255));
    self.cells.forEach((level, i) => image.data.set([...colours[level], 255], 4 * i));
    context.putImageData(image, 0, 0);
    draw();
  }

  function draw() {
    if (!self.cells) return;
    const size = canvas.clientWidth || 340;
    const ratio = devicePixelRatio || 1;
    canvas.width = canvas.height = Math.round(size * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    const plot = size - MAP_EDGE;
    context.drawImage(full, view.left, view.top, view.count, view.count, MAP_EDGE, MAP_EDGE, plot, plot);
    words(context, plot);
    Object.assign(canvas.dataset, { painted: "true", left: view.left, top: view.top, count: view.count, edge: MAP_EDGE });
  }

  function words(context, plot) {
    const cell = plot / view.count;
    const step = Math.max(1, Math.ceil(MAP_WORD / cell));
    context.font = `11px ${getComputedStyle(document.documentElement).getPropertyValue("--mono")}`;
    context.fillStyle = theme().soft;
    context.textBaseline = "middle";
    const each = (from, put) => {
      for (let i = Math.ceil(from / step) * step; i < Math.min(side, from + view.count); i += step) put(i, MAP_EDGE + (i + 0.5 - from) * cell);
    };
    const word = (i) => [...shownToken(maps.labels[i] ?? "").trim()].slice(0, 9).join("") || "␣";
    context.textAlign = "right";
    each(view.top, (i, at) => at < MAP_EDGE + plot && context.fillText(word(i), MAP_EDGE - 5, at, MAP_EDGE - 6));
    each(view.left, (i, at) => {
      if (at >= MAP_EDGE + plot) return;
      context.save();
      context.translate(at, MAP_EDGE - 5);
      context.rotate(Math.PI / 2);
      context.fillText(word(i), 0, 0, MAP_EDGE - 6);
      context.restore();
    });
  }

  const share = (event) => {
    const box = canvas.getBoundingClientRect();
    const of = (place, start, length) => (place - start - MAP_EDGE) / (length - MAP_EDGE);
    return [of(event.clientX, box.left, box.width), of(event.clientY, box.top, box.height)];
  };
  const named = (cell) => {
    const from = Math.round(cell * span);
    const to = Math.round((cell + 1) * span) - 1;
    return to > from ? `${from}–${to}` : `${from}${maps.labels[cell] === undefined ? "" : ` “${maps.labels[cell]}”`}`;
  };

  // A pooled cell is named by the ranges that it is the mean of, never by one pair.
  function tell(event) {
    const [x, y] = share(event);
    if (!self.cells || x < 0 || y < 0 || x >= 1 || y >= 1) return;
    const [column, row] = [Math.floor(view.left + x * view.count), Math.floor(view.top + y * view.count)];
    const weight = maps.peak[key] * (self.cells[row * side + column] / 255) ** 2;
    reading.textContent = said(span > 1
      ? `queries ${named(row)}, keys ${named(column)}: mean about ${short(weight)}`
      : `query ${named(row)} → key ${named(column)}: about ${short(weight)}`);
  }

  let drag = null;
  canvas.addEventListener("mousemove", (event) => {
    if (drag) {
      const [x, y] = share(event);
      look(drag.left - (x - drag.x) * view.count, drag.top - (y - drag.y) * view.count, view.count);
    } else tell(event);
  });
  canvas.addEventListener("mousedown", (event) => {
    const [x, y] = share(event);
    drag = { x, y, left: view.left, top: view.top };
  });
  addEventListener("mouseup", () => (drag = null));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [x, y] = share(event).map((value) => Math.min(Math.max(value, 0), 1));
    zoom(event.deltaY > 0 ? 1.25 : 0.8, x, y);
  }, { passive: false });
  canvas.addEventListener("dblclick", () => look(0, 0, side));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (move) look(view.left + move[0] * Math.ceil(view.count / 8), view.top + move[1] * Math.ceil(view.count / 8), view.count);
    else if (factor) zoom(factor);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(draw).observe(canvas);
  unpack(maps.data[key]).then((cells) => {
    self.cells = cells;
    paint();
  });
  return self;
}
