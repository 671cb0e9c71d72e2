// Makes DOM nodes. Text only ever enters the page as text nodes and attributes: there is no
// innerHTML anywhere, and the Content-Security-Policy forbids it.

const SVG = "http://www.w3.org/2000/svg";

/** A new element. `props` are properties; those with a dash, `role` and `for` are attributes. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined) continue;
    if (name.includes("-") || name === "role" || name === "for") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Make `nodes` the children of a node. Those that stay are not touched: they keep their focus. */
export function arrange(parent, nodes) {
  const wanted = new Set(nodes);
  for (const old of [...parent.childNodes]) if (!wanted.has(old)) old.remove();
  nodes.forEach((node, i) => parent.childNodes[i] === node || parent.insertBefore(node, parent.childNodes[i] ?? null));
}

export const $ = (id) => document.getElementById(id);

/** One of the icons in index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/** A small button with an icon and a name for screen readers and the tooltip. */
export function iconButton(name, label, onclick) {
  return el("button", { type: "button", className: "ghost", title: label, "aria-label": label, onclick }, icon(name));
}

/** A button that copies text, and says so for a moment. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      announce("Copying is not allowed here. Select the text and copy it yourself.");
      return;
    }
    button.replaceChildren(icon("check"));
    announce("Copied");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

/** Tell screen readers. */
export function announce(text) {
  $("announcer").textContent = text;
}

/** Show a line at the bottom for some seconds, with something to click. */
export function toast(text, action, onclick) {
  const done = () => $("toast").replaceChildren();
  const button = action && el("button", { type: "button", onclick: () => (done(), onclick()) }, action);
  $("toast").replaceChildren(el("div", {}, text, button));
  clearTimeout(toast.timer);
  toast.timer = setTimeout(done, 8000);
}

/** Offer text as a file. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
