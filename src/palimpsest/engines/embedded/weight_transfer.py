"""The weights as a folder for another process, which reads them into a model that is there already.

Guaranteed: safetensors and config.json as transformers writes them, with the output projection in a file of its own
where it shares its tensor with the embeddings: some readers load tied weights once and leave the projection as it was,
silently (docs/vllm.md); adapters are merged.
Not covered: classes that can't be untied.
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from palimpsest.engines.embedded.model_loading import merged_weights
from palimpsest.errors import EngineError

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
    (module,) = [name for name, submodule in model.named_modules() if submodule is head]
    weight = {f"{module}.weight": head.weight.detach().cpu().contiguous()}
    save_file(weight, folder / _HEAD, metadata={"format": "pt"})
    index = _index(folder)
    index["weight_map"].update(dict.fromkeys(weight, _HEAD))
    (folder / _INDEX).write_text(json.dumps(index, indent=1))
    untied(model.config).save_pretrained(folder)


def size_of(model: Any, dtype: torch.dtype) -> int:
    """Bytes of all weights of `model`, its output projection apart, as `dtype`."""
    output = model.get_output_embeddings().weight
    tied = output.numel() if output is model.get_input_embeddings().weight else 0
    weights = (weight for name, weight in model.named_parameters() if ".lora_" not in name)
    return int((sum(weight.numel() for weight in weights) + tied) * dtype.itemsize)


def no_room(folder: Path, error: Exception, *, needed: int, key: str) -> EngineError:
    """What a disk refused, of the `needed` bytes of weights; `key` names the folder."""
    at = folder if folder.is_dir() else folder.parent
    written = sum(file.stat().st_size for file in folder.glob("*"))
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return EngineError(
        f"{folder}: weights can't be written ({reason}): {written:,} bytes were, {needed:,} are needed, "
        f"{shutil.disk_usage(at).free:,} are free on the disk; free some room, or set {key} to a folder of a larger one"
    )


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
    file = (folder / _WHOLE).rename(folder / _REST)
    with safe_open(file, framework="pt") as tensors:
        return {"metadata": {}, "weight_map": dict.fromkeys(tensors.keys(), _REST)}
