"""Mutated replies delete only named results, leave the others unchanged, and cost a bounded number of calls."""

from __future__ import annotations

import asyncio
import json
import random
import re
from functools import partial

import pytest

from palimpsest.memory.parts.history import Exchange, History, Result, sampled_text
from palimpsest.memory.parts.tool_agent import ToolEpisode
from palimpsest.memory.policy_check import ScriptedModel
from palimpsest.memory.prune import PrunePolicy
from palimpsest.seeding import keyed_random
from palimpsest.text.tool_calls import find_calls
from palimpsest.types import Completion, StopReason
from support.agents import SMALL, base_codec, call, prune, search, world
from support.histories import concatenated, exchange, is_subsequence
from support.mutations import mutated
from support.work import calls_of

AGENT = PrunePolicy(**{**SMALL, "parallel_calls": 64})
LIMIT = 40_000
"""Functions called for one reply, whatever it says."""
IDS = [AGENT.result_id(world(), number) for number in range(6)]


def before() -> ToolEpisode:
    """An episode with six results in three exchanges."""
    codec = base_codec()
    episode = ToolEpisode(world(), ScriptedModel(codec, lambda prompt, limit: [], 4000), AGENT.begin(world(), codec))
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
    """Ids in the complete prunes between two neighbouring tags."""
    named: set[str] = set()
    for inner in re.findall(r"<tool_call>((?:(?!<tool_call>).)*?)</tool_call>", text, re.DOTALL):
        try:
            value = json.loads(inner)
            named |= {one for one in value["arguments"]["delete_ids"] if isinstance(one, str)}
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return named


def handle(number: int) -> int:
    """How many results one mutated reply deleted."""
    codec, draw = base_codec(), keyed_random(0, "prune mutations", number)
    text = mutated(draw, original(draw)).encode("utf-8", "replace").decode()
    ids = (*codec.encode(text)[:4096], codec.stop_ids[-1])
    episode = before()
    were, calls = episode.history, find_calls(sampled_text(ids, codec), "hermes")

    def answer() -> None:
        assert find_calls(sampled_text(ids, codec), "hermes") == calls
        if calls:
            asyncio.run(AGENT.answer_calls(episode, Completion(ids, (0.0,) * len(ids), StopReason.STOP), calls))
        episode.history.ids()

    assert calls_of(answer) < LIMIT
    left = episode.history.result_ids()
    gone = set(IDS) - set(left)
    assert gone <= ids_named(sampled_text(ids, codec))
    assert left[: 6 - len(gone)] == [one for one in IDS if one not in gone]
    assert len(left) == 6 - len(gone) + len(calls)
    check_survivors(were, episode.history, gone)
    assert not calls or episode.history.exchanges[-1].reply == ids
    return len(gone)


def check_survivors(were: History, now: History, gone: set[str]) -> None:
    """The remaining tokens are unchanged."""
    after = iter(now.exchanges)
    for one in were.exchanges:
        left = [at for at, result in enumerate(one.results) if result.id not in gone]
        if not left:
            continue
        reply, results = next(after).shown
        assert results == tuple(one.results[at] for at in left)
        assert sampled_text(reply, base_codec()) == "\n".join(search("ab"[at]) for at in left)
        assert reply == one.reply if len(left) == 2 else is_subsequence(list(reply), list(one.reply))
    assert list(now.ids()) == concatenated(now)


def test_mutated_replies_delete_only_named_results() -> None:
    gone = [handle(number) for number in range(150)]
    assert sum(map(bool, gone)) > 15  # the check wasn't idle
    assert gone.count(0) > 15


def test_cutting_calls_out_of_a_wide_reply_leaves_the_others_with_little_work() -> None:
    """64 calls that fill a reply's budget; every second one gone makes the most cuts."""
    codec, queries = base_codec(), [f"{number} Alice " + "who lives in Rome " * 4 for number in range(64)]
    wide = exchange(codec, "\n".join(map(search, queries)), "hermes")
    assert 3500 < len(wide.reply) <= 4096
    for gone in (range(0, 64, 2), range(1, 64, 2), keyed_random(0, "wide").sample(range(64), 20)):
        names = {f"r{at}" for at in gone}
        assert calls_of(partial(wide.without, names, codec)) < 2 * LIMIT  # 64 calls in one reply
        cut = wide.without(names, codec)
        assert cut is not None
        remaining = [search(query) for at, query in enumerate(queries) if at not in gone]
        assert sampled_text(cut.shown[0], codec) == "\n".join(remaining)


@pytest.mark.slow
def test_20000_mutated_replies_delete_only_named_results() -> None:
    assert sum(handle(number) > 0 for number in range(20_000)) > 2000


@pytest.mark.parametrize("unit", ["<tool_call>", call("f"), '{"a":', "\\", "[", "a ", prune("zz")])
def test_a_megabyte_of_anything_deletes_nothing(unit: str) -> None:
    episode = before()
    text = (unit * (1_000_000 // len(unit)))[:1_000_000]
    calls = find_calls(text, "hermes")
    asyncio.run(AGENT.answer_calls(episode, Completion((1, 2), (0.0, 0.0), StopReason.STOP), calls))
    assert episode.history.result_ids()[:6] == IDS
