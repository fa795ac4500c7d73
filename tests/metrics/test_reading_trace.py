"""Turns that read, and the origins of kept sentences compared with a plain search of every run of words."""

from __future__ import annotations

import asyncio
import random
import re
from functools import partial
from typing import Any

from palimpsest.config.schema import SamplingConfig
from palimpsest.memory.policy import Answered, MemoryPolicy
from palimpsest.metrics.memory_metrics import memory_metrics
from palimpsest.metrics.reading_trace import RUN, GroupTexts, ReadingTurn, Text, last_memory, origins, readings
from palimpsest.rollout.episode import play
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, Prompt, StopReason, Trajectory, Turn
from support.fakes import LetterCodec, SeedSampler
from support.groups import CODEC, reading_turn

WORD = re.compile(r"\w+(?:['’]\w+)*")


def longest_run(sentence: str, document: str) -> int:
    """Words of the longest run."""
    words = [word.casefold() for word in WORD.findall(sentence)]
    there = [word.casefold() for word in WORD.findall(document)]
    least = min(RUN, len(words))
    for length in range(len(words), max(least, 2) - 1, -1):
        runs = {tuple(there[start : start + length]) for start in range(len(there) - length + 1)}
        if any(tuple(words[start : start + length]) in runs for start in range(len(words) - length + 1)):
            return length
    return 0


def test_the_longest_run_is_a_slice_of_the_document() -> None:
    rng = random.Random(5)
    vocabulary = ["Anna", "Bob", "eats", "sells", "tea", "honey", "in", "Rome", "the"]
    for _ in range(300):
        document = " ".join(rng.choices(vocabulary, k=rng.randrange(1, 60))) + "."
        retained = [" ".join(rng.choices(vocabulary, k=rng.randrange(1, 9))) for _ in range(3)]
        for sentence, span in zip(retained, origins(retained, document), strict=True):
            result = "" if span is None else document[slice(*span)]
            assert len(WORD.findall(result)) == longest_run(sentence, document), (sentence, document, result)
            assert result.casefold() in sentence.casefold()


def reading(section: str, before: str, after: str) -> ReadingTurn:
    """A turn that read `section` and wrote `after` over `before`."""
    texts = {text: Text((), partial(str, text)) for text in (section, before, after, "")}
    rest: dict[str, Any] = dict.fromkeys(("sources", "query", "malformed"))
    return ReadingTurn(
        turn=Turn((1,), Completion((2,), (0.0,), StopReason.STOP), 0, "read"),
        **{"memory_before": texts[before], "memory_after": texts[after], "update": texts[after]},
        **{"changed": before != after, "section": texts[section], "recalled": texts[""], "recall_result": ""},
        **{"in_tags": False, "asks": False},
        **rest,
    )


def test_an_origin_is_in_the_section_that_added_the_sentence() -> None:
    fact = "Anna lives in Rome."
    sections = [f"{fact} One.\n", f"{fact} Two.\n", f"{fact} Three.\n"]
    document = "".join(sections)
    read = [reading(sections[0], "", ""), reading(sections[1], "", fact), reading(sections[2], fact, fact)]
    assert origins([fact], document, read) == [(len(sections[0]), len(sections[0]) + len(fact) - 1)]
    assert origins([fact], document) == [(0, len(fact) - 1)]


def test_only_text_that_was_read_has_origins() -> None:
    document = "Anna lives in Rome by the sea. Bob drinks tea at noon every day."
    cut = document.index("by")
    read = [reading(document[:cut], "", "x"), reading(document[cut:31], "x", "Anna lives in Rome by the sea.")]
    retained = ["Anna lives in Rome by the sea.", "Bob drinks tea at noon."]
    assert origins(retained, document, read) == [(0, 29), None]


def test_a_section_may_start_inside_a_character() -> None:
    document = "Ärger in Ölhausen. Anna lives in Rome today."
    read = [reading("�rger in Ölhausen. Anna lives in Rome today.", "", "Anna lives in Rome today.")]
    assert origins(["Anna lives in Rome today."], document, read) == [(19, 43)]


# ---- custom policies -------------------------------------------------------------------------------------------


class NotesPolicy(MemoryPolicy):
    """A custom policy that appends each reply to notes; its turns have other names."""

    async def run(self, problem: Problem, model: Any) -> Answered:
        encode = model.codec.encode
        notes: list[int] = []
        for section in str(problem.context).split("|"):
            pieces = [encode("Notes: "), Prompt.named("memory", notes), Prompt.named("section", encode(section))]
            notes = [*notes, *(await model.generate(Prompt.joined(pieces), name="note", max_tokens=8)).token_ids[:-1]]
        await model.generate(Prompt.named("memory", notes), name="say", max_tokens=8)
        return Answered("yes")


def test_a_custom_policy_is_measured_by_the_pieces_that_it_names() -> None:
    problem = Problem("p", "?", ("x",), "yes|no ", {"evidence": ["yes"]})
    options = {"codec": CODEC, "sampling": SamplingConfig(), "key": (3,), "group_id": "g", "rollout": 2}
    trajectory = asyncio.run(play(problem, policy=NotesPolicy(), sampler=SeedSampler(), **options))
    replies = [CODEC.decode(turn.completion.token_ids) for turn in trajectory.turns[:2]]
    reads = readings(trajectory, GroupTexts(CODEC))
    assert [str(reading.memory_before) for reading in reads] == ["", replies[0]]
    assert [str(reading.memory_after) for reading in reads] == [replies[0], replies[0] + replies[1]]
    assert [str(reading.section) for reading in reads] == ["yes", "no "]
    metrics = memory_metrics(Group(problem, (trajectory,), (Grade(1.0),)), GroupTexts(CODEC))
    assert metrics["tokens"] == 4.5
    assert metrics["copy_fidelity"] is not None
    assert str(last_memory(trajectory, GroupTexts(CODEC))) == replies[0] + replies[1]


def test_only_the_needed_pieces_of_a_prompt_are_decoded() -> None:
    decoded = []

    class Counting(LetterCodec):
        def decode(self, ids: Any, *, control: bool = True) -> str:
            decoded.append(tuple(ids))
            return super().decode(decoded[-1], control=control)

    codec = Counting()
    problem = Problem("p", "Where?", ("Rome",), None, {"evidence": ["It rains."]})
    sections = (("It rains.", "none"), ("It snows.", "It rains."))
    turns = (reading_turn(step, *texts, "It rains.", "Where?") for step, texts in enumerate(sections))
    played = Trajectory("p", "g", 0, tuple(turns), Outcome.ANSWERED, "Rome")
    memory_metrics(Group(problem, (played,), (Grade(1.0),)), GroupTexts(codec))
    assert sorted(codec.encode(text) for text in ("It rains.", "none")) == sorted(map(list, set(decoded)))
    assert len(decoded) == len(set(decoded))
