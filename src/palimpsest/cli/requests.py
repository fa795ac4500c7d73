"""What the command line asked for, resolved to a configuration before anything heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from palimpsest.config.load import load_recipe, parse_config, split_override
from palimpsest.config.schema import PolicyConfig, RunConfig


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
class EvalRequest:
    """`palimpsest eval`."""

    policy: str = "overwrite"
    model: str = "embedded"
    data: str = "synthetic"
    documents: int | None = None
    chunks: str | None = None
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
        data = {
            "source": self.data,
            "eval_source": None,
            "documents": self.documents,
            "corpus": str(self.corpus) if self.corpus else None,
            "limit": self.limit,
            "seed": self.seed,
            "curriculum": None,
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


def model_folder(path: str) -> str:
    """`path`, or the newest checkpoint if it is the folder of a run."""
    folder = Path(path)
    if not (folder / "config.yaml").is_file():
        return path
    saved = sorted(folder.glob("checkpoints/step-*"), key=lambda entry: (len(entry.name), entry.name))
    return str(saved[-1]) if saved else path
