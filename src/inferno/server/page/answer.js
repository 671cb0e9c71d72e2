// Lets the model write an answer.

import * as api from "./api.js";

const KEEP = 1000; // milliseconds between two calls of `keep`

/** Write the answer to a request into `message`. `grown` is called after each part, `keep` about once
 * a second. Returns the error it ended with, or null. */
export async function write(message, body, signal, grown, keep) {
  const timer = setInterval(keep, KEEP);
  try {
    await receive(message, body, signal, grown);
    return null;
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else message.error = failure(error);
    return error;
  } finally {
    clearInterval(timer);
  }
}

function failure(error) {
  if (!(error instanceof api.ApiError)) console.error(error);
  const again = error.retryAfter ? ` It asks to try again in ${error.retryAfter} s.` : "";
  return error.message[0].toUpperCase() + error.message.slice(1) + again;
}

async function receive(message, body, signal, grown) {
  const start = performance.now();
  const { stats } = message;
  let first = 0;
  for await (const event of api.chat(body, signal)) {
    const now = performance.now();
    const [choice] = event.choices ?? [];
    if (event.x_inferno?.ignored) message.ignored = event.x_inferno.ignored;
    if (choice?.finish_reason) message.finish = choice.finish_reason;
    if (choice && take(message, choice.delta) && !first) {
      first = now;
      stats.first ??= (first - start) / 1000;
    }
    if (event.usage) count(stats, event.usage, (now - first) / 1000);
    if (stats.thought === undefined && message.reasoning && (message.content || message.calls.length)) {
      stats.thought = (now - first) / 1000;
    }
    grown();
  }
}

function count(stats, usage, seconds) {
  const before = stats.before ?? 0; // what a continued answer had, which is in the prompt now
  stats.tokens = before + usage.completion_tokens;
  stats.prompt = usage.prompt_tokens - before;
  stats.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  if (usage.completion_tokens > 1 && seconds > 0.05) stats.rate = (usage.completion_tokens - 1) / seconds;
}

/** Add a delta to a message. Returns whether it had anything. */
function take(message, delta) {
  const thought = delta.reasoning ?? delta.reasoning_content;
  message.reasoning += thought ?? "";
  message.content += delta.content ?? "";
  for (const { index, id, function: part } of delta.tool_calls ?? []) {
    const call = (message.calls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= id ?? "";
    call.name += part?.name ?? "";
    call.arguments += part?.arguments ?? "";
  }
  return Boolean(thought || delta.content || delta.tool_calls?.length);
}
