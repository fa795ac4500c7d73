"""Figures and the HTML report."""

from __future__ import annotations

import base64
import re
import struct
import threading
import zlib
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
from palimpsest.report.plots import Point, accuracy_figure, reward_figure, tokens_figure
from palimpsest.text.display_text import visible
from support.evaluations import report_tables, sample

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e{{ 7*7 }} & \"'"


def cell(right: int, tokens: float, **changes: Any) -> EvalSummary:
    """Of ten problems."""
    made = summarise(Cell("synthetic", 4, "chunks", "agent"), [sample(f"p{at}", float(at < right)) for at in range(10)])
    return replace(made, tokens_per_document=tokens, **{"tokens_per_correct": None} | changes)


def results(planned: int = 4, **changes: Any) -> Results:
    settings = {"seed": 3, "evaluation.sizes": [1, 4], "evaluation.note": ATTACK, "data.curriculum.chunks": [planned]}
    shown = sample("p", 1.0, gold=ATTACK, question=ATTACK, answer=ATTACK, memory=ATTACK)
    before = {"measures": {"copy_fidelity": 0.98}}
    given: dict[str, Any] = {
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
    return Results(**{**given, **changes})


def test_multiples_are_of_what_was_trained_on_and_a_size_that_was_not_reached_is_said() -> None:
    short = results(trained=2)
    assert [short.grid.size(point) for point in short.points] == [4, 16]
    assert [short.heading(point) for point in short.points] == ["4 chunks (2x)", "16 chunks (8x)"]
    assert evaluation_results(short).title == "memagent: an agent trained at 2 chunks, tested on longer documents"
    assert "At 8x the training length" in lead(short)
    assert lead(short).endswith("before its problems reached 4 chunks: the largest had 2 chunks.")
    assert "before its problems reached" not in lead(results())


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


@pytest.fixture
def report(tmp_path: Path) -> tuple[str, Reader]:
    write_report(tmp_path, results())
    html = (tmp_path / "report.html").read_text("utf-8")
    reader = Reader()
    reader.feed(html)
    return html, reader


def png_size(data: bytes) -> tuple[int, int]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_text_of_a_model_cannot_become_markup(report: tuple[str, Reader]) -> None:
    html, reader = report
    assert not [tag for tag, _ in reader.tags if tag == "script"]
    assert all(attrs["src"] and attrs["src"].startswith("data:image/png") for tag, attrs in reader.tags if tag == "img")
    assert not [name for _, attrs in reader.tags for name in attrs if name.startswith("on")]
    shown = ("question", "memory", "answer", "gold", "caption", "configuration")
    assert reader.text.count("<script>alert(1)</script>") == len(shown)
    assert "{{ 7*7 }}" in reader.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", html)


def test_the_report_loads_nothing_from_outside(report: tuple[str, Reader]) -> None:
    html, reader = report
    assert not re.search(r"https?://", html)
    assert [attrs["content"] for tag, attrs in reader.tags if "content-security-policy" in str(attrs).lower()]
    assert {tag for tag, _ in reader.tags}.isdisjoint({"link", "iframe", "object", "form"})


def test_figures_in_the_report_are_the_files_beside_it(tmp_path: Path) -> None:
    write_report(tmp_path, results())
    html = (tmp_path / "report.html").read_text("utf-8")
    inside = [base64.b64decode(data) for data in re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", html)]
    assert inside == [(tmp_path / "plots" / f"{name}.png").read_bytes() for name in ("accuracy", "tokens", "reward")]


def test_the_first_table_has_a_row_per_agent_and_a_column_per_length(report: tuple[str, Reader]) -> None:
    html, reader = report
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
def test_an_episode_shown_says_what_its_grade_is(
    tmp_path: Path, value: float | None, kind: str, mark: str | None
) -> None:
    reason = None if value is not None else "judge: no answer"
    shown = sample("p", value, gold="gold", reason=reason)
    write_report(tmp_path, results(samples=[shown]))
    reader = Reader()
    reader.feed((tmp_path / "report.html").read_text("utf-8"))
    assert [attrs["class"] for tag, attrs in reader.tags if tag == "dl" and attrs] == [f"sample {kind}"]
    assert ("gold (" in reader.text) == (mark is not None)
    assert mark is None or f"gold {mark}" in reader.text


def test_the_lead_says_what_was_measured() -> None:
    assert lead(results()) == (
        "At 4 chunks per document, the agent's accuracy went from 30.0% before reinforcement learning to 100.0% after "
        "it. At 4x the training length it is 90.0%; in comparison: 0.0% (last window only)."
    )


def test_what_was_not_graded_is_a_dash_and_not_zero(tmp_path: Path) -> None:
    empty = replace(cell(0, 0.0), accuracy=score([]), ungraded=10)
    changed = results(cells={"agent": {1: empty}, "agent_before": {1: cell(1, 5)}}, rewards=[], sizes=[], samples=[])
    write_report(tmp_path, changed)
    assert not (tmp_path / "plots" / "reward.png").exists()
    accuracy, figures, *_ = report_tables((tmp_path / "report.html").read_text("utf-8"))
    assert accuracy[1] == ["agent after RL", "–"]
    assert figures[2][:3] == ["4 chunks (1x)", "10, 10 ungraded", "–"]


def test_every_player_has_a_row_of_figures_and_of_evidence_at_every_length(tmp_path: Path) -> None:
    parts = [PositionSummary(at / 5, (at + 1) / 5, 2, score([1.0, 0.0])) for at in range(5)]
    row = {point: cell(5, 100, by_evidence=parts, tokens_per_correct=1234.4) for point in (1, 4)}
    write_report(tmp_path, results(cells=dict.fromkeys(("agent", "agent_before"), row)))
    _, figures, evidence = report_tables((tmp_path / "report.html").read_text("utf-8"))
    sizes = ["4 chunks (1x)", "16 chunks (4x)"]
    names = ["agent after RL", *sizes, "same model before RL", *sizes]
    assert [row[0] for row in figures[1:]] == [row[0] for row in evidence[1:]] == names
    assert {(row[1], row[2], row[4]) for row in figures[1:] if row[1:]} == {("10", "50.0%", "1,234")}
    assert {row[1] for row in evidence[1:] if row[1:]} == {"50%\nof 2, 9% to 91%"}


def test_bands_are_spoken_of_where_training_went_through_several_sizes_alone(tmp_path: Path) -> None:
    for name, sizes in (("grown", [1, 1, 2, 2]), ("one", [2, 2, 2, 2])):
        write_report(tmp_path / name, results(sizes=sizes))
        text = (tmp_path / name / "report.html").read_text()
        assert "Thin line: mean reward" in text
        assert ("Each band is" in text) == (name == "grown")
    assert reward_figure([0.1, 0.9], [1, 2]) != reward_figure([0.1, 0.9], [2, 2])


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(tmp_path / name, results())
    assert (tmp_path / "a" / "report.html").read_bytes() == (tmp_path / "b" / "report.html").read_bytes()


def test_pictures_are_whole_and_legible_in_size() -> None:
    points = [Point(4 * m, 0.9, 0.8, 1.0) for m in (1, 16, 64, 256)]
    for png in (
        reward_figure([0.1, 0.9], [1, 2]),
        accuracy_figure({"agent": points}, training_length=4),
        tokens_figure({"agent": points}, training_length=4),
    ):
        width, height = png_size(png)
        assert width > 900
        assert height > 500
        assert len(zlib.decompress(b"".join(_idat(png)))) > width * height


def _idat(png: bytes) -> list[bytes]:
    found, at = [], 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            found.append(png[at + 8 : at + 8 + length])
        at += 12 + length
    return found


def test_visible_keeps_text_and_shows_controls() -> None:
    assert visible("Zoë 東京\nok") == "Zoë 東京\nok"
    assert visible("\x00\x9b\u200f\ud800") == "\\x00\\x9b\\u200f\\ud800"


def test_figures_drawn_on_new_threads_open_no_further_file() -> None:
    points, opened, end = {"agent": [Point(4, 0.5, 0.4, 0.6)]}, list[int](), threading.Event()

    def draw() -> None:
        accuracy_figure(points, training_length=4)
        opened.append(len(list(Path("/proc/self/fd").iterdir())))
        end.wait()  # another thread may get the name of one that ended

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for number, thread in enumerate(threads):
        thread.start()
        while len(opened) <= number and thread.is_alive():
            thread.join(0.01)
    end.set()
    for thread in threads:
        thread.join()
    assert opened == opened[:1] * 4
