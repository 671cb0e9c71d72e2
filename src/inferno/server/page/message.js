// Shows one message: its text, thoughts, tool calls, what went wrong, and what can be done with it.

import { copyButton, el, icon, iconButton } from "./dom.js";
import { row } from "./pictures.js";
import { MarkdownView } from "./render.js";

const count = new Intl.NumberFormat("en");
const LONG = 1500; // characters of a message that is folded
const LINES = 16; // as many lines are
const rate = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** The view of a message. `actions` has `edit`, `again`, `remove`, `results`, `retry`,
 * `choose`, `goOn`, `unlimited` and `fresh`. */
export class MessageView {
  #drawn = {}; // what of the message is shown: lengths of its texts, and its calls as JSON

  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    const name = { user: "You", assistant: "Answer", tool: "Result of a call" }[message.role];
    this.head = el("h2", { className: "hidden" }, name);
    this.tail = el("div", { className: "foot" });
    this.node = el("article", { className: message.role }, this.head, this.tail);
    if (message.role === "assistant") this.tail.before((this.state = el("p", { className: "state" }, "Waiting for the first token")));
    else this.tail.before(...this.#bubble());
  }

  /** Show the message as it is now. `live` says that more follows, `versions` what stands beside it,
   * `last` that nothing comes after it. */
  draw(live, versions, last) {
    const { message } = this;
    this.live = live;
    if (message.role === "assistant") this.grow();
    if (message.role === "assistant") this.#calls(!live && last);
    const known = (name, value) => (name === "pictures" ? value.length : value); // megabytes that never change
    const foot = JSON.stringify([live, versions.length, versions.indexOf(message), last, message], known);
    if (foot === this.#drawn.foot) return;
    this.#drawn.foot = foot;
    const ended = message.role === "assistant" && !live;
    this.tail.replaceChildren(...this.#turner(versions), ...(ended ? [this.#stats()] : []), ...(live ? [] : [this.#buttons(versions)]));
    this.box?.remove();
    if (ended) this.#ending(last);
  }

  /** Show what was added to the text. */
  grow() {
    const { message, live } = this;
    for (const kind of ["reasoning", "content"]) {
      const text = message[kind] ?? "";
      const drawn = this.#drawn[kind] ?? 0;
      if (text.length > drawn) this.#text(kind, text.slice(drawn));
      this.#drawn[kind] = text.length;
      if (!live) this[kind]?.end();
    }
    if (live) this.#calls(false);
    this.#state();
  }

  /** Replace the text by a field to change it in. */
  edit() {
    const field = el("textarea", { value: this.message.content, dir: "auto", "aria-label": "Change the message" });
    const done = () => this.node.replaceChildren(...old);
    const save = () => (field.value.trim() || this.message.pictures ? this.actions.edit(this.message, field.value) : done());
    field.onkeydown = (event) => {
      if (event.key === "Escape") done();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) save();
      else return;
      event.preventDefault();
      event.stopPropagation();
    };
    const old = [...this.node.childNodes];
    const buttons = el(
      "div",
      { className: "buttons end" },
      el("button", { type: "button", onclick: done }, "Cancel"),
      el("button", { type: "button", className: "filled", onclick: save }, "Send"),
    );
    this.node.replaceChildren(el("div", { className: "editing" }, field, buttons));
    field.focus();
  }

  /** The text, folded if it is long. */
  #bubble() {
    const { role, name, content, pictures } = this.message;
    if (pictures && !content) return [row(pictures)];
    const text = el("div", { className: "bubble", dir: "auto" }, content);
    if (role === "tool") text.prepend(el("div", { className: "from" }, icon("tool"), `${name} returned`));
    const seen = pictures ? [row(pictures)] : [];
    if (content.length < LONG && content.split("\n").length < LINES) return [...seen, text];
    const whole = `Show all ${count.format(content.length)} characters`;
    const button = el("button", { type: "button", className: "unfold", "aria-expanded": "false" }, whole);
    text.classList.add("folded");
    button.onclick = () => {
      const folded = text.classList.toggle("folded");
      button.textContent = folded ? whole : "Show less";
      button.ariaExpanded = String(!folded);
    };
    return [...seen, text, button];
  }

  #text(kind, text) {
    const old = this[kind];
    if (old && !old.ended) return old.append(text);
    const view = (this[kind] = new MarkdownView(this.message[kind], this.live));
    if (old) return old.node.replaceWith(view.node);
    if (kind === "content") return (this.callsNode ?? this.state).before(view.node);
    this.summary = el("summary");
    this.head.after(el("details", { className: "thinking" }, this.summary, view.node));
  }

  #state() {
    const { message, live } = this;
    const thinking = live && message.reasoning && !message.content && !message.calls?.length;
    this.state.hidden = !live || Boolean(message.reasoning || message.content || message.calls?.length);
    this.node.classList.toggle("live", Boolean(live));
    if (!this.summary) return;
    const seconds = message.stats?.thought;
    this.summary.classList.toggle("busy", Boolean(thinking));
    this.summary.textContent = thinking ? "Thinking" : seconds ? `Thought for ${seconds.toFixed(1)} s` : "Thought";
  }

  /** `open` if their results can be given. */
  #calls(open) {
    const { message, actions } = this;
    const drawn = JSON.stringify([message.calls, open]);
    if (drawn === this.#drawn.calls) return;
    this.#drawn.calls = drawn;
    this.callsNode?.remove();
    if (!message.calls?.length) return;
    const fields = [];
    const cards = message.calls.map((call) => {
      const field = el("textarea", { rows: 2, dir: "auto", placeholder: "Result", "aria-label": `Result of ${call.name}` });
      fields.push(field);
      return el(
        "div",
        { className: "call" },
        el("div", { className: "from" }, icon("tool"), el("span", {}, "Calls "), el("strong", {}, call.name)),
        el("pre", { tabIndex: 0, role: "region", "aria-label": `Arguments of ${call.name}` }, pretty(call.arguments)),
        open ? field : null,
      );
    });
    const send = () => actions.results(message, fields.map((field) => field.value));
    const button = el("button", { type: "button", className: "filled", onclick: send }, cards.length > 1 ? "Send results" : "Send result");
    this.callsNode = el("div", { className: "calls" }, ...cards, open ? el("div", { className: "buttons end" }, button) : null);
    this.state.before(this.callsNode);
  }

  #buttons(versions) {
    const { message, actions } = this;
    const isAnswer = message.role === "assistant";
    const buttons = [copyButton(isAnswer ? "Copy answer" : "Copy message", () => message.content)];
    if (isAnswer) buttons.push(iconButton("again", "Answer again", () => actions.again(message)));
    if (message.role === "user") buttons.push(iconButton("edit", "Edit message", () => this.edit()));
    buttons.push(iconButton("delete", versions.length > 1 ? "Delete this version" : "Delete message", () => actions.remove(message)));
    return el("div", { className: "acts" }, ...buttons);
  }

  /** Leads to the versions that stand beside this one. */
  #turner(versions) {
    if (versions.length < 2) return [];
    const at = versions.indexOf(this.message);
    const to = (name, label, other) => {
      const button = iconButton(name, label, () => this.actions.choose(other));
      button.disabled = !other;
      return button;
    };
    return [
      el(
        "div",
        { className: "versions", role: "group", "aria-label": "Versions" },
        to("left", "Older version", versions[at - 1]),
        el("span", {}, `${at + 1} / ${versions.length}`),
        to("right", "Newer version", versions[at + 1]),
      ),
    ];
  }

  #stats() {
    const { message } = this;
    const stats = el("div", { className: "stats" }, statistics(message));
    if (message.ignored?.length) stats.append(` · not used by this model: ${message.ignored.join(", ")}`);
    return stats;
  }

  /** What went wrong, and how to go on. */
  #ending(last) {
    const [className, text, label, onclick] = this.#notice(last) ?? [];
    if (!text) return;
    const role = className === "error" ? "alert" : "note";
    this.box = el("div", { className, role }, el("p", {}, text), el("button", { type: "button", onclick }, label));
    this.tail.before(this.box);
  }

  /** What the reader should know of an answer that did not come to its end, and what to do then. */
  #notice(last) {
    const { message, actions } = this;
    const { error, finish, stopped, full, content, calls, stats } = message;
    const canGoOn = content.trim() && !calls.length;
    const goOn = ["Continue", () => actions.goOn(message)];
    if (error) return ["error", error, "Try again", () => actions.retry(message)];
    if (!last) return null;
    if (full) return ["notice", "The context is full.", "New conversation", actions.fresh];
    if (stopped) return canGoOn ? ["notice", "You stopped the answer.", ...goOn] : null;
    if (!finish) return ["notice", "The answer was interrupted.", ...(canGoOn ? goOn : ["Try again", () => actions.retry(message)])];
    if (finish !== "length") return null;
    const limit = `The answer was cut off after ${count.format(stats.tokens ?? 0)} tokens`;
    if (canGoOn) return ["notice", `${limit}.`, ...goOn];
    const what = calls.length ? "in the middle of a call" : "before it came to the point";
    return ["notice", `${limit}, ${what}.`, "Answer again without a limit", () => actions.unlimited(message)];
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // arguments that broke off, or were never JSON
  }
}

/** "212 tokens · 31.4 tokens/s · first after 0.21 s · 96 of 110 prompt tokens cached" */
function statistics({ stats, finish, stopped }) {
  const parts = [];
  if (stats?.tokens) {
    parts.push(`${count.format(stats.tokens)} ${stats.tokens === 1 ? "token" : "tokens"}`);
    if (stats.rate) parts.push(`${rate.format(stats.rate)} tokens/s`);
    if (stats.first !== undefined) parts.push(`first after ${stats.first.toFixed(2)} s`);
    if (stats.prompt) parts.push(`${count.format(stats.cached)} of ${count.format(stats.prompt)} prompt tokens cached`);
  }
  if (stopped) parts.push("stopped");
  else if (finish === "length") parts.push("cut off by the length limit");
  return parts.join(" · ");
}
