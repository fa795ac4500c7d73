"""Stories on a report's page: a failure next to a success, memory by memory, without markup from models."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from palimpsest.report.page import (
    LEGEND,
    SHOWN_TURNS,
    ToldPart,
    ToldStory,
    ToldTurn,
    colours,
    contrasting_stories,
    page,
)
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, Prompt, StopReason, Trajectory, Turn

PROBLEM = Problem("p", "Where does Anna live?", ("Rome",), metadata={"evidence": ["Anna lives in Rome."]})
SECTIONS = ("Anna lives in Rome.", "Bob sleeps.", "Carla sings.")


def episode(codec: Codec, rollout: int, memories: tuple[str, ...]) -> Trajectory:
    """An agent that writes these memories, a section each, then answers."""
    turns, memory = [], "none"
    for step, written in enumerate((*memories, "Rome")):
        pieces = {"question": PROBLEM.question, "memory": memory}
        if step < len(memories):
            pieces["section"] = SECTIONS[step % len(SECTIONS)]
        prompt = Prompt.joined([Prompt.named(name, codec.encode(text)) for name, text in pieces.items()])
        ids = tuple(codec.encode(written))
        name = "read" if step < len(memories) else "answer"
        turns.append(
            Turn(tuple(prompt), Completion(ids, (0.0,) * len(ids), StopReason.STOP), step, name, spans=prompt.spans)
        )
        memory = written
    return Trajectory("p", "g", rollout, tuple(turns), Outcome.ANSWERED, "Rome")


def group(codec: Codec, *played: tuple[tuple[str, ...], float | None]) -> Group:
    episodes = tuple(episode(codec, rollout, memories) for rollout, (memories, _) in enumerate(played))
    return Group(PROBLEM, episodes, tuple(Grade(value, None if value is not None else "lost") for _, value in played))


RIGHT = ("Anna lives in Rome.", "Anna lives in Rome.", "Anna lives in Rome.")
WRONG = ("Anna lives in Rome.", "Bob sleeps.", "Zoe flies high.")


def test_a_failure_is_next_to_a_success_of_the_same_problem(tiny_codec: Codec) -> None:
    alone = group(tiny_codec, (WRONG, 0.0), (WRONG, None))
    both = group(tiny_codec, (RIGHT, 1.0), (WRONG, 0.0))
    wrong, right = contrasting_stories([alone, both], tiny_codec)
    assert (wrong.kind, wrong.grade, right.kind, right.grade) == ("wrong", "reward 0.00", "right", "reward 1.00")
    assert [(turn.number, turn.unchanged) for turn in wrong.turns] == [(1, 0), (2, 0), (3, 0)]
    kinds = [{part.kind for part in turn.pieces} for turn in wrong.turns]
    assert ("section" in kinds[0], "lost" in kinds[1], "nowhere" in kinds[2]) == (True, True, True)
    assert ([turn.number for turn in right.turns], right.unchanged) == ([1], 2)
    assert len(contrasting_stories([alone], tiny_codec)) == 1
    assert contrasting_stories([group(tiny_codec, (RIGHT, 1.0))], tiny_codec) == []


def test_only_the_end_of_a_long_story_is_shown(tiny_codec: Codec) -> None:
    memories = tuple(f"Memory number {number} of many." for number in range(SHOWN_TURNS + 5))
    (story,) = contrasting_stories([group(tiny_codec, (memories, 0.0))], tiny_codec)
    assert (len(story.turns), story.left_out) == (SHOWN_TURNS, 5)
    assert story.turns[-1].number == SHOWN_TURNS + 5


def test_a_memory_that_stays_empty_is_no_change(tiny_codec: Codec) -> None:
    memories = ("", "", "Anna lives in Rome.", "Anna lives in Rome.", "", "")
    (story,) = contrasting_stories([group(tiny_codec, (memories, 0.0))], tiny_codec)
    assert [(turn.number, turn.unchanged) for turn in story.turns] == [(3, 2), (5, 1)]
    assert story.unchanged == 1


class Text(HTMLParser):
    """Tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_no_text_of_a_story_becomes_markup() -> None:
    attack = "<script>alert(1)</script>{{ 7*7 }}\"'"
    turn = ToldTurn(1, [ToldPart(kind, attack) for kind, _ in LEGEND], 0)
    story = ToldStory("wrong", attack, [turn], 0, 0, attack, attack, "reward 0.00")
    reader = Text()
    look, rest = (
        f"palimpsest view {attack}",
        {"title": attack, "lead": attack, "facts": [(attack, attack)], "config": ""},
    )
    reader.feed(page("page.html.j2", stories=[story], legend=LEGEND, look=look, figures=[], **rest))
    assert "script" not in reader.tags
    assert reader.text.count(attack) == len(LEGEND) + 9


def test_reports_have_the_viewers_colours_for_light_and_dark() -> None:
    style = str(colours())
    assert "color-scheme: light dark" in style
    for name in ("green", "blue", "red", "grey"):
        assert re.search(rf"--{name}: light-dark\(#\w+, #\w+\);", style)
    assert "</" not in style
