"""What an endpoint counted while it was asked: told when an evaluation ends, and kept in `usage.jsonl`.

Guaranteed: a line for each call that played something and came to an end, in the order of the calls.
Not covered: calls that were killed; what tokens cost.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from palimpsest import files
from palimpsest.engines.protocol import Engine
from palimpsest.progress.progress import Progress

T = TypeVar("T")

USAGE = "usage.jsonl"


async def metered(engine: Engine, work: Coroutine[Any, Any, T], out: Path | None, progress: Progress) -> T:
    """What `work` gives; however it ends, what the engine's endpoint counted meanwhile is told, and kept in `out`."""
    try:
        return await work
    finally:
        _record(engine, out, progress)


def _record(engine: Engine, out: Path | None, progress: Progress) -> None:
    """Of an engine that asks an endpoint; nothing of others, or where nothing was asked."""
    stats = engine.sampler.stats()
    if engine.limits.endpoint is None or not stats.requests:
        return
    cached = stats.prompt_tokens - stats.computed_prompt_tokens
    progress.message(
        f"the endpoint counted {stats.requests:,} requests, {stats.prompt_tokens:,} prompt tokens ({cached:,} of them "
        f"cached) and {stats.generated_tokens:,} sampled ones; {stats.failed:,} requests failed"
    )
    if out is None or not out.is_dir():
        return
    counted = {"url": engine.limits.endpoint.url, "requests": stats.requests, "failed": stats.failed}
    counted |= {"prompt_tokens": stats.prompt_tokens, "cached_tokens": cached, "sampled_tokens": stats.generated_tokens}
    with files.naming(out / USAGE), (out / USAGE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(counted) + "\n")
