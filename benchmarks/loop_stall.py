"""How long the event loop stands still while `palimpsest train` trains: two source trees side by side.

    git worktree add /tmp/before REVISION
    python benchmarks/loop_stall.py /tmp/before .

A task on the training's own loop sleeps for a millisecond over and over; what it oversleeps is a stall. Each tree runs
in a process of its own, one after the other, as often as `--rounds` says.

Not covered: what stalls the loop for less than `SHORT_MS`, which is not counted in the sum.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from asyncio.base_events import BaseEventLoop
from pathlib import Path
from typing import Any

NAP_S = 0.001
SHORT_MS = 10.0
RECIPE = ("memagent-quickstart", "cold_start=null", "train.optimizer_steps=2", "logging.sinks=[jsonl]")
SIZES = ("train.steps=2", "train.prompts_per_step=4", "train.group_size=8")


def watch() -> list[float]:
    """Have every event loop of this process note its stalls, in ms, in the list returned."""
    stalls: list[float] = []
    run_until_complete = BaseEventLoop.run_until_complete

    async def naps() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(NAP_S)
            stalls.append(1000 * (time.perf_counter() - before - NAP_S))

    def watched(loop: BaseEventLoop, future: Any) -> Any:
        watcher = loop.create_task(naps())
        try:
            return run_until_complete(loop, future)
        finally:
            watcher.cancel()
            run_until_complete(loop, asyncio.gather(watcher, return_exceptions=True))

    BaseEventLoop.run_until_complete = watched  # type: ignore[method-assign, assignment]
    return stalls


def child() -> None:
    """Train in a folder that is thrown away; prints what was measured as JSON."""
    from palimpsest.cli.main import main as palimpsest

    stalls = watch()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        sys.argv = ["palimpsest", "train", *RECIPE, *SIZES, "--out", str(run)]
        try:
            palimpsest()
        except SystemExit as ended:
            if ended.code:
                raise
        rows = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()]
    steps = [row.get("timings", row) for row in rows]
    print(
        json.dumps(
            {
                "longest_ms": max(stalls),
                "stalled_s": sum(stall for stall in stalls if stall > SHORT_MS) / 1000,
                "rollout_s": sum(step["rollout_s"] for step in steps),
                "learn_s": sum(step["learn_s"] for step in steps),
            }
        )
    )


def measured(tree: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--child"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tree)
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr.strip().splitlines()[-1]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, help="folders of checkouts")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child()
        return
    print(
        "| tree | longest stall, ms | stalls over 10 ms, s in all | rollouts, s | learning, s |\n|---|---|---|---|---|"
    )
    for _ in range(options.rounds):
        for tree in options.trees:
            figures = measured(tree.resolve())
            print(
                f"| {tree} | {figures['longest_ms']:,.1f} | {figures['stalled_s']:.2f} | "
                f"{figures['rollout_s']:.2f} | {figures['learn_s']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
