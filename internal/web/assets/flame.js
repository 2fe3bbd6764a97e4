// The flame graph: which call paths hold memory for how long. The width of a
// frame is bytes times lifetime within the view; callers stand above those
// whom they call.

import { element, fill, frame, wholeFrame, bytes, duration, count } from "./text.js";
import { colour } from "./colours.js";

const rowHeight = 22;
const leastShare = 0.002;
const mostNodes = 1500;

/** isReadable leaves native code out of stacks that have others. */
const isReadable = (f) => /\.(py|go)$/.test(f.file);

/** grow makes the tree of call paths from weights by stack. */
export function grow({ frames, stacks }, weights) {
  const root = { label: "all", title: "all", area: 0, bytes: 0, count: 0, children: new Map() };
  for (const w of weights) {
    const ids = stacks[w.stack];
    const readable = ids.filter((id) => isReadable(frames[id]));
    const path = (readable.length > 0 ? readable : ids).toReversed().map((id) => [id, frame(frames[id]), wholeFrame(frames[id])]);
    if (path.length === 0) path.push([-1, "no stack recorded", "no stack recorded"]);
    let node = root;
    add(node, w);
    for (const [id, label, title] of path) {
      if (!node.children.has(id)) node.children.set(id, { label, title, area: 0, bytes: 0, count: 0, children: new Map() });
      node = node.children.get(id);
      add(node, w);
    }
  }
  return root;
}

/** tint is the same number for all frames of a file. */
function tint(title) {
  let sum = 0;
  for (const c of title.split(":")[0]) sum = (sum * 31 + c.charCodeAt(0)) % 9973;
  return sum % 8;
}

function add(node, w) {
  node.area += w.area;
  node.bytes += w.bytes;
  node.count += w.count;
}

/** Flame shows a tree; a frame that is chosen takes the whole width. */
export class Flame {
  constructor(parent, timed, onFrame) {
    Object.assign(this, { parent, timed, onFrame });
    this.path = [];
  }

  set(root) {
    this.root = root;
    this.path = [root];
    this.draw();
  }

  describe(node) {
    const share = this.root.area > 0 ? (100 * node.area) / this.root.area : 0;
    const mean = node.bytes > 0 ? node.area / node.bytes : 0;
    const time = this.timed ? duration(mean) : `${count(Math.round(mean))} events`;
    return `${share.toFixed(1)} % · ${bytes(node.bytes)} in ${count(node.count)} blocks that live ${time} on average, in this view`;
  }

  draw() {
    const top = this.path.at(-1);
    const boxes = this.path.map((node, depth) => this.box(node, 0, 1, depth));
    let deepest = this.path.length;
    const place = (node, from, width, depth) => {
      const children = [...node.children.values()].sort((a, b) => b.area - a.area);
      for (const child of children) {
        const share = node.area > 0 ? (child.area / node.area) * width : 0;
        if (share < leastShare || boxes.length >= mostNodes) break;
        deepest = Math.max(deepest, depth + 1);
        boxes.push(this.box(child, from, share, depth, node));
        place(child, from, share, depth + 1);
        from += share;
      }
    };
    place(top, 0, 1, this.path.length);
    const area = element("div", { className: "flame", role: "group", "aria-label": "Flame graph, callers first" }, ...boxes);
    area.style.height = `${deepest * rowHeight}px`;
    fill(this.parent, area);
  }

  box(node, from, width, depth) {
    const label = depth === 0 ? `everything in this view` : node.label;
    const b = element("button", { type: "button", title: `${node.title}\n${this.describe(node)}` }, label);
    b.style.left = `${from * 100}%`;
    b.style.width = `max(calc(${width * 100}% - 1px), 1px)`;
    b.style.top = `${depth * rowHeight}px`;
    b.style.setProperty("--tint", colour(tint(node.title)));
    b.addEventListener("click", () => {
      const known = this.path.indexOf(node);
      if (known >= 0) this.path.length = known + 1;
      else this.path = this.pathTo(node);
      this.draw();
      this.onFrame(node.title, this.describe(node));
    });
    return b;
  }

  pathTo(node) {
    const walk = (at, path) => {
      if (at === node) return path;
      for (const child of at.children.values()) {
        const found = walk(child, [...path, child]);
        if (found) return found;
      }
      return null;
    };
    return walk(this.root, [this.root]) ?? [this.root];
  }
}
