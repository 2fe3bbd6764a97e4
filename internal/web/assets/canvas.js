// What the pictures on canvases have in common: sharp pixels, and pointers,
// wheel and touch that become pan, zoom and click.

/** prepare sizes a canvas for the screen and gives its context and size in CSS pixels. */
export function prepare(canvas) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const width = Math.max(canvas.clientWidth, 1);
  const height = Math.max(canvas.clientHeight, 1);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

const clickSlop = 4;
const wheelSpeed = 0.0015;

/**
 * interact turns what a pointer does into calls: pan(pixels), zoom(factor,
 * x), range(x0, x1), click(x, y), hover(x, y) or hover(null). Positions are in
 * pixels of the canvas. Two fingers zoom; one moves sideways, and scrolls the
 * page up and down.
 */
export function interact(canvas, calls) {
  const fingers = new Map();
  let moved = 0;
  let selecting = null;
  const at = (e) => {
    const box = canvas.getBoundingClientRect();
    return { x: e.clientX - box.left, y: e.clientY - box.top };
  };
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return { gap: Math.max(Math.abs(a.x - b.x), 10), middle: (a.x + b.x) / 2 };
  };
  canvas.addEventListener("pointerdown", (e) => {
    if (e.button !== 0) return;
    canvas.setPointerCapture(e.pointerId);
    fingers.set(e.pointerId, at(e));
    moved = fingers.size > 1 ? clickSlop + 1 : 0;
    selecting = e.shiftKey && calls.range ? at(e).x : null;
  });
  canvas.addEventListener("pointermove", (e) => {
    const now = at(e);
    const before = fingers.get(e.pointerId);
    if (!before) {
      calls.hover?.(now.x, now.y);
      return;
    }
    if (fingers.size === 2) {
      const old = spread();
      fingers.set(e.pointerId, now);
      const { gap, middle } = spread();
      calls.zoom?.(old.gap / gap, middle);
      calls.pan?.(old.middle - middle);
      return;
    }
    moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    fingers.set(e.pointerId, now);
    if (selecting === null && moved > clickSlop) calls.pan?.(before.x - now.x);
  });
  const lift = (e) => {
    const end = at(e);
    if (!fingers.delete(e.pointerId)) return;
    if (e.type !== "pointerup") return;
    if (selecting !== null && Math.abs(end.x - selecting) > clickSlop) calls.range(Math.min(selecting, end.x), Math.max(selecting, end.x));
    else if (moved <= clickSlop) calls.click?.(end.x, end.y);
    selecting = null;
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", () => calls.hover?.(null));
  canvas.addEventListener("wheel", (e) => {
    if (!calls.zoom) return;
    e.preventDefault();
    const pixels = e.deltaMode === 1 ? 16 : 1;
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) calls.pan?.(e.deltaX * pixels);
    else calls.zoom(Math.exp(e.deltaY * pixels * wheelSpeed), at(e).x);
  }, { passive: false });
}

/** roundStep is the least of 1, 2, 5, 10, 20 … that is not below n. */
export function roundStep(n) {
  const power = 10 ** Math.floor(Math.log10(Math.max(n, 1)));
  return [1, 2, 5, 10].map((f) => f * power).find((f) => f >= n);
}

/** tail shortens a name to so many pixels. Of one with dots the last parts stay. */
export function tail(context, name, width) {
  while (name.includes(".") && context.measureText(name).width > width) name = name.slice(name.indexOf(".") + 1);
  return cut(context, name, width);
}

/** cut shortens a text to so many pixels. */
export function cut(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let n = Math.floor((text.length * width) / context.measureText(text).width);
  while (n > 0 && context.measureText(`${text.slice(0, n)}…`).width > width) n--;
  return n > 0 ? `${text.slice(0, n)}…` : "";
}
