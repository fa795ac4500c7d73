"""The picture of a memory being overwritten: its content, without scripts and links."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from memory_picture import EVIDENCE, KEPT, Section, Told, svg

ROOT = Path(__file__).parents[2]
NAMESPACE = "{http://www.w3.org/2000/svg}"
EPISODE = Told(
    question="What does <b>Anna</b> drink?",
    sections=[
        Section(["Bob eats figs.", "Anna sells cups."], ["Anna sells cups."]),
        Section(["Anna drinks tea."], ["Anna drinks tea.", "Anna sells cups."]),
    ],
    evidence=frozenset({"Anna drinks tea."}),
    answer="boxed{tea}",
    gold="tea",
)


def texts(root: ElementTree.Element) -> list[str]:
    return [row.text or "" for row in root.iter(f"{NAMESPACE}text")]


def test_the_picture_shows_question_sections_memories_and_answer_in_order() -> None:
    shown = texts(ElementTree.fromstring(svg(EPISODE)))
    assert shown[0] == "Question: What does <b>Anna</b> drink?"
    assert shown[3:] == [
        "section 1", "Bob eats figs.", "Anna sells cups.", "Anna sells cups.",
        "section 2", "Anna drinks tea.", "Anna drinks tea.", "Anna sells cups.",
        "Answer, from the last memory alone: boxed{tea}   (gold: tea)",
    ]  # fmt: skip


def test_evidence_and_what_was_copied_are_marked() -> None:
    fills = [row.get("fill") for row in ElementTree.fromstring(svg(EPISODE)).iter(f"{NAMESPACE}rect")]
    assert fills.count(EVIDENCE) == 2  # read, and kept
    assert fills.count(KEPT) == 1


def test_the_picture_in_the_readme_loads_nothing() -> None:
    root = ElementTree.fromstring((ROOT / "docs" / "images" / "memory.svg").read_text("utf-8"))
    assert {row.tag.removeprefix(NAMESPACE) for row in root.iter()} <= {"svg", "title", "rect", "text", "line"}
    assert texts(root)[0].startswith("Question: ")
    assert texts(root)[-1].startswith("Answer, from the last memory alone: ")
