"""`palimpsest export`: a model as a separate folder, for servers and for other people.

Guaranteed: the checkpoint is verified before anything is copied. The folder appears only complete and never replaces an
existing or concurrently created one; of several exports to one place one wins. Without options every file of a run that
trained all weights is the checkpoint's, byte for byte, except README.md (app/model_card.py) and the two configurations,
which also get the layout of transformers 4; only files in its manifest are copied. Adapters are written merged into
their model, so that the folder loads without another.
Not covered: other formats than Hugging Face's; a hidden `.NAME.….palimpsest-partial` next to the folder, which a kill
leaves.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from palimpsest import files
from palimpsest.app.model_card import CARD, loading, model_card
from palimpsest.config.engine import SHIPPED, Dtype, ModelConfig, model_path
from palimpsest.engines.open import cast, write_merged
from palimpsest.errors import CheckpointError, RunError
from palimpsest.models.checkpoint_manifest import MANIFEST, read_manifest
from palimpsest.models.model_files import ADAPTER_SETTINGS, check_shards, read_object
from palimpsest.models.model_folder import adapters_of, opened
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
_BY_LAYER = ("gemma3_text", "gemma3n_text", "olmo3")  # in transformers 4, they scale only layers with full attention
_OF_ONE_LOAD = ("auto_map", "backend", "is_local", "local_files_only")  # code, and what transformers 5 saves


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """An exported model."""

    step: int | None
    """None: the model belongs to no run."""
    path: Path
    size: int
    """Bytes."""
    loading: Mapping[str, str]
    """Lines that load it, by program."""

    @property
    def files(self) -> dict[str, int]:
        """Bytes by file name."""
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

    `run` may also be a model's folder, or a shipped model. `dtype`: float32 or bfloat16; None: unchanged, merged
    adapters in the run's. `untied`: write the output projection separately, as vLLM needs it for weight updates.
    `adapter`: write only the adapter, which names its model. `evaluations`: folders of `palimpsest eval` outside the
    run's, for README.md. Raises RunError, CheckpointError and ModelError.
    """
    run, to = str(run), Path(to)
    if dtype not in (None, *DTYPES):
        raise RunError(f"--dtype {dtype}: choose one of {', '.join(DTYPES)}")
    if untied and adapter:
        raise RunError("--adapter writes no output projection: omit it or --untied")
    with _reporting_errors(to):
        if os.path.lexists(to):
            raise RunError(f"--out {to}: already exists; use a new folder")
        if Path(run).resolve() in to.resolve().parents:
            raise RunError(f"--out {to}: is inside the run; use a folder elsewhere")
        source = _source(run, step, warn)
        config = load_config(run) if (Path(run) / CONFIG).is_file() else None
        card = model_card(run, source.folder, to.resolve().name, evaluations, step=source.step, adapter=adapter)
        with _published(to) as hidden:
            _write(source, run, hidden, dtype, untied, adapter)
            _add_older_layout(hidden, dtype)
            files.write_plain(hidden / CARD, card.encode("utf-8", "replace"))
        size = sum(file.stat().st_size for file in to.iterdir())
        return ExportedModel(source.step, to, size, loading(str(to.resolve()), config, adapter=adapter))


@dataclass(frozen=True, slots=True)
class _Source:
    model: str
    """Its `model.path`."""
    folder: Path
    step: int | None
    files: tuple[str, ...] | None
    """Files of a checkpoint that may be copied; None for other models."""

    @property
    def has_adapter(self) -> bool:
        return (self.folder / ADAPTER_SETTINGS).is_file()


def _source(run: str, step: int | None, warn: Callable[[str], None]) -> _Source:
    described = any((Path(run) / name).is_file() for name in ("config.json", ADAPTER_SETTINGS))
    if not (Path(run) / CHECKPOINTS).is_dir() and (run in SHIPPED or described):
        if step is not None:
            raise RunError(f"--step {step}: {run} is a model, not a run; omit it")
        folder = opened(model_path(ModelConfig(path=run)))
        return _Source(run, folder, None, None)
    if Path(run).is_dir():
        check_shards(run, Path(run))
    checkpoint = _chosen(Path(run), step, warn)
    names = tuple(name for name in read_manifest(checkpoint.path / MANIFEST)["files"] if Path(name).name == name)
    for name in names:
        if (file := checkpoint.path / name).is_symlink():
            raise CheckpointError(f"{file} is a link: replace it with the file")
    return _Source(str(checkpoint.path), checkpoint.path, checkpoint.step, names)


def _write(source: _Source, run: str, hidden: Path, dtype: str | None, untied: bool, adapter: bool) -> None:
    if adapter and (source.files is None or not source.has_adapter):
        kind = "already an adapter; copy the folder" if source.has_adapter else "a model without an adapter; omit it"
        raise RunError(f"--adapter: {source.folder} is {kind}")
    if source.files is None or untied or (source.has_adapter and not adapter):
        written = ModelConfig.model_validate({"path": source.model, "dtype": dtype or _dtype_of(source, run)})
        return write_merged(written, hidden, untied=untied)
    _copy(source, hidden)
    if dtype is not None:
        cast(hidden, dtype)


def _copy(source: _Source, hidden: Path) -> None:
    """Copy all files except the card: peft's names folders of the training machine."""
    assert source.files is not None
    for name in source.files:
        if name != CARD:
            shutil.copyfile(source.folder / name, hidden / name)


def _dtype_of(source: _Source, run: str) -> str:
    """Dtype of the model; for adapters, which are float32, that of the run or of their base model."""
    if source.has_adapter and (Path(run) / CONFIG).is_file():
        return load_config(Path(run)).model.dtype
    base = adapters_of(str(source.folder))[1]
    described = read_object(source.model, (opened(base) or source.folder) / "config.json")
    dtype = described.get("dtype") or described.get("torch_dtype")
    return dtype if dtype in DTYPES else "float32"


def _add_older_layout(folder: Path, dtype: str | None) -> None:
    """Let transformers 4 read the configurations in `folder` as transformers 5 does. A key that it doesn't know would
    silently leave its default: rotary positions with a base of 10,000 and without scaling."""
    if (config := folder / "config.json").is_file():
        _rewrite(config, _in_both_layouts(read_object(str(folder), config) | ({"dtype": dtype} if dtype else {})))
    if (file := folder / "tokenizer_config.json").is_file():
        settings = {key: value for key, value in read_object(str(folder), file).items() if key not in _OF_ONE_LOAD}
        if isinstance(extra := settings.get("extra_special_tokens"), list):
            settings["additional_special_tokens"] = extra
            del settings["extra_special_tokens"]
        # The only class that reads tokenizer.json unchanged in both versions; others rebuild parts.
        inputs = {"model_input_names": ["input_ids", "attention_mask"]}
        _rewrite(file, inputs | settings | {"tokenizer_class": "PreTrainedTokenizerFast"})


def _in_both_layouts(described: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of transformers 5, and of each part of a multimodal model, with the keys of transformers 4.

    >>> _in_both_layouts({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})["rope_theta"]
    1000000.0
    """
    parts = {name: _in_both_layouts(part) for name, part in described.items() if isinstance(part, dict)}
    same = {"dtype": "torch_dtype", "num_local_experts": "num_experts"}
    older = {name: described[newer] for newer, name in same.items() if newer in described}
    rope, kind = described.get("rope_parameters") or {}, described.get("model_type")
    if "full_attention" in rope and kind not in _BY_LAYER:
        rope = {}  # no class of transformers 4
    scaling = dict(rope.get("full_attention") or rope)
    if local := rope.get("sliding_attention"):
        older["rope_local_base_freq"] = local["rope_theta"]
    older |= {name: scaling.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in scaling}
    if str(kind).startswith("gpt_neox"):
        names = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
        older |= {name: older[newer] for newer, name in names.items() if newer in older}
    if scaling.get("rope_type", "default") != "default":
        if kind == "phi3":  # its class accepts only these
            factors = {name: scaling[name] for name in ("short_factor", "long_factor")}
            scaling = {"type": scaling["rope_type"], **factors}
        older["rope_scaling"] = scaling
    return {**older, **described, **parts}


def _rewrite(file: Path, settings: Mapping[str, Any]) -> None:
    files.write_plain(file, (json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode())


@contextmanager
def _published(to: Path) -> Iterator[Path]:
    hidden = files.new_hidden_folder(to)
    try:
        yield hidden
        files.publish_new(hidden, to)
    except FileExistsError:
        raise RunError(f"--out {to}: created concurrently and left unchanged; export to another folder") from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def _reporting_errors(to: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"--out {to}: export failed: {error.filename2 or error.filename or to}: {reason}") from None


def _chosen(run: Path, step: int | None, warn: Callable[[str], None]) -> Checkpoint:
    folder = run / CHECKPOINTS
    if not run.is_dir():
        raise RunError(f"{run}: no such folder; pass the folder of a run")
    if step is None:
        newest = newest_intact(folder, warn)
        if newest is None:
            raise RunError(f"{run}: has no checkpoint; pass the folder of a run with one")
        return newest
    path = folder / step_name(step)
    if not path.is_dir():
        there = ", ".join(str(checkpoint_step(path)) for path in checkpoint_paths(folder)) or "none"
        raise CheckpointError(f"{run}: has no checkpoint of step {step}; available: {there}")
    return verify(path)
