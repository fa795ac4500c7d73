"""What the command line asked for, resolved to a configuration before anything heavy is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from palimpsest.config.load import load_recipe, parse_config, split_override
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.errors import ConfigError
from palimpsest.memory.registry import policy_class


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """`palimpsest train` and `palimpsest sft`."""

    recipe: str
    config: RunConfig
    out: Path
    resume: bool = False
    force: bool = False

    @classmethod
    def resolve(
        cls,
        recipe: str,
        overrides: list[str] | None,
        *,
        out: Path | None,
        seed: int | None,
        resume: bool,
        force: bool,
    ) -> TrainRequest:
        """`--seed` is the run's seed and the data's; without `--out` the folder's name says recipe and seed.

        Raises ConfigError.
        """
        seeds = () if seed is None else (f"seed={seed}", f"data.seed={seed}")
        config = load_recipe(recipe, (*(overrides or ()), *seeds))
        return cls(recipe, config, out or Path("runs") / f"{config.recipe}-seed{config.seed}", resume, force)


@dataclass(frozen=True, slots=True)
class SftRequest:
    """What `palimpsest sft` imitates: recorded episodes, or a file of conversations."""

    records: Path | None = None
    min_grade: float | None = None
    """None keeps all."""
    per_problem: int | None = None
    data: Path | None = None
    memory_first: bool = False
    drop_too_long: bool = False

    @classmethod
    def resolve(
        cls,
        *,
        records: Path | None,
        keep: str | None,
        per_problem: int | None,
        data: Path | None,
        memory_first: bool,
        drop_too_long: bool,
    ) -> SftRequest:
        """Raises ConfigError for options that have no meaning together."""
        if (records is None) == (data is None):
            raise ConfigError("palimpsest sft: give --from RUN (recorded episodes) or --data FILE (conversations), one")
        if records is None and (keep is not None or per_problem is not None):
            raise ConfigError(
                "--keep and --per-problem choose recorded episodes: they need --from, conversations have no grade"
            )
        if data is None and (memory_first or drop_too_long):
            raise ConfigError("--memory-first and --drop-too-long are about conversations: they need --data")
        return cls(records, _least_grade(keep or "all"), per_problem, data, memory_first, drop_too_long)


def _least_grade(keep: str) -> float | None:
    """
    >>> _least_grade("all"), _least_grade("correct"), _least_grade("0.5")
    (None, 1.0, 0.5)
    """
    if keep in ("all", "correct"):
        return None if keep == "all" else 1.0
    try:
        least = float(keep)
    except ValueError:
        least = math.nan
    if math.isnan(least):
        raise ConfigError(f"--keep {keep}: give correct (a grade of 1), all, or the least grade to keep")
    return least


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """`palimpsest eval`."""

    policy: str = "overwrite"
    model: str = "embedded"
    data: str = "synthetic"
    documents: int | None = None
    chunks: str | None = None
    objectives: str | None = None
    corpus: Path | None = None
    limit: int | None = None
    out: Path | None = None
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    seed: int = 0
    force: bool = False

    def config(self) -> RunConfig:
        """The run configuration the request amounts to; policy options may still be open."""
        base = load_recipe(self.recipe) if self.recipe else RunConfig()
        options = dict(base.policy.options) if base.policy.name == self.policy else {}
        dotted = []
        for setting in self.settings:
            key, value = split_override(setting)
            if "." in key:
                dotted.append(setting)
            else:
                options[key] = value
        dotted = [*self._reward(dotted), *dotted]
        if self.objectives is not None:
            dotted.append(f"data.search.objectives=[{self.objectives}]")
        data = {
            "source": self.data,
            "eval_source": None,
            "documents": self.documents,
            "corpus": str(self.corpus) if self.corpus else None,
            "limit": self.limit,
            "seed": self.seed,
            "curriculum": None,
            "search": None if self.data == "synthetic" else base.data.search,
        }
        changed = base.model_copy(
            update={
                "policy": PolicyConfig(name=self.policy, options=options),
                "model": base.model.model_copy(update={"path": model_folder(self.model)}),
                "data": base.data.model_copy(update=data),
                "seed": self.seed,
            }
        )
        return parse_config(changed.model_dump_json(), name="--set", overrides=dotted)

    def _reward(self, settings: Sequence[str]) -> list[str]:
        """The policy's own reward, where neither a recipe nor a setting names one."""
        own = policy_class(self.policy).reward
        named = self.recipe or any(split_override(setting)[0] == "reward.name" for setting in settings)
        return [] if named or own is None else [f"reward.name={own}"]


def model_folder(path: str) -> str:
    """`path`, or the newest checkpoint if it is the folder of a run."""
    folder = Path(path)
    if not (folder / "config.yaml").is_file():
        return path
    saved = sorted(folder.glob("checkpoints/step-*"), key=lambda entry: (len(entry.name), entry.name))
    return str(saved[-1]) if saved else path
