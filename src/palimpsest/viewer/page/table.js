// A virtual table: only visible rows are in the page. Rows have one height.

import { clear, el, keepFocus } from "./dom.js";

const HEIGHT = 34, SPARE = 8;

// {columns: [{name, title, number, sort: true, cell(row) -> node or text, width}], onsort(name), label};
// returns {draw(rows, sort), redraw(), stop()}.
export function virtualTable(container, options) {
  const head = el("div", { class: "vhead", role: "row" });
  const body = el("div", { class: "vbody" });
  const space = el("div", { class: "vspace" });
  const frame = el("div", { class: "vtable", role: "table", "aria-label": options.label, tabindex: 0 }, head, body);
  body.append(space);
  container.append(frame);
  let rows = [], sort = "", first = 0, last = 0, printing = false;
  const widths = options.columns.map((column) => parseFloat(/([\d.]+)rem/.exec(column.width)[1]));
  frame.style.setProperty("--columns", options.columns.map((column) => column.width).join(" "));
  frame.style.setProperty("--least", widths.reduce((sum, width) => sum + width + 0.7, 1) + "rem");
  frame.style.setProperty("--paper", widths.map((width) => `minmax(0,${width}fr)`).join(" ")); // as wide as the paper

  function drawHead() {
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

  // Uses the available height, at most the height of its rows.
  function fitHeight() {
    const top = frame.getBoundingClientRect().top + scrollY, available = innerHeight - top - 20;
    const wantedHeight = Math.min(Math.max(available, 12 * HEIGHT), head.offsetHeight + rows.length * HEIGHT + 4);
    frame.style.setProperty("height", Math.max(wantedHeight, 4 * HEIGHT) + "px");
  }

  function drawWindow() {
    if (printing) return drawRows(0, rows.length); // paper doesn't scroll
    const top = Math.max(0, frame.scrollTop - head.offsetHeight);
    return drawRows(
      Math.max(0, Math.floor(top / HEIGHT) - SPARE),
      Math.min(rows.length, Math.ceil((top + frame.clientHeight) / HEIGHT) + SPARE),
    );
  }

  function drawRows(start, end) {
    [first, last] = [start, end];
    const elements = rows.slice(first, last).map((row, index) => {
      const line = el(
        "div",
        { class: "vrow", role: "row", "aria-rowindex": first + index + 1 },
        options.columns.map((column) =>
          el("div", { class: column.number ? "number" : "", role: "cell" }, column.cell(row))
        ),
      );
      line.style.setProperty("top", (first + index) * HEIGHT + "px");
      return line;
    });
    space.style.setProperty("height", rows.length * HEIGHT + "px");
    const line = space.contains(document.activeElement)
      ? document.activeElement.closest("[aria-rowindex]").getAttribute("aria-rowindex")
      : 0;
    keepFocus(() => space.querySelector(`[aria-rowindex="${line}"]`), () => space.replaceChildren(...elements));
    if (options.onwindow) options.onwindow(rows.slice(first, last));
  }

  let frameRequest = 0;
  frame.addEventListener("scroll", () => {
    cancelAnimationFrame(frameRequest);
    frameRequest = requestAnimationFrame(drawWindow);
  });
  const watcher = new ResizeObserver(drawWindow);
  watcher.observe(frame);
  addEventListener("resize", fitHeight);
  const onPrint = (event) => ((printing = event.type === "beforeprint"), drawWindow());
  addEventListener("beforeprint", onPrint);
  addEventListener("afterprint", onPrint);
  return {
    draw(newRows, newSort) {
      rows = newRows;
      sort = newSort || "";
      frame.setAttribute("aria-rowcount", rows.length);
      keepFocus(() => head, drawHead);
      fitHeight();
      drawWindow();
    },
    redraw: drawWindow,
    stop() {
      watcher.disconnect();
      removeEventListener("resize", fitHeight);
      removeEventListener("beforeprint", onPrint);
      removeEventListener("afterprint", onPrint);
    },
  };
}
