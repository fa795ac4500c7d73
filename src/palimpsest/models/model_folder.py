"""Model folder lookup: from a name (folder, hub id, shipped model) to a folder that is safe to open.

A hub model comes from the local Hugging Face cache, or from the hub if it is not cached.

Guaranteed: in a verified folder all opened files are plain and of bounded size, weights are safetensors, the model
needs no custom code, sizes match the weights, and a palimpsest checkpoint has its saved bytes. Other folders are errors
of one line, before torch is imported. A cached model needs no request; a download fails at the first failed connection,
with one line. Downloads contain only configuration, tokenizer, chat template and *.safetensors files.
Not covered: regular expressions of a tokenizer that never end; newer revisions of a cached model (use `hf download`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from palimpsest.config.engine import SHIPPED, named
from palimpsest.errors import ModelError, PalimpsestError, first_line, nearest
from palimpsest.models.checkpoint_manifest import verify_folder
from palimpsest.models.model_files import (
    ADAPTER_SETTINGS,
    Shapes,
    check_entries,
    check_full,
    check_sizes,
    check_tokenizer,
    check_weights,
    count,
    read_object,
    sections,
    weight_names,
)

# ---- Models of the Hugging Face hub --------------------------------------------------------------------------


TEXTS = tuple(
    str.split(
        "config.json generation_config.json adapter_config.json tokenizer* special_tokens_map.json added_tokens.json "
        "vocab* merges.txt spiece.model sentencepiece*.model chat_template* model.safetensors.index.json"
    )
)
"""Patterns of downloaded files other than weights."""
_PATIENCE_S = 10.0


def cached(name: str) -> Path | None:
    """The folder of a hub model in the local cache, or None if it is incomplete."""
    folder = _cached_with(name, ADAPTER_SETTINGS) or _cached_with(name, "config.json")
    return folder if folder and all((folder / file).is_file() for file in weight_names(name, folder)) else None


def local_folder(name: str) -> Path | None:
    """`name` if it is a folder, the folder of a hub model in the local cache, or None."""
    if Path(name).is_dir():
        return Path(name)
    return cached(name) if name.count("/") == 1 else None


def cached_tokenizer(name: str) -> Path | None:
    """The folder of a hub tokenizer in the local cache, with or without weights."""
    return _cached_with(name, "tokenizer.json")


def _cached_with(name: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, file)
    except HFValidationError:
        return None
    return Path(path).parent if isinstance(path, str) else None


def hub_folder(name: str, *, weights: bool = True) -> Path:
    """The local folder of the hub model `name`; `weights=False` downloads only `TEXTS`. Raises ModelError."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    here = f"model {name}: no such folder here"
    try:
        if (folder := cached(name) if weights else cached_tokenizer(name)) is not None:
            return folder
        if constants.HF_HUB_OFFLINE:
            raise ModelError(f"{here}, not in the local cache, and HF_HUB_OFFLINE is set: use a folder, or go online")
        HfApi().model_info(name, timeout=_PATIENCE_S)  # one request: downloads would retry for a minute
        folder = Path(snapshot_download(name, allow_patterns=list(TEXTS)))
        if not weights:
            return folder
        return Path(snapshot_download(name, allow_patterns=[*TEXTS, *weight_names(name, folder)]))
    except PalimpsestError:
        raise
    except HFValidationError:
        raise ModelError(f"{here}, and not a hub id such as Qwen/Qwen3-4B") from None
    except HfHubHTTPError as error:
        raise ModelError(f"{here}, and the hub returns no such model ({first_line(error):.200})") from None
    except Exception as error:  # noqa: BLE001  the client's errors differ between versions
        raise ModelError(
            f"{here}, not in the local cache, and the hub can't be reached ({first_line(error):.200}): use a folder, "
            "or go online"
        ) from None


# ---- Lookup of a model by name -------------------------------------------------------------------------------


_TOKENIZERS = tuple(
    str.split("tokenizer.json tokenizer.model spiece.model sentencepiece.bpe.model vocab.json vocab.txt")
)
_LAYER_NAME = re.compile(r"[\w.-]+")
_OBJECTS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json")


def check_name(name: str, names: Iterable[str] = ()) -> None:
    """Raise ModelError for a name that can't be a model, without a request. `names`: further names for hints."""
    folder = Path(name)
    if folder.is_dir():
        return
    if folder.exists():
        raise ModelError(f"model {name}: is a file; use its folder")
    if _looks_like_a_path(name):
        siblings = [sibling.name for sibling in folder.parent.iterdir()] if folder.parent.is_dir() else []
        hint = nearest(folder.name, siblings)
        raise ModelError(f"model {name}: no such folder{hint}; use a Hugging Face folder or a hub id")
    if "/" not in name and cached(name) is None:
        here = [*names, *(entry.name for entry in Path().iterdir() if entry.is_dir())]
        raise ModelError(
            f"model {name}: no such folder here{nearest(name, here)}; a hub id includes its owner, as in Qwen/Qwen3-4B"
        )


def _looks_like_a_path(name: str) -> bool:
    first = name.partition("/")[0]
    return (
        name.startswith((".", "/", "~"))
        or name.endswith("/")
        or name.count("/") > 1
        or ("/" in name and Path(first).exists())
    )


def opened(name: str) -> Path:
    """The verified folder of `name`. Raises ModelError or CheckpointError."""
    check_name(name, SHIPPED)
    folder = Path(name) if Path(name).is_dir() else hub_folder(name)
    check_entries(name, folder)
    verify_folder(folder)
    return folder


def open_model(name: str) -> tuple[Path, int]:
    """The folder of a model, not an adapter, and its number of parameters. Raises ModelError."""
    folder = opened(name)
    config = read_object(name, folder / "config.json")
    if not config:
        run = f"; it is a run: use {folder}/checkpoints/step-..." if (folder / "config.yaml").is_file() else ""
        raise ModelError(f"model {name}: no config.json and no {ADAPTER_SETTINGS}; expected a Hugging Face folder{run}")
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(entry, str) for entry in names):
        raise ModelError(f"model {name}: config.json has architectures={names!r:.60}; it must be a list of names")
    check_full(name, config)
    shapes = check_weights(name, folder)
    check_sizes(name, config, shapes)
    return folder, count(shapes)


def stored_dtype(name: str) -> str | None:
    """The dtype in a model's config.json, such as float32, or None. Raises ModelError."""
    config = read_object(name, opened(name) / "config.json")
    dtype = config.get("dtype") or config.get("torch_dtype")
    return dtype if isinstance(dtype, str) else None


def window_of(name: str) -> int | None:
    """Context window in tokens that the model's configuration names; None: it names none. Raises ModelError."""
    config = read_object(name, opened(adapters_of(name)[1]) / "config.json")
    found = (values.get("max_position_embeddings") for _, values in sections(config))
    return next((value for value in found if type(value) is int), None)


def adapters_of(name: str) -> tuple[list[Path], str]:
    """Folders of the adapters from `name` down, and the name of their base model. Raises ModelError."""
    adapters: list[Path] = []
    base = name
    while (folder := opened(base)) and (folder / ADAPTER_SETTINGS).is_file():
        if any(folder.samefile(other) for other in adapters):
            raise ModelError(f"model {name}: {folder} is an adapter of itself; set its model in {ADAPTER_SETTINGS}")
        settings = read_object(base, folder / ADAPTER_SETTINGS)
        _check_adapter(base, settings, check_weights(base, folder))
        adapters.append(folder)
        base = named(settings["base_model_name_or_path"])
    return adapters, base


def _check_adapter(name: str, settings: Mapping[str, Any], shapes: Shapes) -> None:
    """Raise ModelError for adapters other than LoRA, ranks larger than the weights, and settings for which peft imports
    code or matches patterns."""
    if not isinstance(settings.get("base_model_name_or_path"), str):
        raise ModelError(f"model {name}: {ADAPTER_SETTINGS} does not name base_model_name_or_path")
    if settings.get("peft_type") != "LORA":
        raise ModelError(f"model {name}: adapter of type {settings.get('peft_type')!r:.40}; only LORA is supported")
    for key in ("megatron_config", "layer_replication"):
        if settings.get(key):
            raise ModelError(f"model {name}: {ADAPTER_SETTINGS} has a {key}, which is not supported")
    named, ranks = settings.get("target_modules"), settings.get("rank_pattern") or {}
    words = [*(named if isinstance(named, list) else [named]), *ranks, *(settings.get("alpha_pattern") or ())]
    if strange := [word for word in words if not isinstance(word, str) or not _LAYER_NAME.fullmatch(word)]:
        raise ModelError(f"model {name}: {ADAPTER_SETTINGS} names layers by {strange[0]!r:.60}; use plain names")
    widest = max((side for shape in shapes.values() for side in shape), default=0)
    for rank in (settings.get("r"), *(ranks.values() if isinstance(ranks, dict) else ())):
        if not isinstance(rank, int) or not 1 <= rank <= widest:
            raise ModelError(f"model {name}: {ADAPTER_SETTINGS} has r={rank!r:.40}, but its weights have {widest}")


def tokenizer_folder(name: str) -> Path:
    """The folder of a tokenizer, with or without weights. Raises ModelError."""
    if Path(name).is_dir():
        return Path(name)
    if cached_tokenizer(name) is None:
        check_name(name)
    return hub_folder(name, weights=False)


def open_tokenizer(name: str) -> Path:
    """The verified folder of a tokenizer; for an adapter without one, its model's. Raises ModelError if it has none."""
    folder = opened(name)
    if not any((folder / file).is_file() for file in _TOKENIZERS):
        if (folder / ADAPTER_SETTINGS).is_file():
            return open_tokenizer(adapters_of(name)[1])
        raise ModelError(f"model {name}: no tokenizer; expected a folder with tokenizer.json")
    for file in _OBJECTS:
        read_object(name, folder / file)
    check_tokenizer(name, folder)
    return folder
