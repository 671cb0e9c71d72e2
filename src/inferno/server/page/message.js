// Shows one message: its text, thoughts, tool calls, what went wrong, and what can be done with it.

import { copyButton, el, icon, iconButton } from "./dom.js";
import { MarkdownView } from "./render.js";

const count = new Intl.NumberFormat("en");
const rate = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** The view of a message. `actions` has `edit`, `again`, `remove`, `results` and `retry`. */
export class MessageView {
  constructor(message, actions, live = false) {
    this.message = message;
    this.actions = actions;
    this.live = live;
    const name = { user: "You", assistant: "Answer", tool: "Result of a call" }[message.role];
    this.head = el("h2", { className: "hidden" }, name);
    this.node = el("article", { className: message.role }, this.head);
    if (message.role === "assistant") this.#answer();
    else this.#question();
  }

  /** Show what was added to the message. */
  append(kind, text) {
    if (kind === "reasoning") this.#thoughts().append(text);
    else if (kind === "content") this.#prose().append(text);
    else this.#calls();
    this.#state();
  }

  /** The answer has ended, well or not. */
  end() {
    this.live = false;
    this.text?.end();
    this.thought?.end();
    this.#calls();
    this.#state();
    this.#foot();
  }

  /** Replace the text by a field to change it in. */
  edit() {
    const field = el("textarea", { value: this.message.content, dir: "auto", "aria-label": "Change the message" });
    const done = () => this.node.replaceChildren(...old);
    const save = () => (field.value.trim() ? this.actions.edit(this.message, field.value) : done());
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

  #question() {
    const { message, actions } = this;
    const text = el("div", { className: "bubble", dir: "auto" }, message.content);
    if (message.role === "tool") text.prepend(el("div", { className: "from" }, icon("tool"), `${message.name} returned`));
    const buttons = [copyButton("Copy message", () => message.content)];
    if (message.role === "user") buttons.push(iconButton("edit", "Edit message", () => this.edit()));
    buttons.push(iconButton("delete", "Delete message", () => actions.remove(message)));
    this.node.append(text, el("div", { className: "foot" }, el("div", { className: "acts" }, ...buttons)));
  }

  #answer() {
    const { message } = this;
    this.state = el("p", { className: "state", hidden: true }, "Waiting for the first token");
    this.tail = el("div", { className: "foot" });
    this.node.append(this.state, this.tail);
    if (message.reasoning) this.#thoughts(message.reasoning);
    if (message.content) this.#prose(message.content);
    this.#calls();
    this.#state();
    if (!this.live) this.#foot();
  }

  #prose(text = "") {
    if (!this.text) {
      this.text = new MarkdownView(text, this.live);
      this.state.before(this.text.node);
    }
    return this.text;
  }

  #thoughts(text = "") {
    if (!this.thought) {
      this.thought = new MarkdownView(text, this.live);
      this.summary = el("summary");
      this.head.after(el("details", { className: "thinking" }, this.summary, this.thought.node));
    }
    return this.thought;
  }

  #state() {
    const { message, live } = this;
    const thinking = live && message.reasoning && !message.content && !message.calls?.length;
    this.state.hidden = !live || Boolean(message.reasoning || message.content || message.calls?.length);
    this.node.classList.toggle("live", live);
    if (!this.summary) return;
    const seconds = message.stats?.thought;
    this.summary.classList.toggle("busy", Boolean(thinking));
    this.summary.textContent = thinking ? "Thinking" : seconds ? `Thought for ${seconds.toFixed(1)} s` : "Thought";
  }

  #calls() {
    this.callsNode?.remove();
    const { message, live, actions } = this;
    if (!message.calls?.length) return;
    const open = !live && actions.unanswered(message);
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

  #foot() {
    const { message, actions } = this;
    const buttons = el(
      "div",
      { className: "acts" },
      copyButton("Copy answer", () => message.content),
      iconButton("again", "Answer again", () => actions.again(message)),
      iconButton("delete", "Delete message", () => actions.remove(message)),
    );
    const stats = el("div", { className: "stats" }, statistics(message));
    this.tail.replaceChildren(buttons, stats);
    if (message.ignored?.length) stats.append(` · not used by this model: ${message.ignored.join(", ")}`);
    if (!message.error) return;
    const again = el("button", { type: "button", onclick: () => actions.retry(message) }, "Try again");
    this.tail.before(el("div", { className: "error", role: "alert" }, el("p", {}, message.error), again));
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
