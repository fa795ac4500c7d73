"""Scripted episodes of every kind of agent, and texts, for tests of the viewer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from palimpsest.config.schema import PolicyConfig
from palimpsest.memory.registry import build_policy
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, Question, StopReason, Trajectory, Turn
from palimpsest.viewer.analysis.memory_diff import MemoryDiff, WordOrigin
from palimpsest.viewer.analysis.token_words import Spelling, TokenWords
from palimpsest.viewer.screens.group_screen import Opened
from support.agents import base_codec, played, prune, search, world
from support.groups import CODEC, reading_turn

LETTERS = CODEC
LINES = ("Bob has a cat.", "Alice drinks tea.", "It is cold.", "Alice owns cats.")
DOCUMENT = "".join(f"{line}\n" for line in LINES)
EVIDENCE = {"evidence": [LINES[1]]}
READ = Problem("p", "What does Alice drink?", ("tea",), DOCUMENT, EVIDENCE)
SEVERAL = Problem.asking(
    "s", (Question("What does Alice drink?", ("tea",)), Question("Who has a cat?", ("Bob",))), DOCUMENT, EVIDENCE
)
_LINE = {"chunk_size": 8, "chunk_boundary": "line", "question_tokens": 60, "memory_tokens": 40, "answer_tokens": 12}
_SHORT = {**_LINE, "prompts": "short"}
_TOOLS = {"tools": {"search": {"topk": 1}}, "prompts": "short", "turn_tokens": 200, "context_tokens": 1500}
_MEMORIES = (" Bob has a cat.", " Bob has a cat. Alice drinks tea.", " Alice drinks tea. Alice owns dogs.", "")
_ANSWER = " \\boxed{tea}"


def words(spelling: Spelling, text: str) -> TokenWords:
    return spelling.words(spelling.codec.encode(text))


def read(step: int, section: str, memory: str, written: str, *, name: str = "read", **pieces: str) -> Turn:
    return reading_turn(step, section, memory, written, "Where does Ann live?", name=name, **pieces)


def reading(*memories: tuple[str, str], evidence: Sequence[str] = (), answer: str = "Rome") -> Opened:
    """A group of one episode of (section, memory written), one token per letter."""
    before, turns = "none", []
    for step, (section, memory) in enumerate(memories):
        turns.append(read(step, section, before, memory))
        before = memory
    return opened(Trajectory("p", "g", 0, tuple(turns), Outcome.ANSWERED, answer), {"evidence": list(evidence)})


def opened(trajectory: Trajectory, metadata: dict[str, Any] | None = None) -> Opened:
    problem = Problem("p", "Where does Ann live?", ("Rome",), None, metadata or {})
    return Opened(Group(problem, (trajectory,), (Grade(1.0),)), LETTERS)


@lru_cache
def episodes() -> dict[str, Opened]:
    """A group of one episode of every packaged policy and of some odd ones, by name."""
    shown = {name: _played(name, *script) for name, script in _SCRIPTS.items()}
    shown["several questions"] = _played("overwrite", _SHORT, (*_MEMORIES, _ANSWER, _ANSWER), SEVERAL)
    shown["nothing named"] = opened(Trajectory("p", "g", 0, (_bare(0), _bare(1)), Outcome.ANSWERED, "x"))
    shown["no turn"] = opened(Trajectory("p", "g", 0, (), Outcome.EMPTY_CONTEXT))
    return shown


def _bare(step: int) -> Turn:
    return Turn((65, 66, 67), Completion((68,), (-0.5,), StopReason.LENGTH), step, "think", {"odd": {"a": 1}})


def _tagged(*memories: str) -> tuple[str, ...]:
    """Replies in tags; the second recalls an earlier memory, the third is malformed."""
    texts = [f"<update>{memory}</update>" for memory in memories]
    texts[1] += " <recall>cat</recall>"
    texts[2] = texts[2].removesuffix("</update>")
    return (*texts, _ANSWER)


_RECALLING = {**_LINE, "prompts": "short", "reply_tokens": 120}
_RESULTS = (search("Alice"), search("Bob"))
_AGENT = (*_RESULTS, prune("a", "b", memory="Alice drinks tea."), prune("zz"), search("Alice"), "FINAL_ANSWER: tea")
_MALFORMED = "<tool_call>\nno\n</tool_call>"
_LONG = (*_RESULTS, "Alice drinks tea.", *_RESULTS, "FINAL_ANSWER: tea", "FINAL_ANSWER: tea")
_SCRIPTS: dict[str, tuple[dict[str, Any], tuple[str, ...], Problem]] = {
    "overwrite": (_SHORT, (*_MEMORIES, _ANSWER), READ),
    "recall": (_RECALLING, _tagged(*_MEMORIES), READ),
    "retrieval": (_SHORT, (*_MEMORIES, _ANSWER), READ),
    "full_context": ({"prompts": "short", "answer_tokens": 12, "window_tokens": 200}, (_ANSWER,), READ),
    "sliding_window": ({"prompts": "short", "answer_tokens": 12, "window_tokens": 60}, (_ANSWER,), READ),
    "closed_book": ({"prompts": "short", "answer_tokens": 12}, (_ANSWER,), READ),
    "prune": (_TOOLS, _AGENT, world()),
    "tool_window": ({**_TOOLS, "window_tokens": 150}, (*_RESULTS, _MALFORMED, "FINAL_ANSWER: tea"), world()),
    "summary": ({**_TOOLS, "turn_tokens": 60, "summary_tokens": 40, "context_tokens": 170}, _LONG, world()),
}


def _played(name: str, options: dict[str, Any], replies: Sequence[str], problem: Problem) -> Opened:
    policy = build_policy(PolicyConfig(name=name.split(" ")[0], options=options))
    trajectory, _ = played(policy, replies, problem)
    return Opened(Group(problem, (trajectory,), (Grade(1.0),)), base_codec())


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def texts() -> st.SearchStrategy[str]:
    """Of few words, so that they repeat."""
    word = st.sampled_from(["Ann", "Bo", "lives", "in", "Rome.", "rome", "é—ü", "the", "\n-", "tea,"])
    return st.lists(word, max_size=14).map(" ".join)


def applied(diff: MemoryDiff, before: Sequence[int]) -> tuple[int, ...]:
    """[T] ids of the memory after, built from the ids before and the new ones."""
    ids: list[int] = []
    for piece in diff.pieces:
        if piece.origin is WordOrigin.KEPT and piece.source is not None:
            ids += before[slice(*piece.source.tokens)]
        else:
            ids += piece.ids
    return tuple(ids)
