"""Locks of a run's folder: of other processes, of dead ones, of other hosts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import RunConfig
from palimpsest.errors import RunError
from palimpsest.runs.run_folder import RunFolder, open_run

HOLDER = """
import sys, time
from palimpsest.config.schema import RunConfig
from palimpsest.runs.run_folder import open_run
open_run(sys.argv[1], RunConfig())
print("open", flush=True)
time.sleep(60)
"""


def quiet(path: Path, **options: Any) -> RunFolder:
    return open_run(path, RunConfig(), on_warning=lambda _: None, **options)


def test_a_second_process_is_rejected_and_the_lock_of_a_dead_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        for options in ({"resume": True}, {"force": True}):
            with pytest.raises(RunError, match=f"in use by process {holder.pid} on {socket.gethostname()} since"):
                quiet(path, **options)
        holder.kill()
    assert json.loads((path / ".lock").read_text())["pid"] == holder.pid
    with quiet(path, resume=True):
        assert json.loads((path / ".lock").read_text())["pid"] == os.getpid()


def test_a_lock_of_another_host_is_respected_until_it_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "run"
    quiet(path).close()
    (path / ".lock").write_text('{"pid": 7, "host": "elsewhere", "started": "2020-01-01 00:00:00"}')
    with pytest.raises(RunError, match=r"process 7 on elsewhere.*delete .*\.lock"):
        quiet(path, resume=True)
    (path / ".lock").unlink()
    quiet(path, resume=True).close()
