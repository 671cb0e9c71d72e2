// The settings panel, and the request that the settings and a conversation make.

import { $, el } from "./dom.js";
import { values } from "./store.js";

export const local = values("local");

const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: "any", hint: "0 takes the likeliest token." },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: "any", hint: "Of the likeliest tokens, this share." },
  { name: "top_k", label: "Top k", min: -1, step: 1, hint: "This many of the likeliest tokens." },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: "any", hint: "Drop tokens below this share of the best." },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, hint: "Longest answer; it can be continued." },
  { name: "seed", label: "Seed", step: 1, hint: "Same seed, same answer." },
];
const CHOICES = [
  { name: "thinking", label: "Thinking", options: [["", "Default"], ["on", "On"], ["off", "Off"]] },
  { name: "effort", label: "Effort", options: [["", "Default"], ["low", "Low"], ["medium", "Medium"], ["high", "High"]] },
];

const MAX_TOKENS = 4096; // of an answer, unless the settings say how many

const saved = JSON.parse(local.get("settings") ?? "{}");

let defaults = {}; // of the API's sampling fields

/** Show what holds where nothing is entered, for a model as the server describes it. */
export function showDefaults(model) {
  const said = Object.entries(model?.interactive_sampling ?? {}).filter(([, value]) => value !== null);
  defaults = { max_tokens: longest(model?.max_model_len), ...Object.fromEntries(said) };
  for (const { name } of NUMBERS) $(`set-${name}`).placeholder = defaults[name] ?? "default";
}

/** Tokens that an answer may have at first: a small model may go on to the end of the context. */
const longest = (context) => Math.min(MAX_TOKENS, Math.ceil((context ?? 2 * MAX_TOKENS) / 4));

/** Build the form. What is entered holds from the next message on, in every conversation. */
export function buildSettings() {
  const change = ({ target }) => {
    const wrong = target.name === "tools" ? toolsProblem(target.value) : "";
    target.setCustomValidity(wrong);
    $("tools-hint").textContent = wrong || TOOLS_HINT;
    if (!target.checkValidity()) return;
    saved[target.name] = target.value;
    local.set("settings", JSON.stringify(saved));
  };
  const area = (name, label, rows, placeholder, hint) => {
    const props = { id: `set-${name}`, name, rows, placeholder, dir: "auto", value: saved[name] ?? "", "aria-describedby": hint && `${name}-hint` };
    return el("div", { className: "item" }, el("label", { for: props.id }, label), el("textarea", props), hint && el("p", { id: `${name}-hint` }, hint));
  };
  const numbers = NUMBERS.map(({ name, label, hint, ...limits }) => {
    const props = { id: `set-${name}`, name, type: "number", placeholder: defaults[name] ?? "default", value: saved[name] ?? "", "aria-describedby": `hint-${name}`, ...limits };
    return el("div", { className: "item" }, el("label", { for: props.id }, label), el("input", props), el("p", { id: `hint-${name}` }, hint));
  });
  const choices = CHOICES.map(({ name, label, options }) => {
    const entries = options.map(([value, text]) => el("option", { value, selected: value === (saved[name] ?? "") }, text));
    return el("div", { className: "item" }, el("label", { for: `set-${name}` }, label), el("select", { id: `set-${name}`, name }, ...entries));
  });
  const reset = () => {
    for (const name of Object.keys(saved)) delete saved[name];
    local.remove("settings");
    buildSettings();
  };
  $("settings-form").onsubmit = (event) => event.preventDefault();
  $("settings-form").oninput = change;
  $("settings-form").replaceChildren(
    area("system", "System prompt", 4, "None"),
    el("div", { className: "grid" }, ...choices, ...numbers),
    area("tools", "Tools", 3, '[{"type": "function", …}]', TOOLS_HINT),
    el("div", { className: "buttons" }, el("button", { type: "button", id: "reset", onclick: reset }, "Back to the model’s defaults")),
  );
}

const TOOLS_HINT = "A JSON list, as in OpenAI’s API. You give the results of calls by hand.";

function toolsProblem(text) {
  try {
    return text.trim() === "" || Array.isArray(JSON.parse(text)) ? "" : "This must be a JSON list: [ … ]";
  } catch (error) {
    return `This is no JSON: ${error.message}`;
  }
}

/** The body of the chat request that asks for a conversation's next message, or with `goesOn` for
 * more of its last. Unless it is `limited`, an answer may take what is left of the context. */
export function requestBody(model, messages, limited, goesOn) {
  const body = { model, messages: history(messages), stream: true };
  if (goesOn) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  Object.assign(body, defaults);
  body.stream_options = { include_usage: true, continuous_usage_stats: true };
  for (const { name } of NUMBERS) if (saved[name]) body[name] = Number(saved[name]);
  if (!limited) delete body.max_tokens;
  if (saved.tools?.trim()) body.tools = JSON.parse(saved.tools);
  if (saved.thinking) body.chat_template_kwargs = { enable_thinking: saved.thinking === "on" };
  if (saved.effort) body.reasoning_effort = saved.effort;
  return body;
}

/** The settings that are not defaults, for an export. */
export function sampling() {
  return Object.fromEntries(NUMBERS.filter(({ name }) => saved[name]).map(({ name }) => [name, Number(saved[name])]));
}

/** The messages as the API has them, after the system prompt. */
export function history(messages) {
  const system = saved.system?.trim() ? [{ role: "system", content: saved.system }] : [];
  return [...system, ...messages.filter((message) => !isEmpty(message)).map(plain)];
}

/** An answer of which nothing arrived. */
const isEmpty = (m) => m.role === "assistant" && !m.content && !m.calls?.length;

/** A message as the API has it. */
export function plain({ role, content, reasoning, calls, call_id, pictures }) {
  if (pictures) {
    const parts = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
    return { role, content: content ? [...parts, { type: "text", text: content }] : parts };
  }
  if (role === "tool") return { role, tool_call_id: call_id, content };
  const message = { role, content };
  if (reasoning) message.reasoning_content = reasoning; // the template decides what it shows of it
  if (calls?.length) {
    message.content = content || null;
    message.tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  }
  return message;
}
