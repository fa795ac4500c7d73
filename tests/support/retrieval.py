"""A retrieval server in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@contextmanager
def process(corpus: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "palimpsest.cli.main", "retrieval", "serve"]
    child = subprocess.Popen(
        [*command, "--corpus", str(corpus), "--port", "0", *options],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout
        found = re.search(r"http://\S+(?=/retrieve)", child.stdout.readline())
        assert found
        yield found.group(), child
    finally:
        child.kill()
        child.wait()
