"""The shipped base model made anew; a memory policy held against the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest.base.figures import skill_figures
from palimpsest.base.make import BaseModelConfig, train_base_model
from palimpsest.config.models import model_path
from palimpsest.config.schema import ModelConfig, PolicyConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.memory.check import Finding, check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.progress.progress import Progress
from palimpsest.text.codec import Codec

WINDOW = 32_768
"""Context the checked policy is told it has: room for published budgets."""


def make_base_model(out: Path, *, seed: int, force: bool, progress: Progress) -> None:
    """Train the embedded base model into `out`."""
    if out.exists() and any(out.iterdir()) and not force:
        raise RunError(f"{out} is not empty: give another --out, or --force to write over the model in it")
    config = BaseModelConfig(seed=seed)
    with progress.count("base model", config.total_steps) as tick:
        report = train_base_model(
            out,
            config,
            lambda _, stage, losses: tick(note=f"{stage}, loss " + " ".join(f"{loss:.3f}" for loss in losses)),
        )
    report["figures"] = skill_figures(str(out))
    (out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    progress.message(f"{out}: {report['steps']} steps in {report['wall_s']} s")
    progress.message(", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in report["figures"].items()))


def check(name: str, options: Mapping[str, Any]) -> Sequence[Finding]:
    """A policy with these options, held against each point of the contract."""
    if dotted := [key for key in options if "." in key]:
        raise ConfigError(f"--set {dotted[0]}: options of a policy have plain names, e.g. chunk_size=48")
    policy = build_policy(PolicyConfig(name=name, options=dict(options)))
    return check_policy(policy, Codec.load(model_path(ModelConfig())), WINDOW)
