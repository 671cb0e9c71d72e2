// Shows Markdown that arrives in pieces: final blocks stay, only the last one is built again.

import { copyButton, el } from "./dom.js";
import { parse, Stream } from "./markdown.js";

const MAX_COLOURED = 20_000; // characters; longer code stays plain

/** The text of one message, growing. Builds nodes once a frame, and less often if that is slow. */
export class MarkdownView {
  #stream = new Stream();
  #pending = "";
  #live = [];
  #timer = 0;
  #ended = false;

  /** `live` if more text follows: `append` it, and `end`. */
  constructor(text, live) {
    this.node = el("div", { className: "prose" });
    this.#ended = !live;
    if (live) this.append(text);
    else this.node.append(...parse(text).map(topNode));
  }

  /** Whether no more text can be appended. */
  get ended() {
    return this.#ended;
  }

  append(text) {
    this.#pending += text;
    if (!this.#timer) this.#timer = setTimeout(() => this.#flush(), 16);
  }

  end() {
    if (this.#ended) return;
    clearTimeout(this.#timer);
    this.#ended = true;
    this.#flush();
    this.#show([], this.#stream.end());
    this.#live = [];
  }

  #flush() {
    const start = performance.now();
    const { done, rest } = this.#stream.feed(this.#pending);
    this.#pending = "";
    this.#show(done, rest);
    const cost = performance.now() - start;
    this.#timer = 0;
    // A long table or list is built again as a whole: leave the page most of the time.
    if (cost > 16) this.#timer = setTimeout(() => this.#flush(), 4 * cost);
  }

  #show(done, rest) {
    const blocks = [...done, ...rest];
    const [old] = this.#live;
    // The usual long block is code that only grew: it stays, and so does a selection in it.
    const kept = this.#live.length === 1 && blocks[0]?.t === "code" && updateCode(old, blocks[0]) ? 1 : 0;
    for (const { node } of this.#live.slice(kept)) node.remove();
    const nodes = [...this.#live.slice(0, kept).map(({ node }) => node), ...blocks.slice(kept).map(topNode)];
    this.node.append(...nodes.slice(kept));
    this.#live = rest.map((block, i) => ({ block, node: nodes[done.length + i] }));
  }
}

/** A block that is part of nothing else: its first letter says which way it runs. */
function topNode(block) {
  const node = blockNode(block);
  if (block.t !== "code") node.dir = "auto";
  return node;
}

function blockNode(block) {
  switch (block.t) {
    case "h":
      return el(`h${Math.min(6, block.n + 2)}`, {}, ...inlineNodes(block.c));
    case "code":
      return codeNode(block);
    case "quote":
      return el("blockquote", {}, ...block.c.map(blockNode));
    case "hr":
      return el("hr");
    case "ul":
    case "ol":
      return listNode(block);
    case "table":
      return tableNode(block);
    default:
      return el("p", {}, ...inlineNodes(block.c));
  }
}

function inlineNodes(nodes) {
  return nodes.map((node) => {
    if (typeof node === "string") return document.createTextNode(node);
    switch (node.t) {
      case "b":
        return el("strong", {}, ...inlineNodes(node.c));
      case "i":
        return el("em", {}, ...inlineNodes(node.c));
      case "s":
        return el("del", {}, ...inlineNodes(node.c));
      case "code":
        return el("code", {}, node.v);
      case "br":
        return el("br");
      default:
        return linkNode(node);
    }
  });
}

function linkNode({ href, image, c }) {
  const props = { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" };
  return el("a", props, ...(image ? ["Image: "] : []), ...inlineNodes(c));
}

function listNode({ t, start, loose, c }) {
  const items = c.map(({ check, c: blocks }) => {
    const children = blocks.flatMap((block) =>
      block.t === "p" && !loose ? inlineNodes(block.c) : [blockNode(block)],
    );
    if (check === null) return el("li", {}, ...children);
    const box = el("input", { type: "checkbox", checked: check, disabled: true, "aria-label": check ? "Done" : "To do" });
    return el("li", { className: "task" }, box, el("div", {}, ...children));
  });
  const list = el(t, {}, ...items);
  if (t === "ol" && start !== 1) list.start = start;
  return list;
}

function tableNode({ align, head, rows }) {
  const row = (tag, cells) =>
    el("tr", {}, ...cells.map((cell, i) => el(tag, { className: align[i] }, ...inlineNodes(cell))));
  const table = el("table", {}, el("thead", {}, row("th", head)), el("tbody", {}, ...rows.map((cells) => row("td", cells))));
  return el("div", { className: "table", role: "region", "aria-label": "Table", tabIndex: 0 }, table);
}

function codeNode({ lang, v }) {
  const code = el("code", {}, ...coloured(v, lang));
  return el(
    "figure",
    { className: "code", dir: "ltr" },
    el("figcaption", {}, el("span", {}, lang || "text"), copyButton("Copy code", () => code.textContent)),
    el("pre", { tabIndex: 0 }, code),
  );
}

/** Bring shown code up to date if it only grew. Returns whether it did. */
function updateCode({ block: old, node }, block) {
  if (old.t !== "code" || old.lang !== block.lang || !block.v.startsWith(old.v)) return false;
  const code = node.querySelector("code");
  if (block.v.length <= MAX_COLOURED) code.replaceChildren(...coloured(block.v, block.lang));
  else code.append(block.v.slice(old.v.length));
  return true;
}

// Colours: comments, strings, numbers and the words that most languages reserve. Not a grammar, and
// meant to be wrong quietly.
const HASH = /^(py|python|sh|bash|zsh|shell|console|ya?ml|toml|ruby|rb|r|perl|make|makefile|dockerfile|ini|conf|elixir|nix)$/;
const DASH = /^(sql|lua|haskell|hs|elm|ada)$/;
const PROSE = /^(|text|txt|plain|output|log|diff|md|markdown|html|xml|csv)$/;
const WORDS = new Set(
  ("abstract and as assert async await begin break case catch class const continue def default defer del do echo elif else " +
    "end enum except export extends extern false finally fn for from func function global go if impl implements import in " +
    "instanceof interface is lambda let loop match mod mut namespace new nil none not null or package pass private " +
    "protected public pub raise return self static struct super switch then this throw trait true try type typeof " +
    "union unsafe use using var virtual void volatile while with yield select insert update delete where join group " +
    "order by having limit create table values into set on left inner outer").split(" "),
);

function coloured(text, lang) {
  const name = lang.toLowerCase();
  if (PROSE.test(name) || text.length > MAX_COLOURED) return [text];
  const comment = HASH.test(name) ? "(?<=^|\\s)#.*" : DASH.test(name) ? "--.*" : "\\/\\/.*|\\/\\*[^]*?(?:\\*\\/|$(?![^]))";
  const string = `"""[^]*?(?:"""|$(?![^]))|"(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n])*'|\`[^\`]*\`?`;
  const token = new RegExp(`(${comment})|(${string})|(\\b\\d[\\w.]*)|(\\b[A-Za-z_]\\w*)`, "gm");
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(token)) {
    const kind = found[1] ? "comment" : found[2] ? "string" : found[3] ? "number" : WORDS.has(found[4].toLowerCase()) ? "word" : "";
    if (!kind) continue;
    nodes.push(text.slice(end, found.index), el("span", { className: `c-${kind}` }, found[0]));
    end = found.index + found[0].length;
  }
  return [...nodes, text.slice(end)];
}
