"""The HTML report of a quickstart: figures, plots, text of models, layout."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.quickstart.quickstart_plan import Grid
from palimpsest.app.quickstart.quickstart_results import Results, evaluation_results, lead, write_report
from palimpsest.config.load import load_recipe
from palimpsest.evaluation.sample_log import Cell
from palimpsest.evaluation.summary import EvalSummary, PositionSummary, score, summarise
from palimpsest.report.plots import reward_figure
from palimpsest.text.display_text import visible
from support.evaluations import report_tables, sample

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e{{ 7*7 }} & \"'"


def cell(right: int, tokens: float, **changes: Any) -> EvalSummary:
    """A summary of ten problems."""
    made = summarise(Cell("synthetic", 4, "chunks", "agent"), [sample(f"p{at}", float(at < right)) for at in range(10)])
    return replace(made, tokens_per_document=tokens, **{"tokens_per_correct": None} | changes)


def results(planned: int = 4, **changes: Any) -> Results:
    settings = {"seed": 3, "evaluation.sizes": [1, 4], "evaluation.note": ATTACK, "data.curriculum.chunks": [planned]}
    shown = sample("p", 1.0, gold=ATTACK, question=ATTACK, answer=ATTACK, memory=ATTACK)
    before = {"measures": {"copy_fidelity": 0.98}}
    values: dict[str, Any] = {
        "grid": Grid(load_recipe("memagent-quickstart", settings)),
        "trained": 4,
        "wall_s": 90.0,
        "cells": {
            "agent": {1: cell(10, 500), 4: cell(9, 2000)},
            "agent_before": {1: cell(3, 500, **before), 4: cell(1, 2000)},
            "last_window": {1: cell(2, 100), 4: cell(0, 100)},
        },
        "rewards": [0.2, 0.4, 0.6, 0.5],
        "sizes": [1, 1, 2, 2],
        "samples": [shown],
    }
    return Results(**{**values, **changes})


def test_multiples_are_of_the_trained_length_and_an_unreached_length_is_named() -> None:
    short = results(trained=2)
    assert [short.grid.size(point) for point in short.points] == [4, 16]
    assert [short.heading(point) for point in short.points] == ["4 chunks (2x)", "16 chunks (8x)"]
    assert evaluation_results(short).title == "memagent: an agent trained at 2 chunks, tested on longer documents"
    assert "At 8x the training length" in lead(short)
    assert lead(short).endswith("before its problems reached 4 chunks: the largest had 2 chunks.")
    assert "before its problems reached" not in lead(results())


def test_the_lead_has_the_accuracy_before_and_after_training() -> None:
    assert lead(results()) == (
        "At 4 chunks per document, the agent's accuracy went from 30.0% before reinforcement learning to 100.0% after "
        "it. At 4x the training length it is 90.0%; in comparison: 0.0% (last window only)."
    )


class Reader(HTMLParser):
    """Collects tags, attributes and text as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def write(folder: Path, **changes: Any) -> tuple[str, Reader]:
    """The report of results with some changes, and what a browser reads in it."""
    write_report(folder, results(**changes))
    html = (folder / "report.html").read_text("utf-8")
    reader = Reader()
    reader.feed(html)
    return html, reader


def test_text_of_a_model_cannot_become_markup_or_load_anything(tmp_path: Path) -> None:
    html, reader = write(tmp_path)
    assert not [tag for tag, _ in reader.tags if tag == "script"]
    assert all(attrs["src"] and attrs["src"].startswith("data:image/png") for tag, attrs in reader.tags if tag == "img")
    assert not [name for _, attrs in reader.tags for name in attrs if name.startswith("on")]
    shown = ("question", "memory", "answer", "gold", "caption", "configuration")
    assert reader.text.count("<script>alert(1)</script>") == len(shown)
    assert "{{ 7*7 }}" in reader.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", html)
    assert not re.search(r"https?://", html)
    assert [attrs["content"] for tag, attrs in reader.tags if "content-security-policy" in str(attrs).lower()]
    assert {tag for tag, _ in reader.tags}.isdisjoint({"link", "iframe", "object", "form"})


def test_the_same_results_give_the_same_bytes_with_the_plots_of_the_files(tmp_path: Path) -> None:
    html, _ = write(tmp_path / "a")
    assert write(tmp_path / "b")[0] == html
    inside = [base64.b64decode(data) for data in re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", html)]
    plots = [tmp_path / "a" / "plots" / f"{name}.png" for name in ("accuracy", "tokens", "reward")]
    assert inside == [plot.read_bytes() for plot in plots]


def test_the_first_table_has_a_row_per_agent_and_a_column_per_length(tmp_path: Path) -> None:
    html, reader = write(tmp_path)
    assert [[cell.partition("\n")[0] for cell in row] for row in report_tables(html)[0]] == [
        ["", "4 chunks (1x)", "16 chunks (4x)"],
        ["agent after RL", "100.0%", "90.0%"],
        ["same model before RL", "30.0%", "10.0%"],
        ["last window only", "20.0%", "0.0%"],
    ]
    assert "0.98 before" in " ".join(reader.text.split())


@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_needs_no_horizontal_scroll(browser: Any, tmp_path: Path, width: int) -> None:
    sizes = [1, 16, 64, 256, 1024]
    parts = [PositionSummary(at / 5, (at + 1) / 5, 2, score([1.0, 0.0])) for at in range(5)]
    row = {point: cell(5, 100_000, by_evidence=parts) for point in sizes}
    grid = Grid(load_recipe("memagent-quickstart", {"evaluation.sizes": sizes}))
    write_report(tmp_path, results(grid=grid, cells=dict.fromkeys(grid.players, row), made=[("command", "a" * 300)]))
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((tmp_path / "report.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    labels = page.locator("td:first-child").evaluate_all("all => all.map((each) => each.offsetWidth)")
    assert len(labels) > 60
    assert min(labels) > 100
    page.close()


@pytest.mark.parametrize(
    ("value", "kind", "mark"),
    [
        (1.0, "right", None),
        (0.0, "wrong", "(marked wrong)"),
        (0.25, "partly", "(graded 25%)"),
        (None, "ungraded", "(no grade: judge: no answer)"),
    ],
)
def test_an_episode_has_a_label_for_its_grade(tmp_path: Path, value: float | None, kind: str, mark: str | None) -> None:
    reason = None if value is not None else "judge: no answer"
    _, reader = write(tmp_path, samples=[sample("p", value, gold="gold", reason=reason)])
    assert [attrs["class"] for tag, attrs in reader.tags if tag == "dl" and attrs] == [f"sample {kind}"]
    assert ("gold (" in reader.text) == (mark is not None)
    assert mark is None or f"gold {mark}" in reader.text


def test_ungraded_episodes_are_a_dash_and_not_zero(tmp_path: Path) -> None:
    empty = replace(cell(0, 0.0), accuracy=score([]), ungraded=10)
    cells = {"agent": {1: empty}, "agent_before": {1: cell(1, 5)}}
    html, _ = write(tmp_path, cells=cells, rewards=[], sizes=[], samples=[])
    assert not (tmp_path / "plots" / "reward.png").exists()
    accuracy, figures, *_ = report_tables(html)
    assert accuracy[1] == ["agent after RL", "–"]
    assert figures[2][:3] == ["4 chunks (1x)", "10, 10 ungraded", "–"]


def test_every_player_has_a_row_of_figures_and_of_evidence_at_every_length(tmp_path: Path) -> None:
    parts = [PositionSummary(at / 5, (at + 1) / 5, 2, score([1.0, 0.0])) for at in range(5)]
    row = {point: cell(5, 100, by_evidence=parts, tokens_per_correct=1234.4) for point in (1, 4)}
    html, _ = write(tmp_path, cells=dict.fromkeys(("agent", "agent_before"), row))
    _, figures, evidence = report_tables(html)
    sizes = ["4 chunks (1x)", "16 chunks (4x)"]
    names = ["agent after RL", *sizes, "same model before RL", *sizes]
    assert [row[0] for row in figures[1:]] == [row[0] for row in evidence[1:]] == names
    assert {(row[1], row[2], row[4]) for row in figures[1:] if row[1:]} == {("10", "50.0%", "1,234")}
    assert {row[1] for row in evidence[1:] if row[1:]} == {"50%\nof 2, 9% to 91%"}


def test_bands_are_explained_only_if_training_had_several_sizes(tmp_path: Path) -> None:
    for name, sizes in (("grown", [1, 1, 2, 2]), ("one", [2, 2, 2, 2])):
        text, _ = write(tmp_path / name, sizes=sizes)
        assert "Thin line: mean reward" in text
        assert ("Each band is" in text) == (name == "grown")
    assert reward_figure([0.1, 0.9], [1, 2]) != reward_figure([0.1, 0.9], [2, 2])


def test_visible_keeps_text_and_shows_controls() -> None:
    assert visible("Zoë 東京\nok") == "Zoë 東京\nok"
    assert visible("\x00\x9b\u200f\ud800") == "\\x00\\x9b\\u200f\\ud800"
