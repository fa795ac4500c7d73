"""Evaluations of an absurd concurrency, and logs beyond what one read of the system gives."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import SamplingConfig
from palimpsest.evaluation.runner import Arena, Entry, play_entries
from palimpsest.evaluation.sample_log import SAMPLES, Cell, read_samples
from palimpsest.memory.document_baselines import ClosedBookPolicy
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Grade, Problem, SamplingParams, StopReason, Trajectory

EPISODES = 6


class Watched:
    """Notes how many tasks there are."""

    max_context = 512

    def __init__(self) -> None:
        self.calls, self.tasks = 0, 0

    async def generate(self, prompt_ids: Any, params: SamplingParams, **options: Any) -> Completion:
        self.calls += 1
        self.tasks = max(self.tasks, len(asyncio.all_tasks()))
        return Completion((5,), (0.0,), StopReason.STOP)


class AllRight:
    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        return Grade(1.0)


def play(codec: Codec, sampler: Watched, out: Path, concurrency: int = 2) -> None:
    problems = [Problem(str(number), "q", ("a",)) for number in range(EPISODES)]
    entry = Entry(Cell("eval", None, None, "closed_book"), ClosedBookPolicy(), problems)
    arena = Arena(sampler, codec, AllRight(), SamplingConfig(), (0,))
    asyncio.run(play_entries([entry], arena, out=out, concurrency=concurrency))


def test_no_more_episodes_wait_at_once_than_there_are(tiny_codec: Codec, tmp_path: Path) -> None:
    sampler = Watched()
    play(tiny_codec, sampler, tmp_path, concurrency=100_000)
    assert sampler.calls == EPISODES
    assert sampler.tasks <= EPISODES + 2


def test_a_log_that_one_read_does_not_give_whole_is_kept(
    tiny_codec: Codec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux reads no more than 2 GiB at once."""
    play(tiny_codec, Watched(), tmp_path)
    whole = (tmp_path / SAMPLES).read_bytes()
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, min(size, len(whole) // 2), at))
    again = Watched()
    play(tiny_codec, again, tmp_path)
    assert again.calls == 0
    assert (tmp_path / SAMPLES).read_bytes() == whole
    assert len(read_samples(tmp_path / SAMPLES)[0]) == EPISODES
