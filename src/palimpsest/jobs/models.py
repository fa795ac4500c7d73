"""`palimpsest base-model` and `palimpsest check`."""

from __future__ import annotations

import json
from pathlib import Path

from palimpsest.base.figures import skill_figures
from palimpsest.base.make import BaseModelConfig, train_base_model
from palimpsest.config.load import split_override
from palimpsest.config.models import model_path
from palimpsest.config.schema import ModelConfig, PolicyConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.jobs.show import note, progress, stdout
from palimpsest.memory.check import check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.text.codec import Codec

WINDOW = 32_768
"""Context the checked policy is told it has: room for published budgets."""


def run_base_model(out: Path, *, seed: int, force: bool) -> None:
    """Train the embedded base model into `out`."""
    if out.exists() and any(out.iterdir()) and not force:
        raise RunError(f"{out} is not empty: give another --out, or --force to write over the model in it")
    config = BaseModelConfig(seed=seed)
    with progress("base model", config.total_steps) as tick:
        report = train_base_model(
            out,
            config,
            lambda _, stage, losses: tick(note=f"{stage}, loss " + " ".join(f"{loss:.3f}" for loss in losses)),
        )
    report["figures"] = skill_figures(str(out))
    (out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    note(f"{out}: {report['steps']} steps in {report['wall_s']} s")
    note(", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in report["figures"].items()))


def run_check(name: str, settings: tuple[str, ...]) -> int:
    """Print one line a point of the contract; 0 if all are met, else 1."""
    options = dict(split_override(setting) for setting in settings)
    if dotted := [key for key in options if "." in key]:
        raise ConfigError(f"--set {dotted[0]}: options of a policy have plain names, e.g. chunk_size=48")
    policy = build_policy(PolicyConfig(name=name, options=options))
    findings = check_policy(policy, Codec.load(model_path(ModelConfig())), WINDOW)
    console = stdout()
    for finding in findings:
        mark = "[green]ok   [/green]" if finding.passed else "[red]FAILS[/red]"
        console.print(f"{mark} ", end="")
        console.print(f"{finding.name}: {finding.message}", markup=False, highlight=False, soft_wrap=True)
    failed = sum(not finding.passed for finding in findings)
    console.print(f"{len(findings) - failed} of {len(findings)} points hold", highlight=False)
    return 1 if failed else 0
