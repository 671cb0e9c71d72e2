// The models of the server, and the key that it may want.

import * as api from "./api.js";
import { $, el, toast } from "./dom.js";
import { local } from "./settings.js";

let models = [];
const locked = new Set(); // what to do once there is a key

/** The chosen model; undefined until the models are known. */
export const model = () => models.find(({ id }) => id === $("model").value);

/** Ask the server for its models; `changed` is called when they are known. */
export async function loadModels(changed) {
  const again = () => loadModels(changed);
  try {
    models = await api.models();
  } catch (error) {
    if (error.status === 401) askKey(again);
    else toast(error.message, "Try again", again);
    return;
  }
  const wanted = local.get("model");
  $("model").replaceChildren(...models.map(({ id }) => el("option", { value: id, selected: id === wanted }, id)));
  $("model").disabled = models.length < 2;
  changed();
}

/** Ask for a key, then do what needed it. */
export function askKey(then) {
  locked.add(then);
  if ($("key").open) return;
  $("key").querySelector("form").onsubmit = () => {
    api.setKey($("key-input").value.trim());
    $("key-input").value = "";
    const all = [...locked];
    locked.clear();
    all.forEach((each) => each());
  };
  $("key-cancel").onclick = () => $("key").close();
  $("key").showModal();
}
