"""A serving command of palimpsest as a child process."""

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
    """The address before `path` in its first line, and the process, which is killed at the end."""
    command = [sys.executable, "-m", "palimpsest.cli.main", *words]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert child.stdout
        address = re.search(rf"http://\S+(?={path})", child.stdout.readline())
        assert address
        yield address.group(), child
    finally:
        child.kill()
        child.wait()
