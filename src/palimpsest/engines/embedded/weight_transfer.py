"""Weights as a folder for another process, which reads them into a loaded model.

Guaranteed: safetensors and config.json as written by transformers; an output projection tied to the embeddings is in a
separate file, since some readers load tied weights once and silently skip the projection; adapters are merged.
Not covered: classes that can't be untied.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from palimpsest.engines.embedded.model_loading import merged_weights, untied
from palimpsest.errors import EngineError, first_line

_INDEX = "model.safetensors.index.json"
_WHOLE, _REST, _HEAD = "model.safetensors", "model-1.safetensors", "output-projection.safetensors"


@torch.no_grad()
def write_untied(model: Any, folder: Path) -> None:
    """Write `model` into the new `folder`."""
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
    """Bytes of all weights of `model` as `dtype`, with a separate output projection."""
    output = model.get_output_embeddings().weight
    tied = output.numel() if output is model.get_input_embeddings().weight else 0
    weights = (weight for name, weight in model.named_parameters() if ".lora_" not in name)
    return int((sum(weight.numel() for weight in weights) + tied) * dtype.itemsize)


def no_room(folder: Path, error: Exception, *, needed: int, key: str) -> EngineError:
    """Error of a disk that lacks room for `needed` bytes of weights; `key` names the folder."""
    at = folder if folder.is_dir() else folder.parent
    written = sum(file.stat().st_size for file in folder.glob("*"))
    return EngineError(
        f"{folder}: writing the weights failed ({first_line(error)}) after {written:,} of {needed:,} bytes, "
        f"with {shutil.disk_usage(at).free:,} free on the disk; free some space, or set {key} to another disk"
    )


def _index(folder: Path) -> Any:
    """Index of tensors to files. Renames a single file, since readers ignore the index next to its default name."""
    if (folder / _INDEX).is_file():
        return json.loads((folder / _INDEX).read_text())
    file = (folder / _WHOLE).rename(folder / _REST)
    with safe_open(file, framework="pt") as tensors:
        return {"metadata": {}, "weight_map": dict.fromkeys(tensors.keys(), _REST)}
