// Light and dark. Ramps are ordered in lightness, so they survive colour blindness and grey print;
// series differ in dash as well as in colour (Okabe and Ito's palette).

const THEMES = {
  light: {
    ink: "#131820", soft: "#3d4653", muted: "#5c6675", line: "#dfe3e9", surface: "#ffffff",
    grid: "#e9ecf1", accent: "#0b5cad", band: "rgba(11, 92, 173, 0.09)",
    series: ["#0b5cad", "#c04b00", "#00795a", "#8a3f8f", "#8a6d00"],
    ramp: ["#fbf9e7", "#dcecc0", "#a3d5b4", "#5eb6c0", "#2f8dbb", "#2862a5", "#1c3577"],
    diverging: ["#8c4a06", "#cf8328", "#f3cf97", "#f6f5f2", "#b9c5e2", "#6b7fbf", "#2d3a87"],
    mark: "#131820",
  },
  dark: {
    ink: "#e9edf2", soft: "#c3cbd6", muted: "#95a1b1", line: "#28313d", surface: "#141a22",
    grid: "#212a35", accent: "#74b6ff", band: "rgba(116, 182, 255, 0.12)",
    series: ["#74b6ff", "#ff9f5a", "#4fd3a5", "#dd9be0", "#e7cf63"],
    ramp: ["#182a4d", "#1f4a80", "#236f96", "#3d9796", "#7cbd86", "#c3dc84", "#fbf5b2"],
    diverging: ["#f5b45c", "#b9762a", "#69451f", "#2b323b", "#35477f", "#5f78c8", "#a9bdff"],
    mark: "#ffffff",
  },
};

const themeState = { name: "light", listeners: [] };
const theme = () => THEMES[themeState.name];

function applyTheme(name) {
  themeState.name = name;
  document.documentElement.dataset.theme = name;
  themeState.listeners.forEach((listener) => listener());
}

function remembered() {
  try {
    return localStorage.getItem("attentropy-theme");
  } catch {
    return null; // storage is closed to pages opened from disk in some browsers
  }
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const wanted = () => remembered() ?? (dark.matches ? "dark" : "light");
  applyTheme(wanted());
  dark.addEventListener("change", () => applyTheme(wanted()));
  let before = null;
  addEventListener("beforeprint", () => {
    before = themeState.name;
    applyTheme("light");
    fitForPrint();
  });
  addEventListener("afterprint", () => {
    applyTheme(before ?? wanted());
    fitForScreen();
  });
}

function toggleTheme() {
  const next = themeState.name === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("attentropy-theme", next);
  } catch {
    // the choice then lasts as long as the page
  }
  applyTheme(next);
}

// The colour at `share` (0 to 1) of a ramp, as [red, green, blue].
function rampColour(ramp, share) {
  const place = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
  const low = Math.min(Math.floor(place), ramp.length - 2);
  const parse = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const [from, to] = [parse(ramp[low]), parse(ramp[low + 1])];
  return from.map((value, i) => Math.round(value + (to[i] - value) * (place - low)));
}
