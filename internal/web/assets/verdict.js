// The verdict: what `headroom explain` says, with its figures, causes and what
// to do. Every figure is as explain --json gives it.

import { element, fill, table, bytes, exactly } from "./text.js";

const figures = [
  ["request_bytes", "asked for"],
  ["free_bytes", "free on the device"],
  ["allocated_bytes", "live"],
  ["reserved_bytes", "reserved"],
  ["peak_reserved_bytes", "reserved at most"],
  ["cached_bytes", "cached"],
  ["total_bytes", "on the device"],
  ["limit_bytes", "allowed"],
  ["outside_bytes", "outside the pool"],
];

const groups = {
  "call site": "By call site",
  grows: "What grows",
  "cache left over": "Cache left over at the end",
  pending: "Reserved beside that",
  rounding: "Reserved beside that",
  "free segments": "Reserved beside that",
  holes: "Reserved beside that",
  "largest hole": "Reserved beside that",
};

/** headline is a verdict as a title, with what it is about where that needs a word. */
export function headline(id, verdict, about = "") {
  const good = verdict === "HEALTHY";
  return element("h2", { id, className: good ? "good" : "bad" }, `${good ? "✓" : "▲"} ${verdict}`, " ", element("span", { className: "about" }, about));
}

/** showVerdict fills the section of a record's verdict. */
export function showVerdict(parent, { explain, replay }, about) {
  fill(parent,
    headline("verdict-title", explain.verdict, about),
    element("p", { className: "summary" }, explain.summary),
    figureList(explain),
    element("div", { className: "advice" },
      list("What to do", explain.actions), list("What will not help", explain.unhelpful)),
    element("details", { open: !window.matchMedia("(max-width: 700px)").matches }, element("summary", {}, "What holds the memory at that moment"),
      element("div", { className: "causes" }, ...causes(explain))),
    element("p", { className: "note" }, ...replayNote(replay)));
}

function figureList(explain) {
  const known = figures.filter(([key]) => explain[key] !== null && explain[key] !== undefined);
  return element("dl", { className: "figures" }, ...known.map(([key, label]) =>
    element("div", {}, element("dt", {}, label), element("dd", {}, figure(key, explain[key])))));
}

/** figure is a number of bytes that can be found by its name. */
export function figure(key, value) {
  return element("span", { "data-key": key, "data-value": value, title: exactly(value) }, bytes(value));
}

/** list is a title with numbered lines, or nothing where there are none. */
export function list(title, lines) {
  if (lines.length === 0) return "";
  return element("div", {}, element("h3", {}, title), element("ol", {}, ...lines.map((l) => element("li", {}, l))));
}

function causes(explain) {
  const by = new Map();
  for (const c of explain.causes) {
    const title = groups[c.what] ?? "By purpose";
    by.set(title, [...(by.get(title) ?? []), c]);
  }
  return [...by].map(([title, rows]) => table(title, ["bytes", "what"], rows.map((c) => {
    const named = ["call site", "grows", "cache left over"].includes(c.what);
    return [bar(c.bytes, explain.reserved_bytes), named ? c.where : `${c.what.replaceAll("_", " ")}: ${c.where}`];
  }), [0]));
}

/** bar is a figure with a bar behind it that shows its share. */
export function bar(value, of) {
  const b = element("span", { className: "bar", title: exactly(value), "data-value": value }, bytes(value));
  b.style.setProperty("--share", `${of > 0 ? Math.min((100 * value) / of, 100) : 0}%`);
  return b;
}

function replayNote(replay) {
  if (!replay) return ["The recorded settings cannot be replayed."];
  const proof = replay.exact ? "the replay under the recorded settings equals the record in every address, segment and block" : `the replay differs from the record: ${replay.mismatch}`;
  return ["At most ", figure("replay peak_live_bytes", replay.peak_live_bytes), " were live and ", figure("replay peak_reserved_bytes", replay.peak_reserved_bytes), ` reserved; ${proof}.`];
}
