"""The weights as a folder for another process, which reads them into a model that is there already.

Guaranteed: safetensors and config.json as transformers writes them, with the output projection in a file of its own
where it shares its tensor with the embeddings: some readers load tied weights once and leave the projection as it was,
silently (docs/vllm.md).
Not covered: adapters; classes that can't be untied.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

_INDEX = "model.safetensors.index.json"
_HEAD = "output-projection.safetensors"


@torch.no_grad()
def write_untied(model: Any, folder: Path) -> None:
    """Write `model` into `folder`, which doesn't exist."""
    model.save_pretrained(folder)
    head = model.get_output_embeddings()
    if head.weight is not model.get_input_embeddings().weight:
        return
    (module,) = [name for name, each in model.named_modules() if each is head]
    name = f"{module}.weight"
    save_file({name: head.weight.detach().cpu().contiguous()}, folder / _HEAD, metadata={"format": "pt"})
    if (index := folder / _INDEX).is_file():
        listed = json.loads(index.read_text())
        listed["weight_map"][name] = _HEAD
        index.write_text(json.dumps(listed, indent=1))
    settings = folder / "config.json"
    config = json.loads(settings.read_text())
    for section in (config, *(each for each in config.values() if isinstance(each, dict))):
        if section is config or "tie_word_embeddings" in section:
            section["tie_word_embeddings"] = False
    settings.write_text(json.dumps(config, indent=1))
