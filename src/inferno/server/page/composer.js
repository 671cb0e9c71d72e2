// The field that messages are written in.

import { $ } from "./dom.js";

/** Put a text into the field. */
export function fill(text) {
  $("input").value = text;
  fit();
}

/** Grow the field with its text. */
export function fit() {
  $("input").style.height = "auto";
  $("input").style.height = `${$("input").scrollHeight}px`;
}

/** Say above the field why its text was not accepted, and offer to ask it `elsewhere`. */
export function refuse(why, elsewhere) {
  const [note, button] = $("refusal").children;
  note.textContent = why;
  button.hidden = !elsewhere;
  button.onclick = elsewhere;
  $("refusal").hidden = false;
}

/** There is nothing to say any more. */
export function accept() {
  $("refusal").hidden = true;
}
