"""The weights of a folder in another kind of numbers."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from palimpsest.engines.embedded.model import DTYPES
from palimpsest.files import write_plain


def cast(folder: Path, dtype: str) -> None:
    """Round every weight in `folder` to `dtype`, float32 or bfloat16, and have config.json say so."""
    with failing_as_the_system():
        for file in sorted(folder.glob("*.safetensors")):
            _cast_file(file, dtype)
    if (config := folder / "config.json").is_file():
        described = json.loads(config.read_text("utf-8"))
        write_plain(config, (json.dumps({**described, "dtype": dtype}, indent=2) + "\n").encode())


def _cast_file(file: Path, dtype: str) -> None:
    weights = {
        name: weight.to(DTYPES[dtype]) if weight.is_floating_point() else weight
        for name, weight in load_file(file).items()
    }
    mode = file.stat().st_mode
    save_file(weights, file, metadata={"format": "pt"})  # which makes a file for its owner alone
    file.chmod(mode)


@contextmanager
def failing_as_the_system() -> Iterator[None]:
    """Have what safetensors can't read or write be an error of the system."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from None
