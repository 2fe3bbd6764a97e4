// The segments of one moment: each a strip of its blocks and holes, one after
// another in rows that all have the same scale.

import { prepare, interact } from "./canvas.js";
import { pattern, hole, theme } from "./colours.js";
import { address, bytes } from "./text.js";

const rowHeight = 20;
const gap = 3;
const mostRows = 28;

/** SegmentMap draws a state and tells which tile was chosen: onTile(tile, segment, index). */
export class SegmentMap {
  constructor(canvas, onTile) {
    this.canvas = canvas;
    this.onTile = onTile;
    this.boxes = [];
    this.selected = -1;
    interact(canvas, { click: (x, y) => this.choose(this.find(x, y)) });
    canvas.addEventListener("keydown", (e) => this.key(e));
  }

  /** set takes a state, the split for colours, and which tiles a search found. */
  set(state, split, found) {
    Object.assign(this, { state, split, found });
    this.layout();
    this.draw();
  }

  find(x, y) {
    return this.boxes.findIndex((b) => b.parts.some((p) => x >= p.x && x <= p.x + Math.max(p.w, 2) && y >= p.y && y < p.y + rowHeight));
  }

  choose(i) {
    if (i < 0 || i >= this.boxes.length) return;
    this.selected = i;
    this.draw();
    const b = this.boxes[i];
    this.onTile(b.tile, b.segment, b.index);
  }

  key(e) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    if (!step || this.boxes.length === 0) return;
    e.preventDefault();
    this.choose((this.selected + step + this.boxes.length) % this.boxes.length);
  }

  /** layout places the segments one after another; what does not fit into a row goes on in the next. */
  layout() {
    const width = Math.max(this.canvas.parentElement.clientWidth, 100);
    const segments = this.state.segments;
    const total = segments.reduce((sum, s) => sum + s.size, 0);
    const scale = (width * mostRows) / Math.max(total, 1);
    this.boxes = [];
    this.frames = [];
    let x = 0;
    let y = 0;
    for (const segment of segments) {
      [x, y] = this.place(segment, scale, width, x, y);
    }
    this.canvas.style.height = `${y + rowHeight + gap}px`;
    this.selected = Math.min(this.selected, this.boxes.length - 1);
  }

  place(segment, scale, width, x, y) {
    const cutUp = (from, length) => {
      const parts = [];
      let [px, py] = from;
      while (length > 0) {
        const w = Math.min(length, width - px);
        parts.push({ x: px, y: py, w });
        length -= w;
        px += w;
        if (px >= width - 1e-6) {
          px = 0;
          py += rowHeight + gap;
        }
      }
      return [parts, [px, py]];
    };
    const [frame] = cutUp([x, y], Math.max(segment.size * scale, 1));
    this.frames.push({ segment, parts: frame });
    let at = [x, y];
    segment.tiles.forEach((tile, index) => {
      const [parts, next] = cutUp(at, tile.size * scale);
      this.boxes.push({ tile, segment, index, parts });
      at = next;
    });
    const next = at[0] + (at[0] > 0 ? gap : 0);
    return next < width - 1 ? [next, at[1]] : [0, at[1] + rowHeight + gap];
  }

  draw() {
    const { context: c } = prepare(this.canvas);
    const colours = theme();
    const holes = hole(c);
    this.boxes.forEach((b) => {
      c.globalAlpha = this.found && (b.tile.lease < 0 || !this.found(b.tile)) ? 0.18 : 1;
      for (const p of b.parts) {
        c.fillStyle = b.tile.lease < 0 ? holes : pattern(c, this.split === 0 ? b.tile.purpose : b.tile.site);
        if (b.tile.pending) c.globalAlpha = 0.45;
        c.fillRect(p.x, p.y, Math.max(p.w, 0.5), rowHeight);
        if (p.w > 3) {
          c.fillStyle = colours.paper;
          c.fillRect(p.x + p.w - 0.7, p.y, 0.7, rowHeight);
        }
      }
    });
    c.globalAlpha = 1;
    c.strokeStyle = colours.dim;
    c.lineWidth = 1;
    for (const f of this.frames) for (const p of f.parts) c.strokeRect(p.x + 0.5, p.y + 0.5, Math.max(p.w - 1, 0.5), rowHeight - 1);
    const chosen = this.boxes[this.selected];
    if (chosen) {
      c.strokeStyle = colours.ink;
      c.lineWidth = 3;
      for (const p of chosen.parts) c.strokeRect(p.x, p.y + 1.5, Math.max(p.w, 3), rowHeight - 3);
    }
  }
}

/** sums adds up a state: live, pending, cached and reserved bytes, and its holes. */
export function sums(state) {
  const out = { live: 0, pending: 0, cached: 0, reserved: 0, wholes: 0, wholeBytes: 0, holes: [] };
  for (const s of state.segments) {
    out.reserved += s.size;
    s.tiles.forEach((t, i) => {
      if (t.lease >= 0) {
        out[t.pending ? "pending" : "live"] += t.size;
        return;
      }
      out.cached += t.size;
      if (s.tiles.length === 1) {
        out.wholes++;
        out.wholeBytes += t.size;
      } else {
        out.holes.push({ tile: t, segment: s, index: i, before: s.tiles[i - 1], after: s.tiles[i + 1] });
      }
    });
  }
  out.holes.sort((a, b) => b.tile.size - a.tile.size);
  return out;
}

/** segmentName says what a segment is. */
export function segmentName(s) {
  return `${s.expandable ? "expandable segment" : "segment"} ${address(s.addr)} of ${bytes(s.size)}, ${s.small ? "small" : "large"} blocks, stream ${s.stream}`;
}
