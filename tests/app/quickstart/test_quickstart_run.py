"""Shards of a quickstart's evaluation."""

from __future__ import annotations

import asyncio
from pathlib import Path

from palimpsest.app.quickstart.quickstart_plan import resolve_quickstart
from palimpsest.app.quickstart.quickstart_run import Shard


def test_turns_of_readers_are_progress_too(tmp_path: Path) -> None:
    sizes = ["evaluation.sizes=[1]", "evaluation.problems=2", "data.synthetic.task=needle"]
    shard = Shard(resolve_quickstart("lead", sizes).config, tmp_path, "lead_before", "embedded-lead")
    said = list[int | str]()
    asyncio.run(shard.play(said.append))
    started = sum(one for one in said if isinstance(one, int))  # a query asked again samples nothing
    assert 2 * (1 + 4 + 1) <= started <= sum(sample.turns for sample in shard.samples())
