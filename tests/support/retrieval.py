"""A retrieval server as a child process."""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

from support.serving_process import serving_process


def process(corpus: Path, *options: str) -> AbstractContextManager[tuple[str, subprocess.Popen[str]]]:
    """`palimpsest retrieval serve`, and its address."""
    return serving_process(["retrieval", "serve", str(corpus), "--port", "0", *options], "/retrieve")
