// Pictures that go with a message: chosen, dropped or pasted, and shown above the field until then.

import { $, announce, el, iconButton, toast } from "./dom.js";

const AS_THEY_ARE = ["image/png", "image/jpeg", "image/webp"]; // others are drawn again, as JPEG
const LARGEST = 2 ** 21; // bytes of a file that is sent as it is
const SIDE = 2048; // pixels of the longer side of a larger one: models see fewer

const attached = new Map(); // a conversation's id: what will go with its next message; it ends with the tab

/** The pictures of a conversation's next message: `name`, and `url`, which has all of the data. */
export const picturesOf = ({ id }) => attached.get(id) ?? [];

export const setPictures = ({ id }, pictures) => attached.set(id, pictures);

/** Show what goes with a conversation's next message. */
export function showPictures(conversation) {
  const remove = (picture) => {
    setPictures(conversation, picturesOf(conversation).filter((each) => each !== picture));
    showPictures(conversation);
    $("input").focus();
  };
  const shown = picturesOf(conversation).map((each) => el("li", {}, image(each), iconButton("close", `Remove ${each.name}`, () => remove(each))));
  $("pictures").replaceChildren(...shown);
  $("pictures").hidden = !shown.length;
}

/** The pictures of a message. */
export const row = (pictures) => el("div", { className: "pictures" }, ...pictures.map(image));

const image = ({ name, url }) => el("img", { src: url, alt: name, title: name });

/** Take pictures from now on, while the chosen model `sees` them, for the `current` conversation. */
export function watchPictures(current, sees) {
  const take = async (files) => {
    const conversation = current();
    for (const file of files) {
      try {
        const picture = await read(file);
        setPictures(conversation, [...picturesOf(conversation), picture]);
        announce(`${picture.name} is added`);
      } catch {
        toast(`${file.name} is no picture that this browser can read.`);
      }
    }
    if (conversation === current()) showPictures(conversation);
  };
  const mark = (on) => document.body.classList.toggle("dropping", on);
  $("attach").onclick = () => $("files").click();
  $("files").onchange = async () => {
    await take([...$("files").files]);
    $("files").value = ""; // the same file may be chosen again
  };
  $("input").addEventListener("paste", (event) => {
    const { files } = event.clipboardData;
    // A part of a document is text, with a picture of it beside.
    if (!files.length || !sees() || event.clipboardData.getData("text/plain")) return;
    event.preventDefault();
    take([...files]);
  });
  const hasFiles = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault(); // the browser would leave the page for the file
    event.dataTransfer.dropEffect = sees() ? "copy" : "none";
    mark(sees());
  });
  document.addEventListener("dragleave", ({ relatedTarget }) => relatedTarget || mark(false));
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(false);
    if (sees()) take([...event.dataTransfer.files]);
  });
}

/** Read a file. Raises an error if it is no picture. */
export async function read(file) {
  const bitmap = await createImageBitmap(file);
  const asItIs = AS_THEY_ARE.includes(file.type) && file.size <= LARGEST;
  const url = await urlOf(asItIs ? file : await redrawn(bitmap));
  bitmap.close();
  return { name: file.name, url };
}

function redrawn(bitmap) {
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = el("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // JPEG has no transparency
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
}

function urlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
