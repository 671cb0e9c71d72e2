// A conversation as a tree: a changed message, or another answer, stands beside the older ones.

export const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${String(Math.random()).slice(2)}`;

const TITLE = 80; // characters

/** What was said, and which of it is shown: the path from the first message to `leaf`. A message has
 * `id`, `parent` (null for a first one), `at` (milliseconds), `role` and its text. A deleted one
 * leaves its place, so that what followed it, here or in another tab, stays connected. */
export class Conversation {
  #following = null; // a message's id: what follows it; null after a change
  #chosen = new Map(); // a message's id: the one after it that was shown last

  constructor(head = {}, messages = null) {
    const now = Date.now();
    Object.assign(this, { id: newId(), title: "", created: now, updated: now, leaf: null }, head);
    /** By id; null until they are read from the store. */
    this.messages = null;
    if (messages) this.read(messages);
  }

  read(messages) {
    this.messages = new Map(messages.map((each) => [each.id, each]));
    this.#mend();
  }

  /** What the store keeps beside the messages. */
  get head() {
    const { id, title, created, updated, leaf } = this;
    return { id, title, created, updated, leaf };
  }

  /** The shown messages. */
  path(leaf = this.leaf) {
    const path = [];
    for (let each = this.messages.get(leaf); each; each = this.messages.get(each.parent)) if (!each.deleted) path.push(each);
    return path.reverse();
  }

  /** Take the title from the first message that is shown. */
  name() {
    const first = this.path().find(({ role }) => role === "user");
    const text = (first?.content || first?.pictures?.[0].name)?.slice(0, 1000).trim().replace(/\s+/g, " ") ?? "";
    this.title = text.length > TITLE ? `${text.slice(0, TITLE).replace(/[\ud800-\udbff]$/, "")}…` : text;
  }

  /** All that are not deleted, as they were made. */
  all() {
    return [...this.messages.values()].filter(({ deleted }) => !deleted).sort(byTime);
  }

  /** Add a message after `parent`, and show it. */
  add(fields, parent = this.leaf) {
    const at = Math.max(Date.now(), 1 + (this.messages.get(parent)?.at ?? 0));
    const message = { id: newId(), conversation: this.id, parent, at, ...fields };
    this.#put(message);
    this.leaf = message.id;
    return message;
  }

  /** The message and those that stand beside it. */
  versions(message) {
    return this.#after(this.before(message));
  }

  /** The id of the message before this one, or null. */
  before({ parent }) {
    while (this.messages.get(parent)?.deleted) parent = this.messages.get(parent).parent;
    return this.messages.has(parent) ? parent : null;
  }

  /** Show a message, and what was shown after it last, or came last. */
  choose(message) {
    const path = this.path();
    path.forEach(({ id }, i) => this.#chosen.set(path[i - 1]?.id ?? null, id));
    for (let next = message; next; ) {
      this.leaf = next.id;
      const after = this.#after(next.id);
      next = after.find(({ id }) => id === this.#chosen.get(this.leaf)) ?? after.at(-1);
    }
  }

  /** Take a message's text away. Returns what is left of it, for the store. */
  remove(message) {
    const others = this.versions(message).filter((each) => each !== message);
    const { id, conversation, parent, at } = message;
    const place = { id, conversation, parent, at, deleted: true };
    this.#put(place);
    // Nothing came after it: another version is shown in its place.
    if (others.length && (this.path().at(-1)?.id ?? null) === this.before(place)) this.choose(others.at(-1));
    return place;
  }

  /** Put a removed message back. */
  restore(message, leaf) {
    this.#put(message);
    this.leaf = leaf;
  }

  /** Take over what another tab wrote. What continues the shown path is shown. */
  merge(messages) {
    for (const message of messages) {
      const known = this.messages.get(message.id);
      if (known?.deleted && !message.restored) continue;
      if (known && message.deleted) this.remove(known);
      else if (known && !known.deleted) overwrite(known, message);
      else this.#put(message);
      if (!known && message.parent === this.leaf) this.leaf = message.id;
    }
    this.#mend();
  }

  #put(message) {
    this.messages.set(message.id, message);
    this.#following = null;
  }

  /** Show something if what was shown is not there. */
  #mend() {
    const [first] = this.messages.has(this.leaf) ? [] : this.#after(null).slice(-1);
    if (first) this.choose(first);
  }

  /** What follows a message; where that is deleted, what follows it. */
  #after(id) {
    if (!this.#following) {
      this.#following = new Map();
      for (const each of [...this.messages.values()].sort(byTime)) {
        const parent = this.messages.has(each.parent) ? each.parent : null;
        this.#following.set(parent, [...(this.#following.get(parent) ?? []), each]);
      }
    }
    return (this.#following.get(id) ?? []).flatMap((each) => (each.deleted ? this.#after(each.id) : [each]));
  }
}

/** The same object, so that its view knows it, with other fields. */
function overwrite(message, fields) {
  for (const name of Object.keys(message)) if (!(name in fields)) delete message[name];
  Object.assign(message, fields);
}

const byTime = (a, b) => a.at - b.at || (a.id < b.id ? -1 : 1);
