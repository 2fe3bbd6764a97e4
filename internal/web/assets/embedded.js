// The answers to the page's questions from columns in the page itself, for
// reports. The server answers the same questions in Go (state.go, lives.go,
// search.go, summary.go), and a test compares the two.

const Purpose = 0;
const Site = 1;
const keptEvery = 4096; // moments

/** unpack decodes the base64 and compression of a record's columns. */
async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** readColumn reads whole numbers of seven bits a byte. */
function readColumn(data, column) {
  const out = new Float64Array(column.count);
  let at = column.offset;
  let last = 0;
  for (let i = 0; i < out.length; i++) {
    let v = 0;
    let scale = 1;
    let b;
    do {
      b = data[at++];
      v += (b & 127) * scale;
      scale *= 128;
    } while (b > 127);
    if (column.delta) {
      last += v % 2 ? -(v + 1) / 2 : v / 2;
      v = last;
    }
    out[i] = v;
  }
  return out;
}

const copy = (cursor) => ({ ...cursor, parts: cursor.parts.map((p) => p.slice()) });

/** EmbeddedRecord answers from columns, once they are loaded. */
export class EmbeddedRecord {
  /** A record is described by {meta, findings, whatIf, stacks, sites, columns, summary}; text() gives its columns. */
  constructor(described, text) {
    this.meta = described.meta;
    this.described = described;
    this.text = text;
  }

  /** load decodes the columns, at the first call. */
  load() {
    this.loading ??= unpack(this.text()).then((data) => this.prepare(data));
    return this.loading;
  }

  prepare(data) {
    const c = {};
    for (const column of this.described.columns) c[column.name] = readColumn(data, column);
    this.c = c;
    const n = c.born.length;
    for (let k = 0; k < n; k++) {
      c.freed[k] += c.born[k];
      c.done[k] += c.freed[k];
      c.bytes[k] += c.asked[k];
    }
    this.leases = n;
    this.endsAt = new Int32Array(this.meta.events + 1).fill(-1); // by event: the lease that it frees
    for (let k = 0; k < n; k++) if (this.lasts(k) && c.freed[k] < this.meta.events) this.endsAt[c.freed[k]] = k;
    this.moments = this.meta.events + 1;
    this.parts = [this.meta.purposes.length, this.meta.sites.length];
    this.kept = [];
    for (let cursor = this.start(); cursor.moment < this.moments; this.next(cursor)) if (cursor.moment % keptEvery === 0) this.kept.push(copy(cursor));
    this.bins = ["purpose", "site"].map((by, s) => Array.from({ length: this.parts[s] }, (_, p) => c[`${by} ${p}`]));
  }

  time(m) {
    return this.c.time ? this.c.time[m] : m;
  }

  clamp(m) {
    return Math.min(Math.max(Math.round(m), 0), this.meta.events);
  }

  range(from, to) {
    from = this.clamp(from);
    return [from, Math.max(this.clamp(to), from)];
  }

  async findings() {
    return this.described.findings;
  }

  async whatIf() {
    return this.described.whatIf;
  }

  async sites() {
    return this.described.sites;
  }

  async stacks() {
    return this.described.stacks;
  }

  /** samples gives the figures of a view: see Record.Samples in Go. */
  async samples(from, to, width) {
    [from, to] = this.range(from, to);
    const size = this.described.summary;
    const first = Math.floor(from / size);
    const last = Math.floor(to / size);
    const bins = last - first + 1;
    if (bins >= width) {
      return this.sampled(this.summaryFigures(first, last), bins, Math.floor(bins / width));
    }
    const f = this.exactFigures(from, to, Math.max(Math.floor((to - from + 1) / width), 1));
    return this.sampled(f, f.moments.length, 1);
  }

  summaryFigures(first, last) {
    const cut = (column) => column.subarray(first, last + 1);
    const parts = this.bins.map((split) => split.map(cut));
    const live = new Float64Array(last - first + 1);
    for (const column of parts[Purpose]) for (let i = 0; i < live.length; i++) live[i] += column[i];
    return { moments: cut(this.c["bin moment"]), reserved: cut(this.c["bin reserved"]), live, parts };
  }

  /**
   * exactFigures goes through the events of a view and gives, of each group of
   * so many moments, the one with most live bytes, and the most reserved ones.
   */
  exactFigures(from, to, group) {
    const n = Math.ceil((to - from + 1) / group);
    const column = () => new Float64Array(n);
    const f = { moments: column(), live: column(), reserved: this.reservedFigures(from, to, group, n), parts: this.parts.map((count) => Array.from({ length: count }, column)) };
    const now = this.cursorAt(from);
    for (let g = 0; g < n; g++) {
      const end = Math.min(from + (g + 1) * group, to + 1);
      for (let first = true; now.moment < end; this.next(now), first = false) {
        if (!first && now.live <= f.live[g]) continue;
        f.moments[g] = now.moment;
        f.live[g] = now.live;
        for (const split of [Purpose, Site]) for (let p = 0; p < now.parts[split].length; p++) f.parts[split][p][g] = now.parts[split][p];
      }
    }
    return f;
  }

  // A cursor knows the live bytes of a moment and goes on to the next one. The
  // cursors of every so many moments are kept, so that none has far to go.

  start() {
    const cursor = { moment: 0, lease: 0, live: 0, parts: this.parts.map((count) => new Float64Array(count)) };
    for (; cursor.lease < this.leases && this.c.born[cursor.lease] < 0; cursor.lease++) if (this.c.freed[cursor.lease] >= 0) this.add(cursor, cursor.lease, 1);
    return cursor;
  }

  next(cursor) {
    const m = cursor.moment++;
    if (this.endsAt[m] >= 0) this.add(cursor, this.endsAt[m], -1);
    if (this.c.born[cursor.lease] !== m) return;
    if (this.lasts(cursor.lease)) this.add(cursor, cursor.lease, 1);
    cursor.lease++;
  }

  add(cursor, k, sign) {
    const bytes = sign * this.c.bytes[k];
    cursor.live += bytes;
    cursor.parts[Purpose][this.c.purpose[k]] += bytes;
    cursor.parts[Site][this.c.site[k]] += bytes;
  }

  cursorAt(moment) {
    const cursor = copy(this.kept[Math.floor(moment / keptEvery)]);
    while (cursor.moment < moment) this.next(cursor);
    return cursor;
  }

  /** lasts says whether a lease lives at any moment. */
  lasts(k) {
    return this.c.freed[k] > this.c.born[k];
  }

  /** reservedFigures gives the most reserved bytes of each group. */
  reservedFigures(from, to, group, n) {
    const change = new Float64Array(to - from + 2);
    for (let i = 0; i < this.c["span addr"].length; i++) {
      const begin = this.c["span from"][i] + 1;
      const end = this.c["span to"][i] + 1;
      if (end <= from || begin > to) continue;
      change[Math.max(begin - from, 0)] += this.c["span size"][i];
      change[Math.min(end - from, change.length - 1)] -= this.c["span size"][i];
    }
    const most = new Float64Array(n);
    let reserved = 0;
    for (let i = 0; i <= to - from; i++) {
      reserved += change[i];
      const g = Math.floor(i / group);
      most[g] = Math.max(most[g], reserved);
    }
    return most;
  }

  /** sampled merges so many neighbours into one sample: the moment with most live bytes. */
  sampled(f, n, group) {
    const out = { moments: [], times: [], reserved: [], parts: this.parts.map((count) => Array.from({ length: count }, () => [])) };
    for (let i = 0; i < n; i += group) {
      let best = i;
      let reserved = 0;
      for (let j = i; j < Math.min(i + group, n); j++) {
        if (f.live[j] > f.live[best]) best = j;
        reserved = Math.max(reserved, f.reserved[j]);
      }
      out.moments.push(f.moments[best]);
      out.times.push(this.time(f.moments[best]));
      out.reserved.push(reserved);
      out.parts.forEach((parts, s) => parts.forEach((column, p) => column.push(f.parts[s][p][best])));
    }
    return out;
  }

  lease(k) {
    const c = this.c;
    return { lease: k, addr: c.addr[k], size: c.bytes[k], purpose: c.purpose[k], site: c.site[k], stack: c.stack[k] };
  }

  life(k) {
    const c = this.c;
    const born = c.born[k] < 0 ? -1 : c.born[k] + 1;
    const end = (event) => Math.min(Math.max(event, -1) + 1, this.moments);
    return {
      ...this.lease(k), born, freed: end(c.freed[k]), done: end(c.done[k]),
      born_time: this.time(this.clamp(born)), freed_time: this.time(this.clamp(end(c.freed[k]))),
    };
  }

  /** between lists the leases that are there at some moment from one to another. */
  between(from, to) {
    const { born, done } = this.c;
    const list = [];
    for (let k = 0; k < this.leases && (born[k] < from || born[k] < to); k++) {
      if (done[k] >= from || born[k] >= from) list.push(k);
    }
    return list;
  }

  /** choose keeps those of an ascending list that weigh most, in that order; only twice as many as are asked for are ever sorted. */
  choose(list, most, weight) {
    let sum = 0;
    let kept = [];
    let floor = most > 0 ? -Infinity : Infinity; // the least that one more must weigh to be kept
    const heavier = (a, b) => b.weight - a.weight || a.k - b.k;
    const { bytes } = this.c;
    for (let i = 0; i < list.length; i++) {
      const k = list[i];
      sum += bytes[k];
      const w = weight(k);
      if (w <= floor) continue;
      kept.push({ weight: w, k });
      if (kept.length < 2 * most) continue;
      kept = kept.sort(heavier).slice(0, most);
      floor = kept[most - 1].weight;
    }
    return { lives: kept.sort(heavier).slice(0, most).map((w) => this.life(w.k)), count: list.length, bytes: sum };
  }

  async lives(from, to, most) {
    [from, to] = this.range(from, to);
    const { born, done, bytes } = this.c;
    return this.choose(this.between(from, to), most, (k) => bytes[k] * (Math.min(done[k], to) - Math.max(born[k], from - 1)));
  }

  async weights(from, to) {
    [from, to] = this.range(from, to);
    const by = [];
    const c = this.c;
    for (const k of this.between(from, to)) {
      const begin = Math.max(c.born[k] + 1, from);
      const end = Math.min(Math.max(c.freed[k], -1) + 1, to);
      if (end <= begin) continue;
      const w = (by[c.stack[k]] ??= { stack: c.stack[k], area: 0, bytes: 0, count: 0 });
      w.area += c.bytes[k] * (this.time(end) - this.time(begin));
      w.bytes += c.bytes[k];
      w.count++;
    }
    return by.filter(Boolean);
  }

  async block(k) {
    const c = this.c;
    if (!(k >= 0 && k < this.leases)) return null;
    const { frames, stacks } = this.described.stacks;
    return {
      ...this.life(k), requested: c.asked[k], stream: c.stream[k], pool: [c.pool[k], c.pool2[k]],
      where: this.described.sites[c.stack[k]], frames: stacks[c.stack[k]].map((id) => frames[id]),
    };
  }

  /** state gives the segments of a moment with the blocks that tile them. */
  async state(moment) {
    moment = this.clamp(moment);
    const { born, done, addr } = this.c;
    const alive = [];
    for (let k = 0; k < this.leases && born[k] < moment; k++) if (done[k] >= moment) alive.push(k);
    alive.sort((a, b) => addr[a] - addr[b] || a - b);
    const out = { moment, time: this.time(moment), segments: this.segments(moment), stray: 0 };
    let next = 0;
    for (const s of out.segments) next = this.tile(out, s, alive, next);
    out.stray += alive.length - next;
    return out;
  }

  segments(moment) {
    const span = (name) => this.c[`span ${name}`];
    const [from, to, addr, flags] = ["from", "to", "addr", "flags"].map(span);
    const there = [];
    for (let i = 0; i < addr.length; i++) if (from[i] < moment && to[i] >= moment) there.push(i);
    there.sort((a, b) => addr[a] - addr[b]);
    const same = (a, b) => flags[a] & 2 && ["stream", "pool", "pool2", "flags"].every((name) => span(name)[a] === span(name)[b]);
    const out = [];
    there.forEach((i, n) => {
      const last = out.at(-1);
      if (last && same(there[n - 1], i) && last.addr + last.size === addr[i]) {
        last.size += span("size")[i];
        return;
      }
      out.push({
        addr: addr[i], size: span("size")[i], stream: span("stream")[i],
        small: (flags[i] & 1) > 0, expandable: (flags[i] & 2) > 0, stack: span("stack")[i], tiles: [],
      });
    });
    return out;
  }

  tile(state, segment, alive, next) {
    const end = segment.addr + segment.size;
    let at = segment.addr;
    const free = (from, to) => {
      if (from < to) segment.tiles.push({ lease: -1, addr: from, size: to - from, purpose: 0, site: 0, stack: 0 });
    };
    for (; next < alive.length && this.c.addr[alive[next]] < end; next++) {
      const t = this.lease(alive[next]);
      if (t.addr < at) {
        state.stray++;
        continue;
      }
      const limit = next + 1 < alive.length ? Math.min(end, this.c.addr[alive[next + 1]]) : end;
      t.size = this.blockSize(t, segment, limit - t.addr);
      if (t.size === 0) {
        state.stray++;
        continue;
      }
      if (this.c.freed[t.lease] < state.moment) t.pending = true;
      free(at, t.addr);
      segment.tiles.push(t);
      at = t.addr + t.size;
    }
    free(at, end);
    return next;
  }

  /** blockSize is History.BlockSize in Go. */
  blockSize(t, segment, space) {
    const size = Math.min(t.size - this.c.short[t.lease], space);
    const keepsRest = this.c.open[t.lease] && !segment.small && !segment.expandable;
    return keepsRest && (space - size <= this.described.restMax || size >= this.described.maxSplit) ? space : size;
  }

  async search(text, most) {
    const q = parseQuery(text);
    const { frames, stacks } = this.described.stacks;
    const found = new Set();
    if (q.kind === "text" && q.text !== "") {
      const has = frames.map((f) => `${f.file}:${f.line} ${f.func}`.toLowerCase().includes(q.text));
      stacks.forEach((ids, i) => ids.some((id) => has[id]) && found.add(i));
    }
    const { addr, asked, bytes, stack } = this.c;
    const matches = {
      address: (k) => addr[k] <= q.addr && q.addr - addr[k] < bytes[k],
      size: (k) => (asked[k] >= q.least && asked[k] <= q.most) || (bytes[k] >= q.least && bytes[k] <= q.most),
      text: (k) => found.has(stack[k]),
    }[q.kind];
    const list = [];
    for (let k = 0; k < this.leases; k++) if (matches(k)) list.push(k);
    return { ...this.choose(list, most, (k) => bytes[k]), kind: q.kind, stacks: [...found] };
  }
}

const sizeUnits = { "": 1, b: 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 };

/** parseQuery reads a query as parseQuery in search.go does. */
export function parseQuery(text) {
  text = text.trim();
  if (/^0x[0-9a-f]{1,16}$/i.test(text)) return { kind: "address", addr: Number(text) };
  const parts = /^(>=|<=|>|<|=)?\s*(\d+(?:\.\d+)?)\s*(b|[kmgt]i?b?)?$/i.exec(text);
  if (!parts) return { kind: "text", text: text.toLowerCase() };
  const [, op = "=", number, unit = ""] = parts;
  const decimal = /^[kmgt]b$/i.test(unit);
  const power = "kmgt".indexOf(unit[0]?.toLowerCase()) + 1;
  const n = Math.round(Number(number) * (decimal ? 1000 ** power : sizeUnits[unit[0]?.toLowerCase() ?? ""]));
  const slack = Math.floor(n / 200);
  const all = { least: 0, most: Number.MAX_VALUE };
  const range = { ">=": { least: n }, ">": { least: n + 1 }, "<=": { most: n }, "<": { most: Math.max(n, 1) - 1 }, "=": { least: n - slack, most: n + slack } }[op];
  return { kind: "size", ...all, ...range };
}
