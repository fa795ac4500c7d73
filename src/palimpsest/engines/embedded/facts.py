"""learner.json, beside the tensors of a learner's state in a checkpoint: what is no tensor."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from palimpsest.errors import CheckpointError
from palimpsest.model_files.manifest import STATE_FOLDER

FACTS = "learner.json"
ONE_FILE, SHARES = 1, 2
"""Formats of the tensors: optimizer.safetensors, or the shares of ranks (shares.py)."""


@dataclass(frozen=True, slots=True)
class Facts:
    format: int
    version: int
    """Optimiser steps taken."""
    grad_skipped: int
    """Steps left out for a gradient that was not finite."""
    reference: str | None
    """Tells the model of `loss.kl_coef` from others."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def read_facts(folder: Path) -> Facts:
    """Of the state in `folder`. Raises OSError, or ValueError where they have another shape."""
    stored = json.loads((folder / FACTS).read_text("utf-8"))
    if not isinstance(stored, dict) or stored.keys() != {field.name for field in dataclasses.fields(Facts)}:
        raise ValueError(f"{folder / FACTS} does not hold what a learner saves")
    for name in ("format", "version", "grad_skipped"):
        if type(stored[name]) is not int or stored[name] < 0:
            raise ValueError(f"{folder / FACTS}: {name}={stored[name]!r:.40} is no whole number from 0")
    if not isinstance(stored["reference"], str | None):
        raise ValueError(f"{folder / FACTS}: reference={stored['reference']!r:.40} is no digest")
    if stored["format"] not in (ONE_FILE, SHARES):
        raise ValueError(f"{folder / FACTS} has format {stored['format']}, this version reads {ONE_FILE} and {SHARES}")
    return Facts(**stored)


def facts_of_shares(checkpoint: Path) -> Facts:
    """Of a checkpoint that ranks can take up. Raises CheckpointError for one that they can't, else as `read_facts`."""
    facts = read_facts(checkpoint / STATE_FOLDER)
    if facts.format != SHARES:
        raise CheckpointError(
            f"checkpoint {checkpoint}: was saved by engine.name=embedded; resume with that, or begin a run from it "
            f"with model.path={checkpoint}"
        )
    return facts
