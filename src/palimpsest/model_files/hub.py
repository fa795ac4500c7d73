"""A model of the Hugging Face hub as a folder of the local cache, downloaded if it isn't there.

Guaranteed: a model that is in the cache is opened without asking anybody; what can't be had is refused in one line, at
the first failed connection; nothing is downloaded but configuration, tokenizer, chat template and the *.safetensors
files that the model consists of.
Not covered: looking for a newer revision of what is in the cache (`hf download` fetches one).
"""

from __future__ import annotations

from pathlib import Path

from palimpsest.errors import ModelError, PalimpsestError
from palimpsest.model_files.weights import ADAPTER_SETTINGS, weight_names

TEXTS = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "spiece.model",
    "sentencepiece*.model",
    "chat_template*",
    "model.safetensors.index.json",
)
"""Patterns of what is downloaded besides weights."""
_PATIENCE_S = 10.0


def cached(name: str) -> Path | None:
    """The folder of a hub's model in the local cache, if all that a model needs is there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for file in (ADAPTER_SETTINGS, "config.json"):
        try:
            place = try_to_load_from_cache(name, file)
        except HFValidationError:
            return None
        if isinstance(place, str):
            folder = Path(place).parent
            return folder if all((folder / weights).is_file() for weights in weight_names(name, folder)) else None
    return None


def cached_tokenizer(name: str) -> Path | None:
    """The folder of a hub's tokenizer in the local cache, with weights or without."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        place = try_to_load_from_cache(name, "tokenizer.json")
    except HFValidationError:
        return None
    return Path(place).parent if isinstance(place, str) else None


def hub_folder(name: str, *, weights: bool = True) -> Path:
    """The local folder of the hub's model `name`; without `weights` its texts alone. Raises ModelError if it can't be
    had."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    here = f"model {name}: no such folder here"
    try:
        if (folder := cached(name) if weights else cached_tokenizer(name)) is not None:
            return folder
        if constants.HF_HUB_OFFLINE:
            raise ModelError(f"{here}, not in the local cache, and HF_HUB_OFFLINE is set: give a folder, or go online")
        HfApi().model_info(name, timeout=_PATIENCE_S)  # one request: downloads would retry for a minute
        folder = Path(snapshot_download(name, allow_patterns=list(TEXTS)))
        if not weights:
            return folder
        return Path(snapshot_download(name, allow_patterns=[*TEXTS, *weight_names(name, folder)]))
    except PalimpsestError:
        raise
    except HFValidationError:
        raise ModelError(f"{here}, and no hub id such as Qwen/Qwen3-4B") from None
    except HfHubHTTPError as error:
        raise ModelError(f"{here}, and the hub gives no such model ({_first(error)})") from None
    except Exception as error:  # noqa: BLE001  its client differs between versions, and so does what it raises
        raise ModelError(
            f"{here}, not in the local cache, and the hub can't be reached ({_first(error)}): give a folder, or go "
            "online"
        ) from None


def _first(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
