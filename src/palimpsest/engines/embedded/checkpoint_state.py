"""A learner's state in a checkpoint: facts other than tensors, and sharded tensors.

One process reads the shares of all ranks (engines/ray/sharding.py).

    learner/shard-00001-model-00001-of-00001.safetensors    rank 0's share of every tensor, and so on

Each file states, under torch's key, the offset of its part in the whole tensor.

Guaranteed: the saved bits; shares that don't complete a tensor are rejected by name.
Not covered: memory for more than one process' state.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from palimpsest.errors import CheckpointError
from palimpsest.models.checkpoint_manifest import STATE_FOLDER

FACTS = "learner.json"
ONE_FILE, SHARES = 1, 2
"""Formats of the tensors: optimizer.safetensors, or the shares of ranks."""


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    format: int
    version: int
    """Optimizer steps taken."""
    grad_skipped: int
    """Steps skipped for a non-finite gradient."""
    reference: str | None
    """Digest of the reference model of `loss.kl_loss_coef`."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def read_facts(folder: Path) -> CheckpointFacts:
    """Facts of the state in `folder`. Raises OSError, or ValueError for invalid ones."""
    stored = json.loads((folder / FACTS).read_text("utf-8"))
    if not isinstance(stored, dict) or stored.keys() != {field.name for field in dataclasses.fields(CheckpointFacts)}:
        raise ValueError(f"{folder / FACTS} is not a learner's saved state")
    for name in ("format", "version", "grad_skipped"):
        if type(stored[name]) is not int or stored[name] < 0:
            raise ValueError(f"{folder / FACTS}: {name}={stored[name]!r:.40} is not a whole number from 0")
    if not isinstance(stored["reference"], str | None):
        raise ValueError(f"{folder / FACTS}: reference={stored['reference']!r:.40} is not a digest")
    if stored["format"] not in (ONE_FILE, SHARES):
        raise ValueError(f"{folder / FACTS} has format {stored['format']}, this version reads {ONE_FILE} and {SHARES}")
    return CheckpointFacts(**stored)


def facts_of_shares(checkpoint: Path) -> CheckpointFacts:
    """Facts of a checkpoint for ranks; CheckpointError for one that ranks can't load, otherwise as `read_facts`."""
    facts = read_facts(checkpoint / STATE_FOLDER)
    if facts.format != SHARES:
        raise CheckpointError(
            f"checkpoint {checkpoint}: engine.name=embedded saved it; resume with that, or start a run from it "
            f"with model.path={checkpoint}"
        )
    return facts


_PLACES = "DCP_SHARDING_INFO"  # of torch.distributed.checkpoint: {name: {"saved_offsets": [row, column...]}}


def read_shares(folder: Path, steps: int) -> dict[str, Tensor]:
    """Masters and moments after `steps` steps, as in `Optimizer.state`. Raises ValueError for a missing part."""
    shares: dict[str, list[tuple[list[int], Tensor]]] = {}
    for file in sorted(folder.glob("shard-*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            places = json.loads(stored.metadata()[_PLACES])
            for name in stored.keys():  # noqa: SIM118 - no mapping
                shares.setdefault(name, []).append((places[name]["saved_offsets"], stored.get_tensor(name)))
    tensors = {name: _assemble(name, pieces) for name, pieces in shares.items()}
    counts = {f"step/{name.removeprefix('exp_avg/')}" for name in tensors if name.startswith("exp_avg/")}
    return tensors | {name: torch.tensor(float(steps)) for name in counts}


def _assemble(name: str, pieces: list[tuple[list[int], Tensor]]) -> Tensor:
    ends = [[at + size for at, size in zip(start, part.shape, strict=True)] for start, part in pieces]
    tensor = pieces[0][1].new_empty([max(sizes) for sizes in zip(*ends, strict=True)])
    if sum(part.numel() for _, part in pieces) != tensor.numel():
        raise ValueError(f"a share of {name} is missing")
    for start, part in pieces:
        tensor[tuple(slice(at, at + size) for at, size in zip(start, part.shape, strict=True))] = part
    return tensor
