"""Logs read by inspect_ai's reader, in a Python that has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("PALIMPSEST_INSPECT_PYTHON", sys.executable)
_READ = """
import json, sys
from inspect_ai.log import read_eval_log
logs = [read_eval_log(path) for path in sys.argv[1:]]
print(json.dumps([[log.status, log.results.scores[0].metrics["mean"].value,
    [[s.id, s.epoch, s.input, s.target, s.output.completion, [m.text for m in s.messages],
      {name: score.value for name, score in s.scores.items()}] for s in log.samples]] for log in logs]))
"""


def read_by_inspect(*paths: Path) -> list[Any]:
    """Status and mean of each log, and id, epoch, input, target, completion, messages and scores of its samples.
    Skips the test without inspect_ai."""
    probe = subprocess.run([PYTHON, "-c", "import inspect_ai"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no inspect_ai: pip install inspect_ai, or name a Python that has it as $PALIMPSEST_INSPECT_PYTHON")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, "-c", _READ, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    logs: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return logs
