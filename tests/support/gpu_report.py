"""What tests of the marker `gpu` have to tell, a line of JSON each as it ends: a plugin for scripts/gpu_tests.py.

A file is written, not pytest's own report at the end, for a test that hangs is killed with its process.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FILE = "PALIMPSEST_GPU_REPORT"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    decisive = report.when == "call" or report.outcome != "passed"
    if not decisive or FILE not in os.environ:
        return
    with Path(os.environ[FILE]).open("a") as file:
        file.write(json.dumps(line_of(report)) + "\n")


def line_of(report: pytest.TestReport) -> dict[str, object]:
    """Test, outcome, seconds, why it failed or was skipped, and the figures that it recorded."""
    why = ""
    if isinstance(report.longrepr, tuple):  # skipped: file, line, reason
        why = report.longrepr[2].removeprefix("Skipped: ")
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = (crash.message if crash is not None else str(report.longrepr)).strip().splitlines()[0]
    return {
        "test": report.nodeid.split("::")[-1],
        "outcome": report.outcome,
        "seconds": report.duration,
        "why": why,
        "figures": dict(report.user_properties),
    }
