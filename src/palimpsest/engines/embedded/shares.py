"""What ranks saved in shares (engines/scale/storage.py), read whole by one process.

    learner/shard-00001-model-00001-of-00001.safetensors    rank 0's share of every tensor, and so on

Each file says, under torch's key, where in the whole tensor its part begins.

Guaranteed: the bits that were saved; shares that don't make up whole tensors are refused by name.
Not covered: memory for more than one process' state.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from palimpsest import files

_PLACES = "DCP_SHARDING_INFO"  # of torch.distributed.checkpoint: {name: {"saved_offsets": [row, column...]}}


def read_shares(folder: Path, steps: int) -> dict[str, Tensor]:
    """Masters and moments after `steps` steps, as `Optimizer.state` gives them. Raises ValueError for a part that is
    missing."""
    parts: dict[str, list[tuple[list[int], Tensor]]] = {}
    for file in sorted(folder.glob("shard-*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            places = json.loads(stored.metadata()[_PLACES])
            for name in stored.keys():  # noqa: SIM118 - no mapping
                parts.setdefault(name, []).append((places[name]["saved_offsets"], stored.get_tensor(name)))
    tensors = {name: _whole(name, each) for name, each in parts.items()}
    counts = {f"step/{name.removeprefix('exp_avg/')}" for name in tensors if name.startswith("exp_avg/")}
    return tensors | {name: torch.tensor(float(steps)) for name in counts}


def _whole(name: str, parts: list[tuple[list[int], Tensor]]) -> Tensor:
    ends = [[at + size for at, size in zip(start, part.shape, strict=True)] for start, part in parts]
    whole = parts[0][1].new_empty([max(sizes) for sizes in zip(*ends, strict=True)])
    if sum(part.numel() for _, part in parts) != whole.numel():
        raise ValueError(f"a share of {name} is missing")
    for start, part in parts:
        whole[tuple(slice(at, at + size) for at, size in zip(start, part.shape, strict=True))] = part
    return whole


def fingerprint(folder: Path) -> str:
    """SHA-256 over the weights' files of the model that a run began with."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name}:{files.sha256(file)}\n".encode())
    return digest.hexdigest()
