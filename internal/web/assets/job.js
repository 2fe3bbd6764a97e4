// The ranks of a job: what `headroom explain` says of all of them together, and a table
// of them from which each can be chosen.

import { element, fill, table, button, bytes } from "./text.js";
import { headline, list, bar } from "./verdict.js";

/** rankName is what a rank is called. */
export function rankName(job, i) {
  return `rank ${i}: ${job.ranks[i].name}`;
}

/** showJob fills the section of the job. open(i) shows the record of rank i. */
export function showJob(parent, job, open) {
  fill(parent,
    headline("job-title", job.verdict, `of ${job.ranks.length} ranks`),
    element("p", { className: "summary" }, job.summary),
    element("div", { className: "advice" }, list("What to do", job.actions)),
    ranksTable(job, open),
    element("details", {}, element("summary", {}, "What ranks have different amounts of"),
      element("div", { className: "causes" }, spreadTable("By purpose", job.purposes), spreadTable("By call site", job.sites))));
}

/** markRank says in the table which rank is shown. */
export function markRank(parent, job, record) {
  parent.querySelectorAll("button[data-rank]").forEach((b) => b.setAttribute("aria-pressed", job.records[b.dataset.rank] === record));
}

/** ranksTable compares the ranks. All its bars have one scale: the most that any has reserved. */
function ranksTable(job, open) {
  const most = Math.max(...job.ranks.map((r) => r.reserved_bytes));
  const held = (purpose) => (r) => r.live_by_purpose.find((s) => s.what === purpose)?.bytes ?? 0;
  const purposes = [...new Set(job.ranks.flatMap((r) => r.live_by_purpose.map((s) => s.what)))].sort();
  const columns = [["live", (r) => r.live_bytes], ...purposes.map((p) => [p.replaceAll("_", " "), held(p)]),
    ["reserved at most", (r) => r.reserved_bytes], ["free of it", (r) => r.cached_bytes]];
  const rows = job.ranks.map((r, i) => [chooser(job, i, open), ...columns.map(([, value]) => bar(value(r), most)), r.verdict, remarks(job, i)]);
  const spread = columns.map(([, value]) => {
    const all = job.ranks.map(value);
    return bytes(Math.max(...all) - Math.min(...all));
  });
  const caption = `Ranks, each when its memory ran out or at its peak: the most that is live on one is ${job.imbalance.toFixed(2)} times the mean`;
  return table(caption, ["rank", ...columns.map(([name]) => name), "verdict", ""], [...rows, ["most − least", ...spread, "", ""]], columns.map((_, c) => c + 1));
}

/** chooser is a button that shows a rank, or its name where it is not on the page. */
function chooser(job, i, open) {
  if (job.records[i] < 0) return rankName(job, i);
  return button(rankName(job, i), () => open(i), { className: "link", "data-rank": i });
}

/** remarks say what is special about a rank. */
function remarks(job, i) {
  const r = job.ranks[i];
  const left = job.records[i] < 0 ? "not on this page, for lack of room: see headroom report with its file alone" : "";
  return [i === job.rank ? "the job's verdict is about it" : "", r.ran_out ? "ran out of memory" : "", r.place?.replace(/^rank \d+ of \d+:? ?/, ""), left].filter(Boolean).join("; ");
}

function spreadTable(title, spreads) {
  return table(title, ["least", "rank", "most", "rank", "what"], spreads.map((s) => {
    const [least, most] = [Math.min(...s.bytes), Math.max(...s.bytes)];
    const blocks = `${Math.min(...s.counts)} to ${Math.max(...s.counts)} blocks`;
    return [bytes(least), s.bytes.indexOf(least), bytes(most), s.bytes.indexOf(most), `${s.what.replaceAll("_", " ")}, ${blocks}`];
  }), [0, 1, 2, 3]);
}
