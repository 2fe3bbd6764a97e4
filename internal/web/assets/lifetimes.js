// Blocks over time: each a rectangle from its allocation to its free, at its
// address. Addresses that nothing uses are left out.

import { prepare, interact } from "./canvas.js";
import { pattern, theme } from "./colours.js";
import { bytes } from "./text.js";

const left = 72;
const right = 12;

/** Lifetimes draws the lives of a view and tells which was chosen: onLife(life). */
export class Lifetimes {
  constructor(canvas, timeline, onLife) {
    this.canvas = canvas;
    this.onLife = onLife;
    this.lives = [];
    this.selected = null;
    interact(canvas, {
      pan: (pixels) => timeline.pan((pixels / this.width()) * timeline.span()),
      zoom: (factor, x) => timeline.zoom(factor, this.momentAt(x)),
      click: (x, y) => this.choose(this.find(x, y)),
    });
    canvas.addEventListener("keydown", (e) => this.key(e, timeline));
  }

  width() {
    return Math.max(this.canvas.clientWidth - left - right, 1);
  }

  momentAt(x) {
    return this.view.from + ((x - left) / this.width()) * (this.view.to - this.view.from);
  }

  set(lives, view, split, found, moment) {
    Object.assign(this, { lives, view, split, found, moment });
    this.squeeze();
    this.draw();
  }

  /** squeeze gives the addresses in use a scale without gaps. */
  squeeze() {
    const sorted = this.lives.map((l) => [l.addr, l.addr + l.size]).sort((a, b) => a[0] - b[0]);
    this.ranges = [];
    for (const [from, to] of sorted) {
      const last = this.ranges.at(-1);
      if (last && from <= last.to) last.to = Math.max(last.to, to);
      else this.ranges.push({ from, to, at: 0 });
    }
    this.total = 0;
    for (const r of this.ranges) {
      r.at = this.total - r.from;
      this.total += r.to - r.from;
    }
  }

  offset(addr) {
    let low = 0;
    let high = this.ranges.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.ranges[middle].from <= addr) low = middle;
      else high = middle - 1;
    }
    return addr + this.ranges[low].at;
  }

  box(l, height, width) {
    const span = this.view.to - this.view.from;
    const x = (m) => left + ((Math.min(Math.max(m, this.view.from), this.view.to) - this.view.from) / span) * width;
    const y = (this.offset(l.addr) / this.total) * height;
    return { x: x(l.born), y, w: Math.max(x(l.freed) - x(l.born), 1), h: Math.max((l.size / this.total) * height, 0.5) };
  }

  find(x, y) {
    const height = this.canvas.clientHeight;
    const width = this.width();
    let best = null;
    for (const l of this.lives) {
      const b = this.box(l, height, width);
      if (x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h && (!best || l.size < best.size)) best = l;
    }
    return best;
  }

  choose(life) {
    if (!life) return;
    this.selected = life.lease;
    this.draw();
    this.onLife(life);
  }

  key(e, timeline) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    if (e.key === "+" || e.key === "-") timeline.zoom(e.key === "+" ? 0.5 : 2, this.moment);
    if (!step || this.lives.length === 0) return;
    e.preventDefault();
    const i = this.lives.findIndex((l) => l.lease === this.selected);
    this.choose(this.lives[(i + step + this.lives.length) % this.lives.length]);
  }

  draw() {
    const { context: c, width, height } = prepare(this.canvas);
    const colours = theme();
    c.strokeStyle = colours.paper;
    c.lineWidth = 0.5;
    const wide = this.width();
    let chosen = null;
    for (const l of this.lives) {
      const b = this.box(l, height, wide);
      if (l.lease === this.selected) chosen = b;
      c.globalAlpha = this.found && !this.found(l) ? 0.12 : 1;
      c.fillStyle = pattern(c, this.split === 0 ? l.purpose : l.site);
      c.fillRect(b.x, b.y, b.w, b.h);
      if (b.w > 3 && b.h > 3) c.strokeRect(b.x, b.y, b.w, b.h);
    }
    c.globalAlpha = 1;
    if (chosen) {
      c.strokeStyle = colours.ink;
      c.lineWidth = 3;
      c.strokeRect(chosen.x - 1, chosen.y - 1, Math.max(chosen.w, 3) + 2, Math.max(chosen.h, 3) + 2);
    }
    c.fillStyle = colours.ink;
    const x = left + ((this.moment - this.view.from) / (this.view.to - this.view.from)) * this.width();
    if (x >= left && x <= width - right) c.fillRect(x - 0.75, 0, 1.5, height);
    c.fillStyle = colours.dim;
    c.textAlign = "right";
    c.textBaseline = "top";
    c.fillText("address", left - 6, 4);
    if (this.total > 0) c.fillText(bytes(this.total), left - 6, height - 16);
  }
}
