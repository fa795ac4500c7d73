"""Text of a PDF's pages, extracted in a child process: a crafted file may need unlimited time and memory.

    pages(path, data) -> child: the bytes on standard input; on standard output the text, or the error

Guaranteed: the child uses at most `seconds_for(size)` of CPU time and `MEMORY` bytes, and returns at most `TEXT`
characters; any failure of pypdf is an error with the file's name.
Not covered: the memory limit on systems without one (macOS).
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from io import BytesIO

from palimpsest.errors import DataError

MEMORY = 2 << 30
"""Address space of the child, in bytes."""
TEXT = 64 << 20
"""Maximum number of characters in a document."""
_TEXT, _REASON = b"t", b"r"
_FIX = "convert it to text first (pdftotext, say)"


def seconds_for(size: int) -> int:
    """CPU time limit in seconds for a file of `size` bytes.

    >>> seconds_for(0), seconds_for(4 << 20), seconds_for(1 << 30)
    (60, 180, 600)
    """
    return min(600, 60 + 30 * size // (1 << 20))


def pages(path: str, data: bytes) -> str:
    """The text of the PDF in `data`; messages name it `path`. Needs pypdf. Raises DataError."""
    limit = seconds_for(len(data))
    command = [sys.executable, "-P", "-m", "palimpsest.data.files.pdf_pages", str(limit)]
    try:
        done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=4 * limit)
    except subprocess.TimeoutExpired:
        raise DataError(f"{path}: reading its pages took more than {4 * limit} s; {_FIX}") from None
    text = done.stdout[1:].decode("utf-8", "replace")
    if done.returncode == 0 and done.stdout[:1] == _TEXT:
        return text
    if done.returncode == 0 and done.stdout[:1] == _REASON:
        raise DataError(f"{path}: {text}")
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise DataError(f"{path}: its pages take more than {limit} s to read; {_FIX}")
    raise DataError(f"{path}: can't be read as PDF (the reader exited with status {done.returncode}); {_FIX}")


def _taken() -> tuple[bytes, str]:
    from pypdf import PdfReader  # an extra; the parent has checked for it

    parent, texts, length = os.getppid(), list[str](), 0
    try:
        for page in PdfReader(BytesIO(sys.stdin.buffer.read())).pages:
            texts.append(page.extract_text())
            length += len(texts[-1])
            if length > TEXT:
                return _REASON, f"its pages have more than {TEXT:,} characters; {_FIX}"
            if os.getppid() != parent:
                sys.exit(1)  # the parent is gone
    except MemoryError:
        return _REASON, f"its pages take more than {MEMORY >> 30} GiB to read; {_FIX}"
    except Exception as error:  # noqa: BLE001  pypdf raises anything on a damaged file
        return _REASON, f"can't be read as PDF ({type(error).__name__}: {str(error) or 'damaged'})"
    return _TEXT, "\n\n".join(texts)


if __name__ == "__main__":
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    kind, text = _taken()
    sys.stdout.buffer.write(kind + text.encode("utf-8", "replace"))
