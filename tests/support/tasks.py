"""Jobs for worker processes, and who hears what they report."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from palimpsest.app.quickstart.quickstart_jobs import JobReport
from palimpsest.errors import ConfigError

WAIT_S = 60


@dataclass
class Told:
    """What a job reported."""

    parts: int = 0
    messages: list[str] = field(default_factory=list)

    def part(self, count: int = 1) -> None:
        self.parts += count

    def message(self, text: str) -> None:
        self.messages.append(text)


@dataclass(frozen=True)
class Work:
    """Writes its process id to `file`, then does what it is told."""

    file: str
    what: str = "count"

    def run(self, report: JobReport) -> None:
        Path(self.file).write_text(str(os.getpid()))
        print("what a job prints is not taken for an answer")
        if self.what == "count":
            report.part()
            report.message("one\ntwo \u2028 three")
            report.part()
        elif self.what == "refuse":
            raise ConfigError("key=value: give another")
        elif self.what == "break":
            raise KeyError("a bug")
        elif self.what == "die":
            os._exit(7)
        else:
            time.sleep(WAIT_S)
