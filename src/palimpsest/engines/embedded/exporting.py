"""A model as a folder of its own that others load: adapters merged, tied weights untied where that is asked for.

Guaranteed: adapters are merged in float32, then rounded; the folder holds safetensors, config.json, the tokenizer and
nothing that names another folder of this machine.
Not covered: models larger than this machine's memory in float32.
"""

from __future__ import annotations

from pathlib import Path

from palimpsest.config.model import ModelConfig
from palimpsest.engines.embedded.casting import failing_as_the_system
from palimpsest.engines.embedded.handover import write_untied
from palimpsest.engines.embedded.learner import check_savable
from palimpsest.engines.embedded.model import DTYPES, load_model
from palimpsest.text.codec import Codec


def write_whole(config: ModelConfig, folder: Path, *, untied: bool) -> None:
    """Write the model that `config` names, adapters merged, in `config.dtype` into `folder`, which is empty.

    `untied`: its output projection is written out where it shares its tensor with the embeddings. Raises ModelError,
    or OSError where it can't be written.
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
