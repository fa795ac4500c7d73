"""Mutated replies through the agent's own handling: nothing escapes, nothing is deleted that wasn't named."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time

import pytest

from agents import SMALL, base_codec, call, prune, search, world
from palimpsest.memory.check import ScriptedModel
from palimpsest.memory.history import Exchange, Result, said_text
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.tool_agent import Episode
from palimpsest.seeding import keyed_random
from palimpsest.text.tool_calls import find_calls
from palimpsest.types import Completion, StopReason
from test_tool_calls import mutated

AGENT = PrunePolicy(**{**SMALL, "parallel_calls": 64})
IDS = [AGENT.result_id(world(), number) for number in range(6)]


def before() -> Episode:
    """An episode with six results in three exchanges."""
    codec = base_codec()
    episode = Episode(world(), ScriptedModel(codec, lambda prompt, limit: [], 4000), AGENT.begin(world(), codec))
    for number in range(0, 6, 2):
        text = f"{search('a')}\n{search('b')}"
        spans = [(one.start, one.end) for one in find_calls(text, "hermes")]
        results = tuple(Result(IDS[number + at], tuple(codec.encode("x")), span) for at, span in enumerate(spans))
        episode.history = episode.history.append(Exchange((*codec.encode(text), codec.stop_ids[-1]), results))
    episode.results = 6
    return episode


def original(draw: random.Random) -> str:
    """Prunes of one or two ids, and searches."""
    made = [
        draw.choice([prune(*draw.sample(IDS, draw.randrange(1, 3)), memory=f"m{draw.random()}"), search("Alice")])
        for _ in range(draw.randrange(1, 4))
    ]
    return "\n".join(made)


def ids_named(text: str) -> set[str]:
    """Of every prune that stands whole between two neighbouring tags, read by other means."""
    named: set[str] = set()
    for inner in re.findall(r"<tool_call>((?:(?!<tool_call>).)*?)</tool_call>", text, re.DOTALL):
        try:
            value = json.loads(inner)
            named |= {one for one in value["arguments"]["delete_ids"] if isinstance(one, str)}
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return named


def handle(number: int) -> tuple[int, float]:
    """How many results one mutated reply deleted, and the seconds it took."""
    codec, draw = base_codec(), keyed_random(0, "prune mutations", number)
    text = mutated(draw, original(draw)).encode("utf-8", "replace").decode()
    ids = (*codec.encode(text)[:4096], codec.stop_ids[-1])
    completion = Completion(ids, (0.0,) * len(ids), StopReason.STOP)
    episode = before()
    start = time.perf_counter()
    found = find_calls(said_text(ids, codec), "hermes")
    if found:
        asyncio.run(AGENT.answer_calls(episode, completion, found))
    episode.history.ids()
    took = time.perf_counter() - start
    left = episode.history.result_ids()
    gone = set(IDS) - set(left)
    assert gone <= ids_named(said_text(ids, codec))
    assert left[: 6 - len(gone)] == [one for one in IDS if one not in gone]
    assert len(left) == 6 - len(gone) + len(found)
    return len(gone), took


def test_mutated_replies_delete_nothing_that_is_not_named() -> None:
    gone = [handle(number)[0] for number in range(300)]
    assert sum(map(bool, gone)) > 30  # the check wasn't idle
    assert gone.count(0) > 30


@pytest.mark.slow
def test_20000_mutated_replies_delete_nothing_that_is_not_named() -> None:
    assert sum(handle(number)[0] > 0 for number in range(20_000)) > 2000


@pytest.mark.parametrize("unit", ["<tool_call>", call("f"), '{"a":', "\\", "[", "a ", prune("zz")])
def test_a_megabyte_of_anything_deletes_nothing(unit: str) -> None:
    episode = before()
    text = (unit * (1_000_000 // len(unit)))[:1_000_000]
    found = find_calls(text, "hermes")
    asyncio.run(AGENT.answer_calls(episode, Completion((1, 2), (0.0, 0.0), StopReason.STOP), found))
    assert episode.history.result_ids()[:6] == IDS
