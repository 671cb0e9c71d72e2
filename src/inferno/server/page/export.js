// Writes a conversation to a file.

import { download } from "./dom.js";
import { history, plain, sampling } from "./settings.js";

/** Offer the conversation as "json", with all versions of its messages, or "md". */
export function exportAs(kind, conversation, model) {
  const { title } = conversation;
  const name = `${(title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40).replace(/^-|-$/g, "")}.${kind}`;
  if (kind === "json") download(name, "application/json", `${JSON.stringify(value(conversation, model), null, 2)}\n`);
  else download(name, "text/markdown", `# ${title || "Conversation"}\n\n${markdown(conversation)}\n`);
}

function value(conversation, model) {
  const { title, created } = conversation;
  const messages = history(conversation.path());
  const found = { title, created: new Date(created).toISOString(), model, sampling: sampling(), messages };
  const all = conversation.all();
  if (all.length > conversation.path().length) {
    found.versions = all.map((each) => ({ id: each.id, parent: conversation.before(each), ...plain(each) }));
  }
  return found;
}

/** A part of a message: text, or a picture, which has all of its data in its address. */
const written = (part) => part?.text ?? (part?.image_url ? `![](${part.image_url.url})` : part);

function markdown(conversation) {
  const heads = { system: "System", user: "You", assistant: "Answer", tool: "Result" };
  const parts = history(conversation.path()).map(({ role, content, tool_calls = [] }) => {
    const calls = tool_calls.map(({ function: f }) => `Calls \`${f.name}\` with \`${f.arguments}\``);
    return [`## ${heads[role]}`, ...[content].flat().map(written), ...calls].filter(Boolean).join("\n\n");
  });
  return parts.join("\n\n");
}
