"""`palimpsest export`: a model as a folder of its own, for servers and for other people.

Guaranteed: a checkpoint verifies before anything is copied; the folder appears whole or not at all, and nothing that
was there, or comes there meanwhile, is touched: of several exports to one place one wins. Without options every file
of a run that trained all weights is the checkpoint's, byte for byte, but for README.md (app/model_card.py), and nothing
that its manifest doesn't name is copied. Of adapters the model they belong to is written with them merged, so that the
folder loads by itself.
Not covered: other formats than Hugging Face's; a hidden `.NAME.….palimpsest-partial` beside the folder, which a kill
leaves.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from palimpsest import files
from palimpsest.app.model_card import CARD, loading, model_card
from palimpsest.config.engine import SHIPPED, Dtype, ModelConfig, model_path
from palimpsest.engines.open import cast, write_merged
from palimpsest.errors import CheckpointError, RunError
from palimpsest.models.checkpoint_manifest import MANIFEST, read_manifest
from palimpsest.models.model_files import ADAPTER_SETTINGS, read_object
from palimpsest.models.model_folder import opened
from palimpsest.runs.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    checkpoint_paths,
    checkpoint_step,
    newest_intact,
    step_name,
    verify,
)
from palimpsest.runs.run_folder import CONFIG, load_config

DTYPES: tuple[str, ...] = get_args(Dtype)


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """What was written."""

    step: int | None
    """None: it is a model of no run's."""
    path: Path
    size: int
    """Bytes."""
    loading: Mapping[str, str]
    """Lines that load it, by the program they are for."""

    @property
    def files(self) -> dict[str, int]:
        """Bytes by name."""
        return {file.name: file.stat().st_size for file in sorted(self.path.iterdir())}


def export(
    run: str | Path,
    to: str | Path,
    *,
    step: int | None = None,
    dtype: str | None = None,
    untied: bool = False,
    adapter: bool = False,
    evaluations: Sequence[Path] = (),
    warn: Callable[[str], None] = lambda _: None,
) -> ExportedModel:
    """Write the model of a run's checkpoint, its newest or the one of `step`, to the folder `to`, adapters merged.

    `run` may be a model's folder too, or one inside the package. `dtype`: float32 or bfloat16; None: as it
    is, merged ones in the run's. `untied`: the output projection is written out, as servers of vLLM need it that take
    new weights. `adapter`: adapters alone, which name the model they belong to. `evaluations`: folders of `palimpsest
    eval` outside of the run's, whose figures README.md has too. Raises RunError, CheckpointError and ModelError.
    """
    run, to = str(run), Path(to)
    if dtype not in (None, *DTYPES):
        raise RunError(f"--dtype {dtype}: choose one of {', '.join(DTYPES)}")
    if untied and adapter:
        raise RunError("--adapter writes no output projection: leave out it or --untied")
    with _reporting_errors(to):
        if os.path.lexists(to):
            raise RunError(f"--to {to}: is there already; give a folder that isn't")
        if Path(run).resolve() in to.resolve().parents:
            raise RunError(f"--to {to}: is inside the run; give a folder elsewhere")
        source = _source(run, step, warn)
        if adapter and not source.has_adapter:
            raise RunError(f"--adapter: {source.folder} holds a whole model and no adapter; leave it out")
        config = load_config(run) if (Path(run) / CONFIG).is_file() else None
        card = model_card(run, source.folder, to.resolve().name, evaluations, step=source.step, adapter=adapter)
        with _published(to) as hidden:
            _write(source, run, hidden, dtype, untied, adapter)
            files.write_plain(hidden / CARD, card.encode("utf-8", "replace"))
        policy = None if config is None else config.policy
        size = sum(file.stat().st_size for file in to.iterdir())
        return ExportedModel(source.step, to, size, loading(str(to.resolve()), policy, adapter=adapter))


@dataclass(frozen=True, slots=True)
class _Source:
    """What is exported."""

    model: str
    """As `model.path` names it."""
    folder: Path
    step: int | None
    files: tuple[str, ...] | None
    """Those that may be copied, of a checkpoint."""

    @property
    def has_adapter(self) -> bool:
        return (self.folder / ADAPTER_SETTINGS).is_file()


def _source(run: str, step: int | None, warn: Callable[[str], None]) -> _Source:
    """A checkpoint of the run, which verifies; or the model, where it is none."""
    if not (Path(run) / CHECKPOINTS).is_dir() and (run in SHIPPED or (Path(run) / "config.json").is_file()):
        if step is not None:
            raise RunError(f"--step {step}: {run} is a model and no run; leave it out")
        folder = opened(model_path(ModelConfig(path=run)))
        return _Source(run, folder, None, None)
    checkpoint = _chosen(Path(run), step, warn)
    names = tuple(name for name in read_manifest(checkpoint.path / MANIFEST)["files"] if Path(name).name == name)
    for name in names:
        if (file := checkpoint.path / name).is_symlink():
            raise CheckpointError(f"{file} is a link: put the file itself in its place")
    return _Source(str(checkpoint.path), checkpoint.path, checkpoint.step, names)


def _write(source: _Source, run: str, hidden: Path, dtype: str | None, untied: bool, adapter: bool) -> None:
    if source.files is None or untied or (source.has_adapter and not adapter):
        written = ModelConfig.model_validate({"path": source.model, "dtype": dtype or _dtype_of(source, run)})
        return write_merged(written, hidden, untied=untied)
    _copy(source, hidden)
    if dtype is not None:
        cast(hidden, dtype)


def _copy(source: _Source, hidden: Path) -> None:
    """But for the card, of which there is a new one: peft's names folders of the machine it was trained on."""
    assert source.files is not None
    for name in source.files:
        if name != CARD:
            shutil.copyfile(source.folder / name, hidden / name)


def _dtype_of(source: _Source, run: str) -> str:
    """What the model is in; adapters, which are float32, say nothing of it: of them what the run computed in."""
    if source.has_adapter:
        return load_config(Path(run)).model.dtype if (Path(run) / CONFIG).is_file() else "float32"
    described = read_object(source.model, source.folder / "config.json")
    dtype = described.get("dtype") or described.get("torch_dtype")
    return dtype if dtype in DTYPES else "float32"


@contextmanager
def _published(to: Path) -> Iterator[Path]:
    """A hidden folder that becomes `to` at the end."""
    hidden = files.new_hidden_folder(to)
    try:
        yield hidden
        files.publish_new(hidden, to)
    except FileExistsError:
        raise RunError(f"--to {to}: has come there meanwhile, and stays as it is; export to another folder") from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def _reporting_errors(to: Path) -> Iterator[None]:
    """Have errors of the system be told in words."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"--to {to}: can't be exported: {error.filename or to}: {reason}") from None


def _chosen(run: Path, step: int | None, warn: Callable[[str], None]) -> Checkpoint:
    folder = run / CHECKPOINTS
    if step is None:
        newest = newest_intact(folder, warn)
        if newest is None:
            raise RunError(f"{run}: has no checkpoint; give the folder of a run that has saved one")
        return newest
    path = folder / step_name(step)
    if not path.is_dir():
        there = ", ".join(str(checkpoint_step(path)) for path in checkpoint_paths(folder)) or "none"
        raise CheckpointError(f"{run}: has no checkpoint of step {step}; it has those of {there}")
    return verify(path)
