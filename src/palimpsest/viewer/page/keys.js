// Keys of the current screen, inactive while the user types into a field.

import { el } from "./dom.js";

let bindings = [];

// Active while `container` is on the page: a removed screen has no keys.
export function bindKey(container, key, help, action) {
  bindings.push({ container, key, help, action });
}

// Adds a key that `container` handles while focused to the list of keys.
export function describeKey(container, key, help) {
  bindKey(container, key, help, null);
}

export function clearKeys() {
  bindings = [];
}

function activeKeys() {
  return bindings.filter((binding) => binding.container.isConnected);
}

// Checkboxes, sliders and buttons are inputs too, but accept no letters.
function isTextField(target) {
  if (target.tagName === "INPUT") return !/^(checkbox|radio|range|button|submit|reset)$/.test(target.type);
  return /^(SELECT|TEXTAREA)$/.test(target.tagName) || target.isContentEditable;
}

export function listenForKeys() {
  document.addEventListener("keydown", (event) => {
    const isTyping = isTextField(event.target);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && isTyping) event.target.blur();
    if (isTyping) return;
    if (event.key === "?") return help();
    const binding = activeKeys().find((binding) => binding.key === event.key && binding.action);
    if (binding) {
      event.preventDefault();
      binding.action(event);
    }
  });
}

export function help() {
  const open = document.querySelector("dialog.keys");
  if (open) return open.close();
  const unique = activeKeys().filter((binding, index, all) =>
    all.findIndex((other) => other.key === binding.key) === index
  ); // charts share keys
  const rows = [...unique, { key: "Esc", help: "leave a field and activate these keys" }, {
    key: "?",
    help: "this list",
  }].map((binding) => el("tr", null, el("td", null, el("kbd", null, binding.key)), el("td", null, binding.help)));
  const closeButton = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = el(
    "dialog",
    { class: "keys", onclose: () => dialog.remove() },
    el("h2", null, "Keys"),
    el("table", null, rows),
    closeButton,
  );
  document.body.append(dialog);
  dialog.showModal();
}
