// The page's Markdown parser, in Node: `PAGE` is the URL of its folder.

import assert from "node:assert/strict";
import test from "node:test";

const { parse, Stream, inline, safeUrl } = await import(`${process.env.PAGE}/markdown.js`);

const plain = (value) => JSON.parse(JSON.stringify(value, (key, each) => (key === "at" ? undefined : each)));
const same = (text, expected) => assert.deepEqual(plain(parse(text)), expected);
const p = (...c) => ({ t: "p", c });
const link = (href, ...c) => ({ t: "a", href, c });

test("paragraphs, breaks and headings", () => {
  same("a\nb\r\n\n\n# H *i* #\n####### no\n#no", [
    p("a", { t: "br" }, "b"),
    { t: "h", n: 1, c: ["H ", { t: "i", c: ["i"] }] },
    p("####### no", { t: "br" }, "#no"),
  ]);
});

test("emphasis follows its flanks", () => {
  const cases = {
    "**b** *i* ~~s~~": [{ t: "b", c: ["b"] }, " ", { t: "i", c: ["i"] }, " ", { t: "s", c: ["s"] }],
    "***both***": [{ t: "i", c: [{ t: "b", c: ["both"] }] }],
    "2 * 3 * 4, snake_case_name, __init__": ["2 * 3 * 4, snake_case_name, ", { t: "b", c: ["init"] }],
    "**open *half": ["**open *half"],
    "**文。**后": [{ t: "b", c: ["文。"] }, "后"],
    "*a __b* c__": [{ t: "i", c: ["a __b"] }, " c__"],
    "\\*no\\*": ["*no*"],
  };
  for (const [text, nodes] of Object.entries(cases)) assert.deepEqual(inline(text), nodes, text);
});

test("what is being written is shown as if it ended there", () => {
  const cases = {
    "a **b": ["a ", { t: "b", c: ["b"] }],
    "*a **b": ["*a ", { t: "b", c: ["b"] }],
    "*a __b* c": [{ t: "i", c: ["a __b"] }, " c"],
    "**a __b": [{ t: "b", c: ["a ", { t: "b", c: ["b"] }] }],
    "a ** b": ["a ** b"],
    "`` ` `` \\` and `x *y": [{ t: "code", v: "`" }, " ` and ", { t: "code", v: "x *y" }],
    "```x": ["```x"],
  };
  for (const [text, nodes] of Object.entries(cases)) {
    const [last] = plain(parse(`> - [ ] ${text}`, true)[0].c[0].c);
    assert.deepEqual(last, { check: false, c: [p(...nodes)] }, text);
  }
  for (const text of ["a **b\n\nc", "| **a | b |\n|--|--|\n| **c | `d", "**a\n***"]) {
    assert.ok(!/"t":"(b|code)"/.test(JSON.stringify(parse(text, true))), text);
  }
});

test("what is nested deeply stays readable", () => {
  const depth = (value) => (typeof value === "object" && value ? 1 + Math.max(0, ...Object.values(value).map(depth)) : 0);
  const n = 2000;
  for (const text of ["> ".repeat(n) + "end", "- ".repeat(n) + "end", "*a _".repeat(n) + "end" + "_ b*".repeat(n), "[".repeat(n) + "end"]) {
    const tree = parse(text);
    assert.ok(JSON.stringify(tree).includes("end"), text.slice(0, 10));
    assert.ok(depth(tree) < 200, text.slice(0, 10));
  }
});

test("code spans keep what is in them", () => {
  assert.deepEqual(inline("`` a ` b `` `*x*` `open"), [{ t: "code", v: "a ` b" }, " ", { t: "code", v: "*x*" }, " `open"]);
});

test("links, addresses and images become links", () => {
  assert.deepEqual(inline("[a *b*](https://x.y/z_(q) 'title')."), [link("https://x.y/z_(q)", "a ", { t: "i", c: ["b"] }), "."]);
  assert.deepEqual(inline("(see https://x.y/a_b?q=1), <mailto:a@b.c>"), [
    "(see ", link("https://x.y/a_b?q=1", "https://x.y/a_b?q=1"), "), ", link("mailto:a@b.c", "mailto:a@b.c"),
  ]);
  assert.deepEqual(inline("![alt](http://x/y.png)"), [{ t: "a", href: "http://x/y.png", image: true, c: ["alt"] }]);
  assert.deepEqual(inline("[a [b](http://x/) c](http://y/)")[1], link("http://x/", "b"));
});

test("unsafe links stay text", () => {
  for (const url of ["javascript:alert(1)", " javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\nscript:alert(1)",
    "data:text/html,<script>1</script>", "vbscript:x", "file:///etc/passwd", "/relative", "//x.y", "blob:x", "#x"]) {
    assert.equal(safeUrl(url), null, url);
    for (const text of [`[x](${url})`, `[x](<${url}>)`, `![x](${url})`, `<${url}>`]) {
      assert.ok(!JSON.stringify(inline(text)).includes('"href"'), text);
    }
  }
});

test("HTML and entities are text", () => {
  same("<img src=x onerror=alert(1)> &lt;b&gt; &#x3C;i> &bogus; a<br>b", [
    p("<img src=x onerror=alert(1)> <b> <i> &bogus; a", { t: "br" }, "b"),
  ]);
  assert.deepEqual(inline("&#0; &#xD800; &#1114112;"), ["\ufffd \ufffd \ufffd"]);
});

test("fences", () => {
  same("```python title\nx = '`'\n\n  y\n```\nafter", [{ t: "code", lang: "python", v: "x = '`'\n\n  y" }, p("after")]);
  same("~~~~\n```\n~~~\n~~~~", [{ t: "code", lang: "", v: "```\n~~~" }]);
  same("text\n```\nopen", [p("text"), { t: "code", lang: "", v: "open" }]);
});

test("lists nest, number and tick", () => {
  same("3. a\n   - b\n   - [x] c\n4. d", [
    { t: "ol", start: 3, loose: false, c: [
      { check: null, c: [p("a"), { t: "ul", start: null, loose: false, c: [{ check: null, c: [p("b")] }, { check: true, c: [p("c")] }] }] },
      { check: null, c: [p("d")] },
    ] },
  ]);
  const [list] = plain(parse("- a\n\n  ```\n  x\n  ```\n- b\nlazy"));
  assert.deepEqual(list.c[0].c[1], { t: "code", lang: "", v: "x" });
  assert.deepEqual(list.c[1].c, [p("b", { t: "br" }, "lazy")]);
  same("It was\n2019. A year", [p("It was", { t: "br" }, "2019. A year")]);
});

test("tables", () => {
  same("Text\n| a | b \\| c |\n|:--|--:|\n| 1 |\nx | `y` | z\n\nend", [
    p("Text"),
    { t: "table", align: ["", "right"], head: [["a"], ["b | c"]], rows: [[["1"], []], [["x"], [{ t: "code", v: "y" }]]] },
    p("end"),
  ]);
  same("a | b\nc | d", [p("a | b", { t: "br" }, "c | d")]);
});

test("quotes and rules", () => {
  same("> a\n> - b\n\n---\n* * *", [
    { t: "quote", c: [p("a"), { t: "ul", start: null, loose: false, c: [{ check: null, c: [p("b")] }] }] },
    { t: "hr" }, { t: "hr" },
  ]);
});

// Pieces that mean something at the start of a line or inside it, to make documents from.
const PIECES = ["a", "b c", " ", "  ", "    ", "\n", "\n", "\n\n", "# ", "- ", "* ", "1. ", "2) ", "> ", "```", "~~~", "`", "**", "*",
  "_", "~~", "[", "](", ")", "!", "|", "|--|", "---", "https://x.y", "<", ">", "&lt;", "\\", "[x] ", "\t", "\r\n", "e\u0301", "漢字"];

function random(seed) {
  return () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
}

test("any cut of a text into pieces gives the blocks of the whole", () => {
  const next = random(7);
  for (let round = 0; round < 4000; round++) {
    const few = Array.from({ length: 6 }, () => PIECES[Math.floor(next() * PIECES.length)]); // so that they meet
    const text = Array.from({ length: 1 + next() * 30 }, () => few[Math.floor(next() * few.length)]).join("");
    const stream = new Stream();
    const found = [];
    for (let i = 0; i < text.length; ) {
      const n = 1 + Math.floor(next() * 6);
      found.push(...stream.feed(text.slice(i, i + n)).done);
      i += n;
    }
    found.push(...stream.end());
    assert.deepEqual(plain(found), plain(parse(text)), JSON.stringify(text));
  }
});

test("no text is lost or made up", () => {
  const letters = (value) => JSON.stringify(value).match(/漢字/g)?.length ?? 0;
  const next = random(11);
  for (let round = 0; round < 2000; round++) {
    const text = Array.from({ length: 20 }, () => PIECES[Math.floor(next() * PIECES.length)]).join("");
    if (/\|/.test(text) || /[`~]{3}/.test(text) || /x\.y[^ \n]*漢字/.test(text)) continue; // extra cells, info strings and URLs
    assert.equal(letters(parse(text)), letters(text), JSON.stringify(text));
  }
});

test("hostile text takes linear time", () => {
  // Quadratic work on these is minutes; the test ends when the parser does.
  const n = 30_000;
  for (const piece of ["*a ", "**a*b_", "[", "[a](", "![", "](", "`", "` `` ", "> ", "- ", "1. ", "|", "| - ", "<a:", "&#", "https://",
    "~~a", "\\", "_a* ", "[a](<", "[*a*", "```\n", "- a\n\n", "> a\n", "#", "# ", " ", "\n", "((", "[a](http://x/ \"", "   *"]) {
    parse(piece.repeat(n / piece.length), true);
    inline(piece.repeat(n / piece.length), true);
  }
});
