"""Workers of the benchmarks: what they answer, and how they fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from palimpsest.bench.worker import Worker, measured
from palimpsest.errors import BenchError

COUNTING = """
import json, sys
task = json.loads(sys.stdin.readline())
print("loading")
print(json.dumps({"ready": True}), flush=True)
for number, _ in enumerate(sys.stdin):
    print("a library's line", flush=True)
    print(json.dumps({"round": number, "start": task["start"]}), flush=True)
"""


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_each_round_is_answered_and_what_libraries_print_is_passed_over() -> None:
    with Worker(command(COUNTING), {"start": 7}, what="counting") as worker:
        assert [worker.round() for _ in range(2)] == [{"round": 0, "start": 7}, {"round": 1, "start": 7}]


def test_a_task_of_any_size_reaches_the_worker() -> None:
    start = "x" * 500_000  # one argument of a command holds 131,072 bytes at the most
    assert measured(command(COUNTING), {"start": start}, what="counting")["start"] == start


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ValueError('no such model')", "no such model"),
        (COUNTING.replace("task['start']", "task['stop']").replace('task["start"]', 'task["stop"]'), "'stop'"),
        ("import sys; sys.exit(3)", "ended without a word"),
        ("import time; time.sleep(60)", "no answer within 0.5 s"),
    ],
)
def test_a_worker_that_fails_is_named_with_its_reason(code: str, reason: str) -> None:
    timeout_s = 0.5 if "sleep" in code else None
    with (
        pytest.raises(BenchError, match=f"the peer failed: .*{reason}"),
        Worker(command(code), {"start": 1}, what="the peer", timeout_s=timeout_s) as worker,
    ):
        worker.round()


def test_no_worker_outlives_its_use() -> None:
    with Worker(command(COUNTING), {"start": 1}, what="counting") as worker:
        process = worker._process
    assert process.returncode is not None
    assert not Path(f"/proc/{process.pid}").exists()
