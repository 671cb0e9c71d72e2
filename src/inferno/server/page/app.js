// The page: conversations, and the answers that are being generated for them.

import { write } from "./answer.js";
import { accept, fill, fit, refuse } from "./composer.js";
import { Conversation } from "./conversation.js";
import { $, announce, arrange, el, icon, iconButton, toast } from "./dom.js";
import { draftOf, keepTyped, setDraft, typed } from "./drafts.js";
import { exportAs } from "./export.js";
import { MessageView } from "./message.js";
import { askKey, loadModels, model } from "./models.js";
import { closeSide, nextTheme, openSide, togglePanel } from "./panels.js";
import { picturesOf, setPictures, showPictures, watchPictures } from "./pictures.js";
import { follow, toEnd, watchScroller } from "./scrolling.js";
import { buildSettings, local, requestBody, showDefaults } from "./settings.js";
import { openStore } from "./store.js";

const state = {
  store: null,
  conversations: new Map(), // by id
  current: null,
  running: new Map(), // a conversation's id: the message that is written to it, and what stops that
  elsewhere: new Map(), // a conversation's id: the message that another tab writes to it, and a timer
  views: new Map(), // a shown message's id: its view
};

const SILENCE = 10_000; // milliseconds after which a tab that wrote an answer is taken for closed
const number = new Intl.NumberFormat("en");

// Conversations

async function save(conversation, messages, options) {
  conversation.name();
  state.conversations.set(conversation.id, conversation);
  try {
    await state.store.put(conversation.head, messages, options);
    conversation.kept = true;
  } catch (error) {
    toast(`This browser could not keep the conversation: ${error.message}. Export it, and delete old ones.`);
  }
}

async function load(conversation) {
  const messages = conversation.messages ? null : await state.store.messages(conversation.id);
  if (!conversation.messages) conversation.read(messages);
}

async function show(conversation) {
  state.wanted = conversation;
  await load(conversation);
  if (state.wanted !== conversation) return; // another one was chosen meanwhile
  keepTyped();
  accept();
  state.current = conversation;
  state.views.clear();
  fill(draftOf(conversation));
  showPictures(conversation);
  present();
  closeSide();
}

/** Show the end of the current conversation. */
function present() {
  const { id, messages } = state.current;
  window.history.replaceState(null, "", messages.size ? `#${id}` : location.pathname);
  draw();
  drawList();
  toEnd();
  if (matchMedia("(hover: hover)").matches) $("input").focus();
}

/** What is being written to a conversation, here or in another tab. */
const writing = ({ id }) => (state.running.get(id) ?? state.elsewhere.get(id))?.message;

function draw() {
  const path = state.current.path();
  const live = writing(state.current);
  const shown = new Set(path.map(({ id }) => id));
  for (const id of state.views.keys()) if (!shown.has(id)) state.views.delete(id);
  const nodes = path.map((message, i) => {
    if (!state.views.has(message.id)) state.views.set(message.id, new MessageView(message, actions));
    const view = state.views.get(message.id);
    view.draw(message.id === live?.id, state.current.versions(message), i === path.length - 1);
    return view.node;
  });
  arrange($("messages"), nodes);
  $("empty").hidden = path.length > 0;
  drawState();
}

function drawList() {
  const { id, title } = state.current;
  const all = [...state.conversations.values()].sort((a, b) => b.updated - a.updated);
  const drawn = JSON.stringify([id, title, all.map((each) => [each.id, each.title, Boolean(writing(each))])]);
  if (drawn === state.drawn) return; // the focus in it stays
  state.drawn = drawn;
  const items = all.map((conversation) => {
    const current = conversation === state.current;
    const name = conversation.title || "Untitled";
    const open = el("button", { type: "button", className: "open", dir: "auto", onclick: () => show(conversation), "aria-current": current ? "true" : null }, name);
    const busy = writing(conversation) ? " busy" : "";
    return el("li", { className: (current ? "current" : "") + busy }, open, iconButton("close", `Delete ${name}`, () => drop(conversation)));
  });
  $("list").replaceChildren(...items);
  $("title").textContent = title || "New conversation";
  document.title = title ? `${title} · inferno` : "inferno";
}

async function drop(conversation) {
  await load(conversation);
  keepTyped();
  const draft = draftOf(conversation);
  if (conversation === state.current) fill("");
  setDraft(conversation, "");
  forget(conversation.id);
  await discard(conversation);
  toast("Conversation deleted.", "Undo", async () => {
    await save(conversation, [...conversation.messages.values()], { create: true });
    setDraft(conversation, draft);
    show(conversation);
  });
}

function discard({ id }) {
  state.conversations.delete(id);
  return state.store.remove(id);
}

/** A conversation was deleted, here or in another tab. */
function forget(id) {
  state.running.get(id)?.stop.abort();
  state.conversations.delete(id);
  if (id === state.current.id) {
    const next = new Conversation({}, []);
    if ($("input").value) setDraft(next, $("input").value); // what was typed in a tab that did not delete it
    show(next);
  }
  drawList();
}

const actions = {
  edit(message, text) {
    state.current.leaf = message.parent;
    send(text, message.pictures);
  },
  again(message) {
    state.current.leaf = message.parent;
    answer(state.current);
  },
  retry: (message) => retry(state.current, message),
  goOn: (message) => answer(state.current, { message }),
  unlimited(message) {
    state.current.leaf = message.parent;
    answer(state.current, { limited: false });
  },
  fresh: () => show(new Conversation({}, [])),
  remove(message) {
    const conversation = state.current;
    const { leaf } = conversation;
    if (state.running.get(conversation.id)?.message === message) state.running.get(conversation.id).stop.abort();
    save(conversation, [conversation.remove(message)]);
    draw();
    drawList();
    toast("Message deleted.", "Undo", () => {
      message.restored = true;
      conversation.restore(message, leaf);
      save(conversation, [message]);
      show(conversation);
    });
  },
  choose(message) {
    state.current.choose(message);
    save(state.current, []);
    draw();
    drawList();
    state.views.get(message.id)?.node.querySelector(".versions button:not(:disabled)")?.focus();
  },
  results(message, texts) {
    const results = message.calls.map(({ id, name }, i) => state.current.add({ role: "tool", call_id: id, name, content: texts[i] }));
    save(state.current, results);
    answer(state.current);
  },
};

// Answers

function send(text, pictures = []) {
  const conversation = state.current;
  const message = conversation.add({ role: "user", content: text, ...(pictures.length && { pictures }) });
  conversation.updated = Date.now();
  save(conversation, [message], { create: !conversation.kept });
  answer(conversation);
}

/** Write an answer to what the conversation shows, or more of its last one, `message`. */
async function answer(conversation, { message = null, limited = true } = {}) {
  state.running.get(conversation.id)?.stop.abort();
  const body = requestBody(model()?.id, conversation.path(), limited, message);
  if (message) goesOn(message);
  else message = conversation.add({ role: "assistant", content: "", reasoning: "", calls: [], stats: {} });
  const run = { message, stop: new AbortController() };
  state.running.set(conversation.id, run);
  save(conversation, [message], { writing: true });
  if (conversation === state.current) present();
  announce("The answer has begun");
  const grown = () => {
    state.views.get(message.id)?.grow();
    if (conversation === state.current) drawContext();
  };
  const isKept = () => state.conversations.get(conversation.id) === conversation && conversation.messages.get(message.id) === message;
  const keep = () => isKept() && state.store.put(conversation.head, [message], { writing: true }).catch(() => {}); // `save` reports it at the end
  const error = await write(message, body, run.stop.signal, grown, keep);
  if (state.running.get(conversation.id) === run) state.running.delete(conversation.id);
  const { prompt, tokens } = message.stats;
  if (message.finish === "length" && prompt + tokens >= model()?.max_model_len) message.full = true;
  if (error?.code === "context_length_exceeded" && takeBack(conversation, message)) return;
  if (error?.status === 401) askKey(() => retry(conversation, message));
  if (conversation === state.current) {
    draw();
    follow(); // what was waiting to be drawn, the numbers, an error
  }
  if (isKept()) await save(conversation, [message]);
  drawList();
  announce(message.error ? "" : "The answer is complete");
}

/** Forget how an answer ended, to continue it. */
function goesOn(message) {
  for (const name of ["finish", "stopped", "error"]) delete message[name];
  message.stats.before = message.stats.tokens;
}

/** Answer again where an answer failed. One of which nothing came is of no use as a version. */
function retry(conversation, message) {
  const { parent } = message;
  if (!message.content && !message.reasoning) save(conversation, [conversation.remove(message)]);
  conversation.leaf = parent;
  answer(conversation);
}

/** A message for which the context has no room goes back into the field, to be shortened or asked
 * elsewhere. Returns whether it did: what was answered before, or is not in view, stays. */
function takeBack(conversation, answer) {
  const question = conversation.messages.get(answer.parent);
  const isAlone = question?.role === "user" && conversation.versions(answer).length === 1 && !answer.content;
  if (!isAlone || conversation !== state.current) return false;
  const text = [question.content, $("input").value].filter(Boolean).join("\n\n");
  const gone = [conversation.remove(answer), conversation.remove(question)];
  const rest = conversation.path().length > 0;
  if (rest) save(conversation, gone);
  else discard(conversation);
  const next = rest ? conversation : new Conversation({}, []);
  setDraft(next, text);
  setPictures(next, [...(question.pictures ?? []), ...picturesOf(conversation)]);
  show(next).then(() => refuse(answer.error, rest ? askElsewhere : null));
  return true;
}

function askElsewhere() {
  const text = $("input").value;
  setDraft(state.current, "");
  const next = new Conversation({}, []);
  setDraft(next, text);
  setPictures(next, picturesOf(state.current));
  setPictures(state.current, []);
  show(next);
}

function stop() {
  const { id } = state.current;
  if (state.running.has(id)) state.running.get(id).stop.abort();
  else state.store.tell({ stop: id });
}

// Other tabs

function heard({ head, messages, writing: more, removed, stop: stopped }) {
  if (removed) return forget(removed);
  if (stopped) return state.running.get(stopped)?.stop.abort();
  if (!head) return; // from a newer page
  clearTimeout(state.elsewhere.get(head.id)?.timer);
  state.elsewhere.delete(head.id);
  if (more) state.elsewhere.set(head.id, { message: messages[0], timer: setTimeout(quiet, SILENCE, head.id) });
  adopt(head, messages);
}

/** Take over what another tab wrote. */
function adopt(head, messages) {
  const { id, updated } = head;
  const conversation = state.conversations.get(id) ?? new Conversation(head);
  state.conversations.set(id, conversation);
  conversation.kept = true;
  conversation.updated = Math.max(conversation.updated, updated);
  const own = state.running.get(id);
  if (messages.some((each) => each.deleted && each.id === own?.message.id)) own.stop.abort();
  if (conversation.messages) conversation.merge(messages.filter((each) => each.deleted || each.id !== own?.message.id));
  if (!conversation.messages) Object.assign(conversation, head);
  else conversation.name();
  if (conversation === state.current) draw();
  drawList();
}

/** Nothing was heard of another tab's answer for a while. */
function quiet(id) {
  state.elsewhere.delete(id);
  if (id === state.current.id) draw();
  drawList();
}

/** Read what a tab may have missed while it was frozen. */
async function refresh() {
  if (document.hidden) return;
  const { id } = state.current;
  const [heads, messages] = await Promise.all([state.store.heads(), state.store.messages(id)]);
  const known = new Set(heads.map((head) => head.id));
  for (const each of state.conversations.values()) if (each.kept && !known.has(each.id) && state.store.durable) forget(each.id);
  for (const head of heads) adopt(head, head.id === id ? messages : []);
}

// The page around them

function drawState() {
  showDefaults(model());
  $("attach").hidden = !sees();
  const busy = Boolean(writing(state.current));
  $("send").replaceChildren(icon(busy ? "stop" : "send"));
  $("send").ariaLabel = $("send").title = busy ? "Stop the answer" : "Send";
  $("send").classList.toggle("stopping", busy);
  const limit = model()?.max_model_len;
  $("empty-title").textContent = model()?.id ?? "inferno";
  $("empty-note").textContent = limit ? `${number.format(limit)} tokens of context` : "";
  drawContext();
}

/** How much of the context is used, while an answer comes too. */
function drawContext() {
  const limit = model()?.max_model_len;
  const { stats } = state.current.path().findLast(({ stats }) => stats?.tokens) ?? {};
  const used = stats && `${number.format(stats.prompt + stats.tokens)} of ${number.format(limit)} tokens of context`;
  $("context").textContent = limit ? (used ?? "") : "";
}

/** Whether the chosen model takes pictures. */
const sees = () => Boolean(model()?.capabilities?.includes("vision"));

function submit() {
  const text = $("input").value;
  if (writing(state.current)) return stop();
  const pictures = picturesOf(state.current);
  if (!(text.trim() || pictures.length) || !state.store) return;
  if (pictures.length && !sees()) return refuse(`${model()?.id ?? "The model"} reads text only. Remove the pictures, or choose a model that sees them.`, null);
  fill("");
  accept();
  setDraft(state.current, "");
  setPictures(state.current, []);
  showPictures(state.current);
  send(text, pictures);
}

function keys(event) {
  const { key, target } = event;
  if (key === "Escape") {
    if ($("key").open) return;
    if (document.body.classList.contains("side-open")) closeSide();
    else if (writing(state.current)) stop();
    else if (!$("settings").hidden) togglePanel(false);
  } else if (target === $("input") && key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!writing(state.current)) submit();
  } else if (target === $("input") && key === "ArrowUp" && !target.value) {
    const last = state.current.path().findLast(({ role }) => role === "user");
    if (last) {
      event.preventDefault();
      state.views.get(last.id).edit();
    }
  } else if (key === "/" && !target.closest?.("input, textarea, select")) {
    event.preventDefault();
    $("input").focus();
  }
}

async function start() {
  nextTheme(0);
  buildSettings();
  state.current = new Conversation({}, []);
  $("new").onclick = () => show(new Conversation({}, []));
  $("menu").onclick = () => openSide(!document.body.classList.contains("side-open"));
  $("shade").onclick = closeSide;
  $("tune").onclick = () => togglePanel($("settings").hidden);
  $("settings-close").onclick = () => togglePanel(false);
  $("theme").onclick = () => nextTheme(1);
  $("export-md").onclick = () => exportAs("md", state.current, $("model").value);
  $("export-json").onclick = () => exportAs("json", state.current, $("model").value);
  $("model").onchange = () => (local.set("model", $("model").value), drawState());
  $("input").oninput = () => (fit(), typed(state.current, $("input").value));
  window.addEventListener("pagehide", keepTyped);
  window.addEventListener("resize", fit);
  $("composer").onsubmit = (event) => (event.preventDefault(), submit());
  watchScroller(() => Boolean(writing(state.current)));
  watchPictures(() => state.current, sees);
  document.addEventListener("keydown", keys);
  loadModels(drawState);
  const note = $("storage-note").textContent;
  const blocked = () => Object.assign($("storage-note"), { hidden: false, textContent: "Close the other tabs of this page: they run an older version of it." });
  state.store = await openStore(blocked, heard);
  Object.assign($("storage-note"), { hidden: state.store.durable, textContent: note });
  for (const head of await state.store.heads()) state.conversations.set(head.id, Object.assign(new Conversation(head), { kept: true }));
  await show(state.conversations.get(location.hash.slice(1)) ?? state.current);
  document.addEventListener("visibilitychange", refresh);
}

start();
