"""The shipped base model made anew; a memory policy held against the contract."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from palimpsest import files, plugins
from palimpsest.base.figures import skill_figures
from palimpsest.base.make import BaseModelConfig, train_base_model
from palimpsest.config.schema import ModelConfig, PolicyConfig
from palimpsest.credit.check import check_rule
from palimpsest.errors import ConfigError, RunError
from palimpsest.jobs.own_checks import check_engine, check_format, check_sink
from palimpsest.memory.check import Finding, check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.progress.progress import Progress
from palimpsest.reward.check import check_reward
from palimpsest.runs.moving import refuse_moving
from palimpsest.text.codec import Codec

WINDOW = 32_768
"""Context the checked policy is told it has: room for published budgets."""


def make_base_model(out: Path, *, seed: int, force: bool, progress: Progress) -> None:
    """Train the embedded base model; `out` appears whole, or not at all."""
    if out.exists() and any(out.iterdir()) and not force:
        raise RunError(f"{out} is not empty: give another --out, or --force to move it aside")
    if out.exists():
        refuse_moving(out, whole=False)
    out = out.absolute()
    aside = files.hidden_folder(out)
    try:
        report = _made(aside, BaseModelConfig(seed=seed), progress)
        if out.exists() and any(out.iterdir()):
            progress.message(f"{out}: what it held is now {files.set_aside(out)}")
        files.publish_folder(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    progress.message(f"{out}: {report['steps']} steps in {report['wall_s']} s")
    for stage in report["not_learnt"]:
        progress.message(f"stage {stage} was at its limit of steps before it was learnt: another --seed may do better")
    progress.message(", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in report["figures"].items()))


def _made(folder: Path, config: BaseModelConfig, progress: Progress) -> dict[str, Any]:
    """The model in `folder`, with the report of its training."""
    with progress.count("base model", config.total_steps) as tick:
        report = train_base_model(
            folder,
            config,
            lambda _, stage, losses: tick(note=f"{stage}, loss " + " ".join(f"{loss:.3f}" for loss in losses)),
        )
    report["figures"] = skill_figures(str(folder))
    (folder / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


KINDS = ("policy", "reward", "layer", "rule", "format", "sink", "engine")
"""What can be checked."""


def check(
    name: str, options: Mapping[str, Any], kind: str | None = None, file: Path | None = None
) -> Sequence[Finding]:
    """What `name` is, with these options, held against each point of its contract.

    A policy, shipped or the user's own; a reward, a layer of one, or a credit rule of the user's own, told apart by
    what they take: (problem, trajectory), (problem, trajectory, grade), (group). `kind` says what it is where that
    doesn't, and must for a data format, which reads `file`, a log sink and an engine.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"--kind {kind}: choose one of {', '.join(KINDS)}")
    if file is not None and kind != "format":
        raise ConfigError(f"--file {file}: is read by a data format: add --kind format, or leave it out")
    if dotted := [key for key in options if "." in key]:
        raise ConfigError(f"--set {dotted[0]}: options have plain names, e.g. chunk_size=48")
    if kind == "format":
        return check_format(name, options, file)
    if kind in ("sink", "engine"):
        return check_sink(name, options) if kind == "sink" else check_engine(name, options)
    kind = kind or _kind(name, options)
    if kind == "rule":
        return check_rule(name, options)
    if kind in ("reward", "layer"):
        return check_reward(name, options, Codec.load(ModelConfig()), layer=kind == "layer")
    policy = build_policy(PolicyConfig(name=name, options=dict(options)))
    return check_policy(policy, Codec.load(ModelConfig()), WINDOW)


def _refuse_file(name: str) -> None:
    """Raise ConfigError for a file of Python: a module is named, and what is checked in it."""
    if name.endswith(".py"):
        module = ".".join(Path(name).with_suffix("").parts).lstrip("./")
        thing = "".join(part.capitalize() for part in module.rpartition(".")[2].split("_"))
        raise ConfigError(f"check {name}: name the module and what is checked in it, such as {module}:{thing}")


def _kind(name: str, options: Mapping[str, Any]) -> str:
    """policy, reward, layer or rule. Raises ConfigError for what can't be imported."""
    if not plugins.is_own(name):
        _refuse_file(name)
        return "policy"
    target = plugins.own(name, f"check {name}")
    if isinstance(target, type):
        methods = ("run", "turn_advantages", "grade", "__call__")
        defined = {method: own for base in reversed(target.__mro__) for method, own in vars(base).items()}
        call = next((defined[method] for method in methods if method in defined), None)
        if call is None and not hasattr(target, "run"):
            raise ConfigError(
                f"check {name}: neither a policy (run), a credit rule (turn_advantages) nor a reward (grade); "
                "give --kind format --file FILE, --kind sink or --kind engine for one of these; a tool is checked with "
                f"a policy that has it: palimpsest check prune --set 'tools={{{name}: {{}}}}'"
            )
        if call is None or hasattr(target, "run"):
            return "policy"
        taken = list(signature(call).parameters)[1:]
    else:
        taken = list(signature(target).parameters) if callable(target) else []
    taken = [key for key in taken if key not in options and key != "codec"]
    if taken[:1] == ["group"]:
        return "rule"
    return "layer" if taken[2:3] == ["grade"] else "reward"
