// What was chosen: a block with its stack and its life, a hole with what pins
// it, a frame.

import { element, fill, table, bytes, exactly, address, count, duration, frame, wholeFrame } from "./text.js";
import { segmentName } from "./segments.js";

/** Details fills the box beside the pictures. */
export class Details {
  constructor(parent, app) {
    Object.assign(this, { parent, app });
  }

  /** show gives the box a title and content. */
  show(title, ...content) {
    fill(this.parent, element("h2", { id: "details-title" }, title), ...content);
  }

  /** block shows a lease. */
  async block(lease) {
    const record = this.app.record;
    const b = await record.block(lease);
    if (!b || record !== this.app.record) return;
    this.show(`Block of ${bytes(b.size)}`,
      facts([
        ["address", address(b.addr)],
        ["asked for", exactly(b.requested)],
        ["takes", exactly(b.size)],
        ["purpose", record.meta.purposes[b.purpose].replaceAll("_", " ")],
        ["allocated by", b.where.from ? `${b.where.at}, called from ${b.where.from}` : b.where.at],
        ["stream", b.stream],
        ...life(b, record.meta),
      ]),
      element("p", {}, this.app.goButton("Go to its allocation", b.born), " ", this.app.goButton("Go to its free", b.freed)),
      element("h3", {}, "Stack, innermost first"),
      b.frames.length === 0 ? element("p", {}, "no stack recorded")
        : element("ol", { className: "stack", tabIndex: 0, "aria-label": "call stack" }, ...b.frames.map((f) =>
          element("li", { title: wholeFrame(f), className: /\.(py|go)$/.test(f.file) ? "" : "native" }, frame(f)))));
  }

  /** hole shows a free piece of a segment, and the blocks that keep it from being more. */
  async hole(tile, segment, index) {
    const record = this.app.record;
    const beside = [segment.tiles[index - 1], segment.tiles[index + 1]].filter(Boolean);
    const blocks = await Promise.all(beside.map((t) => record.block(t.lease)));
    if (record !== this.app.record) return;
    this.show(`${beside.length === 0 ? "Free segment" : "Hole"} of ${bytes(tile.size)}`,
      facts([["address", address(tile.addr)], ["size", exactly(tile.size)], ["in", segmentName(segment)]]),
      beside.length === 0 ? element("p", {}, "Nothing is in this segment: empty_cache() would give it back.")
        : table("Pinned by", ["bytes", "allocated by", "lives until", ""], blocks.filter(Boolean).map((b) =>
          [bytes(b.size), b.where.at, ends(b, record.meta), this.app.blockButton(b.lease)]), [0]));
  }
}

/** facts is a list of names and values. */
export function facts(rows) {
  return element("dl", { className: "facts" }, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

/** ends says when a block is freed. */
export function ends(b, meta) {
  if (b.freed > meta.events) return "the end of the record";
  return `event ${count(b.freed)}`;
}

function life(b, meta) {
  const born = b.born < 0 ? "before the record" : `event ${count(b.born)}`;
  const rows = [["allocated", born], ["freed", b.freed > meta.events ? "not in the record" : ends(b, meta)]];
  if (b.done > b.freed && b.freed <= meta.events) rows.push(["usable again", b.done > meta.events ? "not in the record" : `event ${count(b.done)}`]);
  const lived = `${count(Math.min(b.freed, meta.events) - Math.max(b.born, 0))} events`;
  rows.push(["lives", meta.timed ? `${duration(b.freed_time - b.born_time)}, ${lived}` : lived]);
  return rows;
}
