// What this browser keeps: conversations in IndexedDB, settings in localStorage, the key in
// sessionStorage. Where the browser forbids that, all of it lasts as long as the tab.

const NAME = "inferno";
const TABLE = "conversations";

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** Open the store. `durable` says whether conversations outlive the tab. */
export async function openStore() {
  try {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE, { keyPath: "id" });
    return durable(await settled(opening));
  } catch {
    return inMemory();
  }
}

function durable(db) {
  const table = (mode) => db.transaction(TABLE, mode).objectStore(TABLE);
  return {
    durable: true,
    all: () => settled(table("readonly").getAll()),
    put: (conversation) => settled(table("readwrite").put(conversation)),
    remove: (id) => settled(table("readwrite").delete(id)),
  };
}

function inMemory() {
  const all = new Map();
  return {
    durable: false,
    all: async () => [...all.values()],
    put: async (conversation) => all.set(conversation.id, conversation),
    remove: async (id) => all.delete(id),
  };
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
