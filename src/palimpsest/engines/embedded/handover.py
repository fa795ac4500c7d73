"""The weights as a folder for another process, which reads them into a model that is there already.

Guaranteed: safetensors and config.json as transformers writes them, with the output projection in a file of its own
where it shares its tensor with the embeddings: some readers load tied weights once and leave the projection as it was,
silently (docs/vllm.md); adapters are merged.
Not covered: classes that can't be untied.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from palimpsest.engines.embedded.lora import merged_weights

_INDEX = "model.safetensors.index.json"
_WHOLE, _REST, _HEAD = "model.safetensors", "model-1.safetensors", "output-projection.safetensors"


@torch.no_grad()
def write_untied(model: Any, folder: Path) -> None:
    """Write `model` into `folder`, which doesn't exist."""
    weights = None
    if hasattr(model, "peft_config"):
        weights = {name: weight.cpu() for name, weight in merged_weights(model, model.dtype)}
        model = model.get_base_model()
    model.save_pretrained(folder, state_dict=weights)
    head = model.get_output_embeddings()
    if head.weight is not model.get_input_embeddings().weight:
        return
    (module,) = [name for name, each in model.named_modules() if each is head]
    weight = {f"{module}.weight": head.weight.detach().cpu().contiguous()}
    save_file(weight, folder / _HEAD, metadata={"format": "pt"})
    index = _index(folder)
    index["weight_map"].update(dict.fromkeys(weight, _HEAD))
    (folder / _INDEX).write_text(json.dumps(index, indent=1))
    untied(model.config).save_pretrained(folder)


def untied(config: Any) -> Any:
    """A copy of transformers' `config` that ties no weights, nor do those inside it (a multimodal model's parts)."""
    config = copy.deepcopy(config)
    config.tie_word_embeddings = False
    for name in config.sub_configs:
        if hasattr(part := getattr(config, name, None), "tie_word_embeddings"):
            setattr(config, name, untied(part))
    return config


def _index(folder: Path) -> Any:
    """Which tensor is in which file. A file that is alone gets another name: under its own no index is looked for."""
    if (folder / _INDEX).is_file():
        return json.loads((folder / _INDEX).read_text())
    whole = (folder / _WHOLE).rename(folder / _REST)
    with safe_open(whole, framework="pt") as tensors:
        return {"metadata": {}, "weight_map": dict.fromkeys(tensors.keys(), _REST)}
