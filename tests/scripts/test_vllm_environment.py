"""scripts/vllm_environment.py where it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "vllm_environment.py"


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (False, "error: pip can't install torch==2.13.0: No matching distribution found for torch==2.13.0"),
        (True, "error: {folder}: can't create an environment there: "),
    ],
)
@pytest.mark.slow
def test_a_failing_step_is_an_error_line_with_exit_status_1(there: bool, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    if there:
        folder.touch()
    command = [sys.executable, str(SCRIPT), str(folder), "--no-index"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment = plain | {"PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(message.format(folder=folder))
