// An evaluation: accuracy of its parts, then problems by samples. Disagreements of judge and strings come first.

import { clear, el, extractBoxed, grade, gradeLegend, gradeMark, mean, num } from "../dom.js";
import { get } from "../api.js";
import { apiPath, routeHash } from "../route.js";
import { isAvailable, routeLink } from "../links.js";
import { bindKey } from "../keys.js";
import { scoreTable } from "../scores.js";
import { virtualTable } from "../table.js";

const FILTERS = {
  all: "every problem",
  disagree: "judge and strings disagree",
  differ: "draws differ",
  wrong: "wrong",
  right: "right",
  ungraded: "ungraded",
};

export async function show(main, route) {
  const evaluation = await get(apiPath(route) + "/items");
  const query = { ...route.query };
  const sets = new Set(evaluation.rows.map((row) => row.label));
  const setSelect = el(
    "select",
    { "aria-label": "Set", onchange: () => setFilters({ set: setSelect.value || null }) },
    el("option", { value: "" }, "every set"),
    [...sets].map((name) => el("option", { value: name }, name)),
  );
  const filterSelect = el("select", {
    "aria-label": "Which problems",
    onchange: () => setFilters({ show: filterSelect.value === "all" ? null : filterSelect.value }),
  }, Object.entries(FILTERS).map(([key, label]) => el("option", { value: key }, label)));
  const search = el("input", {
    type: "search",
    placeholder: "Search…",
    "aria-label": "Search",
    value: query.q || "",
    oninput: () => setFilters({ q: search.value || null }),
  });
  const count = el("p", { class: "soft about", "aria-live": "polite" });
  const container = el("div", null);
  main.append(el("h1", null, "Problems of " + route.run));
  if (evaluation.unreadable) {
    main.append(
      el("div", { class: "notice notice-bad" }, `${evaluation.unreadable} unreadable lines of the log are omitted`),
    );
  }
  if (evaluation.not_asked) {
    main.append(
      el(
        "p",
        { class: "soft" },
        `${evaluation.not_asked} episodes of earlier calls stay in the log but are excluded: the last call did not request them`,
      ),
    );
  }
  main.append(
    scoreTable(evaluation.cells),
    el("div", { class: "tools" }, setSelect, filterSelect, search),
    count,
    gradeLegend(...(evaluation.judged ? [[el("span", { class: "flag" }, "≠"), "judge and strings disagree"]] : [])),
    container,
  );
  const table = virtualTable(container, {
    columns: columns(route, evaluation),
    onsort: (name) => setFilters({ sort: query.sort === "-" + name ? name : "-" + name }),
    label: "Problems",
  });
  bindKey(main, "/", "search", () => search.focus());
  draw();

  function setFilters(changes) {
    Object.assign(query, changes);
    for (const key of Object.keys(query)) if (query[key] === null) delete query[key];
    history.replaceState(null, "", routeHash({ ...route, query }));
    draw();
  }

  function draw() {
    setSelect.value = query.set || "";
    filterSelect.value = query.show || "all";
    const visibleRows = sortRows(evaluation.rows.filter((row) => matchesFilters(row, query)), query.sort);
    const draws = visibleRows.flatMap((row) => row.draws), recorded = draws.filter((draw) => draw.episode).length;
    const note = recorded < draws.length
      ? ` · ${num(recorded)} of ${num(draws.length)} episodes were recorded (evaluation.record=all records every one)`
      : "";
    clear(count).append(`${num(visibleRows.length)} of ${num(evaluation.rows.length)} problems${note}`);
    table.draw(visibleRows, query.sort);
  }

  return table.stop;
}

const valueOf = (row) => mean(row.draws.map((draw) => draw.value).filter((value) => value !== null));

function matchesFilters(row, query) {
  const value = valueOf(row), text = (query.q || "").toLowerCase();
  if (query.set && row.label !== query.set) return false;
  if (query.show === "disagree" && row.disagree !== 2) return false;
  if (query.show === "differ" && new Set(row.draws.map((draw) => draw.value)).size < 2) return false;
  if (query.show === "wrong" && !(value !== null && value < 0.5)) return false;
  if (query.show === "right" && !(value !== null && value >= 0.5)) return false;
  if (query.show === "ungraded" && row.draws.every((draw) => draw.value !== null)) return false;
  return !text ||
    [row.question, row.id, ...row.golds, ...row.draws.map((draw) => draw.answer || "")].some((field) =>
      field.toLowerCase().includes(text)
    );
}

function sortRows(rows, sort) {
  if (!sort) return rows;
  const name = sort.replace(/^-/, ""), sign = sort[0] === "-" ? -1 : 1;
  const sortKeys = {
    value: valueOf,
    length: (row) => row.length,
    tokens: (row) => row.draws[0].tokens,
    set: (row) => row.label,
    disagree: (row) => row.disagree,
  };
  if (!Object.hasOwn(sortKeys, name)) return rows;
  return [...rows].sort((a, b) =>
    (sortKeys[name](a) < sortKeys[name](b) ? -1 : sortKeys[name](a) > sortKeys[name](b) ? 1 : 0) * sign
  );
}

function gradeElement(value, label) {
  const name = grade(value);
  if (name === "none") return gradeMark(name, { title: label + ": ungraded" });
  return gradeMark(name, { title: `${label}: ${num(value)}`, role: "img", "aria-label": `${label} ${name}` });
}

function answerElement(draw) {
  if (draw.answer === null) return draw.reason || draw.outcome.replace(/_/g, " ");
  return draw.answer.trim() === "" ? el("span", { class: "faint" }, "(empty)") : extractBoxed(draw.answer);
}

function columns(route, evaluation) {
  const strings = evaluation.strings.map((name) => ({
    name,
    title: name,
    hint: name.replace(/_/g, " "),
    width: (name.length > 2 ? 0.54 * name.length : 2.2).toFixed(2) + "rem",
    cell: (row) => row.draws.map((draw) => gradeElement(draw.metrics[name], name)),
  }));
  const judge = evaluation.judged
    ? [{
      name: "disagree",
      title: "Judge",
      sort: true,
      width: "6rem",
      cell: (
        row,
      ) => [
        row.draws.map((draw) => gradeElement(draw.judge, "judge")),
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
        ) => (draw.episode && isAvailable({ run: route.run, ...draw.episode })
          ? el("a", {
            href: routeHash({ screen: "episode", run: route.run, ...draw.episode }),
            "aria-label": "open draw " + draw.draw,
          }, gradeElement(draw.value, "draw " + draw.draw))
          : gradeElement(draw.value, "draw " + draw.draw))
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
          answerElement(row.draws[0]),
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
          routeLink(
            { screen: "episode", run: route.run, ...draw.episode },
            null,
            isAvailable({ run: route.run, ...draw.episode }) ? "open" : "–",
          )
        ),
    },
  ];
}
