// Colours that people with any kind of colour vision tell apart (Okabe and
// Ito's), and a texture for each beside, so that nothing rests on colour alone.

const palette = ["#0072b2", "#56b4e9", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#999999", "#f0e442"];

// Lines of a texture in a tile of eight by eight pixels: x0, y0, x1, y1.
const textures = [
  [],
  [[0, 4, 8, 4]],
  [[0, 8, 8, 0]],
  [[4, 0, 4, 8]],
  [[0, 0, 8, 8]],
  [[0, 8, 8, 0], [0, 0, 8, 8]],
  [[3, 4, 5, 4]],
  [[0, 4, 8, 4], [4, 0, 4, 8]],
];

const patterns = new Map();

/** colour gives the colour of part i. */
export function colour(i) {
  return palette[i % palette.length];
}

/** pattern gives the paint of part i for a canvas. */
export function pattern(context, i) {
  const known = patterns.get(i);
  if (known) return known;
  const made = context.createPattern(tile(i), "repeat");
  patterns.set(i, made);
  return made;
}

/** tile draws the texture of part i. */
export function tile(i) {
  const t = document.createElement("canvas");
  t.width = t.height = 8;
  const c = t.getContext("2d");
  c.fillStyle = colour(i);
  c.fillRect(0, 0, 8, 8);
  c.strokeStyle = "rgba(255,255,255,0.45)";
  c.lineWidth = 1;
  for (const [x0, y0, x1, y1] of textures[i % textures.length]) {
    c.beginPath();
    c.moveTo(x0, y0);
    c.lineTo(x1, y1);
    c.stroke();
  }
  return t;
}

/** swatch is the sign of part i in a legend. */
export function swatch(i) {
  const s = document.createElement("canvas");
  s.width = s.height = 16;
  s.className = "swatch";
  s.setAttribute("aria-hidden", "true");
  const c = s.getContext("2d");
  c.fillStyle = c.createPattern(tile(i), "repeat");
  c.fillRect(0, 0, 16, 16);
  return s;
}

/** theme reads the colours of the page's theme. */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return { ink: get("--ink"), dim: get("--dim"), grid: get("--grid"), paper: get("--paper"), accent: get("--accent"), hole: get("--hole") };
}

/** lines are the strokes of curves that are compared: a dash for each. */
export const dashes = [[], [6, 3], [2, 2], [9, 3, 2, 3], [12, 4], [4, 6], [1, 4], [10, 2, 2, 2, 2, 2]];

/** holes paints free memory: a hatch in the colour of the theme. */
export function hole(context) {
  const t = document.createElement("canvas");
  t.width = t.height = 6;
  const c = t.getContext("2d");
  c.strokeStyle = theme().hole;
  c.beginPath();
  c.moveTo(0, 6);
  c.lineTo(6, 0);
  c.stroke();
  return context.createPattern(t, "repeat");
}
