"""Speculative reading gives the trajectories of sequential reading in fewer steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import PolicyConfig, SamplingConfig
from palimpsest.data.synthetic.documents import SyntheticSource
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.errors import EngineError, SamplerError
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.memory.registry import build_policy
from palimpsest.rollout.episode import play
from palimpsest.rollout.speculation import AUTO_MOST, Speculation
from palimpsest.types import Completion, Outcome, Problem, SamplingParams, StopReason, Trajectory
from support.fakes import LetterCodec

SECTIONS = 40
PROBLEM = Problem("p", "", ("x",), "".join(chr(97 + index % 26) for index in range(SECTIONS)))
CODEC: Any = LetterCodec()


class Letters(MemoryPolicy):
    """Reads a letter a turn; the memory is the last reply but "-", which leaves it unchanged."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        text, memory = problem.context or "", "."
        for index, letter in enumerate(text):

            def ahead(number: int, index: int = index, memory: str = memory) -> list[int] | None:
                at = index + number
                return model.codec.encode(memory + text[at]) if at < len(text) else None

            prompt = model.codec.encode(memory + letter)
            completion = await model.generate(prompt, name="read", max_tokens=4, ahead=ahead)
            written = model.codec.decode(completion.token_ids)
            memory = memory if written == "-" else written
            model.event("wrote", memory=memory)
        return Answered(memory)


class Marks:
    """Replies "-", or the letter for those in `marks`. Raises the errors of `fail`; counts requests in flight."""

    max_context, version = 1000, 0

    def __init__(self, marks: str = "", fail: dict[str, list[Exception]] | None = None) -> None:
        self.marks, self.fail = marks, fail or {}
        self.calls: list[str] = []
        self.now = self.most = 0

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, **options: Any) -> Completion:
        prompt = "".join(map(chr, prompt_ids))
        self.calls.append(prompt)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            if self.fail.get(prompt):
                raise self.fail[prompt].pop(0)
            reply = prompt[1] if prompt[1] in self.marks else "-"
            return Completion((ord(reply), 0), (-0.5, -0.5), StopReason.STOP)
        finally:
            self.now -= 1


async def read(sampler: Any, speculation: Speculation | None, problem: Problem = PROBLEM, **options: Any) -> Trajectory:
    values: dict[str, Any] = {"key": (0,), "group_id": "g", "rollout": 0, "speculation": speculation, **options}
    return await play(problem, policy=Letters(), sampler=sampler, codec=CODEC, sampling=SamplingConfig(), **values)


def episode(sampler: Any, reads: int | str = "off", *, speculation: Speculation | None = None, **options: Any) -> Any:
    engine = SimpleNamespace(speculative_reads=reads)
    return asyncio.run(read(sampler, speculation or Speculation.of(engine, 64), **options))


@pytest.mark.parametrize("reads", [2, 7, 64, "auto"])
@pytest.mark.parametrize("marks", ["", "a", "cg", "abcdefghijklmnopqrstuvwxyz"])
def test_the_record_is_the_one_of_sequential_reading(marks: str, reads: int | str) -> None:
    expected = episode(Marks(marks))
    assert episode(Marks(marks), reads) == expected
    assert len(expected.turns) == SECTIONS


def test_a_document_without_changes_takes_few_steps_and_discards_nothing() -> None:
    """By hand: blocks of 1, 2, 4, 8, 16 and the last 9 of 40 sections."""
    speculation, sampler = Speculation("auto", 64), Marks()
    episode(sampler, speculation=speculation)
    assert (speculation.read, speculation.steps, speculation.discarded) == (40, 6, 0)
    assert len(sampler.calls) == SECTIONS
    assert (speculation.in_flight, speculation.episodes) == (0, 0)
    assert speculation.take_metrics() == {"reading/sections_per_step": 40 / 6, "reading/discarded_tokens": 0.0}
    assert speculation.take_metrics() == {}


def test_a_change_discards_the_reads_after_it() -> None:
    """Sections of the blocks: a, bc, defg. d changes the memory, so efg are read again."""
    speculation, sampler = Speculation(64, 64), Marks("d")
    episode(sampler, speculation=speculation)
    assert sampler.calls[:9] == [".a", ".b", ".c", ".d", ".e", ".f", ".g", "de", "df"]
    assert "dd" in sampler.calls  # the alphabet's second d changes nothing, for the memory is "d"
    assert speculation.discarded >= 3 * len(".e")


def test_auto_uses_only_free_slots() -> None:
    async def work(count: int, capacity: int) -> tuple[Marks, Speculation]:
        sampler, speculation = Marks(), Speculation("auto", capacity)
        await asyncio.gather(*(read(sampler, speculation, replace(PROBLEM, id=f"p{index}")) for index in range(count)))
        return sampler, speculation

    alone, speculation = asyncio.run(work(1, 16))
    assert alone.most == 16
    assert speculation.steps < SECTIONS / 4
    full, speculation = asyncio.run(work(16, 16))
    assert (full.most, speculation.steps) == (16, 16 * SECTIONS)
    some, _ = asyncio.run(work(4, 32))
    assert 4 < some.most <= 32
    assert asyncio.run(work(1, 1000))[0].most <= AUTO_MOST


@pytest.mark.parametrize(("marks", "outcome", "turns"), [("d", Outcome.ANSWERED, 40), ("", Outcome.SAMPLER_FAILED, 4)])
def test_a_failure_counts_only_in_a_turn_that_counts(marks: str, outcome: Outcome, turns: int) -> None:
    """If d changes the memory, a failed guess of e with the old one leaves no trace; a failure of c does."""

    def sampler() -> Marks:
        return Marks(marks, {".e": [SamplerError("lost")] * 9, ".c": [SamplerError("reset")]})

    trajectory = episode(sampler(), 64)
    assert trajectory == episode(sampler())
    assert (trajectory.outcome, len(trajectory.turns)) == (outcome, turns)
    assert next(event.before_turn for event in trajectory.events if event.kind == "sampler_error") == 3


def test_a_lost_engine_ends_the_episode_only_in_a_turn_that_counts() -> None:
    assert episode(Marks("d", {".e": [EngineError("gone")]}), 64).outcome is Outcome.ANSWERED
    with pytest.raises(EngineError):
        episode(Marks("", {".e": [EngineError("gone")]}), 64)


async def test_an_episode_that_ends_early_leaves_no_request() -> None:
    sampler, speculation = Marks("", {".d": [SamplerError("lost")] * 3}), Speculation(64, 64)
    await read(sampler, speculation, retries=0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert (sampler.now, speculation.in_flight, speculation.episodes) == (0, 0, 0)


def test_recorded_turns_are_reused_and_the_rest_is_read_ahead() -> None:
    expected, sampler = episode(Marks("d")), Marks("d")
    assert episode(sampler, 64, recorded=expected.turns[:10]) == expected
    assert len(sampler.calls) >= SECTIONS - 10
    assert ".a" not in sampler.calls


@pytest.mark.parametrize(
    ("engine", "training", "reads"),
    [
        ("embedded", False, "auto"),
        ("embedded", True, None),
        ("embedded engine.speculative_reads=off", False, None),
        ("embedded engine.speculative_reads=8", True, 8),
        ("endpoint engine.url=http://127.0.0.1:1/v1", False, None),
        ("endpoint engine.url=http://127.0.0.1:1/v1 engine.speculative_reads=auto", False, "auto"),
    ],
)
def test_the_setting(engine: str, training: bool, reads: Any) -> None:
    name, *overrides = engine.split()
    config = load_recipe("memagent-quickstart", [f"engine.name={name}", *overrides])
    speculation = Speculation.of(config.engine, 64, training=training)
    assert (speculation and speculation.reads) == reads


POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "overwrite": ("memagent-quickstart", {"grounded": "verbatim"}),
    "overwrite, no rule": ("memagent-quickstart", {"grounded": "off"}),
    "recall": ("rememr1-quickstart", {}),
    "retrieval": ("memagent-quickstart", {}),
    "examples.gated:GatedPolicy": ("memagent-quickstart", {"reply_tokens": 16, "prompts": "standard"}),
    "examples.heads:HeadsPolicy": ("memagent-quickstart", {"heads": 2, "prompts": "standard"}),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    opened = open_engine(load_recipe("memagent-quickstart"), objective=None)
    yield opened
    asyncio.run(opened.close())


def read_both_ways(engine: Engine, name: str, temperature: float, count: int, chunks: int) -> int:
    """Episodes in which a draw differs. The others are equal, with log-probabilities within 1e-4 nats."""
    recipe, options = POLICIES[name]
    config = load_recipe(recipe)
    given = {**config.policy.options, **options}
    if name != "recall":
        given.pop("retriever", None)
    if name.startswith("examples"):
        given["chunk_size"] = 16
    policy = build_policy(PolicyConfig(name=name.partition(",")[0], options=given))
    problems = SyntheticSource(config.data.synthetic, 5, "eval").problems(step=0, count=count, size=chunks)

    async def play_all(speculation: Speculation | None) -> list[Trajectory]:
        common: dict[str, Any] = {"policy": policy, "sampler": engine.sampler, "codec": engine.codec, "key": (0,)}
        common |= {"sampling": SamplingConfig(temperature=temperature), "rollout": 0, "speculation": speculation}
        return await asyncio.gather(*(play(problem, group_id=problem.id, **common) for problem in problems))

    expected, speculation = asyncio.run(play_all(None)), Speculation(8, 64)
    others = 0
    for one, other in zip(expected, asyncio.run(play_all(speculation)), strict=True):
        if [turn.completion.token_ids for turn in one.turns] != [turn.completion.token_ids for turn in other.turns]:
            others += 1
            continue
        assert (one.answer, one.events) == (other.answer, other.events)
        for turn, again in zip(one.turns, other.turns, strict=True):
            assert again.completion.logprobs == pytest.approx(turn.completion.logprobs, rel=0, abs=1e-4)
            assert replace(again, completion=replace(again.completion, logprobs=turn.completion.logprobs)) == turn
    assert speculation.steps < speculation.read
    return others


@pytest.mark.parametrize(("name", "temperature"), [("overwrite", 0.0), *((name, 1.0) for name in POLICIES)])
def test_real_weights_give_the_same_tokens(engine: Engine, name: str, temperature: float) -> None:
    assert read_both_ways(engine, name, temperature, count=6, chunks=10) == 0


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", POLICIES)
def test_a_thousand_episodes_give_the_same_tokens(engine: Engine, name: str, temperature: float) -> None:
    assert read_both_ways(engine, name, temperature, count=1000, chunks=12) <= (20 if temperature else 0)
