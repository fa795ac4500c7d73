"""Files of the package in which a small command calls a function.

    python scripts/road.py eval         two problems, by the embedded model
    python scripts/road.py train        two steps, of two groups of two episodes
    python scripts/road.py serve        one chat request about a document

Prints the files, one per line, and their number. Includes functions of all threads, but no module-level code.
Not covered: other processes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "palimpsest"
COMMANDS = {
    "eval": "eval --limit 2 --no-baselines --out {folder}/eval",
    "train": "train memagent-quickstart train.max_steps=2 train.batch_size=2 train.group_size=2 "
    "train.num_minibatches=1 --out {folder}/run",
    "serve": "serve embedded --port {port} --store {folder}/store",
}
BODY = {
    "model": "palimpsest",
    "messages": [{"role": "user", "content": "<document>Omar sells tea.</document> What does Omar sell?"}],
}


def ask_and_end(port: int) -> None:
    """Send one question to the server of this process once it listens, then end it like a user."""
    request = Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(BODY).encode(), {"Content-Type": "application/json"}
    )
    answered = False
    while not answered:
        with suppress(URLError):
            answered = urlopen(request, timeout=60).status == 200
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)


def called(words: list[str]) -> list[str]:
    """Files whose functions `palimpsest WORDS` calls, relative to the package."""
    codes = set[CodeType]()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.path.insert(0, str(PACKAGE.parent))
    sys.argv = ["palimpsest", *words]
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        from palimpsest.cli.main import main

        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    functions = [code for code in codes if not code.co_name.startswith("<") and code.co_flags & 1]  # 1: no class body
    return sorted({path[len(f"{PACKAGE}/") :] for path in (c.co_filename for c in functions) if f"{PACKAGE}/" in path})


def main() -> None:
    command = COMMANDS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        if sys.argv[1] == "serve":
            threading.Thread(target=ask_and_end, args=(port,), daemon=True).start()
        files = called(command.format(folder=folder, port=port).split())
    print(*files, len(files), sep="\n")


if __name__ == "__main__":
    main()
