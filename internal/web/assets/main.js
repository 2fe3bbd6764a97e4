// The page: what is looked at, and who draws it. The view (moments from … to),
// the moment of the cursor, the split and the search belong to the whole page;
// the pictures and tables take them from here.

import { element, fill, button, bytes, count, duration } from "./text.js";
import { swatch, dashes } from "./colours.js";
import { Timeline } from "./timeline.js";
import { SegmentMap } from "./segments.js";
import { Lifetimes } from "./lifetimes.js";
import { Flame, grow } from "./flame.js";
import { Details } from "./details.js";
import { showVerdict } from "./verdict.js";
import { showJob, markRank, rankName } from "./job.js";
import { EmbeddedRecord } from "./embedded.js";
import { listFiles, openFile, get } from "./remote.js";
import { LiveRecord, follow, showLive, eventsTable, statisticsTable, drawLoss } from "./live.js";
import * as panels from "./panels.js";

const id = (name) => document.getElementById(name);
const mostLives = 3000;
const mostFound = 100;
const panelDelay = 120;

const recordTabs = [
  ["segments", "Segments"], ["blocks", "Blocks over time"], ["flame", "Flame graph"], ["largest", "Largest blocks"],
  ["steps", "Steps"], ["whatif", "What if"], ["compare", "Compare"], ["found", "Found"],
];
const liveTabs = [["loss", "Loss"], ["events", "Events"], ["statistics", "Statistics"]];

class App {
  constructor() {
    this.records = [];
    this.record = null;
    this.opening = null;
    this.view = { from: 0, to: 1 };
    this.moment = 0;
    this.split = 0;
    this.axis = "events";
    this.tab = "segments";
    this.shown = new Set();
    this.curvesOf = new Map();
    this.findingsOf = new Map();
    this.triesOf = new Map();
    this.found = null;
    this.signs = [];
    this.asking = false;
    this.again = false; // the view has changed since it was asked for
    this.timeline = new Timeline(id("timeline"), id("strip"), {
      onView: (from, to) => this.setView(from, to),
      onMoment: (m, follows) => this.setMoment(m, follows),
      onHover: () => this.redraw(),
    });
    this.map = new SegmentMap(id("map"), (tile, segment, index) => (tile.lease >= 0 ? this.details.block(tile.lease) : this.details.hole(tile, segment, index)));
    this.lifetimes = new Lifetimes(id("lives"), this.timeline, (life) => this.details.block(life.lease));
    this.details = new Details(id("details"), this);
    this.controls();
  }

  controls() {
    document.querySelectorAll("input[name=split]").forEach((box) => box.addEventListener("change", () => { this.split = Number(box.value); this.refresh(); this.refreshPanel(); }));
    document.querySelectorAll("input[name=axis]").forEach((box) => box.addEventListener("change", () => { this.axis = box.value; this.redraw(); }));
    const zoom = (factor) => () => this.timeline.zoom(factor, this.moment >= this.view.from && this.moment <= this.view.to ? this.moment : (this.view.from + this.view.to) / 2);
    id("zoom-in").addEventListener("click", zoom(0.5));
    id("zoom-out").addEventListener("click", zoom(2));
    id("zoom-all").addEventListener("click", () => this.timeline.show(0, this.record.meta.events));
    id("to-peak").addEventListener("click", () => this.setMoment(this.record.meta.peak, true));
    id("search").addEventListener("submit", (e) => { e.preventDefault(); this.search(id("query").value); });
    id("query").addEventListener("input", (e) => { if (e.target.value === "") this.search(""); });
    id("record").addEventListener("change", (e) => this.open(Number(e.target.value)));
    const resized = new ResizeObserver(() => { this.refresh(); this.refreshPanel(); });
    resized.observe(id("timeline"));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.refresh(); this.refreshPanel(); });
    window.addEventListener("beforeprint", () => this.redraw());
  }

  /** start takes the records that the page is about, and the job whose ranks they are, if there is one. */
  async start(records, tabs = recordTabs, job = null) {
    this.records = records;
    this.job = job;
    if (job) showJob(id("job"), job, (rank) => this.chooseRank(rank));
    id("job").hidden = !job;
    this.buildTabs(tabs);
    fill(id("record"), ...records.map((r, i) => element("option", { value: i }, this.nameOf(r))));
    id("record").parentElement.hidden = records.length < 2;
    await this.open(0);
  }

  nameOf(r) {
    const rank = this.job ? this.job.records.indexOf(this.records.indexOf(r)) : -1;
    if (rank >= 0) return rankName(this.job, rank);
    const several = this.records.filter((o) => o.meta.name === r.meta.name).length > 1;
    return several ? `${r.meta.name}, device ${r.meta.device}` : r.meta.name;
  }

  /** chooseRank shows a rank of the job, and leads on to what is said of it. */
  async chooseRank(rank) {
    await this.open(this.job.records[rank]);
    id("verdict").focus();
  }

  /** open shows a record. */
  async open(i) {
    const record = this.records[i];
    this.opening = record;
    await record.load?.();
    if (record !== this.opening) return; // another one was chosen meanwhile
    this.record = record;
    id("record").value = i;
    if (this.job) markRank(id("job"), this.job, i);
    const meta = record.meta;
    const failure = meta.failures.at(-1);
    this.moment = failure ? failure.moment - 1 : meta.peak;
    this.found = null;
    this.state = null;
    this.view = { from: 0, to: Math.max(meta.events, 1) };
    this.timeline.set({ meta, events: Math.max(meta.events, 1), peak: meta.peak, view: this.view, whole: null, samples: null });
    id("axis").hidden = !meta.timed;
    for (const name of ["split", "search", "details"]) id(name).hidden = meta.live;
    if (meta.live) document.querySelector("input[name=axis][value=time]").click(); // samples have no names
    this.axis = meta.timed ? this.axis : "events";
    id("timeline").setAttribute("aria-valuemax", meta.events);
    this.details.show("Nothing chosen yet", element("p", {}, "Choose a block or a hole in a picture or a table: its stack, its life, and what pins it stand here."));
    await this.refreshNow();
    this.timeline.set({ whole: await record.samples(0, meta.events, 600) });
    this.redraw();
    this.showPanel();
    if (!meta.live) await this.tellFindings(record);
  }

  async tellFindings(record) {
    if (!this.findingsOf.has(record)) {
      fill(id("verdict"), element("p", {}, "The verdict is being found …"));
      this.findingsOf.set(record, await record.findings());
    }
    if (record === this.record) {
      showVerdict(id("verdict"), this.findingsOf.get(record), this.records.length > 1 ? this.nameOf(record) : "");
      if (["steps", "compare", "whatif"].includes(this.tab)) this.refreshPanel();
    }
  }

  setView(from, to) {
    this.view = { from, to };
    this.refresh();
    this.refreshPanel();
  }

  /** setMoment moves the cursor, and the view with it where it follows. */
  setMoment(m, follows = false) {
    this.moment = Math.min(Math.max(Math.round(m), 0), this.record.meta.events);
    if (follows && (this.moment < this.view.from || this.moment > this.view.to)) {
      const span = this.view.to - this.view.from;
      this.timeline.show(this.moment - span / 2, this.moment + span / 2);
    }
    this.refresh();
    this.refreshPanel();
  }

  // Drawing. A change is drawn in the next frame: with the figures of the new
  // view if they are there by then, as in a report, and otherwise with the last
  // ones, and again when the new ones have come. One question is under way at a
  // time; the changes that come meanwhile are one.

  redraw() {
    this.timeline.set({ view: this.view, moment: this.moment, split: this.split, axis: this.axis, curves: this.curves() });
    this.timeline.draw();
  }

  refresh() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.again = this.asking;
      if (this.asking) this.redraw();
      else this.answer();
    });
  }

  async answer() {
    this.asking = true;
    const late = requestAnimationFrame(() => this.redraw());
    await this.refreshNow();
    cancelAnimationFrame(late);
    this.asking = false;
    if (this.again) this.refresh();
  }

  /** busy says that what is drawn is not yet what is looked at. */
  busy() {
    return this.frame !== undefined || this.asking;
  }

  async refreshNow() {
    const { record, view, moment } = this;
    if (!record) return;
    const [samples, now] = await this.guard(Promise.all([record.samples(view.from, view.to, this.timeline.plotWidth()), record.samples(moment, moment, 1)]), [null, null]);
    if (record !== this.record || !samples) return;
    this.timeline.set({ samples });
    this.redraw();
    this.legend(now);
  }

  /** guard says on the page what went wrong. */
  async guard(promise, otherwise) {
    try {
      const value = await promise;
      this.say("");
      return value;
    } catch (problem) {
      this.say(problem.message);
      return otherwise;
    }
  }

  say(text) {
    id("problem").textContent = text;
    id("problem").hidden = text === "";
  }

  /** legend lists the parts with their bytes at the cursor. */
  legend(now) {
    const meta = this.record.meta;
    const names = this.split === 0 ? meta.purposes : meta.sites;
    const rows = names.map((name, p) => [p, name, now.parts[this.split][p].at(-1)]).filter(([p, , b]) => b > 0 || this.timeline.samples.parts[this.split][p].some((v) => v > 0));
    const live = now.parts[0].reduce((sum, part) => sum + part.at(-1), 0);
    const when = meta.timed ? `, after ${duration(now.times.at(-1))}` : "";
    const text = `${meta.live ? "sample" : "event"} ${count(this.moment)}${when}: ${bytes(live)} live, ${bytes(now.reserved.at(-1))} reserved`;
    id("now").textContent = text;
    Object.assign(id("now").dataset, { live, reserved: now.reserved.at(-1) });
    id("timeline").setAttribute("aria-valuenow", this.moment);
    id("timeline").setAttribute("aria-valuetext", text);
    fill(id("legend"), ...rows.reverse().map(([p, name, b]) => element("li", {}, (this.signs[p] ??= swatch(p)), element("span", { className: "size" }, bytes(b)), element("span", {}, name.replaceAll("_", " ")))),
      element("li", {}, lineSign([5, 3]), element("span", { className: "size" }, bytes(now.reserved.at(-1))), element("span", {}, "reserved")));
  }

  curves() {
    return [...this.shown].filter((key) => this.curvesOf.has(key)).map((key) => this.curvesOf.get(key));
  }

  // Tabs and what is in them.

  buildTabs(tabs) {
    this.tabs = tabs;
    this.tab = tabs[0][0];
    const list = id("tabs");
    fill(list, ...tabs.map(([name, title]) => {
      const t = button(title, () => this.selectTab(name), { id: `tab-${name}` });
      t.setAttribute("role", "tab");
      t.setAttribute("aria-controls", "panel");
      return t;
    }));
    list.addEventListener("keydown", (e) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (!step) return;
      const i = tabs.findIndex(([name]) => name === this.tab);
      const next = tabs[(i + step + tabs.length) % tabs.length][0];
      this.selectTab(next);
      id(`tab-${next}`).focus();
    });
    this.selectTab(this.tab);
  }

  selectTab(name) {
    this.tab = name;
    for (const [other] of this.tabs) {
      id(`tab-${other}`).setAttribute("aria-selected", other === name);
      id(`tab-${other}`).tabIndex = other === name ? 0 : -1;
    }
    id("panel").setAttribute("aria-labelledby", `tab-${name}`);
    this.showPanel();
  }

  /** refreshPanel shows the tab's content when the view has come to rest. */
  refreshPanel() {
    clearTimeout(this.panelTimer);
    this.panelTimer = setTimeout(() => this.showPanel(), this.record?.meta.live ? 0 : panelDelay);
  }

  async showPanel() {
    clearTimeout(this.panelTimer);
    const { record, tab } = this;
    if (!record) return;
    const content = await this.guard(this.panel(tab, record), null);
    if (record !== this.record || tab !== this.tab || content === null) return;
    for (const name of ["map", "lives", "loss"]) id(name).hidden = content.canvas !== name;
    content.draw?.();
    if (content.below) fill(id("below"), ...content.below);
    document.body.dataset.ready = tab;
  }

  /** panel gives what a tab shows: a canvas with its drawing, and what stands below it. */
  async panel(tab, record) {
    const matches = this.matcher();
    switch (tab) {
      case "segments": {
        const [state, sites] = await Promise.all([record.state(this.moment), record.sites()]);
        this.state = state;
        return { canvas: "map", draw: () => this.map.set(state, this.split, matches), below: [panels.totals(state), panels.holesTable(this, state, sites)] };
      }
      case "blocks": {
        const { from, to } = this.view;
        const lives = await record.lives(from, to, mostLives);
        const hidden = lives.count - lives.lives.length;
        const text = hidden > 0 ? `The ${count(lives.lives.length)} that weigh most (size times time) of ${count(lives.count)} blocks in view: zoom in to see the others.` : `${count(lives.count)} blocks in view.`;
        return { canvas: "lives", draw: () => this.lifetimes.set(lives.lives, { from, to }, this.split, matches, this.moment), below: [element("p", {}, text)] };
      }
      case "flame": {
        const [weights, stacks] = await Promise.all([record.weights(this.view.from, this.view.to), record.stacks()]);
        const root = grow(stacks, weights);
        return { draw: () => this.flame(record).set(root), below: [this.flame(record).parent] };
      }
      case "largest": return { below: [panels.largestBlocks(this, await record.state(this.moment), await record.sites())] };
      case "steps": return { below: [panels.stepsTable(this, this.findingsOf.get(record)?.steps)] };
      case "whatif": return { below: [await this.whatIf(record)] };
      case "compare": return { below: [panels.compareTable(this)] };
      case "found": return { below: [this.found ? panels.foundTable(this, this.found, await record.sites()) : element("p", {}, "Search for a frame, a size or an address: what is found is listed here and stands out in the pictures.")] };
      case "loss": return { canvas: "loss", draw: () => drawLoss(id("loss"), this.news?.losses ?? []), below: [] };
      case "events": return { below: this.news ? [eventsTable(this.news)] : [] };
      case "statistics": return { below: this.news ? [statisticsTable(this.news)] : [] };
    }
    return null;
  }

  flame(record) {
    if (this.flameOf?.record !== record) {
      const parent = element("div", {});
      this.flameOf = { record, flame: new Flame(parent, record.meta.timed, (title, text) => this.details.show("Frame", element("p", { className: "frame" }, title), element("p", {}, text))) };
    }
    return this.flameOf.flame;
  }

  async whatIf(record) {
    if (!this.triesOf.has(record)) {
      if (this.tab === "whatif") fill(id("below"), element("p", {}, "The record is being replayed …"));
      this.triesOf.set(record, await record.whatIf());
    }
    const tries = this.triesOf.get(record);
    tries.forEach((t, i) => this.curvesOf.set(`what-${i}`, { moments: t.reserved.map((_, n) => n * t.size), values: t.reserved, colour: i + 2 }));
    return tries.length === 0 ? element("p", {}, "No other settings were tried.") : panels.whatIfTable(this, tries, this.findingsOf.get(record)?.replay);
  }

  /** toggleCurve draws a curve for comparison, or takes it away. */
  async toggleCurve(key, on) {
    if (on) this.shown.add(key);
    else this.shown.delete(key);
    if (on && key.startsWith("record-")) await this.compareWith(Number(key.slice("record-".length)), key);
    this.redraw();
  }

  /** compareWith makes the curve of another record, at its times on this one's axis. */
  async compareWith(i, key) {
    const other = this.records[i];
    await other.load?.();
    const samples = await other.samples(0, other.meta.events, 2000);
    const totals = samples.moments.map((_, n) => samples.parts[0].reduce((sum, part) => sum + part[n], 0));
    const timed = other.meta.timed && this.record.meta.timed;
    const moments = timed ? samples.times.map((t) => this.momentOf(t)) : samples.moments;
    this.curvesOf.set(key, { moments, values: totals, colour: i + 4 });
  }

  momentOf(time) {
    const { times, moments } = this.timeline.whole;
    const at = times.findIndex((t) => t > time);
    if (at < 0) return this.record.meta.events;
    if (at === 0) return 0;
    const share = (time - times[at - 1]) / Math.max(times[at] - times[at - 1], 1);
    return moments[at - 1] + share * (moments[at] - moments[at - 1]);
  }

  // Search and choice.

  async search(text) {
    const { record } = this;
    this.found = text.trim() === "" ? null : await this.guard(record.search(text, mostFound), null);
    if (record !== this.record) return;
    id("hits").textContent = this.found ? `${count(this.found.count)} blocks` : "";
    if (this.found) this.selectTab("found");
    else this.showPanel();
  }

  /** matcher says which blocks a search found, or is null. */
  matcher() {
    const f = this.found;
    if (!f) return null;
    if (f.kind === "text") {
      const stacks = new Set(f.stacks);
      return (t) => stacks.has(t.stack);
    }
    const leases = new Set(f.lives.map((l) => l.lease));
    return (t) => leases.has(t.lease);
  }

  chooseBlock(lease) {
    this.details.block(lease);
    if (window.matchMedia("(max-width: 1100px)").matches) id("details").scrollIntoView({ block: "nearest" });
  }

  blockButton(lease) {
    return button("stack", () => this.chooseBlock(lease), { className: "link", "aria-label": `stack of block ${lease}` });
  }

  goButton(label, moment) {
    const b = button(label, () => this.setMoment(moment, true));
    b.disabled = moment < 0 || moment > this.record.meta.events;
    return b;
  }

  // A job that runs.

  liveNews(news) {
    const follows = this.view.to >= this.record.meta.events;
    const whole = follows && this.view.from <= 0;
    this.news = news;
    this.record.meta = news.meta;
    this.timeline.set({ meta: news.meta, events: Math.max(news.meta.events, 1), peak: news.meta.peak });
    showLive(id("verdict"), news);
    if (follows) {
      const span = this.view.to - this.view.from;
      const to = Math.max(news.meta.events, 1);
      this.moment = news.meta.events;
      this.setView(whole ? 0 : to - span, to);
    } else {
      this.refreshPanel();
    }
    this.record.samples(0, news.meta.events, 600).then((all) => { this.timeline.set({ whole: all }); this.redraw(); }, () => {});
  }
}

/** lineSign is the sign of a dashed line in a legend. */
function lineSign(dash) {
  const s = element("canvas", { width: 16, height: 16, className: "swatch", "aria-hidden": "true" });
  const c = s.getContext("2d");
  c.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
  c.setLineDash(dash ?? dashes[0]);
  c.lineWidth = 2;
  c.beginPath();
  c.moveTo(0, 8);
  c.lineTo(16, 8);
  c.stroke();
  return s;
}

/** chooseFile asks which of the server's files to look at. */
async function chooseFile(app) {
  const files = await listFiles();
  const list = () => fill(id("files"), element("h2", {}, files.length === 0 ? "There is no file in this folder" : "Which record?"),
    element("ul", {}, ...files.map((f) => element("li", {}, button(f.name, () => app.guard(open(f)), { className: "link" }), ` ${bytes(f.bytes)}`))));
  const open = async (file) => {
    fill(id("files"), element("p", {}, `${file.name} (${bytes(file.bytes)}) is being read …`));
    const records = await openFile(file.name).finally(list);
    id("files").hidden = true;
    id("page").hidden = false;
    document.title = `${file.name} · Headroom`;
    await app.start(records);
  };
  id("page").hidden = true;
  id("files").hidden = false;
  if (files.length === 1) return open(files[0]);
  return list();
}

async function main() {
  const app = new App();
  window.headroom = app; // for tests, and for the curious
  const { mode, job, records } = JSON.parse(id("data").textContent);
  try {
    switch (mode) {
      case "report":
        await app.start(records.map((r, i) => new EmbeddedRecord(r, () => id(`columns-${i}`).textContent)), recordTabs, job);
        break;
      case "serve":
        await chooseFile(app);
        break;
      case "live": {
        const record = new LiveRecord((await get("api/live")).meta);
        await app.start([record], liveTabs);
        follow(app, record);
        break;
      }
    }
    document.body.dataset.open = "true";
  } catch (problem) {
    app.say(problem.message);
  }
}

main();
