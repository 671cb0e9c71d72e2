// What the page does with pictures, in Node: `PAGE` is the URL of its folder.

import assert from "node:assert/strict";
import test from "node:test";

const load = (name) => import(`${process.env.PAGE}/${name}.js`);
const { history } = await load("settings");
const { Conversation } = await load("conversation");
const { picturesOf, read, setPictures } = await load("pictures");

const url = "data:image/png;base64,AAAA";
const picture = { name: "cat.png", url };
const part = { type: "image_url", image_url: { url } };

test("a message with pictures has them before its text", () => {
  const conversation = new Conversation({}, []);
  conversation.add({ role: "user", content: "What is it?", pictures: [picture, picture] });
  conversation.add({ role: "assistant", content: "A cat.", calls: [] });
  conversation.add({ role: "user", content: "", pictures: [picture] });
  conversation.add({ role: "user", content: "And now?" });
  assert.deepEqual(history(conversation.path()), [
    { role: "user", content: [part, part, { type: "text", text: "What is it?" }] },
    { role: "assistant", content: "A cat." },
    { role: "user", content: [part] },
    { role: "user", content: "And now?" },
  ]);
});

test("a conversation that begins with a picture alone is named after it", () => {
  const conversation = new Conversation({}, []);
  conversation.add({ role: "user", content: "", pictures: [picture] });
  conversation.name();
  assert.equal(conversation.title, "cat.png");
});

test("each conversation has pictures of its own", () => {
  const [one, other] = [new Conversation({}, []), new Conversation({}, [])];
  setPictures(one, [picture]);
  assert.deepEqual([picturesOf(one), picturesOf(other)], [[picture], []]);
});

test("files that every model reads are sent as they are, others are drawn again, smaller", async () => {
  let drawn = null;
  let closed = 0;
  globalThis.createImageBitmap = async ({ broken }) => {
    if (broken) throw new Error("no picture");
    return { width: 6000, height: 3000, close: () => (closed += 1) };
  };
  globalThis.FileReader = class {
    readAsDataURL({ type }) {
      this.result = `data:${type};base64,AAAA`;
      this.onload();
    }
  };
  globalThis.document = {
    createElement: () => ({
      append() {},
      getContext: () => ({ fillRect() {}, drawImage: (bitmap, x, y, width, height) => (drawn = [width, height]) }),
      toBlob: (done, type) => done({ type }),
    }),
  };
  assert.deepEqual(await read({ name: "a.png", type: "image/png", size: 1000 }), { name: "a.png", url });
  assert.equal(drawn, null);
  assert.equal((await read({ name: "b.png", type: "image/png", size: 2 ** 24 })).url, "data:image/jpeg;base64,AAAA");
  assert.deepEqual(drawn, [2048, 1024]);
  assert.equal((await read({ name: "c.gif", type: "image/gif", size: 1000 })).url, "data:image/jpeg;base64,AAAA");
  await assert.rejects(read({ name: "d.txt", type: "text/plain", size: 10, broken: true }));
  assert.equal(closed, 3);
});
