"""A command of palimpsest that serves, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@contextmanager
def serving_process(
    words: Sequence[str], path: str, stderr: int | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that its first line names before `path`, and the process, which is killed at the end. `stderr` as
    Popen has it."""
    child = subprocess.Popen(
        [sys.executable, "-m", "palimpsest.cli.main", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    try:
        assert child.stdout
        found = re.search(rf"http://\S+(?={path})", child.stdout.readline())
        assert found
        yield found.group(), child
    finally:
        child.kill()
        child.wait()
