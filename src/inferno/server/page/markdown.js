// Markdown to a tree of plain values. Knows nothing of the DOM: `render.js` builds the nodes, and
// Node runs the tests. The text comes from a model, so every pattern here takes linear time.
//
// Blocks:  {t:"p",c} {t:"h",n,c} {t:"code",lang,v,open} {t:"quote",c} {t:"hr"}
//          {t:"ul"|"ol",start,loose,c:[{check,c}]} {t:"table",align,head,rows}
// Inline:  a string, or {t:"b"|"i"|"s"|"a",c,href} {t:"code",v} {t:"br"}

const MAX_DEPTH = 12; // of quotes and lists in each other; deeper ones are paragraphs
const FENCE = /^( {0,3})(`{3,}|~{3,})(.*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?: +|$)/;
const HEADING = /^ {0,3}(#{1,6})(?: |$)/;

/** Parse a whole text. `live` also shows marks that the text has opened and not closed yet. */
export function parse(text, live = false) {
  return blocks(lines(text), 0, live);
}

/** Parses a text that arrives in pieces. A block is final once the next one has begun. */
export class Stream {
  #rest = "";

  /** Add text. Returns the blocks that are now final, and those that may still change. */
  feed(text) {
    this.#rest += text;
    const all = lines(this.#rest);
    const found = blocks(all, 0, true);
    // A block has begun for certain when its first line is complete ("1" may become "1. item"), and
    // unless an empty line precedes it, the second too, as that one makes a table of the first.
    const begun = ({ at }) => at < all.length - (at > 0 && blank(all[at - 1]) ? 1 : 2);
    const last = found.findLastIndex(begun);
    if (last < 1) return { done: [], rest: found };
    const cut = found[last].at;
    this.#rest = all.slice(cut).join("\n");
    return { done: blocks(all.slice(0, cut), 0, false), rest: found.slice(last) };
  }

  /** The blocks that are left when the text has ended. */
  end() {
    return parse(this.#rest);
  }
}

/** The URL if following it cannot run code, else null. */
export function safeUrl(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null; // relative, or no URL at all
  }
}

function lines(text) {
  return text.split("\n").map((line) => {
    const plain = line.endsWith("\r") ? line.slice(0, -1) : line;
    return plain.includes("\t") ? plain.replace(/^[ \t]+/, (s) => s.replaceAll("\t", "    ")) : plain;
  });
}

const blank = (line) => line.trim() === "";
const indent = (line) => line.length - line.trimStart().length;
const unindent = (line, n) => line.slice(Math.min(indent(line), n));

function blocks(all, depth, live) {
  const found = [];
  for (let i = 0; i < all.length; ) {
    if (blank(all[i])) {
      i++;
      continue;
    }
    const [block, next] = blockAt(all, i, depth, live);
    found.push({ ...block, at: i });
    i = next;
  }
  return found;
}

/** The block that begins at line `i`, and the line after it. Marks stay open only in the last one. */
function blockAt(all, i, depth, live) {
  const line = all[i];
  const fence = fenceOf(line);
  if (fence) return code(all, i, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const text = line.slice(heading[0].length).trim();
    const bare = text.replace(/(?:^|[ \t])#{1,64}$/, "");
    return [{ t: "h", n: heading[1].length, c: inline(bare, live && i + 1 === all.length) }, i + 1];
  }
  if (RULE.test(line)) return [{ t: "hr" }, i + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(all, i, depth, live);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(all, i, depth, live);
  const align = tableAt(all, i);
  if (align) return table(all, i, align);
  return paragraph(all, i, live);
}

/** Whether a line ends the paragraph before it. */
function interrupts(line) {
  if (fenceOf(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const item = ITEM.exec(line);
  // "2019. was a good year" is prose, and so is a lone "-".
  return item !== null && item[0].length < line.length && [NaN, 1].includes(parseInt(item[2], 10));
}

function fenceOf(line) {
  const found = FENCE.exec(line);
  return found && !(found[2][0] === "`" && found[3].includes("`")) ? found : null;
}

function code(all, i, [, space, mark, info]) {
  const body = [];
  for (i++; i < all.length; i++) {
    const line = all[i].trim();
    if (indent(all[i]) < 4 && line.length >= mark.length && line === mark[0].repeat(line.length)) {
      return [{ t: "code", lang: language(info), v: body.join("\n"), open: false }, i + 1];
    }
    body.push(unindent(all[i], space.length));
  }
  if (body.at(-1) === "") body.pop();
  return [{ t: "code", lang: language(info), v: body.join("\n"), open: true }, i];
}

const language = (info) => /^[^\s{]*/.exec(info.trim())[0].slice(0, 40);

function quote(all, i, depth, live) {
  const inner = [];
  for (; i < all.length; i++) {
    const line = all[i];
    if (QUOTE.test(line)) inner.push(line.replace(QUOTE, ""));
    else if (blank(line) || interrupts(line) || blank(inner.at(-1))) break;
    else inner.push(line); // the paragraph goes on without its mark
  }
  return [{ t: "quote", c: blocks(inner, depth + 1, live && i === all.length) }, i];
}

function list(all, i, depth, live) {
  const first = ITEM.exec(all[i]);
  const kind = first[2].at(-1);
  const items = [];
  let loose = false;
  while (i < all.length) {
    const item = ITEM.exec(all[i]);
    if (!item || item[2].at(-1) !== kind || RULE.test(all[i])) break;
    const outer = item[1].length;
    const content = item[0].length - item[2].length - outer > 4 ? outer + item[2].length + 1 : item[0].length;
    const inner = [all[i].slice(content)];
    let empty = 0;
    for (i++; i < all.length; i++) {
      if (blank(all[i])) empty++;
      // Two columns are enough: models rarely indent by the width of "10. ".
      else if (indent(all[i]) >= outer + 2 || (!empty && !ITEM.test(all[i]) && !interrupts(all[i]))) {
        for (; empty; empty--) {
          inner.push("");
          loose = true;
        }
        inner.push(unindent(all[i], content));
      } else break;
    }
    loose ||= empty > 0 && i < all.length && ITEM.exec(all[i])?.[2].at(-1) === kind;
    const task = /^\[([ xX])\] /.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(4);
    items.push({ check: task ? task[1] !== " " : null, c: blocks(inner, depth + 1, live && i === all.length) });
  }
  const start = parseInt(first[2], 10);
  return [{ t: Number.isNaN(start) ? "ul" : "ol", start, loose, c: items }, i];
}

/** The alignment of each column, if a table begins at this line. */
function tableAt(all, i) {
  if (!all[i].includes("|") || i + 1 >= all.length || !all[i + 1].includes("-")) return null;
  const head = cells(all[i]);
  const marks = cells(all[i + 1]);
  if (head.length !== marks.length || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
  return marks.map((m) => (m.endsWith(":") ? (m.startsWith(":") ? "center" : "right") : ""));
}

function table(all, i, align) {
  const row = (line) => {
    const found = cells(line);
    return align.map((_, k) => inline(found[k] ?? ""));
  };
  const head = row(all[i]);
  const rows = [];
  for (i += 2; i < all.length && !blank(all[i]) && !interrupts(all[i]); i++) rows.push(row(all[i]));
  return [{ t: "table", align, head, rows }, i];
}

function cells(line) {
  const found = [""];
  const text = line.trim();
  for (let i = text[0] === "|" ? 1 : 0; i < text.length; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") found[found.length - 1] += text[++i];
    else if (text[i] === "|") found.push("");
    else found[found.length - 1] += text[i];
  }
  if (found.length > 1 && text.endsWith("|") && found.at(-1) === "") found.pop();
  return found.map((cell) => cell.trim());
}

function paragraph(all, i, live) {
  const text = [all[i].trim()];
  for (i++; i < all.length && !blank(all[i]) && !interrupts(all[i]) && !tableAt(all, i); i++) {
    text.push(all[i].trim());
  }
  return [{ t: "p", c: inline(text.join("\n"), live && i === all.length) }, i];
}

const SPECIAL = /[\\`*_~[\]!<&\n]|\bhttps?:\/\//g;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const TARGET =
  /\([ \n]{0,8}(?:<([^<>\n]{0,2000})>|([^\s()]{0,2000}(?:\([^\s()]{0,2000}\)[^\s()]{0,2000}){0,8}))(?:[ \n]{1,8}(?:"[^"]{0,300}"|'[^']{0,300}'))?[ \n]{0,8}\)/y;
const ENTITY = /&(?:(amp|lt|gt|quot|apos|nbsp)|#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6}));/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const TAGS = { "**": "b", __: "b", "*": "i", _: "i", "~~": "s" };

/** Parse the inside of a paragraph. Marks without a partner are text, or closed at the end if `live`. */
export function inline(text, live = false) {
  return new Inline(text, live).run();
}

class Inline {
  // Every opened mark has a frame, and collects what follows it. `count` holds how many frames each
  // mark has: one is only searched for if it is there, which keeps the whole linear.
  frames = [{ mark: "", nodes: [] }];
  count = {};
  i = 0;

  constructor(text, live) {
    this.text = text;
    this.live = live;
  }

  run() {
    const { text } = this;
    const special = new RegExp(SPECIAL);
    while (this.i < text.length) {
      special.lastIndex = this.i;
      const found = special.exec(text);
      if (!found) break;
      this.put(text.slice(this.i, found.index));
      this.i = found.index;
      this.step(found[0]);
    }
    this.put(text.slice(this.i));
    this.unwind(1, this.live);
    return this.frames[0].nodes;
  }

  put(node) {
    const { nodes } = this.frames.at(-1);
    if (node === "") return;
    if (typeof node === "string" && typeof nodes.at(-1) === "string") nodes[nodes.length - 1] += node;
    else nodes.push(node);
  }

  step(c) {
    const next = this.text[this.i + 1] ?? "";
    if (c === "\\" && PUNCTUATION.test(next)) this.take(2, next);
    else if (c === "\n") this.take(1, { t: "br" });
    else if (c === "`") this.code();
    else if (c === "*" || c === "_") this.emphasis(c);
    else if (c === "~" && next === "~") this.emphasis("~");
    else if (c === "!" && next === "[") this.open("![");
    else if (c === "[") this.open("[");
    else if (c === "]") this.link();
    else if (c === "<") this.bracketed();
    else if (c === "&") this.entity();
    else if (c.length > 1) this.url();
    else this.take(1, c);
  }

  take(n, node) {
    this.i += n;
    this.put(node);
  }

  runLength(c) {
    let n = 1;
    while (this.text[this.i + n] === c) n++;
    return n;
  }

  code() {
    const n = this.runLength("`");
    const from = this.i + n;
    const to = this.closing(n, from);
    if (to < 0 && !(this.live && n < 3)) return this.take(n, "`".repeat(n));
    const raw = this.text.slice(from, to < 0 ? undefined : to).replaceAll("\n", " ");
    const padded = raw.length > 2 && raw.startsWith(" ") && raw.endsWith(" ") && raw.trim() !== "";
    this.put({ t: "code", v: padded ? raw.slice(1, -1) : raw });
    this.i = to < 0 ? this.text.length : to + n;
  }

  /** Where the next run of exactly n backticks begins, or -1. */
  closing(n, from) {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const run of this.text.matchAll(/`+/g)) {
        if (!this.ticks.has(run[0].length)) this.ticks.set(run[0].length, { at: [], k: 0 });
        this.ticks.get(run[0].length).at.push(run.index);
      }
    }
    const runs = this.ticks.get(n);
    if (!runs) return -1; // the opening run began in the middle of a longer one
    while (runs.k < runs.at.length && runs.at[runs.k] < from) runs.k++;
    return runs.at[runs.k] ?? -1;
  }

  emphasis(c) {
    let n = this.runLength(c);
    const before = this.text[this.i - 1] ?? " ";
    const after = this.text[this.i + n] ?? " ";
    const left = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
    const right = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
    const opens = c === "_" ? left && (!right || PUNCTUATION.test(before)) : left;
    const closes = c === "_" ? right && (!left || PUNCTUATION.test(after)) : right;
    if (n > 3 || (c === "~" && n !== 2)) return this.take(n, c.repeat(n));
    this.i += n;
    while (n > 0) {
      const marks = (n >= 2 ? [c + c, c] : [c]).filter((mark) => TAGS[mark]);
      if (closes && marks.some((mark) => this.count[mark])) {
        n -= this.close(marks);
      } else if (opens) {
        const mark = marks[n === 3 ? 1 : 0]; // *** opens * around **
        this.frames.push({ mark, nodes: [] });
        this.count[mark] = (this.count[mark] ?? 0) + 1;
        n -= mark.length;
      } else {
        this.put(c.repeat(n));
        n = 0;
      }
    }
  }

  find(marks) {
    return this.frames.findLastIndex((frame) => marks.includes(frame.mark));
  }

  /** Close the innermost of the marks that are open. Returns its length. */
  close(marks) {
    this.unwind(this.find(marks) + 1, false);
    const { mark, nodes } = this.frames.pop();
    this.count[mark]--;
    this.put({ t: TAGS[mark], c: nodes });
    return mark.length;
  }

  /** Turn the frames from `depth` on into text, or into emphasis if `live`. */
  unwind(depth, live) {
    for (const { mark, nodes } of this.frames.splice(depth)) {
      this.count[mark]--;
      if (live && TAGS[mark] === "b") {
        const inner = { mark: "", nodes: [] };
        this.put({ t: "b", c: inner.nodes });
        this.frames.push(inner);
      } else this.put(mark);
      nodes.forEach((node) => this.put(node));
    }
    this.frames.length = depth;
  }

  open(mark) {
    this.i += mark.length;
    this.frames.push({ mark, nodes: [] });
    this.count[mark] = (this.count[mark] ?? 0) + 1;
  }

  link() {
    if (!this.count["["] && !this.count["!["]) return this.take(1, "]");
    const at = this.find(["[", "!["]);
    TARGET.lastIndex = this.i + 1;
    const found = TARGET.exec(this.text);
    const href = found && safeUrl(found[1] ?? found[2]);
    this.unwind(at + 1, false);
    if (!href) {
      this.unwind(at, false); // what is no link, or an unsafe one, stays visible as it was written
      return this.take(1, "]");
    }
    const { mark, nodes } = this.frames.pop();
    this.count[mark]--;
    this.i += 1 + found[0].length;
    const label = withoutLinks(nodes);
    const text = label.length ? label : [href];
    // Images are links: to load one tells its server that the answer was read, and what is in it.
    if (mark === "![") return this.put({ t: "a", href, image: true, c: text });
    for (const frame of this.frames) {
      if (frame.mark !== "[") continue;
      frame.mark = ""; // no link in a link
      frame.nodes.unshift("[");
    }
    this.count["["] = 0;
    this.put({ t: "a", href, c: text });
  }

  bracketed() {
    const found = /<([a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\s<>]{1,2000})>/y;
    found.lastIndex = this.i;
    const match = found.exec(this.text);
    const href = match && safeUrl(match[1]);
    const br = /<br ?\/?>/iy;
    br.lastIndex = this.i;
    if (href) this.take(match[0].length, { t: "a", href, c: [match[1]] });
    else if (br.test(this.text)) this.take(br.lastIndex - this.i, { t: "br" }); // models use it in tables
    else this.take(1, "<");
  }

  entity() {
    ENTITY.lastIndex = this.i;
    const found = ENTITY.exec(this.text);
    if (!found) return this.take(1, "&");
    const [all, name, decimal, hex] = found;
    const code = decimal ? parseInt(decimal, 10) : parseInt(hex, 16);
    const valid = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000);
    this.take(all.length, name ? ENTITIES[name] : valid ? String.fromCodePoint(code) : "\ufffd");
  }

  url() {
    const found = /https?:\/\/[^\s<>"`*|]{1,2000}/y;
    found.lastIndex = this.i;
    let url = found.exec(this.text)?.[0] ?? "";
    for (let end = /[.,;:!?'"\]}。，、]$|\)$/; end.test(url); url = url.slice(0, -1)) {
      if (url.endsWith(")") && url.split("(").length >= url.split(")").length) break;
    }
    const href = safeUrl(url);
    if (href) this.take(url.length, { t: "a", href, c: [url] });
    else this.take(1, this.text[this.i]);
  }
}

function withoutLinks(nodes) {
  return nodes.flatMap((node) => {
    if (node.t === "a") return withoutLinks(node.c);
    return node.c ? [{ ...node, c: withoutLinks(node.c) }] : [node];
  });
}
