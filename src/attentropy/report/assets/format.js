// Numbers as people read them.

const NONE = "–";

function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return value.toFixed(size >= 1 ? 2 : 3);
}

// A number on an axis: no more digits than it needs.
const tick = (value) => (Math.abs(value) >= 1e6 ? value.toExponential(0) : value.toLocaleString("en-US", { maximumFractionDigits: 3 }));

const whole = (value) => (value === null || value === undefined ? NONE : value.toLocaleString("en-US"));

function count(value) {
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${(value / size).toPrecision(3).replace(/\.?0+$/, "")} ${unit}`;
  }
  return String(value);
}

function duration(seconds) {
  if (seconds < 60) return `${short(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

function quantile(numbers, share) {
  const known = numbers.filter((value) => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
  if (!known.length) return null;
  const place = (known.length - 1) * share;
  const low = Math.floor(place);
  const high = Math.min(low + 1, known.length - 1);
  return known[low] + (known[high] - known[low]) * (place - low);
}

const plural = (value, noun) => said(`${whole(value)} ${noun}${value === 1 ? "" : "s"}`);

// About the width of a text of 12 pixels: a Chinese character is as wide as it is high.
const pixels = (text) => [...text].reduce((sum, sign) => sum + (/[\u2e80-\uffef]/.test(sign) ? 12 : 6.6), 0);

const headName = (layer, head) => said(`Layer ${layer} · head ${head}`);
