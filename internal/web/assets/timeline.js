// Live memory over time: areas by purpose or by call site over one another,
// the reserved line, other curves for comparison, and the strip below with the
// whole record, whose window is what is shown above.

import { prepare, interact, roundStep, tail } from "./canvas.js";
import { pattern, colour, dashes, theme } from "./colours.js";
import { bytes, count, duration } from "./text.js";

const left = 72;
const right = 12;
const bottom = 26;
const laneHeight = 16;
const keySteps = 40;

/** Timeline draws samples and tells what the user does: onView(from, to), onMoment(m). */
export class Timeline {
  constructor(canvas, strip, calls) {
    this.canvas = canvas;
    this.strip = strip;
    this.calls = calls;
    this.view = { from: 0, to: 1 };
    this.events = 1;
    this.curves = [];
    this.hovered = null;
    interact(canvas, {
      pan: (pixels) => this.pan((pixels / this.plotWidth()) * this.span()),
      zoom: (factor, x) => this.zoom(factor, this.momentAt(x)),
      range: (a, b) => this.show(this.momentAt(a), this.momentAt(b)),
      click: (x) => calls.onMoment(Math.round(this.momentAt(x))),
      hover: (x) => { this.hovered = x; calls.onHover(); },
    });
    interact(strip, {
      pan: (pixels) => this.pan((-pixels / this.plotWidth()) * this.events),
      zoom: (factor, x) => this.zoom(factor, this.stripMoment(x)),
      click: (x) => { const m = this.stripMoment(x); this.show(m - this.span() / 2, m + this.span() / 2); },
    });
    canvas.addEventListener("keydown", (e) => this.key(e));
  }

  plotWidth() {
    return Math.max(this.canvas.clientWidth - left - right, 1);
  }

  span() {
    return this.view.to - this.view.from;
  }

  // The strip has the whole record on the axis of the picture above it.

  stripMoment(x) {
    const share = (x - left) / this.plotWidth();
    if (!this.timed(this.whole)) return share * this.events;
    const { moments, times } = this.whole;
    return interpolate(times, moments, times[0] + share * (times.at(-1) - times[0]));
  }

  stripShare(moment) {
    if (!this.timed(this.whole)) return moment / Math.max(this.events, 1);
    const { moments, times } = this.whole;
    return (interpolate(moments, times, moment) - times[0]) / Math.max(times.at(-1) - times[0], 1);
  }

  /** timed says whether the axis is that of time, which samples have to tell. */
  timed(samples) {
    return this.axis === "time" && samples?.times.length > 1;
  }

  /** show changes the view. It keeps its length where it would pass an end. */
  show(from, to) {
    const least = Math.min(8, this.events);
    let span = Math.min(Math.max(to - from, least), this.events);
    if (to - from < least) from = (from + to) / 2 - span / 2;
    from = Math.min(Math.max(from, 0), this.events - span);
    this.calls.onView(from, from + span);
  }

  pan(moments) {
    this.show(this.view.from + moments, this.view.to + moments);
  }

  zoom(factor, around) {
    const span = Math.min(this.span() * factor, this.events);
    const share = (around - this.view.from) / this.span();
    this.show(around - share * span, around + (1 - share) * span);
  }

  key(e) {
    const step = Math.max(this.span() / keySteps, 1);
    const go = (m) => this.calls.onMoment(Math.min(Math.max(Math.round(m), 0), this.events), true);
    const acts = {
      ArrowRight: () => (e.shiftKey ? this.pan(this.span() / 4) : go(this.moment + step)),
      ArrowLeft: () => (e.shiftKey ? this.pan(-this.span() / 4) : go(this.moment - step)),
      ArrowUp: () => this.zoom(0.5, this.moment),
      ArrowDown: () => this.zoom(2, this.moment),
      "+": () => this.zoom(0.5, this.moment),
      "-": () => this.zoom(2, this.moment),
      PageUp: () => this.pan(-this.span()),
      PageDown: () => this.pan(this.span()),
      Home: () => go(0),
      End: () => go(this.events),
      0: () => this.show(0, this.events),
      p: () => go(this.peak),
    };
    const act = acts[e.key];
    if (!act || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    act();
  }

  /** set takes what is to be drawn: samples, view, moment, split, axis, most, … */
  set(what) {
    Object.assign(this, what);
  }

  // Moments and pixels. Between two samples time is taken to pass evenly.

  position(moment) {
    if (!this.timed(this.samples)) return (moment - this.view.from) / this.span();
    const { from, length } = this.timeRange();
    return (this.timeAt(moment) - from) / length;
  }

  timeRange() {
    const from = this.timeAt(this.view.from);
    return { from, length: Math.max(this.timeAt(this.view.to) - from, 1) };
  }

  timeAt(moment) {
    return interpolate(this.samples.moments, this.samples.times, moment);
  }

  x(moment) {
    return left + this.position(moment) * this.plot;
  }

  momentAt(x) {
    const share = (x - left) / this.plotWidth();
    if (!this.timed(this.samples)) return this.view.from + share * this.span();
    const { from, length } = this.timeRange();
    return interpolate(this.samples.times, this.samples.moments, from + share * length);
  }

  y(b) {
    return this.height - bottom - (b / this.most) * (this.height - bottom - this.top);
  }

  draw() {
    if (!this.samples) return;
    const { context, width, height } = prepare(this.canvas);
    Object.assign(this, { c: context, width, height, plot: Math.max(width - left - right, 1), top: 12 + this.lanes() * laneHeight, colours: theme() });
    this.most = this.highest();
    this.axes();
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left - right, height);
    context.clip();
    this.areas();
    this.line(this.samples.moments, this.samples.reserved, this.colours.ink, [5, 3], 1.5);
    this.curves.forEach((curve, i) => this.line(curve.moments, curve.values, colour(curve.colour ?? i), dashes[(i + 2) % dashes.length], 2.5));
    this.notes();
    this.failed();
    this.cursor();
    context.restore();
    this.drawStrip();
  }

  highest() {
    const reserved = this.samples.reserved.reduce((a, b) => Math.max(a, b), 1);
    const live = this.totals(this.samples).reduce((a, b) => Math.max(a, b), 1);
    const others = this.curves.flatMap((curve) => this.within(curve)).reduce((a, b) => Math.max(a, b), 1);
    return Math.max(reserved, live, others) * 1.04;
  }

  within(curve) {
    return curve.values.filter((_, i) => curve.moments[i] >= this.view.from && curve.moments[i] <= this.view.to);
  }

  totals(samples) {
    return samples.moments.map((_, i) => samples.parts[0].reduce((sum, part) => sum + part[i], 0));
  }

  lanes() {
    return this.meta.annotations.reduce((n, a) => Math.max(n, a.lane + 1), 0);
  }

  axes() {
    const { c, colours } = this;
    c.fillStyle = colours.dim;
    c.strokeStyle = colours.grid;
    c.lineWidth = 1;
    c.textBaseline = "middle";
    c.textAlign = "right";
    const lines = Math.max(Math.floor((this.height - bottom - this.top) / 40), 2);
    const step = 2 ** Math.ceil(Math.log2(this.most / lines));
    for (let b = 0; b <= this.most; b += step) {
      const y = Math.round(this.y(b)) + 0.5;
      c.beginPath();
      c.moveTo(left, y);
      c.lineTo(this.width - right, y);
      c.stroke();
      c.fillText(bytes(b), left - 6, y);
    }
    this.ticks();
  }

  ticks() {
    const { c } = this;
    const timed = this.timed(this.samples);
    const range = timed ? this.timeRange() : { from: this.view.from, length: this.span() };
    const step = roundStep(range.length / Math.max(this.plot / 110, 1));
    c.textAlign = "center";
    for (let v = Math.ceil(range.from / step) * step; v <= range.from + range.length; v += step) {
      const x = left + ((v - range.from) / range.length) * this.plot;
      c.fillRect(x, this.height - bottom, 1, 4);
      const label = timed ? duration(v, step) : count(Math.round(v));
      const half = c.measureText(label).width / 2;
      c.fillText(label, Math.min(x, this.width - half - 2), this.height - bottom + 13);
    }
  }

  /** areas draws the parts over one another. Each sample lasts until the next. */
  areas() {
    const { c, samples } = this;
    const xs = samples.moments.map((m) => this.x(m));
    xs.push(Math.max(this.x(this.view.to), xs.at(-1) ?? left));
    const below = new Float64Array(samples.moments.length);
    samples.parts[this.split].forEach((part, p) => {
      if (!part.some((b) => b > 0)) return;
      c.beginPath();
      c.moveTo(xs[0], this.y(below[0]));
      for (let i = 0; i < part.length; i++) {
        const y = this.y(below[i] + part[i]);
        c.lineTo(xs[i], y);
        c.lineTo(xs[i + 1], y);
      }
      for (let i = part.length - 1; i >= 0; i--) {
        c.lineTo(xs[i + 1], this.y(below[i]));
        c.lineTo(xs[i], this.y(below[i]));
        below[i] += part[i];
      }
      c.closePath();
      c.fillStyle = pattern(c, p);
      c.fill();
    });
  }

  line(moments, values, stroke, dash, lineWidth) {
    const { c } = this;
    c.beginPath();
    let started = false;
    for (let i = 0; i < moments.length; i++) {
      if ((moments[i + 1] ?? Infinity) < this.view.from || moments[i] > this.view.to) continue;
      const [x, y] = [this.x(moments[i]), this.y(values[i])];
      if (started) c.lineTo(x, y);
      else c.moveTo(x, y);
      started = true;
      c.lineTo(i + 1 < moments.length ? this.x(moments[i + 1]) : x + 1, y);
    }
    c.strokeStyle = stroke;
    c.lineWidth = lineWidth;
    c.setLineDash(dash);
    c.stroke();
    c.setLineDash([]);
  }

  /** notes draws the spans that the program named, in lanes above: what lies within another below it. */
  notes() {
    const { c, colours } = this;
    const drawn = []; // by lane: where the last one ends
    c.textAlign = "left";
    for (const a of this.meta.annotations) {
      const [x0, x1] = [this.x(a.from), this.x(a.to)];
      if (x1 < Math.max(left, (drawn[a.lane] ?? left) + 0.5) || x0 > this.width) continue;
      drawn[a.lane] = x1;
      const y = 6 + a.lane * laneHeight;
      c.fillStyle = colours.grid;
      c.fillRect(x0, y, Math.max(x1 - x0 - 1, 1), laneHeight - 3);
      c.fillStyle = colours.ink;
      const from = Math.max(x0, left);
      if (x1 - from > 24) c.fillText(tail(c, a.name, x1 - from - 6), from + 3, y + laneHeight / 2 - 1);
    }
  }

  failed() {
    const { c, colours } = this;
    for (const f of this.meta.failures) {
      const x = this.x(f.moment);
      c.fillStyle = colours.accent;
      c.fillRect(x - 1, this.top, 2, this.height - bottom - this.top);
      c.beginPath();
      c.moveTo(x - 7, this.top - 8);
      c.lineTo(x + 7, this.top - 8);
      c.lineTo(x, this.top + 4);
      c.fill();
      c.textAlign = x > this.width / 2 ? "right" : "left";
      c.fillText(`out of memory: ${bytes(f.request_bytes)} asked`, x + (x > this.width / 2 ? -10 : 10), this.top);
    }
  }

  cursor() {
    const { c, colours } = this;
    c.fillStyle = colours.ink;
    const x = this.x(this.moment);
    c.fillRect(x - 0.75, this.top - 8, 1.5, this.height - bottom - this.top + 8);
    c.beginPath();
    c.arc(x, this.top - 6, 4, 0, 7);
    c.fill();
    if (this.hovered === null) return;
    c.globalAlpha = 0.4;
    c.fillRect(this.hovered, this.top, 1, this.height - bottom - this.top);
    c.globalAlpha = 1;
  }

  drawStrip() {
    if (!this.whole) return;
    const { context: c, width, height } = prepare(this.strip);
    const colours = theme();
    const totals = this.totals(this.whole);
    const most = Math.max(totals.reduce((a, b) => Math.max(a, b), 1), 1);
    const x = (m) => left + this.stripShare(m) * (width - left - right);
    c.beginPath();
    c.moveTo(left, height);
    totals.forEach((b, i) => c.lineTo(x(this.whole.moments[i]), height - 2 - (b / most) * (height - 6)));
    c.lineTo(width - right, height);
    c.fillStyle = colours.dim;
    c.globalAlpha = 0.5;
    c.fill();
    c.globalAlpha = 1;
    const [a, b] = [x(this.view.from), x(this.view.to)];
    c.strokeStyle = colours.ink;
    c.lineWidth = 2;
    c.strokeRect(a, 1, Math.max(b - a, 3), height - 2);
    c.fillStyle = colours.dim;
    c.textAlign = "right";
    c.textBaseline = "middle";
    c.fillText("whole", left - 6, height / 2);
  }
}

/** interpolate gives the value at x of a curve through (xs, ys), xs in order. */
function interpolate(xs, ys, x) {
  let low = 0;
  let high = xs.length - 1;
  if (high < 0) return x;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  if (xs[high] === xs[low]) return ys[low];
  const share = Math.min(Math.max((x - xs[low]) / (xs[high] - xs[low]), 0), 1);
  return ys[low] + share * (ys[high] - ys[low]);
}
