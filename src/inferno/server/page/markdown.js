// Markdown to a tree of plain values, parsed by markdown-it. Knows nothing of the DOM: `render.js`
// builds the nodes, so that no markup is ever made of what a model writes; Node runs the tests.
//
// Blocks:  {t:"p",c} {t:"h",n,c} {t:"code",lang,v} {t:"quote",c} {t:"hr"}
//          {t:"ul"|"ol",start,loose,c:[{check,c}]} {t:"table",align,head,rows}
// Inline:  a string, or {t:"b"|"i"|"s"|"a",c,href} {t:"code",v} {t:"br"}

import markdownIt from "./markdown-it.js";

const MAX_DEPTH = 24; // tokens of quotes and lists, two a list, in each other; deeper ones are paragraphs
const MAX_MARKS = 50; // emphasis in emphasis; deeper marks show nothing
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const TAGS = { strong: "b", em: "i", s: "s", a: "a" };

const md = markdownIt({ html: false, linkify: true });
// What ends a block must be known from the lines so far, so that a finished block stays as it is: no
// link definitions, which change what was above them. Models do not mean code by an indent.
md.disable(["reference", "code", "lheading"]);
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
for (const scheme of ["ftp:", "//", "mailto:"]) md.linkify.add(scheme, null);
md.normalizeLink = (url) => safeUrl(url) ?? "";
md.normalizeLinkText = (text) => text;
md.validateLink = (url) => url !== "";
md.inline.State = class extends md.inline.State {
  /** What a run of marks may do, as CommonMark says, but for "**漢字。**漢字": there only ASCII is punctuation. */
  scanDelims(start, inWords) {
    let end = start;
    while (end < this.posMax && this.src[end] === this.src[start]) end++;
    const [before, after] = [this.src[start - 1] ?? " ", (end < this.posMax && this.src[end]) || " "];
    const left = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
    const right = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
    return {
      can_open: left && (inWords || !right || PUNCTUATION.test(before)),
      can_close: right && (inWords || !left || PUNCTUATION.test(after)),
      length: end - start,
    };
  }
};
md.block.ruler.before("table", "deep", deep);
md.inline.ruler.before("autolink", "br", br);
md.inline.ruler2.after("balance_pairs", "live", closeStrong);
md.core.ruler.after("block", "shape", shape);

/** Parse a whole text. `live` also shows marks that the text has opened and not closed yet. */
export function parse(text, live = false) {
  return new Reader(md.parse(text, { live })).blocks();
}

/** Parse the inside of a paragraph. Marks without a partner are text, or closed at the end if `live`. */
export function inline(text, live = false) {
  return nodes(md.parseInline(text, { live })[0].children);
}

/** Parses a text that arrives in pieces. A block is final once the next one has begun. */
export class Stream {
  #rest = "";

  /** Add text. Returns the blocks that are now final, and those that may still change. */
  feed(text) {
    this.#rest = (this.#rest + text).replace(/\r\n|\r(?=[^])/g, "\n"); // the next piece may begin with \n
    const lines = this.#rest.split("\n");
    const found = parse(this.#rest, true);
    // A block has begun for certain when its first line is complete ("1" may become "1. item"), and
    // unless an empty line precedes it, the second too, as that one makes a table of the first.
    const begun = ({ at }) => at < lines.length - (at > 0 && lines[at - 1].trim() === "" ? 1 : 2);
    const last = found.findLastIndex(begun);
    if (last < 1) return { done: [], rest: found };
    const cut = found[last].at;
    this.#rest = lines.slice(cut).join("\n");
    return { done: parse(lines.slice(0, cut).join("\n")), rest: found.slice(last) };
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

// --- rules that markdown-it lacks -----------------------------------------------------------------

/** Below the deepest quote or list, a line is a paragraph: markdown-it would leave it out. */
function deep(state, line, _, silent) {
  if (silent || state.level < MAX_DEPTH) return false;
  state.push("paragraph_open", "p", 1).map = [line, line + 1];
  Object.assign(state.push("inline", "", 0), {
    content: state.getLines(line, line + 1, state.blkIndent, false).trim(),
    map: [line, line + 1],
    children: [],
  });
  state.push("paragraph_close", "p", -1);
  state.line = line + 1;
  return true;
}

/** `<br>`, which models write in tables. */
function br(state, silent) {
  const tag = /<br ?\/?>/iy;
  tag.lastIndex = state.pos;
  if (!tag.test(state.src) || tag.lastIndex > state.posMax) return false;
  if (!silent) state.push("hardbreak", "br", 0);
  state.pos = tag.lastIndex;
  return true;
}

/** Before what is in a block is parsed: take the boxes of tasks, and close code that is being written. */
function shape(state) {
  const { tokens, env } = state;
  for (let i = 2; i < tokens.length; i++) {
    if (tokens[i].type !== "inline" || tokens[i - 2].type !== "list_item_open") continue;
    const box = /^\[([ xX])\] /.exec(tokens[i].content);
    if (!box) continue;
    tokens[i].content = tokens[i].content.slice(4);
    tokens[i - 2].meta = { check: box[1] !== " " };
  }
  const last = tokens[tokens.findLastIndex((token) => token.nesting >= 0)];
  if (!env.live || last?.type !== "inline" || tokens.at(-1).type === "table_close") return;
  last.content += openTicks(last.content);
  env.tail = last.children;
}

/** The backticks of the first code span without an end; none if three or more began it. */
function openTicks(text) {
  const marks = /\\[^]|`+/g;
  for (let mark; (mark = marks.exec(text)); ) {
    if (mark[0][0] === "\\") continue;
    const runs = /`+/g;
    runs.lastIndex = marks.lastIndex;
    let run = runs.exec(text);
    while (run && run[0].length !== mark[0].length) run = runs.exec(text);
    if (!run) return mark[0].length < 3 ? mark[0] : "";
    marks.lastIndex = runs.lastIndex;
  }
  return "";
}

/** In the block that is being written, `**` without a partner is closed where the text ends. */
function closeStrong(state) {
  if (state.tokens !== state.env.tail) return;
  const { delimiters } = state;
  let within = -1; // the end of the emphasis that encloses what follows
  const open = [];
  for (let i = 0; i < delimiters.length; i++) {
    const { marker, token, end, open: opens } = delimiters[i];
    const next = delimiters[i + 1];
    within = Math.max(within, end);
    const free = (d) => d && d.end < 0 && d.open && i > within;
    if (marker === 126 || !opens || !free(delimiters[i]) || !free(next)) continue;
    if (next.marker === marker && next.token === token + 1) open.push(i++);
  }
  for (const i of open.reverse()) {
    const { marker } = delimiters[i];
    for (const opener of [i + 1, i]) {
      state.push("text", "", 0);
      delimiters[opener].end = delimiters.length;
      delimiters.push({ marker, length: 0, token: state.tokens.length - 1, end: -1, open: false, close: true });
    }
  }
}

// --- markdown-it's tokens, as a tree ---------------------------------------------------------------

class Reader {
  #tokens;
  #i = 0;
  #apart = new Set(); // paragraphs with space around them

  constructor(tokens) {
    this.#tokens = tokens;
  }

  #next() {
    return this.#tokens[this.#i++];
  }

  /** The blocks until a token of this type. Each has in `at` the line where it begins. */
  blocks(end) {
    const found = [];
    for (let token; (token = this.#next()) && token.type !== end; ) {
      found.push(Object.assign(this.#block(token), { at: token.map[0] }));
    }
    return found;
  }

  #block(token) {
    switch (token.type) {
      case "heading_open":
        return { t: "h", n: Number(token.tag[1]), c: this.#text() };
      case "fence":
        return { t: "code", lang: language(token.info), v: token.content.replace(/\n$/, "") };
      case "blockquote_open":
        return { t: "quote", c: this.blocks("blockquote_close") };
      case "hr":
        return { t: "hr" };
      case "bullet_list_open":
        return { t: "ul", start: null, ...this.#items("bullet_list_close") };
      case "ordered_list_open":
        return { t: "ol", start: Number(token.attrGet("start") ?? 1), ...this.#items("ordered_list_close") };
      case "table_open":
        return this.#table();
      default:
        return this.#paragraph(token);
    }
  }

  #paragraph(token) {
    const block = { t: "p", c: this.#text() };
    if (!token.hidden) this.#apart.add(block);
    return block;
  }

  /** What is between two tokens. */
  #text() {
    const { children } = this.#next();
    this.#next();
    return nodes(children);
  }

  #items(end) {
    const c = [];
    for (let token; (token = this.#next()).type !== end; ) {
      c.push({ check: token.meta?.check ?? null, c: this.blocks("list_item_close") });
    }
    return { loose: c.some((item) => item.c.some((block) => this.#apart.has(block))), c };
  }

  #table() {
    const align = [];
    const rows = [];
    for (let token; (token = this.#next()).type !== "table_close"; ) {
      if (token.type === "tr_open") rows.push([]);
      if (token.type === "th_open") align.push(/center|right/.exec(token.attrGet("style") ?? "")?.[0] ?? "");
      if (token.type === "th_open" || token.type === "td_open") rows.at(-1).push(this.#text());
    }
    return { t: "table", align, head: rows[0], rows: rows.slice(1) };
  }
}

const language = (info) => /^[^\s{]*/.exec(info.trim())[0].slice(0, 40);

function nodes(tokens, inLink = false) {
  const stack = [{ c: [], links: inLink }];
  for (const token of tokens) {
    const { c, links } = stack.at(-1);
    if (token.nesting < 0) stack.pop();
    else if (token.nesting > 0) {
      const href = token.tag === "a" ? token.attrGet("href") : undefined;
      const node = { t: TAGS[token.tag], ...(href === undefined ? {} : { href }), c: [] };
      const shown = stack.length < MAX_MARKS && href !== "" && !(links && href);
      if (shown) c.push(node);
      stack.push({ c: shown ? node.c : c, links: links || Boolean(href) });
    } else if (token.type === "image") put(c, ...image(token, links));
    else if (token.type === "code_inline") put(c, { t: "code", v: token.content });
    else if (token.type.endsWith("break")) put(c, { t: "br" });
    else put(c, token.content);
  }
  return stack[0].c;
}

/** Images are links: to load one tells its server that the answer was read, and what is in it. */
function image(token, inLink) {
  const href = token.attrGet("src");
  const label = nodes(token.children, true);
  return inLink || !href ? label : [{ t: "a", href, image: true, c: label.length ? label : [href] }];
}

function put(to, ...added) {
  for (const node of added) {
    if (typeof node === "string" && typeof to.at(-1) === "string") to[to.length - 1] += node;
    else if (node !== "") to.push(node);
  }
}
