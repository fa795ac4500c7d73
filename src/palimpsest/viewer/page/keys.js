// Keys of the present screen. They do nothing while one types into a field.

import { el } from "./dom.js";

let bound = [];

// While `holder` is on the page: a screen that comes too late has none.
export function on(holder, key, help, action) {
  bound.push({ holder, key, help, action });
}

// A key that `holder` takes by itself while it has the focus: for the list alone.
export function tell(holder, key, help) {
  on(holder, key, help, null);
}

export function forget() {
  bound = [];
}

function present() {
  return bound.filter((each) => each.holder.isConnected);
}

// Boxes, sliders and buttons are inputs too, and take no letters.
function types(target) {
  if (target.tagName === "INPUT") return !/^(checkbox|radio|range|button|submit|reset)$/.test(target.type);
  return /^(SELECT|TEXTAREA)$/.test(target.tagName) || target.isContentEditable;
}

export function listen() {
  document.addEventListener("keydown", (event) => {
    const typing = types(event.target);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing) return;
    if (event.key === "?") return help();
    const found = present().find((each) => each.key === event.key && each.action);
    if (found) {
      event.preventDefault();
      found.action(event);
    }
  });
}

export function help() {
  const open = document.querySelector("dialog.keys");
  if (open) return open.close();
  const several = present().filter((each, at, all) => all.findIndex((other) => other.key === each.key) === at); // drawings have the same
  const rows = [...several, { key: "Esc", help: "out of a field, so that these keys work again" }, { key: "?", help: "this list" }].map((each) =>
    el("tr", null, el("td", null, el("kbd", null, each.key)), el("td", null, each.help)),
  );
  const shut = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = el("dialog", { class: "keys", onclose: () => dialog.remove() }, el("h2", null, "Keys"), el("table", null, rows), shut);
  document.body.append(dialog);
  dialog.showModal();
}
