// What lies around the conversation: the list beside it, the settings, the theme.

import { $ } from "./dom.js";
import { local } from "./settings.js";

export function openSide(open) {
  document.body.classList.toggle("side-open", open);
  $("menu").ariaExpanded = String(open);
  if (open) $("new").focus();
}

export const closeSide = () => openSide(false);

export function togglePanel(open) {
  $("settings").hidden = !open;
  $("tune").ariaExpanded = String(open);
  (open ? $("settings-close") : $("tune")).focus();
}

const THEMES = { "": "System", light: "Light", dark: "Dark" };

/** Go `step` themes on. */
export function nextTheme(step) {
  const names = Object.keys(THEMES);
  const now = document.documentElement.dataset.theme ?? "";
  const theme = names[(names.indexOf(now) + step) % names.length];
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  local.set("theme", theme);
  $("theme").querySelector("span").textContent = `Theme: ${THEMES[theme].toLowerCase()}`;
}
