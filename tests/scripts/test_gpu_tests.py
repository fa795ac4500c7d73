"""`make test-gpu`: which tests it runs, what its table says of each, and the whole of it at tiny size on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpu_tests import CHECKOUT, PARTS, Part, Result, run_parts, table

ENDINGS = """
import pytest

pytestmark = pytest.mark.gpu


def test_that_passes(record_property):
    record_property("gap, nats", 0.25)


def test_that_fails():
    assert False, "the first line\\nof its reason"


@pytest.mark.skipif(True, reason="the neighbour is not here")
def test_that_is_skipped():
    pass
"""
HANGING = """
import subprocess, time

subprocess.Popen(["sleep", "{seconds}"])
time.sleep(600)
"""


def test_every_file_of_the_marker_is_a_part() -> None:
    files = (path.relative_to(CHECKOUT) for path in CHECKOUT.glob("tests/**/test_*_gpu.py"))
    assert {part.file for part in PARTS} == {str(path) for path in files if path.parts[1] != "scripts"}
    assert all("pytest.mark.gpu" in (CHECKOUT / part.file).read_text() for part in PARTS)


def test_what_ran_failed_was_skipped_or_had_no_time_stands_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "test_endings.py").write_text(ENDINGS)
    endings = Part("endings", str(tmp_path / "test_endings.py"), 540)
    results = run_parts([endings], "cpu", tmp_path, limit_s=540)
    assert [(row.test, row.outcome) for row in results] == [
        ("test_that_passes", "passed"),
        ("test_that_fails", "failed"),
        ("test_that_is_skipped", "skipped"),
    ]
    assert results[0].figures == {"gap, nats": 0.25}
    assert "the first line" in results[1].why
    assert results[2].why == "the neighbour is not here"
    results += run_parts([endings], "cpu", tmp_path, limit_s=0)
    assert (results[3].outcome, results[3].why) == ("not run", "the 0 s were over")
    text = table(results, {"torch": "2.13"}, 25.0)
    assert "gap, nats: 0.25" in text
    assert "1 passed, 1 failed, 1 skipped, 1 not run; 25 s in all" in text


def test_a_file_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    seconds = f"987{os.getpid()}"
    (tmp_path / "test_hanging.py").write_text(HANGING.format(seconds=seconds))
    (result,) = run_parts([Part("hanging", str(tmp_path / "test_hanging.py"), 4)], "cpu", tmp_path, limit_s=540)
    assert (result.outcome, result.why) == ("not run", "killed after 4 s")
    left = [row for row in psutil.process_iter(["cmdline"]) if row.info["cmdline"] == ["sleep", seconds]]
    _, alive = psutil.wait_procs(left, timeout=60)  # a killed process ends when the kernel gets to it
    assert not alive


def test_a_file_that_cant_be_imported_has_failed(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module")
    (result,) = run_parts([Part("broken", str(tmp_path / "test_broken.py"), 540)], "cpu", tmp_path, limit_s=540)
    assert result.outcome == "failed"
    assert "broken.log" in result.why


def test_packages_on_pythonpath_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "carried_wheel.py").write_text("")
    (tmp_path / "test_importing.py").write_text("import pytest\nimport carried_wheel\n" + ENDINGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    importing = Part("importing", str(tmp_path / "test_importing.py"), 540)
    assert run_parts([importing], "cpu", tmp_path, limit_s=540)[0].outcome == "passed"


def test_a_missing_package_is_named_before_the_first_part(tmp_path: Path) -> None:
    (tmp_path / "orjson.py").write_text("raise ModuleNotFoundError('No module named orjson')")
    command = [sys.executable, "scripts/gpu_tests.py", "--device", "cpu", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "orjson" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu_at_tiny_size(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/gpu_tests.py", "--device", "cpu", "--out", str(tmp_path), "--limit", "5400"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    results = [Result(**row) for row in summary["results"]]
    assert {row.part for row in results if row.outcome == "passed"} >= {"learner", "sampler", "step", "resume"}
    assert all("not installed" in row.why or "not here" in row.why for row in results if row.outcome == "skipped")
    assert (tmp_path / "summary.txt").read_text() in done.stdout
    assert {"rl-step.json", "rl-step.txt"} <= {path.name for path in tmp_path.iterdir()}
