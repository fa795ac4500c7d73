"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) through peft, which the extra `lora` installs.

A weight W [out, in] of a linear layer stays as it is; trained are A [rank, in] and B [out, rank] of

    y = W x + alpha / rank * B A x,    B = 0 at the start

A folder that a learner saved then holds the adapter alone (peft's adapter_model.safetensors and adapter_config.json,
which names the model it belongs to); `load_model` opens it with the adapter merged into the weights.

Guaranteed: the adapters begin the same in every process, and the global random state is left as it was; there is no
dropout, since the learner must compute what the sampler computed.
Not covered: adapters on the embeddings or the output projection (refused: the learner reads their weights directly);
a check that the model behind an adapter is still the one it was trained on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from palimpsest.config.extras import install_line
from palimpsest.config.schema import AdapterConfig
from palimpsest.errors import ModelError

SETTINGS = "adapter_config.json"


def adapted(model: Any, config: AdapterConfig, path: str) -> Any:
    """`model` with fresh adapters, which alone take gradients; `path` is what their folder will name as their base."""
    peft = _peft("model.lora")
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.targets) if config.targets else "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            model = peft.get_peft_model(model, settings)
        except ValueError as error:
            raise ModelError(f"model.lora.targets={list(config.targets or ())}: {str(error).splitlines()[0]}") from None
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        if any("lora_" in name for name, _ in layer.named_parameters()):
            raise ModelError("model.lora.targets: adapters on embeddings or output projection are not supported")
    model.disable_input_require_grads()  # only checkpointing with reentrant autograd needs what peft sets there
    settings.base_model_name_or_path = path
    return model.eval()


def save_adapter(model: Any, folder: Path) -> None:
    """peft's two files, with the same bytes in every process."""
    # peft would ask the hub about the base model's embeddings, and write sets in the order of their hashes.
    model.save_pretrained(folder, save_embedding_layers=False)
    file = folder / SETTINGS
    settings = json.loads(file.read_text())
    if isinstance(settings["target_modules"], list):
        settings["target_modules"].sort()
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def base_of(path: str) -> str | None:
    """The model that the adapter in folder `path` belongs to; None if there is no adapter."""
    file = Path(path) / SETTINGS
    if not file.is_file():
        return None
    try:
        base = json.loads(file.read_text())["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError):
        base = None
    if not isinstance(base, str):
        raise ModelError(f"model {path}: {SETTINGS} does not name base_model_name_or_path")
    return base


def merged(model: Any, path: str) -> Any:
    """`model` with the adapter of folder `path` added to its weights."""
    peft = _peft(f"model {path}: an adapter")
    try:
        model = peft.PeftModel.from_pretrained(model, path).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"model {path}: its adapter does not fit the model it names ({reason})") from None
    if hasattr(model, "peft_config"):  # left by peft; it stands for a model that has adapters still
        del model.peft_config
    return model.requires_grad_(True).eval()


def _peft(what: str) -> Any:
    try:
        import peft
    except ImportError:
        raise ModelError(f"{what} needs peft: {install_line('lora')}") from None
    return peft
