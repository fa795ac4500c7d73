"""A command that gets a signal at a chosen call: python signal_child.py SIGNAL TIMES MODULE:FUNCTION COMMAND...

Sends the signal TIMES times at the function's first call, which then hangs if TIMES > 1; SIGNAL@worker: to a worker.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import time
from typing import Any

import psutil


def hook(target: str, name: str, times: int) -> None:
    """Let the function send the signal first."""
    module_name, _, path = target.partition(":")
    *owners, attribute = path.split(".")
    owner: Any = functools.reduce(getattr, owners, importlib.import_module(module_name))
    function = getattr(owner, attribute)
    signal_name, _, whom = name.partition("@")
    number = signal.Signals[signal_name]
    sent: list[int] = []

    @functools.wraps(function)
    def sending(*args: Any, **options: Any) -> Any:
        while len(sent) < times:
            sent.append(number)
            os.kill(psutil.Process().children()[0].pid if whom else os.getpid(), number)
            time.sleep(0.1)  # two of a kind at once are one
        if times > 1:
            time.sleep(600)
        return function(*args, **options)

    setattr(owner, attribute, sending)


if __name__ == "__main__":
    from palimpsest.cli.main import main

    hook(sys.argv[3], sys.argv[1], int(sys.argv[2]))
    sys.argv = ["palimpsest", *sys.argv[4:]]
    main()
