// An evaluation: accuracy of its parts, then problems by samples; disagreements of judge and strings come first.

import { clear, el, grade, gradeLegend, gradeMark, mean, num, unboxed } from "../dom.js";
import { get } from "../api.js";
import { asked, link } from "../place.js";
import { heldPlace, leads } from "../held.js";
import { on } from "../keys.js";
import { scores } from "../scores.js";
import { virtualTable } from "../table.js";

const SHOWS = {
  all: "every problem",
  disagree: "judge and strings disagree",
  differ: "draws differ",
  wrong: "wrong",
  right: "right",
  ungraded: "ungraded",
};

export async function show(main, place) {
  const told = await get(asked(place) + "/items");
  const query = { ...place.query };
  const sets = new Set(told.rows.map((row) => row.label));
  const choose = el(
    "select",
    { "aria-label": "Set", onchange: () => set({ set: choose.value || null }) },
    el("option", { value: "" }, "every set"),
    [...sets].map((name) => el("option", { value: name }, name)),
  );
  const which = el("select", {
    "aria-label": "Which problems",
    onchange: () => set({ show: which.value === "all" ? null : which.value }),
  }, Object.entries(SHOWS).map(([key, words]) => el("option", { value: key }, words)));
  const search = el("input", {
    type: "search",
    placeholder: "Search…",
    "aria-label": "Search",
    value: query.q || "",
    oninput: () => set({ q: search.value || null }),
  });
  const count = el("p", { class: "soft about", "aria-live": "polite" });
  const holder = el("div", null);
  main.append(el("h1", null, "Problems of " + place.run));
  if (told.unreadable) {
    main.append(
      el("div", { class: "notice notice-bad" }, `${told.unreadable} unreadable lines of the log are omitted`),
    );
  }
  if (told.not_asked) {
    main.append(
      el(
        "p",
        { class: "soft" },
        `${told.not_asked} episodes of earlier calls stay in the log but are excluded: the last call did not request them`,
      ),
    );
  }
  main.append(
    scores(told.cells),
    el("div", { class: "tools" }, choose, which, search),
    count,
    gradeLegend(...(told.judged ? [[el("span", { class: "flag" }, "≠"), "judge and strings disagree"]] : [])),
    holder,
  );
  const table = virtualTable(holder, {
    columns: columns(place, told),
    onsort: (name) => set({ sort: query.sort === "-" + name ? name : "-" + name }),
    label: "Problems",
  });
  on(main, "/", "search", () => search.focus());
  draw();

  function set(changes) {
    Object.assign(query, changes);
    for (const key of Object.keys(query)) if (query[key] === null) delete query[key];
    history.replaceState(null, "", link({ ...place, query }));
    draw();
  }

  function draw() {
    choose.value = query.set || "";
    which.value = query.show || "all";
    const shown = ordered(told.rows.filter((row) => kept(row, query)), query.sort);
    const draws = shown.flatMap((row) => row.draws), recorded = draws.filter((draw) => draw.episode).length;
    const missing = recorded < draws.length
      ? ` · ${num(recorded)} of ${num(draws.length)} episodes were recorded (evaluation.record=all records every one)`
      : "";
    clear(count).append(`${num(shown.length)} of ${num(told.rows.length)} problems${missing}`);
    table.draw(shown, query.sort);
  }

  return table.stop;
}

const valueOf = (row) => mean(row.draws.map((draw) => draw.value).filter((value) => value !== null));

function kept(row, query) {
  const value = valueOf(row), text = (query.q || "").toLowerCase();
  if (query.set && row.label !== query.set) return false;
  if (query.show === "disagree" && row.disagree !== 2) return false;
  if (query.show === "differ" && new Set(row.draws.map((draw) => draw.value)).size < 2) return false;
  if (query.show === "wrong" && !(value !== null && value < 0.5)) return false;
  if (query.show === "right" && !(value !== null && value >= 0.5)) return false;
  if (query.show === "ungraded" && row.draws.every((draw) => draw.value !== null)) return false;
  return !text ||
    [row.question, row.id, ...row.golds, ...row.draws.map((draw) => draw.answer || "")].some((each) =>
      each.toLowerCase().includes(text)
    );
}

function ordered(rows, sort) {
  if (!sort) return rows;
  const name = sort.replace(/^-/, ""), sign = sort[0] === "-" ? -1 : 1;
  const of = {
    value: valueOf,
    length: (row) => row.length,
    tokens: (row) => row.draws[0].tokens,
    set: (row) => row.label,
    disagree: (row) => row.disagree,
  };
  if (!Object.hasOwn(of, name)) return rows;
  return [...rows].sort((a, b) => (of[name](a) < of[name](b) ? -1 : of[name](a) > of[name](b) ? 1 : 0) * sign);
}

function mark(value, words) {
  const name = grade(value);
  if (name === "none") return gradeMark(name, { title: words + ": ungraded" });
  return gradeMark(name, { title: `${words}: ${num(value)}`, role: "img", "aria-label": `${words} ${name}` });
}

function said(draw) {
  if (draw.answer === null) return draw.reason || draw.outcome.replace(/_/g, " ");
  return draw.answer.trim() === "" ? el("span", { class: "faint" }, "(empty)") : unboxed(draw.answer);
}

function columns(place, told) {
  const strings = told.strings.map((name) => ({
    name,
    title: name,
    hint: name.replace(/_/g, " "),
    width: (name.length > 2 ? 0.54 * name.length : 2.2).toFixed(2) + "rem",
    cell: (row) => row.draws.map((draw) => mark(draw.metrics[name], name)),
  }));
  const judge = told.judged
    ? [{
      name: "disagree",
      title: "Judge",
      sort: true,
      width: "6rem",
      cell: (
        row,
      ) => [
        row.draws.map((draw) => mark(draw.judge, "judge")),
        row.disagree === 2 ? el("span", { class: "flag", title: "judge and strings disagree" }, " ≠") : null,
      ],
    }]
    : [];
  return [
    {
      name: "set",
      title: "Set",
      sort: true,
      width: "minmax(6rem,1fr)",
      cell: (row) => el("span", { title: row.id }, row.label),
    },
    { name: "length", title: "Length", sort: true, number: true, width: "3.4rem", cell: (row) => num(row.length) },
    {
      name: "value",
      title: "Draws",
      sort: true,
      width: "4rem",
      cell: (row) =>
        row.draws.slice(0, 12).map((
          draw,
        ) => (draw.episode && heldPlace({ run: place.run, ...draw.episode })
          ? el("a", {
            href: link({ screen: "episode", run: place.run, ...draw.episode }),
            "aria-label": "open draw " + draw.draw,
          }, mark(draw.value, "draw " + draw.draw))
          : mark(draw.value, "draw " + draw.draw))
        ),
    },
    ...judge,
    ...strings,
    {
      name: "question",
      title: "Question",
      width: "minmax(10rem,3fr)",
      cell: (row) => el("span", { title: row.question }, row.question),
    },
    {
      name: "answer",
      title: "Answer",
      width: "minmax(6.5rem,2fr)",
      cell: (row) =>
        el(
          "span",
          { title: row.draws.map((draw) => draw.answer || draw.reason || draw.outcome).join("\n") },
          said(row.draws[0]),
        ),
    },
    { name: "gold", title: "Gold", width: "minmax(4.5rem,1fr)", cell: (row) => row.golds.join(" | ") },
    {
      name: "memory",
      title: "Last memory",
      width: "minmax(6.5rem,2fr)",
      cell: (row) => el("span", { title: row.draws[0].memory || "" }, row.draws[0].memory || ""),
    },
    {
      name: "tokens",
      title: "Tokens",
      sort: true,
      number: true,
      width: "4rem",
      cell: (row) => num(row.draws[0].tokens),
    },
    {
      name: "open",
      title: "Episode",
      width: "3.6rem",
      cell: (row) =>
        row.draws.filter((draw) => draw.episode).slice(0, 1).map((draw) =>
          leads(
            { screen: "episode", run: place.run, ...draw.episode },
            null,
            heldPlace({ run: place.run, ...draw.episode }) ? "open" : "–",
          )
        ),
    },
  ];
}
