// The answers to the page's questions from a server, which sends what is on
// the screen and no more.

/** RemoteRecord asks the server. */
export class RemoteRecord {
  constructor(meta, file, index) {
    this.meta = meta;
    this.file = file;
    this.index = index;
  }

  async ask(question, parameters = {}) {
    const query = new URLSearchParams({ file: this.file, record: this.index, ...parameters });
    return get(`api/${question}?${query}`);
  }

  samples(from, to, width) {
    return this.ask("samples", { from: Math.round(from), to: Math.round(to), width });
  }

  lives(from, to, most) {
    return this.ask("lives", { from: Math.round(from), to: Math.round(to), most });
  }

  weights(from, to) {
    return this.ask("weights", { from: Math.round(from), to: Math.round(to) });
  }

  state(moment) {
    return this.ask("state", { moment: Math.round(moment) });
  }

  block(lease) {
    return this.ask("block", { lease });
  }

  search(text, most) {
    return this.ask("search", { text, most });
  }

  findings() {
    return this.ask("findings");
  }

  sites() {
    this.knownSites ??= this.ask("sites");
    return this.knownSites;
  }

  stacks() {
    this.known ??= this.ask("stacks");
    return this.known;
  }

  async whatIf() {
    const names = await this.ask("settings");
    return Promise.all(names.map((setting) => this.ask("whatif", { setting })));
  }
}

/** get asks for JSON. The error says what the server said. */
export async function get(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `${path}: ${answer.status}`);
  return answer.json();
}

/** listFiles gives the files that the server has. */
export function listFiles() {
  return get("api/files");
}

/** openFile gives the records of a file. */
export async function openFile(file) {
  const metas = await get(`api/open?${new URLSearchParams({ file })}`);
  return metas.map((meta, i) => new RemoteRecord(meta, file, i));
}
