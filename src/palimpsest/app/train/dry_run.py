"""Dry run (`--dry-run` of `train` and `quickstart`): the checks of a training; starts and writes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from palimpsest.agents.open_agent import options_line
from palimpsest.app.config_resolution import ResolvedRun
from palimpsest.app.train.run_setup import Inputs, open_setup, policy_checked
from palimpsest.config.data import listed
from palimpsest.config.engine import EmbeddedEngineConfig, model_path
from palimpsest.config.load import load_recipe, recipe_names
from palimpsest.config.schema import RunConfig
from palimpsest.data.files.rows import sniff
from palimpsest.engines.open import check_engine, check_models
from palimpsest.memory.registry import admit_all
from palimpsest.models.model_folder import local_folder
from palimpsest.runs.run_folder import CONFIG, check_folder
from palimpsest.text.codec import Codec
from palimpsest.text.display_text import counted


@dataclass(frozen=True, slots=True)
class DryRun:
    """Results of the checks of a dry run."""

    inputs: Inputs | None
    """None: the data is not on this machine."""
    window: int | None
    gpus: str = ""
    """What was not checked of them."""
    missing: tuple[str, ...] = ()
    """What is not on this machine."""

    @classmethod
    def of(cls, run: ResolvedRun, *, elsewhere: bool) -> DryRun:
        """`elsewhere`: the recipe's model and files may be missing."""
        config = run.config
        files = missing_files(config) if elsewhere else []
        model = not elsewhere or local_folder(model_path(config.model)) is not None
        command = f"download --for {config.recipe}" if config.environment is None else config.environment.name
        missing = [f"{', '.join(files)} (palimpsest data {command})"] if files else []
        missing += [] if model else [f"{config.model.path}, so its window was not checked"]
        alone = isinstance(config.engine, EmbeddedEngineConfig) and config.sampler.name == config.engine.name
        if alone and not missing:
            setup = open_setup(config, run.folder)
            asyncio.run(setup.engine.close())
            asyncio.run(setup.roles.close())
            return cls(setup, setup.engine.limits.max_context)
        if model:
            check_models(config)
        inputs = None if files else Inputs.of(config)
        policy = inputs.policy if inputs else policy_checked(config)
        window, unchecked = check_engine(config) if model else (None, "the layout was not checked")
        if window is not None:
            codec = Codec.load(config.model)
            if inputs is None:
                admit_all(policy, (), codec, window)
            else:
                inputs.admitted(config, codec, window)
        return cls(inputs, window, unchecked, tuple(missing))


def missing_files(config: RunConfig) -> list[str]:
    """Files that a shipped recipe names itself and that are not on this machine. Raises DataError for other ones."""
    if config.recipe not in recipe_names():
        return []
    named = load_recipe(config.recipe, read_files=False).data.files
    missing = [name for name in config.data.files if name in named and not Path(name).exists()]
    for name in config.data.files:
        if name not in missing:
            sniff(Path(name))
    return missing


def check_run(run: ResolvedRun, *, force: bool = False, elsewhere: bool = False) -> dict[str, str]:
    """What `train` would do, in words, after its checks. Starts no process and loads no model on several devices.

    `elsewhere`: the run is planned for another machine, so the recipe's model and files may be missing here; the row
    `missing` then names them. Raises ConfigError, DataError, ModelError, or RunError for a folder in use.
    """
    config, train = run.config, run.config.train
    check_folder(run.folder, config, resume=run.resume, force=force)
    checked = DryRun.of(run, elsewhere=elsewhere)
    window, held_out, held = checked.window, checked.inputs.held_out if checked.inputs else None, ""
    if held_out is not None and train.eval_steps:
        held = f"; {counted(len(held_out), 'held-out problem')} every {counted(train.eval_steps, 'step')}"
    roles = "; ".join(options_line(name, role.model_dump(exclude_defaults=True)) for name, role in config.roles.items())
    cold_start = f"{config.cold_start.max_steps} steps of cold start, then " if config.cold_start else ""
    size, rollouts = counted(train.batch_size, "problem"), counted(train.group_size, "rollout")
    return {
        "recipe": config.recipe,
        "folder": f"{run.folder}, {'resumed' if run.resume and (run.folder / CONFIG).is_file() else 'new'}",
        "model": config.model.path if window is None else f"{config.model.path}, window {window:,} tokens",
        "policy": options_line(config.policy.name, config.policy.options),
        **({"roles": roles} if roles else {}),
        "reward": config.reward.name,
        "data": f"{', '.join(listed(config.data.train_files))}{held}",
        "step": f"{size} x {rollouts}, {counted(train.num_minibatches, 'optimizer step')}",
        "steps": f"{cold_start}{train.max_steps}",
        "engine": f"{config.engine.name}, sampled by {config.sampler.name}",
        **({"gpus": checked.gpus} if checked.gpus else {}),
        **({"missing": "; ".join(checked.missing)} if checked.missing else {}),
    }
