"""Loads a causal language model from a Hugging Face folder or hub id.

Guaranteed: weights come from safetensors alone, no code from the folder is run, the global random state is left as
it was, and a model whose attention this engine can't follow is refused by name.
Not covered: quantised weights, encoder-decoder models, models over several devices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from palimpsest.config.models import SHIPPED, model_path
from palimpsest.config.schema import ModelConfig
from palimpsest.engines.embedded.architecture import check_class, max_context
from palimpsest.engines.embedded.lora import SETTINGS, adapted, base_of, merged
from palimpsest.engines.embedded.probe import admit
from palimpsest.errors import ModelError

_LOADING = threading.Lock()  # transformers changes torch for all threads while it loads: two at once lose weights

NOISE = ("dropout", "drop_rate", "layerdrop", "jitter")
"""In the names of what modules do to their numbers at random in training mode."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pick_device(name: str) -> torch.device:
    """`auto` takes the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"model.device={name} is not a device: use auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"model.device={name}: no CUDA device here; use model.device=cpu")
    return device


def load_model(config: ModelConfig) -> Any:
    """The model in evaluation mode, on its device; raises ModelError with the reason if it can't be used.

    Of a folder with an adapter, the model it belongs to with the adapter merged. `config.lora` is `trainable`'s.
    """
    path = model_path(config)
    if (base := base_of(path)) is not None:
        return merged(load_model(config.model_copy(update={"path": base})), path)
    model = _read(config, path)
    disable_noise(model)
    model = model.to(pick_device(config.device)).eval()
    with _naming(path):
        admit(model)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _read(config: ModelConfig, path: str) -> Any:
    """The model as transformers loads it."""
    _check_folder(path)
    from huggingface_hub.utils import logging as hub_logging
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    loader: Any = AutoModelForCausalLM
    logging.disable_progress_bar()  # one bar per file would break the run's own display
    hub_logging.set_verbosity_error()  # its retries are many lines; the error below is one
    try:
        with _LOADING, torch.random.fork_rng():
            described = AutoConfig.from_pretrained(path, trust_remote_code=False)
            with _naming(path):
                check_class(described)
            model, report = loader.from_pretrained(
                path,
                config=described,
                dtype=DTYPES[config.dtype],
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = "" if Path(path).exists() else "no such folder here, and as a hub id "
        raise ModelError(f"model {path}: {where}not loadable as a causal language model ({reason})") from None
    if report["missing_keys"]:  # transformers would go on with random numbers in their place
        raise ModelError(f"model {path}: weight {sorted(report['missing_keys'])[0]} is missing; save the model again")
    return model


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Have refusals within it begin with the model's path."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"model {path}: {error}") from None


def trainable(config: ModelConfig) -> Any:
    """The model as a learner takes it: with fresh adapters where `config.lora` asks for them."""
    model = load_model(config)
    if config.lora is None:
        return model
    is_folder = config.path not in SHIPPED and Path(config.path).exists()
    return adapted(model, config.lora, str(Path(config.path).resolve()) if is_folder else config.path)


def disable_noise(model: Any) -> None:
    """Switch dropout and the noise of routers off: the learner must compute what the sampler computed, also in training
    mode, where gradient checkpointing puts it."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and any(kind in name for kind in NOISE):
                setattr(module, name, 0.0)


def _check_folder(path: str) -> None:
    folder = Path(path)
    looks_like_path = path.startswith((".", "/", "~")) or path.count("/") > 1
    if not folder.exists():
        if looks_like_path:
            raise ModelError(f"model {path}: no such folder; give a Hugging Face folder or a hub id")
        return
    if not (folder / "config.json").is_file():
        raise ModelError(f"model {path}: no config.json and no {SETTINGS}; expected a Hugging Face folder")
    if not list(folder.glob("*.safetensors")):
        raise ModelError(f"model {path}: no *.safetensors weights; save them with save_pretrained")


def check_budget(model: Any, tokens: int, what: str) -> None:
    """Refuse a budget that the model's window can't hold.

    `what` names the budget for the message, e.g. `policy.options chunk_tokens=5000 + ...`.
    """
    limit = max_context(model)
    if tokens > limit:
        raise ModelError(f"{what} needs {tokens} tokens, the model's window holds {limit}: lower the budget")
