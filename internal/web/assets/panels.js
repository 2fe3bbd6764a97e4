// The tables below the timeline: the largest blocks and holes of a moment,
// steps, other settings, and records side by side.

import { element, table, bytes, count, duration, address } from "./text.js";
import { sums } from "./segments.js";
import { bar, figure } from "./verdict.js";
import { swatch } from "./colours.js";

const mostRows = 100;

/** siteText says where something was allocated, as the commands do. */
function siteText(site) {
  return site.from ? `${site.at} (called from ${site.from})` : site.at;
}

/** largestBlocks lists what is live at a moment. */
export function largestBlocks(app, state, sites) {
  const tiles = state.segments.flatMap((s) => s.tiles.filter((t) => t.lease >= 0)).sort((a, b) => b.size - a.size || a.lease - b.lease);
  const { purposes } = app.record.meta;
  return table(`Largest of ${count(tiles.length)} blocks at event ${count(state.moment)}`, ["bytes", "purpose", "call site", "address", ""],
    tiles.slice(0, mostRows).map((t) => [bar(t.size, tiles[0].size), purposes[t.purpose].replaceAll("_", " "), siteText(sites[t.stack]), address(t.addr), app.blockButton(t.lease)]), [0]);
}

/** holesTable lists the largest holes with what pins them. */
export function holesTable(app, state, sites) {
  const s = sums(state);
  const name = (t) => (t ? element("button", { type: "button", className: "link", onclick: () => app.chooseBlock(t.lease) }, `${bytes(t.size)} · ${siteText(sites[t.stack])}`) : "the segment's end");
  return table(`Largest of ${count(s.holes.length)} holes, and the blocks on both sides that pin them`, ["hole", "before it", "behind it", ""],
    s.holes.slice(0, 20).map((h) => [bytes(h.tile.size), name(h.before), name(h.after),
      element("button", { type: "button", className: "link", onclick: () => app.details.hole(h.tile, h.segment, h.index) }, "details")]), [0]);
}

/** totals says what a state adds up to. */
export function totals(state) {
  const s = sums(state);
  const p = element("p", { className: "totals" }, `${bytes(s.live)} live, ${bytes(s.pending)} pending and ${bytes(s.cached)} cached of ${bytes(s.reserved)} reserved in ${count(state.segments.length)} segments. `,
    `Cached: ${bytes(s.wholeBytes)} in ${count(s.wholes)} free segments, ${bytes(s.cached - s.wholeBytes)} in ${count(s.holes.length)} holes between blocks.`);
  for (const key of ["live", "pending", "cached", "reserved"]) p.dataset[key] = s[key];
  return p;
}

/** stepsTable lists steps; each can be looked at. */
export function stepsTable(app, steps) {
  if (!steps || steps.list.length === 0) return element("p", {}, "The record shows no steps: neither annotations nor an optimizer nor a stack that comes again evenly.");
  const timed = app.record.meta.timed;
  const time = (d) => (timed ? duration(d) : `${count(d)} events`);
  const most = steps.list.reduce((m, s) => Math.max(m, s.peak_live_bytes), 1);
  const signed = (n) => (n > 0 ? `+${bytes(n)}` : bytes(n));
  const some = steps.list.length < steps.count ? ` The first and the last ${steps.list.length / 2} are listed.` : "";
  return element("div", {}, element("p", {}, `${count(steps.count)} ${steps.count === 1 ? "step" : "steps"}, found by ${steps.by}.${some}`),
    table("Steps", ["step", "takes", "peak live", "peak reserved", "live at its end", "growth", "blocks", ""], steps.list.map((s) => [
      s.number, time(s.duration), bar(s.peak_live_bytes, most), bytes(s.peak_reserved_bytes), bytes(s.end_live_bytes), signed(s.growth_bytes), count(s.blocks),
      element("button", { type: "button", className: "link", onclick: () => app.timeline.show(s.from, s.to) }, "show")]), [0, 1, 2, 3, 4, 5, 6]));
}

/** whatIfTable lists what other allocators would have reserved; each can be drawn. */
export function whatIfTable(app, tries, recorded) {
  const rows = tries.map((t, i) => {
    const r = t.result;
    const oom = r.oom ? `would have failed at event ${count(r.oom.event)}` : "serves every request";
    return [choice(app, `what-${i}`, t.name, i), figure(`${t.name} peak_reserved_bytes`, r.peak_reserved_bytes),
      recorded ? change(r.peak_reserved_bytes, recorded.peak_reserved_bytes) : "", figure(`${t.name} peak_live_bytes`, r.peak_live_bytes), count(r.retries), oom];
  });
  if (recorded) rows.unshift(["as recorded", bytes(recorded.peak_reserved_bytes), "", bytes(recorded.peak_live_bytes), count(recorded.retries), recorded.oom ? "failed" : "served every request"]);
  const notes = [...new Set(tries.flatMap((t) => t.result.notes ?? []))];
  return element("div", {}, table("The same requests under other settings, replayed", ["settings", "reserved at most", "change", "live at most", "retries", "result"], rows, [1, 2, 3, 4]),
    ...notes.map((n) => element("p", { className: "note" }, n)));
}

function choice(app, key, name, i) {
  const box = element("input", { type: "checkbox", checked: app.shown.has(key) });
  box.addEventListener("change", () => app.toggleCurve(key, box.checked));
  return element("label", {}, box, swatch((i + 2) % 8), ` ${name}`);
}

function change(now, before) {
  const percent = before > 0 ? (100 * (now - before)) / before : 0;
  return `${percent > 0 ? "+" : ""}${percent.toFixed(1)} %`;
}

/** compareTable puts records side by side; the live bytes of each can be drawn on one axis. */
export function compareTable(app) {
  return table("Records on one axis: live bytes by time since each one's start", ["record", "live at most", "reserved at most", "events", "lasts", "verdict", ""], app.records.map((r, i) => {
    const f = app.findingsOf.get(r);
    const box = element("input", { type: "checkbox", checked: app.shown.has(`record-${i}`), disabled: r === app.record });
    box.addEventListener("change", () => app.toggleCurve(`record-${i}`, box.checked));
    return [element("label", {}, box, swatch((i + 4) % 8), ` ${app.nameOf(r)}`), f?.replay ? bytes(f.replay.peak_live_bytes) : "", f?.replay ? bytes(f.replay.peak_reserved_bytes) : "",
      count(r.meta.events), r.meta.timed ? duration(r.meta.duration) : "", f?.explain.verdict ?? "", r === app.record ? "shown" : element("button", { type: "button", className: "link", onclick: () => app.open(i) }, "open")];
  }), [1, 2, 3, 4]);
}

/** foundTable lists what a search found. */
export function foundTable(app, found, sites) {
  return table(`${count(found.count)} blocks, ${bytes(found.bytes)} together, at any moment; the largest of them`, ["bytes", "call site", "allocated", ""], found.lives.map((l) =>
    [bytes(l.size), siteText(sites[l.stack]), l.born < 0 ? "before the record" : `event ${count(l.born)}`, app.blockButton(l.lease)]), [0]);
}
