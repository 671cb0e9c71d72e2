// Talks to the server: OpenAI's API, relative to this page, so that it works below any path.

import { values } from "./store.js";

const session = values("session"); // the key is gone with the tab

/** A request that failed. `status` is 0 if no answer came; `code` is the server's name of the fault;
 * `message` says what to do. */
export class ApiError extends Error {
  constructor(status, message, { code = null, retryAfter = 0 } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

export const setKey = (key) => session.set("key", key);

/** The served models. Raises ApiError. */
export async function models() {
  const response = await request("v1/models", {});
  return (await response.json()).data;
}

/** Stream the answer to a chat request: yields the decoded events. Raises ApiError. */
export async function* chat(body, signal) {
  const response = await request("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  let complete = false;
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") {
        complete = true;
        continue;
      }
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(503, event.error.message, event.error);
      yield event;
    }
  } catch (error) {
    throw error instanceof ApiError || error.name === "AbortError" ? error : lost();
  }
  if (!complete) throw lost();
}

async function request(path, options) {
  const headers = { "Content-Type": "application/json" };
  const key = session.get("key");
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Check that it runs, then try again. Your message is kept.");
  }
  if (response.ok) return response;
  const { message, code } = await reason(response);
  throw new ApiError(response.status, message, { code, retryAfter: Number(response.headers.get("Retry-After")) });
}

async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error;
  } catch {
    return { message: `The server answered with status ${response.status}. Its log may say why.` };
  }
}

function lost() {
  return new ApiError(0, "The connection was lost in the middle of the answer. What had arrived is kept.");
}

/** The data of each server-sent event. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value.replaceAll("\r", "");
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:"));
      if (data.length) yield data.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}
