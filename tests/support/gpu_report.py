"""A plugin for scripts/gpu_tests.py: one line of JSON as each test ends, as a test that hangs is killed."""

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
