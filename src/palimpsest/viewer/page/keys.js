// Keys of the current screen, inactive while the user types into a field.

import { el } from "./dom.js";

let bound = [];

// Active while `holder` is on the page: an outdated screen has no keys.
export function on(holder, key, help, action) {
  bound.push({ holder, key, help, action });
}

// A key that `holder` handles while focused: only for the list.
export function tell(holder, key, help) {
  on(holder, key, help, null);
}

export function forget() {
  bound = [];
}

function present() {
  return bound.filter((each) => each.holder.isConnected);
}

// Checkboxes, sliders and buttons are inputs too, but accept no letters.
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
  const several = present().filter((each, at, all) => all.findIndex((other) => other.key === each.key) === at); // charts share keys
  const rows = [...several, { key: "Esc", help: "leave a field and activate these keys" }, {
    key: "?",
    help: "this list",
  }].map((each) => el("tr", null, el("td", null, el("kbd", null, each.key)), el("td", null, each.help)));
  const shut = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = el(
    "dialog",
    { class: "keys", onclose: () => dialog.remove() },
    el("h2", null, "Keys"),
    el("table", null, rows),
    shut,
  );
  document.body.append(dialog);
  dialog.showModal();
}
