// The `openai` package for Node, with zod for schemas.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import assert from "node:assert/strict";

const URL = process.env.INFERNO_URL ?? "http://127.0.0.1:8000";
const MODEL = process.env.INFERNO_MODEL ?? "fake";
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0, timeout: 30000 });

const HELLO = "Hello! I am a scripted model. Café, 東京, 🙂.";
const ASK_TOOLS = "How warm is it in Paris, and what is 19 + 23?";
const ANSWER = "It is 21 degrees in Paris, and 19 + 23 is 42.";
const ASK_PERSON = "Extract the person: Ada Lovelace, 36.";
const ASK_THOUGHT = "Think: how many letters has cat?";
const ADA = { name: "Ada Lovelace", age: 36 };
const Person = z.object({ name: z.string(), age: z.number().int() });

const user = (content) => [{ role: "user", content }];

const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      parse: JSON.parse,
      function: ({ city }) => (assert.equal(city, "Paris"), "21 degrees"),
    },
  },
  {
    type: "function",
    function: {
      name: "add",
      description: "The sum of two numbers.",
      parameters: {
        type: "object",
        properties: { a: { type: "integer" }, b: { type: "integer" } },
        required: ["a", "b"],
      },
      parse: JSON.parse,
      function: ({ a, b }) => (assert.equal(a + b, 42), "the sum is 42"),
    },
  },
];
const responseTools = tools.map(({ function: { name, description, parameters } }) => ({
  type: "function",
  name,
  description,
  parameters,
  strict: false,
}));
const functions = Object.fromEntries(tools.map((tool) => [tool.function.name, tool.function.function]));

const flows = {
  async models() {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    assert(names.includes(MODEL), names.join());
  },
  async chat() {
    const answer = await client.chat.completions.create({ model: MODEL, messages: user("Hi") });
    assert.equal(answer.choices[0].message.content, HELLO);
    assert.equal(answer.choices[0].finish_reason, "stop");
  },
  async stream() {
    const stream = client.chat.completions.stream({
      model: MODEL,
      messages: user("Hi"),
      stream_options: { include_usage: true },
    });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    assert.equal(text, HELLO);
    assert((await stream.totalUsage()).completion_tokens > 0);
  },
  async tools() {
    const runner = client.chat.completions.runTools({ model: MODEL, messages: user(ASK_TOOLS), tools });
    assert.equal(await runner.finalContent(), ANSWER);
  },
  async tools_stream() {
    const runner = client.chat.completions.runTools({
      model: MODEL,
      messages: user(ASK_TOOLS),
      tools,
      stream: true,
    });
    assert.equal(await runner.finalContent(), ANSWER);
  },
  async structured() {
    const answer = await client.chat.completions.parse({
      model: MODEL,
      messages: user(ASK_PERSON),
      response_format: zodResponseFormat(Person, "person"),
    });
    assert.deepEqual(answer.choices[0].message.parsed, ADA);
  },
  async thinking() {
    const answer = await client.chat.completions.create({ model: MODEL, messages: user(ASK_THOUGHT) });
    assert.equal(answer.choices[0].message.reasoning_content, "c, a, t: three.");
  },
  async responses() {
    const answer = await client.responses.create({ model: MODEL, input: "Hi" });
    assert.equal(answer.output_text, HELLO);
  },
  async responses_stream() {
    const stream = client.responses.stream({ model: MODEL, input: "Hi" });
    let text = "";
    for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
    assert.equal(text, HELLO);
    assert.equal((await stream.finalResponse()).output_text, HELLO);
  },
  async responses_tools() {
    const input = user(ASK_TOOLS);
    let answer;
    for (let turn = 0; turn < 3; turn++) {
      answer = await client.responses.create({ model: MODEL, input, tools: responseTools, store: false });
      input.push(...answer.output);
      const calls = answer.output.filter((item) => item.type === "function_call");
      assert.equal(calls.length, turn < 2 ? 1 : 0);
      for (const call of calls) {
        const output = functions[call.name](JSON.parse(call.arguments));
        input.push({ type: "function_call_output", call_id: call.call_id, output });
      }
    }
    assert.equal(answer.output_text, ANSWER);
  },
  async embeddings() {
    const answer = await client.embeddings.create({ model: MODEL, input: ["cat", "dog"] });
    assert.equal(answer.data.length, 2);
    assert(answer.data[0].embedding.length > 0);
  },
  async abort() {
    const stream = await client.chat.completions.create({ model: MODEL, messages: user("Hi"), stream: true });
    for await (const _ of stream) break;
    stream.controller.abort();
  },
  async errors() {
    await assert.rejects(
      client.chat.completions.create({ model: "nobody", messages: user("Hi") }),
      OpenAI.NotFoundError,
    );
  },
};

const names = process.argv.slice(2);
for (const name of names.length ? names : Object.keys(flows)) {
  let error = null;
  try {
    await flows[name]();
  } catch (caught) {
    error = String(caught?.stack ?? caught);
  }
  console.log(JSON.stringify({ flow: name, error }));
}
