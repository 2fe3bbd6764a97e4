// How figures and names become text. Everything that comes from a record goes
// into the page through element(), as text and never as markup.

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** bytes writes a size as the commands do: 1.46GiB. */
export function bytes(n) {
  let i = 0;
  let scale = 1;
  while (i + 1 < units.length && Math.abs(n) >= scale * 1024) {
    scale *= 1024;
    i++;
  }
  if (Math.round((Math.abs(n) / scale) * 100) >= 102400 && i + 1 < units.length) {
    scale *= 1024;
    i++;
  }
  return `${Math.round((n / scale) * 100) / 100}${units[i]}`;
}

/** exactly adds the bytes themselves. */
export function exactly(n) {
  return `${bytes(n)} (${count(n)} bytes)`;
}

/** count writes a whole number with gaps between thousands. */
export function count(n) {
  return String(n).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** duration writes microseconds, with four digits or as many as tell apart what is one step from the next. */
export function duration(us, step = Infinity) {
  const digits = (v) => String(Number(v.toPrecision(Math.max(4, Math.ceil(Math.log10(us / step)) + 1))));
  if (us >= 60e6) return `${Math.floor(us / 60e6)} min ${digits((us % 60e6) / 1e6)} s`;
  if (us >= 1e6) return `${digits(us / 1e6)} s`;
  if (us >= 1e3) return `${digits(us / 1e3)} ms`;
  return `${digits(us)} µs`;
}

/** address writes an address. */
export function address(n) {
  return `0x${n.toString(16)}`;
}

/** frame writes a line of a call stack. */
export function frame(f) {
  return `${f.file.split(/[\\/]/).pop()}:${f.line} ${f.func}`;
}

/** wholeFrame writes it with its folders. */
export function wholeFrame(f) {
  return `${f.file}:${f.line} ${f.func}`;
}

/**
 * element makes an element. Properties that the element has are set, others
 * become attributes; children are elements or texts.
 */
export function element(tag, properties = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in e && !name.includes("-")) e[name] = value;
    else e.setAttribute(name, value);
  }
  e.append(...children.map((c) => (c instanceof Node ? c : document.createTextNode(String(c)))));
  return e;
}

/** fill replaces what is in an element. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children);
}

/** table makes a table. Cells are texts or elements; those of numeric columns are set right. */
export function table(caption, heads, rows, numeric = []) {
  const cell = (tag) => (c, i) => element(tag, numeric.includes(i) ? { className: "number" } : {}, c);
  const head = element("tr", {}, ...heads.map((h, i) => { const th = cell("th")(h, i); th.scope = "col"; return th; }));
  return element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    element("table", {}, element("caption", {}, caption), element("thead", {}, head),
      element("tbody", {}, ...rows.map((r) => element("tr", {}, ...r.map(cell("td")))))));
}

/** button makes a button. */
export function button(label, act, properties = {}) {
  const b = element("button", { type: "button", ...properties }, label);
  b.addEventListener("click", act);
  return b;
}
