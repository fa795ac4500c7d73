"""Episodes are recorded while others are played: no request waits for the records, and no episode is lost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import SamplingConfig
from palimpsest.evaluation.runner import Arena, Entry, play_entries
from palimpsest.evaluation.sample_log import SAMPLES, Cell
from palimpsest.memory.document_baselines import ClosedBookPolicy
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Grade, Problem, SamplingParams, StopReason, Trajectory

TOGETHER = 4


@dataclass
class Waves:
    """Answers `TOGETHER` requests at the same moment; counts grades and records in the meantime."""

    max_context: int = 512
    stops_after: int | None = None
    calls: int = 0
    graded: int = 0
    recorded: int = 0
    recorded_at_call: list[int] = field(default_factory=list)
    most_behind: int = 0
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    async def generate(self, prompt_ids: Any, params: SamplingParams, **options: Any) -> Completion:
        self.calls += 1
        if self.stops_after is not None and self.calls > self.stops_after:
            raise KeyboardInterrupt
        self.recorded_at_call.append(self.recorded)
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        if len(self._waiting) == TOGETHER:
            for future in self._waiting:
                future.set_result(None)
            self._waiting.clear()
        await waiting
        return Completion((5,), (0.0,), StopReason.STOP)

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        self.graded += 1
        self.most_behind = max(self.most_behind, self.graded - self.recorded)
        return Grade(1.0)

    def measure(self, *_: Any) -> dict[str, float]:
        self.recorded += 1
        return {}


def play(codec: Codec, sampler: Waves, out: Path | None = None, problems: int = 8 * TOGETHER) -> None:
    episodes = [Problem(f"p{i}", "who?", ("x",)) for i in range(problems)]
    policy = ClosedBookPolicy(prompts="short", question_tokens=32, answer_tokens=4)
    entry = Entry(Cell("eval", None, None, "closed_book"), policy, episodes)
    arena = Arena(sampler, codec, sampler, SamplingConfig(temperature=0.0), (0,), measure=sampler.measure)
    asyncio.run(play_entries([entry], arena, out=out, concurrency=TOGETHER))


def test_requests_do_not_wait_for_records_which_stay_at_most_one_wave_behind(tiny_codec: Codec) -> None:
    sampler = Waves()
    play(tiny_codec, sampler, problems=40 * TOGETHER)
    assert sampler.recorded_at_call[: 2 * TOGETHER] == [0] * 2 * TOGETHER
    assert sampler.recorded == sampler.calls == 40 * TOGETHER
    assert TOGETHER <= sampler.most_behind <= 2 * TOGETHER


def test_an_interrupt_loses_no_episode_that_was_graded(tiny_codec: Codec, tmp_path: Path) -> None:
    sampler = Waves(stops_after=2 * TOGETHER)
    with pytest.raises(KeyboardInterrupt):
        play(tiny_codec, sampler, tmp_path)
    assert sampler.graded > sampler.recorded_at_call[-1]
    logged = [json.loads(line) for line in (tmp_path / SAMPLES).read_text("utf-8").splitlines()]
    assert len(logged) == sampler.graded == sampler.recorded
