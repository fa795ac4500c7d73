// A virtual table: only visible rows are in the page. Rows have one height.

import { clear, el, keepFocus } from "./dom.js";

const HEIGHT = 34, SPARE = 8;

// {columns: [{name, title, number, sort: true, cell(row) -> node or text, width}], onsort(name), label};
// returns {draw(rows, sort), again(), stop()}.
export function virtualTable(holder, options) {
  const head = el("div", { class: "vhead", role: "row" });
  const body = el("div", { class: "vbody" });
  const space = el("div", { class: "vspace" });
  const frame = el("div", { class: "vtable", role: "table", "aria-label": options.label, tabindex: 0 }, head, body);
  body.append(space);
  holder.append(frame);
  let rows = [], sort = "", first = 0, last = 0, printing = false;
  const widths = options.columns.map((column) => parseFloat(/([\d.]+)rem/.exec(column.width)[1]));
  frame.style.setProperty("--columns", options.columns.map((column) => column.width).join(" "));
  frame.style.setProperty("--least", widths.reduce((sum, width) => sum + width + 0.7, 1) + "rem");
  frame.style.setProperty("--paper", widths.map((width) => `minmax(0,${width}fr)`).join(" ")); // as wide as the paper

  function titles() {
    clear(head).append(...options.columns.map((column) => {
      const mark = sort === column.name ? " ▲" : sort === "-" + column.name ? " ▼" : "";
      const state = mark === " ▲" ? "ascending" : mark ? "descending" : null;
      const content = column.sort
        ? el("button", {
          type: "button",
          class: "quiet",
          title: column.hint || null,
          onclick: () => options.onsort(column.name),
        }, column.title + mark)
        : column.title;
      return el("div", { class: column.number ? "number" : "", role: "columnheader", "aria-sort": state }, content);
    }));
  }

  // As high as the page allows, at most the height of its rows.
  function fit() {
    const top = frame.getBoundingClientRect().top + scrollY, room = innerHeight - top - 20;
    const wanted = Math.min(Math.max(room, 12 * HEIGHT), head.offsetHeight + rows.length * HEIGHT + 4);
    frame.style.setProperty("height", Math.max(wanted, 4 * HEIGHT) + "px");
  }

  function window_() {
    if (printing) return rowsOf(0, rows.length); // paper doesn't scroll
    const top = Math.max(0, frame.scrollTop - head.offsetHeight);
    return rowsOf(
      Math.max(0, Math.floor(top / HEIGHT) - SPARE),
      Math.min(rows.length, Math.ceil((top + frame.clientHeight) / HEIGHT) + SPARE),
    );
  }

  function rowsOf(from, to) {
    [first, last] = [from, to];
    const made = rows.slice(first, last).map((row, at) => {
      const line = el(
        "div",
        { class: "vrow", role: "row", "aria-rowindex": first + at + 1 },
        options.columns.map((column) =>
          el("div", { class: column.number ? "number" : "", role: "cell" }, column.cell(row))
        ),
      );
      line.style.setProperty("top", (first + at) * HEIGHT + "px");
      return line;
    });
    space.style.setProperty("height", rows.length * HEIGHT + "px");
    const line = space.contains(document.activeElement)
      ? document.activeElement.closest("[aria-rowindex]").getAttribute("aria-rowindex")
      : 0;
    keepFocus(() => space.querySelector(`[aria-rowindex="${line}"]`), () => space.replaceChildren(...made));
    if (options.onwindow) options.onwindow(rows.slice(first, last));
  }

  let asked = 0;
  frame.addEventListener("scroll", () => {
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(window_);
  });
  const watcher = new ResizeObserver(window_);
  watcher.observe(frame);
  addEventListener("resize", fit);
  const print = (event) => ((printing = event.type === "beforeprint"), window_());
  addEventListener("beforeprint", print);
  addEventListener("afterprint", print);
  return {
    draw(newRows, newSort) {
      rows = newRows;
      sort = newSort || "";
      frame.setAttribute("aria-rowcount", rows.length);
      keepFocus(() => head, titles);
      fit();
      window_();
    },
    again: window_,
    stop() {
      watcher.disconnect();
      removeEventListener("resize", fit);
      removeEventListener("beforeprint", print);
      removeEventListener("afterprint", print);
    },
  };
}
