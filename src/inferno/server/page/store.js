// What this browser keeps: conversations in IndexedDB, settings in localStorage, the key in
// sessionStorage. Where the browser forbids that, all of it lasts as long as the tab.

import { newId } from "./conversation.js";

const NAME = "inferno";
const HEADS = "conversations";
const MESSAGES = "messages";
const OF = "conversation"; // the index of messages

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

const completed = (transaction) =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });

/** Open the store. `durable` says whether conversations outlive the tab. `blocked` is called if tabs
 * with an older page have to be closed first; `heard` with what other tabs tell and write. */
export async function openStore(blocked, heard) {
  try {
    const opening = indexedDB.open(NAME, 2);
    opening.onupgradeneeded = ({ oldVersion }) => upgrade(opening, oldVersion);
    opening.onblocked = blocked;
    const db = await settled(opening);
    db.onversionchange = () => db.close();
    return new Durable(db, heard);
  } catch {
    return new InMemory();
  }
}

function upgrade({ result: db, transaction }, oldVersion) {
  const messages = db.createObjectStore(MESSAGES, { keyPath: "id" });
  messages.createIndex(OF, OF);
  if (oldVersion === 0) return db.createObjectStore(HEADS, { keyPath: "id" });
  // Version 1 kept a conversation's messages in a list.
  transaction.objectStore(HEADS).openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    const { messages: list = [], ...head } = cursor.value;
    head.leaf = null;
    list.forEach((message, i) => {
      const id = newId();
      messages.put({ ...message, id, conversation: head.id, parent: head.leaf, at: head.created + i });
      head.leaf = id;
    });
    cursor.update(head);
    cursor.continue();
  };
}

/** Each message is a record of its own: tabs that write into one conversation add to it. */
class Durable {
  durable = true;

  constructor(db, heard) {
    this.db = db;
    this.channel = new BroadcastChannel(NAME);
    this.channel.onmessage = ({ data }) => heard(data);
  }

  heads() {
    return settled(this.db.transaction(HEADS).objectStore(HEADS).getAll());
  }

  messages(conversation) {
    return settled(this.db.transaction(MESSAGES).objectStore(MESSAGES).index(OF).getAll(conversation));
  }

  /** Write messages, unless they or their conversation were deleted meanwhile; `create` says that the
   * conversation is new, or is to come back. `writing` tells other tabs that more follows. */
  async put(head, messages, { create = false, writing = false } = {}) {
    const transaction = this.db.transaction([HEADS, MESSAGES], "readwrite");
    const heads = transaction.objectStore(HEADS);
    const table = transaction.objectStore(MESSAGES);
    heads.get(head.id).onsuccess = ({ target: { result: known } }) => {
      if (!known && !create) return;
      heads.put(head);
      for (const message of messages) {
        table.get(message.id).onsuccess = ({ target: { result: old } }) => {
          if (!old?.deleted || message.restored) table.put(message);
        };
      }
    };
    await completed(transaction);
    this.tell({ head, messages, writing });
  }

  async remove(id) {
    const transaction = this.db.transaction([HEADS, MESSAGES], "readwrite");
    transaction.objectStore(HEADS).delete(id);
    transaction.objectStore(MESSAGES).index(OF).openCursor(id).onsuccess = ({ target: { result: cursor } }) => {
      cursor?.delete();
      cursor?.continue();
    };
    await completed(transaction);
    this.tell({ removed: id });
  }

  /** Tell the other tabs. */
  tell(news) {
    this.channel.postMessage(news);
  }
}

/** Conversations stay where they are: in the page. */
class InMemory {
  durable = false;
  heads = async () => [];
  messages = async () => [];
  put = async () => {};
  remove = async () => {};
  tell() {}
}

/** A place for a few short values, `local` or `session`. */
export function values(kind) {
  const fallback = new Map();
  const attempt = (call, otherwise) => {
    try {
      return call(window[`${kind}Storage`]);
    } catch {
      return otherwise();
    }
  };
  return {
    get: (name) => attempt((s) => s.getItem(`inferno.${name}`), () => fallback.get(name) ?? null),
    set: (name, value) => attempt((s) => s.setItem(`inferno.${name}`, value), () => fallback.set(name, value)),
    remove: (name) => attempt((s) => s.removeItem(`inferno.${name}`), () => fallback.delete(name)),
  };
}
