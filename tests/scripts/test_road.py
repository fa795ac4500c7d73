"""How many files of the package a small command needs: what a reader of that road has to know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROAD = Path(__file__).parents[2] / "scripts" / "road.py"
MOST = {"eval": 90, "train": 115, "serve": 76}
"""Files in which a function is called. A limit stands at what holds today."""


@pytest.mark.slow
@pytest.mark.parametrize("command", MOST)
def test_a_road_gets_no_longer(command: str) -> None:
    done = subprocess.run([sys.executable, str(ROAD), command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *files, count = done.stdout.splitlines()
    assert int(count) <= MOST[command], "\n".join(files)
