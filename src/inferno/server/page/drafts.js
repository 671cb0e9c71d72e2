// What is typed and not sent yet: kept for each conversation, over a reload.

import { values } from "./store.js";

const WAIT = 300; // milliseconds without a key, after which a draft is written

const local = values("local");
const session = values("session"); // one new conversation for each tab

const place = ({ id, messages }) => (messages?.size === 0 ? [session, "draft"] : [local, `draft.${id}`]);

let pending = null;
let timer = 0;

export function draftOf(conversation) {
  const [store, name] = place(conversation);
  return store.get(name) ?? "";
}

export function setDraft(conversation, text) {
  pending = null;
  const [store, name] = place(conversation);
  if (text) store.set(name, text);
  else store.remove(name);
}

/** Keep what is being typed; a moment later, as a long text takes time to write. */
export function typed(conversation, text) {
  clearTimeout(timer);
  pending = [conversation, text];
  timer = setTimeout(keepTyped, WAIT);
}

export function keepTyped() {
  if (pending) setDraft(...pending);
}
