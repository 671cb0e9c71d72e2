// Follows an answer as it grows, until the reader turns back; then a button leads to its end.

import { $ } from "./dom.js";

const NEAR = 40; // pixels above the end that count as the end
const LINE = 60; // pixels that an arrow key scrolls

let following = true;
let seen = 0; // the last known scrollTop

const box = () => $("scroller");
const above = () => box().scrollHeight - box().scrollTop - box().clientHeight;

/** Follow from now on. `grows` says whether the shown answer is being written: what else grows, such
 * as thoughts that are unfolded, does not move the page. */
export function watchScroller(grows) {
  box().addEventListener("scroll", note);
  box().addEventListener("wheel", ({ deltaY }) => deltaY < 0 && leave(), { passive: true });
  let finger = 0;
  box().addEventListener("touchstart", ({ touches }) => (finger = touches[0].clientY), { passive: true });
  box().addEventListener("touchmove", ({ touches }) => touches[0].clientY > finger && leave(), { passive: true });
  // The bar lies outside of what clientWidth counts.
  box().addEventListener("pointerdown", ({ target, offsetX }) => target === box() && offsetX > box().clientWidth && leave());
  document.addEventListener("keydown", turn);
  $("latest").onclick = toEnd;
  // After the layout and before the frame is painted: what was added is seen at once or not at all.
  let width = box().clientWidth; // in a narrower window lines wrap, which is no growth
  new ResizeObserver(() => {
    if (!grows() && width === box().clientWidth && above() >= NEAR) following = false;
    width = box().clientWidth;
    follow();
  }).observe($("messages"));
  new ResizeObserver(follow).observe(box());
}

/** Go to the end, and follow. */
export function toEnd() {
  following = true;
  follow();
}

/** Go to the end unless the reader has turned back. */
export function follow() {
  if (following) box().scrollTop = box().scrollHeight;
  note();
}

/** The reader has turned back: a delta in the same frame must not undo that. */
function leave() {
  if (box().scrollTop > 0) following = false;
}

function note() {
  const top = box().scrollTop;
  if (top < seen - 1 && above() > 2) following = false;
  else if (top > seen + 1 && above() < NEAR) following = true;
  seen = top;
  $("latest").hidden = above() < NEAR;
}

/** Scroll by key, wherever the focus is that has no use for the key. */
function turn(event) {
  const { key, target, shiftKey, ctrlKey, altKey, metaKey } = event;
  const page = box().clientHeight - LINE;
  const by = { PageUp: -page, PageDown: page, ArrowUp: -LINE, ArrowDown: LINE, Home: -1e9, End: 1e9 }[key];
  if (!by || shiftKey || ctrlKey || altKey || metaKey || event.defaultPrevented) return;
  const inField = target === $("input") && key.startsWith("Page") && target.scrollHeight <= target.clientHeight + 1;
  if (target !== document.body && !inField) {
    if (by < 0 && box().contains(target) && !target.matches("textarea")) leave();
    return;
  }
  event.preventDefault();
  if (by < 0) leave();
  box().scrollBy(0, by);
}
