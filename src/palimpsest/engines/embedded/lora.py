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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palimpsest.config.extras import install_line
from palimpsest.config.schema import AdapterConfig
from palimpsest.errors import ModelError
from palimpsest.model_files.reading import refusing
from palimpsest.model_files.weights import ADAPTER_SETTINGS


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
    (folder / "README.md").unlink(missing_ok=True)  # a card without content, but for this machine's folders
    sort_targets(folder)


def sort_targets(folder: Path) -> None:
    """Have peft's settings in `folder` be the same bytes in every process."""
    file = folder / ADAPTER_SETTINGS
    settings = json.loads(file.read_text())
    if isinstance(settings["target_modules"], list):
        settings["target_modules"].sort()
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def merged(model: Any, folder: Path, path: str) -> Any:
    """`model` with the adapter in `folder` added to its weights; `path` is what the user named."""
    peft = _peft(f"model {path}: an adapter")
    with refusing(f"model {path}: its adapter does not fit the model it names"):
        model = peft.PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    if hasattr(model, "peft_config"):  # left by peft; it stands for a model that has adapters still
        del model.peft_config
    return model.requires_grad_(True).eval()


def plain_name(name: str) -> str:
    """A parameter's name in the files of the model itself.

    >>> plain_name("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight")
    'model.layers.0.self_attn.q_proj.weight'
    """
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


@torch.no_grad()
def merged_weights(
    model: Any, dtype: torch.dtype, *, whole: Callable[[Tensor], Tensor] = Tensor.detach, tied: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its plain name, in `dtype`, adapters merged in float32, one after the other.

    `whole` gathers a weight of which there are shares; `tied`: one that has two names comes under both.
    """
    modules = dict(model.named_modules())
    for name, weight in model.named_parameters(remove_duplicate=not tied):
        if ".lora_" in name:
            continue
        value = whole(weight)
        if name.endswith(".base_layer.weight"):
            value = value.to(torch.promote_types(weight.dtype, torch.float32))
            layer, key = modules[name.removesuffix(".base_layer.weight")], model.active_adapter
            a, b = (whole(part[key].weight).to(value.dtype) for part in (layer.lora_A, layer.lora_B))
            value = value + layer.scaling[key] * (b @ a)
        yield plain_name(name), value.to(dtype)


def _peft(what: str) -> Any:
    try:
        import peft
    except ImportError:
        raise ModelError(f"{what} needs peft: {install_line('lora')}") from None
    return peft
