// The page: conversations, and the answers that are being generated for them.

import * as api from "./api.js";
import { $, announce, download, el, icon, iconButton, toast } from "./dom.js";
import { MessageView } from "./message.js";
import { follow, toEnd, watchScroller } from "./scrolling.js";
import { buildSettings, history, local, requestBody, sampling } from "./settings.js";
import { openStore } from "./store.js";

const state = {
  store: null,
  conversations: [], // the latest first
  current: null,
  models: [],
  running: new Map(), // a conversation's id: the controller that stops its answer
  views: new Map(), // a shown message: its view
  locked: new Set(), // what to do once there is a key
};

const number = new Intl.NumberFormat("en");

// Conversations

function blank() {
  return { id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), title: "", created: Date.now(), updated: Date.now(), messages: [] };
}

async function save(conversation) {
  if (!state.conversations.includes(conversation)) state.conversations.unshift(conversation);
  const first = conversation.messages.find(({ role }) => role === "user");
  conversation.title = first?.content.trim().replace(/\s+/g, " ").slice(0, 80) ?? "";
  conversation.updated = Date.now();
  try {
    await state.store.put(conversation);
  } catch (error) {
    toast(`This browser could not keep the conversation: ${error.message}. Export it, and delete old ones.`);
  }
  drawList();
}

function show(conversation) {
  state.current = conversation;
  const hash = conversation.messages.length ? `#${conversation.id}` : " ";
  window.history.replaceState(null, "", hash.trim() || location.pathname);
  draw();
  drawList();
  toEnd();
  closeSide();
  if (matchMedia("(hover: hover)").matches) $("input").focus();
}

function draw() {
  const { messages, id } = state.current;
  state.views.clear();
  const last = messages.at(-1);
  $("messages").replaceChildren(...messages.map((m) => viewOf(m, m === last && state.running.has(id)).node));
  $("empty").hidden = messages.length > 0;
  $("title").textContent = state.current.title || "New conversation";
  document.title = state.current.title ? `${state.current.title} · inferno` : "inferno";
  drawState();
}

function viewOf(message, live) {
  const view = new MessageView(message, actions, live);
  state.views.set(message, view);
  return view;
}

function drawList() {
  const items = state.conversations.map((conversation) => {
    const current = conversation === state.current;
    const open = el("button", { type: "button", className: "open", dir: "auto", onclick: () => show(conversation), "aria-current": current ? "true" : null }, conversation.title || "Untitled");
    const busy = state.running.has(conversation.id) ? " busy" : "";
    return el("li", { className: (current ? "current" : "") + busy }, open, iconButton("close", `Delete ${conversation.title || "Untitled"}`, () => drop(conversation)));
  });
  $("list").replaceChildren(...items);
  $("title").textContent = state.current.title || "New conversation";
}

async function drop(conversation) {
  state.running.get(conversation.id)?.abort();
  state.conversations = state.conversations.filter((each) => each !== conversation);
  await state.store.remove(conversation.id);
  if (conversation === state.current) show(blank());
  drawList();
  toast("Conversation deleted.", "Undo", async () => {
    await save(conversation);
    show(conversation);
  });
}

/** Change the shown conversation so that it can be undone. */
function change(messages, note) {
  const conversation = state.current;
  const before = conversation.messages;
  state.running.get(conversation.id)?.abort();
  conversation.messages = messages;
  save(conversation);
  draw();
  if (!note) return;
  toast(note, "Undo", () => {
    state.running.get(conversation.id)?.abort();
    conversation.messages = before;
    save(conversation);
    show(conversation);
  });
}

const until = (message) => state.current.messages.slice(0, state.current.messages.indexOf(message));

const actions = {
  edit(message, text) {
    const later = state.current.messages.length - until(message).length - 1;
    change(until(message), later ? "What followed the old message was removed." : null);
    send(text);
  },
  again(message) {
    const later = state.current.messages.length - until(message).length - 1;
    change(until(message), later ? "What followed the old answer was removed." : null);
    answer(state.current);
  },
  retry: (message) => retry(state.current, message),
  remove(message) {
    change(state.current.messages.filter((each) => each !== message), "Message deleted.");
  },
  unanswered: (message) => message === state.current.messages.at(-1),
  results(message, texts) {
    const results = message.calls.map(({ id, name }, i) => ({ role: "tool", call_id: id, name, content: texts[i] }));
    change([...state.current.messages, ...results]);
    answer(state.current);
  },
};

// Answers

function send(text) {
  const conversation = state.current;
  conversation.messages.push({ role: "user", content: text });
  save(conversation);
  answer(conversation);
}

async function answer(conversation) {
  const message = { role: "assistant", content: "", reasoning: "", calls: [], stats: {} };
  const stop = new AbortController();
  const body = requestBody($("model").value || undefined, conversation.messages);
  conversation.messages.push(message);
  state.running.set(conversation.id, stop);
  if (conversation === state.current) show(conversation);
  announce("The answer has begun");
  try {
    await receive(conversation, message, body, stop.signal);
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else if (error.status === 401) askKey(() => retry(conversation, message));
    if (!message.stopped) message.error = failure(error);
  }
  if (state.running.get(conversation.id) === stop) state.running.delete(conversation.id);
  state.views.get(message)?.end();
  if (state.views.has(message)) follow(); // what was waiting to be drawn, the numbers, an error
  announce(message.error ? "" : "The answer is complete");
  drawState();
  if (conversation.messages.includes(message)) await save(conversation);
}

function retry(conversation, message) {
  conversation.messages = conversation.messages.filter((each) => each !== message);
  answer(conversation);
}

function failure(error) {
  if (!(error instanceof api.ApiError)) console.error(error);
  const again = error.retryAfter ? ` It asks to try again in ${error.retryAfter} s.` : "";
  return error.message[0].toUpperCase() + error.message.slice(1) + again;
}

async function receive(conversation, message, body, signal) {
  const start = performance.now();
  const { stats } = message;
  let first = 0;
  let saved = start;
  for await (const event of api.chat(body, signal)) {
    const now = performance.now();
    const [choice] = event.choices ?? [];
    if (event.x_inferno?.ignored) message.ignored = event.x_inferno.ignored;
    if (choice?.finish_reason) message.finish = choice.finish_reason;
    const parts = choice ? take(message, choice.delta) : [];
    if (parts.length && !first) stats.first = ((first = now) - start) / 1000;
    if (event.usage) {
      count(stats, event.usage, (now - first) / 1000);
      if (conversation === state.current) drawContext();
    }
    if (stats.thought === undefined && message.reasoning && (message.content || message.calls.length)) {
      stats.thought = (now - first) / 1000;
    }
    for (const [kind, text] of parts) state.views.get(message)?.append(kind, text);
    if (now - saved > 1000) {
      saved = now;
      state.store.put(conversation).catch(() => {}); // `save` reports it at the end
    }
  }
}

function count(stats, usage, seconds) {
  stats.tokens = usage.completion_tokens;
  stats.prompt = usage.prompt_tokens;
  stats.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  if (stats.tokens > 1 && seconds > 0.05) stats.rate = (stats.tokens - 1) / seconds;
}

/** Add a delta to a message. Returns what is new as [kind, text]. */
function take(message, delta) {
  const parts = [];
  const thought = delta.reasoning ?? delta.reasoning_content;
  if (thought) {
    message.reasoning += thought;
    parts.push(["reasoning", thought]);
  }
  if (delta.content) {
    message.content += delta.content;
    parts.push(["content", delta.content]);
  }
  for (const { index, id, function: part } of delta.tool_calls ?? []) {
    const call = (message.calls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= id ?? "";
    call.name += part?.name ?? "";
    call.arguments += part?.arguments ?? "";
    parts.push(["call", ""]);
  }
  return parts;
}

// The page around them

function drawState() {
  const busy = state.running.has(state.current.id);
  $("send").replaceChildren(icon(busy ? "stop" : "send"));
  $("send").ariaLabel = $("send").title = busy ? "Stop the answer" : "Send";
  $("send").classList.toggle("stopping", busy);
  const limit = model()?.max_model_len;
  $("empty-title").textContent = model()?.id ?? "inferno";
  $("empty-note").textContent = limit ? `${number.format(limit)} tokens of context` : "";
  drawContext();
}

const model = () => state.models.find(({ id }) => id === $("model").value);

/** How much of the context is used, while an answer comes too. */
function drawContext() {
  const limit = model()?.max_model_len;
  const { stats } = state.current.messages.findLast(({ stats }) => stats?.tokens) ?? {};
  const used = stats && `${number.format(stats.prompt + stats.tokens)} of ${number.format(limit)} tokens of context`;
  $("context").textContent = limit ? (used ?? "") : "";
}

async function loadModels() {
  try {
    state.models = await api.models();
  } catch (error) {
    if (error.status === 401) askKey(loadModels);
    else toast(error.message, "Try again", loadModels);
    return;
  }
  const wanted = local.get("model");
  $("model").replaceChildren(...state.models.map(({ id }) => el("option", { value: id, selected: id === wanted }, id)));
  $("model").disabled = state.models.length < 2;
  drawState();
}

/** Ask for a key, then do what needed it. */
function askKey(then) {
  state.locked.add(then);
  if ($("key").open) return;
  $("key").querySelector("form").onsubmit = () => {
    api.setKey($("key-input").value.trim());
    $("key-input").value = "";
    const all = new Set([...state.locked, ...(state.models.length ? [] : [loadModels])]);
    state.locked.clear();
    all.forEach((each) => each());
  };
  $("key-cancel").onclick = () => $("key").close();
  $("key").showModal();
}

function exportAs(kind) {
  const { title, messages, created } = state.current;
  const name = `${(title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40).replace(/^-|-$/g, "")}.${kind}`;
  if (kind === "json") {
    const value = { title, created: new Date(created).toISOString(), model: $("model").value, sampling: sampling(), messages: history(messages) };
    return download(name, "application/json", `${JSON.stringify(value, null, 2)}\n`);
  }
  const heads = { system: "System", user: "You", assistant: "Answer", tool: "Result" };
  const parts = history(messages).map(({ role, content, tool_calls = [] }) => {
    const calls = tool_calls.map(({ function: f }) => `Calls \`${f.name}\` with \`${f.arguments}\``);
    return [`## ${heads[role]}`, content, ...calls].filter(Boolean).join("\n\n");
  });
  download(name, "text/markdown", `# ${title || "Conversation"}\n\n${parts.join("\n\n")}\n`);
}

function openSide(open) {
  document.body.classList.toggle("side-open", open);
  $("menu").ariaExpanded = String(open);
  if (open) $("new").focus();
}

const closeSide = () => openSide(false);

function togglePanel(open) {
  $("settings").hidden = !open;
  $("tune").ariaExpanded = String(open);
  (open ? $("settings-close") : $("tune")).focus();
}

const THEMES = { "": "System", light: "Light", dark: "Dark" };

function nextTheme(step) {
  const names = Object.keys(THEMES);
  const now = document.documentElement.dataset.theme ?? "";
  const theme = names[(names.indexOf(now) + step) % names.length];
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  local.set("theme", theme);
  $("theme").querySelector("span").textContent = `Theme: ${THEMES[theme].toLowerCase()}`;
}

function submit() {
  const text = $("input").value;
  if (state.running.has(state.current.id)) return state.running.get(state.current.id).abort();
  if (!text.trim()) return;
  $("input").value = "";
  fit();
  send(text);
}

/** Grow the field with its text. */
function fit() {
  $("input").style.height = "auto";
  $("input").style.height = `${$("input").scrollHeight}px`;
}

function keys(event) {
  const { key, target } = event;
  if (key === "Escape") {
    if ($("key").open) return;
    if (document.body.classList.contains("side-open")) closeSide();
    else if (state.running.has(state.current.id)) state.running.get(state.current.id).abort();
    else if (!$("settings").hidden) togglePanel(false);
  } else if (target === $("input") && key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!state.running.has(state.current.id)) submit();
  } else if (target === $("input") && key === "ArrowUp" && !target.value) {
    const last = state.current.messages.findLast(({ role }) => role === "user");
    if (last) {
      event.preventDefault();
      state.views.get(last).edit();
    }
  } else if (key === "/" && !target.closest?.("input, textarea, select")) {
    event.preventDefault();
    $("input").focus();
  }
}

async function start() {
  nextTheme(0);
  buildSettings();
  state.current = blank();
  $("new").onclick = () => show(blank());
  $("menu").onclick = () => openSide(!document.body.classList.contains("side-open"));
  $("shade").onclick = closeSide;
  $("tune").onclick = () => togglePanel($("settings").hidden);
  $("settings-close").onclick = () => togglePanel(false);
  $("theme").onclick = () => nextTheme(1);
  $("export-md").onclick = () => exportAs("md");
  $("export-json").onclick = () => exportAs("json");
  $("model").onchange = () => (local.set("model", $("model").value), drawState());
  $("input").oninput = fit;
  $("composer").onsubmit = (event) => (event.preventDefault(), submit());
  watchScroller(() => state.running.has(state.current.id));
  document.addEventListener("keydown", keys);
  loadModels();
  state.store = await openStore();
  $("storage-note").hidden = state.store.durable;
  state.conversations = (await state.store.all()).sort((a, b) => b.updated - a.updated);
  show(state.conversations.find(({ id }) => `#${id}` === location.hash) ?? state.current);
}

start();
