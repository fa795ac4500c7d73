"""Model export to a folder: adapters merged, tied weights untied, rounded to a dtype.

Guaranteed: adapters are merged in float32, then rounded; the folder contains safetensors, config.json and the
tokenizer, and names no other folder of this machine.
Not covered: models larger than this machine's memory in float32.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from palimpsest.config.engine import ModelConfig
from palimpsest.engines.embedded.learner import check_savable
from palimpsest.engines.embedded.model_loading import DTYPES, load_model
from palimpsest.engines.embedded.weight_transfer import write_untied
from palimpsest.text.codec import Codec


def cast(folder: Path, dtype: str) -> None:
    """Round every weight in `folder` to `dtype`, float32 or bfloat16. The caller sets it in config.json."""
    with failing_as_the_system():
        for file in sorted(folder.glob("*.safetensors")):
            _cast_file(file, dtype)


def _cast_file(file: Path, dtype: str) -> None:
    weights = {
        name: weight.to(DTYPES[dtype]) if weight.is_floating_point() else weight
        for name, weight in load_file(file).items()
    }
    mode = file.stat().st_mode
    save_file(weights, file, metadata={"format": "pt"})  # which creates a file only its owner can read
    file.chmod(mode)


@contextmanager
def failing_as_the_system() -> Iterator[None]:
    """Raise errors of safetensors as OSError."""
    try:
        yield
    except SafetensorError as error:  # with the system's number in its words
        found = re.search(r"\(os error (\d+)\)", str(error))
        raise OSError(int(found[1]) if found else errno.EIO, str(error)) from None


def write_merged(config: ModelConfig, folder: Path, *, untied: bool) -> None:
    """Write the model of `config`, adapters merged, in `config.dtype` into the empty `folder`.

    `untied`: also write an output projection that is tied to the embeddings. Raises ModelError, or OSError if the write
    fails.
    """
    exact = config.model_copy(update={"dtype": "float32", "device": "cpu", "lora": None})
    model, tokenizer = load_model(exact), Codec.load(exact).tokenizer
    model = model.to(DTYPES[config.dtype])
    check_savable(model, tokenizer)
    with failing_as_the_system():
        if untied:
            write_untied(model, folder)
        else:
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
