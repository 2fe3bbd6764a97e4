// A job that runs: the same timeline, and beside it the loss, what happened,
// and the allocator's figures, asked for once a second.

import { prepare } from "./canvas.js";
import { colour, theme } from "./colours.js";
import { element, fill, table, bytes, exactly, count, duration } from "./text.js";
import { get } from "./remote.js";

const everyMilliseconds = 1000;

/** LiveRecord asks the job's server. */
export class LiveRecord {
  constructor(meta) {
    this.meta = meta;
  }

  samples(from, to, width) {
    return get(`api/samples?${new URLSearchParams({ from: Math.round(from), to: Math.round(to), width })}`);
  }
}

/** follow asks again and again, and tells the app. It never overlaps itself. */
export async function follow(app, record) {
  for (;;) {
    try {
      app.liveNews(await get("api/live"));
    } catch (problem) {
      app.say(`The job does not answer: ${problem.message}`);
    }
    await new Promise((resolve) => setTimeout(resolve, everyMilliseconds));
    if (app.record !== record) return;
  }
}

/** showLive fills the section on top with the figures of the moment. */
export function showLive(parent, news) {
  const figures = [
    ["step", news.step ? count(news.step) : "none yet", ""],
    ["loss", news.loss === null ? "none yet" : Number(news.loss.toPrecision(5)), ""],
    ["live", bytes(news.figures.live_bytes), exactly(news.figures.live_bytes)],
    ["peak live", bytes(news.figures.peak_live_bytes), exactly(news.figures.peak_live_bytes)],
    ["reserved", bytes(news.figures.reserved_bytes), exactly(news.figures.reserved_bytes)],
    ["budget", news.budget_bytes ? bytes(news.budget_bytes) : "not told", ""],
    ["runs for", duration(news.meta.duration), ""],
  ];
  fill(parent, element("h2", { className: "good" }, `● ${news.meta.name}`),
    element("dl", { className: "figures" }, ...figures.map(([name, value, title]) =>
      element("div", { title }, element("dt", {}, name), element("dd", {}, value)))));
}

/** eventsTable lists what happened, the last first. */
export function eventsTable(news) {
  if (news.events.length === 0) return element("p", {}, "Nothing out of the ordinary has happened.");
  return table("What happened, the last first", ["after", "what"], news.events.toReversed().map((e) => [duration(e.time), e.text]), [0]);
}

/** statisticsTable lists the allocator's figures. */
export function statisticsTable(news) {
  return table("Figures of the allocator", ["name", "value", "meaning"], news.statistics.map((s) =>
    [s.name, s.name.includes("_bytes") ? bytes(s.value) : count(s.value), s.doc]), [1]);
}

/** drawLoss draws the loss over steps. */
export function drawLoss(canvas, points) {
  const { context: c, width, height } = prepare(canvas);
  const colours = theme();
  const [left, right, bottom, top] = [72, 12, 22, 8];
  c.fillStyle = colours.dim;
  if (points.length === 0) {
    c.fillText("no loss yet", left, height / 2);
    return;
  }
  const values = points.map((p) => p.loss);
  const least = Math.min(...values);
  const most = Math.max(...values, least + 1e-9);
  const last = Math.max(points.at(-1).step, points[0].step + 1);
  const x = (step) => left + ((step - points[0].step) / (last - points[0].step)) * (width - left - right);
  const y = (v) => height - bottom - ((v - least) / (most - least)) * (height - bottom - top);
  c.textBaseline = "middle";
  c.textAlign = "right";
  for (const v of [least, (least + most) / 2, most]) {
    c.fillStyle = colours.grid;
    c.fillRect(left, Math.round(y(v)), width - left - right, 1);
    c.fillStyle = colours.dim;
    c.fillText(Number(v.toPrecision(4)), left - 6, y(v));
  }
  c.textAlign = "center";
  c.fillText(`steps ${count(points[0].step)} to ${count(last)}`, width / 2, height - 8);
  c.beginPath();
  points.forEach((p) => c.lineTo(x(p.step), y(p.loss)));
  c.strokeStyle = colour(2);
  c.lineWidth = 2;
  c.stroke();
}
