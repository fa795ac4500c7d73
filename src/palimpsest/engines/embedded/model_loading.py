"""Model loading: a causal language model from a folder or hub id, optionally with LoRA adapters.

LoRA (Hu et al., arXiv 2106.09685) uses peft, from the extra `lora`. A linear weight W [out, in] is frozen; A [rank, in]
and B [out, rank] are trained in

    y = W x + alpha / rank * B A x,    B = 0 at the start

A learner then saves only the adapter (adapter_model.safetensors and adapter_config.json, which names the base model);
`load_model` merges it into the weights.

Guaranteed: a folder is checked before anything in it is loaded (models/model_folder.py); weights are finite and read
only from safetensors; no code from the folder runs; a model with unsupported attention is rejected by name. The global
random state is unchanged, and adapters start the same in every process. Dropout is off, since the learner must compute
the same as the sampler.
Not covered: quantised weights, encoder-decoder models, models over several devices; adapters on the embeddings or the
output projection (rejected: the learner reads their weights directly); changes of an adapter's base model.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from palimpsest.config.engine import SHIPPED, AdapterConfig, ModelConfig, model_path
from palimpsest.config.install_hints import install_line
from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded import compute
from palimpsest.engines.embedded.architecture import check_class, context_of, merged_weight
from palimpsest.engines.embedded.parity import admit
from palimpsest.engines.protocol import Limits, Objective
from palimpsest.errors import ConfigError, ModelError, first_line
from palimpsest.models.model_files import ADAPTER_SETTINGS, check_used, check_weights, refusing
from palimpsest.models.model_folder import adapters_of, open_model, stored_dtype

# ---- LoRA adapters, with peft --------------------------------------------------------------------------------


def adapted(model: Any, config: AdapterConfig, path: str) -> Any:
    """`model` with new adapters, the only trainable weights; their folder will name `path` as the base."""
    peft = _peft("model.lora")
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.target_modules) if config.target_modules else "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            model = peft.get_peft_model(model, settings)
        except ValueError as error:
            raise ModelError(
                f"model.lora.target_modules={list(config.target_modules or ())}: {first_line(error)}"
            ) from None
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        if any("lora_" in name for name, _ in layer.named_parameters()):
            raise ModelError(
                "model.lora.target_modules: remove embeddings and output projection, which can't have adapters"
            )
    model.disable_input_require_grads()  # only checkpointing with reentrant autograd needs peft's setting
    settings.base_model_name_or_path = path
    return model.eval()


def save_adapter(model: Any, folder: Path) -> None:
    """Write peft's two files, with the same bytes in every process."""
    # peft would ask the hub about the base model's embeddings, and write sets in the order of their hashes.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # a card that contains only this machine's folders
    sort_targets(folder)


def sort_targets(folder: Path) -> None:
    """Sort peft's settings in `folder`, so that their bytes are the same in every process."""
    file = folder / ADAPTER_SETTINGS
    settings = json.loads(file.read_text())
    if isinstance(settings["target_modules"], list):
        settings["target_modules"].sort()
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def merged(model: Any, folder: Path, path: str) -> Any:
    """`model` with the adapter in `folder` merged into its weights; `path` is the user's path."""
    peft = _peft(f"model {path}: an adapter")
    with refusing(f"model {path}: its adapter does not fit the model it names"):
        adapters = peft.PeftModel.from_pretrained(model, str(folder))
        needed = peft.get_peft_model_state_dict(adapters, save_embedding_layers=False).keys()
        if missing := sorted(needed - check_weights(path, folder).keys()):  # peft would draw them at random
            raise ModelError(f"model {path}: its adapter lacks {missing[0]}; take another copy of it")
        ends = model.get_input_embeddings(), model.get_output_embeddings()
        if ends[0].weight is ends[1].weight and any(hasattr(end, "base_layer") for end in ends):
            head = getattr(ends[1], "base_layer", ends[1])  # an adapter changes only one of them
            head.weight = torch.nn.Parameter(head.weight.detach().clone())
            model.config = untied(model.config)
        model = adapters.merge_and_unload()
    if hasattr(model, "peft_config"):  # left by peft; it marks a model that still has adapters
        del model.peft_config
    return model.requires_grad_(True).eval()


def untied(config: Any) -> Any:
    """Copy of transformers' `config` without tied weights, also in the parts of a multimodal model."""
    config = copy.deepcopy(config)
    config.tie_word_embeddings = False
    for name in config.sub_configs:
        if hasattr(part := getattr(config, name, None), "tie_word_embeddings"):
            setattr(config, name, untied(part))
    return config


def plain_name(name: str) -> str:
    """A parameter's name in the model's files.

    >>> plain_name("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight")
    'model.layers.0.self_attn.q_proj.weight'
    """
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


@torch.no_grad()
def merged_weights(
    model: Any, dtype: torch.dtype, *, gather: Callable[[Tensor], Tensor] = Tensor.detach, tied: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight by its plain name, in `dtype`, adapters merged in float32.

    `gather` joins the shares of a weight; `tied`: a weight with two names appears under both.
    """
    modules = dict(model.named_modules())
    for name, weight in model.named_parameters(remove_duplicate=not tied):
        if ".lora_" in name:
            continue
        if name.endswith(".base_layer.weight"):
            yield plain_name(name), merged_weight(modules[name.removesuffix(".base_layer.weight")], gather).to(dtype)
        else:
            yield plain_name(name), gather(weight.to(dtype))  # rounded first, half the bytes are gathered


def _peft(what: str) -> Any:
    try:
        import peft
    except ImportError:
        raise ModelError(f"{what} needs peft: {install_line('lora')}") from None
    return peft


# ---- Loading from a folder or hub id -------------------------------------------------------------------------


_LOADING = threading.Lock()  # transformers changes torch for all threads while it loads: two at once lose weights

NOISE = ("dropout", "drop_rate", "layerdrop")
"""Name parts of random operations in training mode, without jitter: Phi-MoE's router also uses it as a threshold."""

_SLACK = 1 << 20  # weights that a configuration may describe beyond twice those of the files
_ALIGNMENT = 64  # bytes, that of PyTorch's own allocations
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pick_device(name: str) -> torch.device:
    """Device of `name`; `auto` uses a GPU if available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"model.device={name} is not a device: use auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"model.device={name}: no CUDA device here; use model.device=cpu")
    return device


def with_dtype(config: RunConfig, objective: Objective | None) -> RunConfig:
    """`config` with model.dtype=auto resolved for this machine. Raises ConfigError if the run trains."""
    model = config.model
    if model.dtype != "auto":
        return config
    if objective is not None:
        raise ConfigError("model.dtype=auto works only for sampling: set float32 or bfloat16")
    on_gpu = model.device != "cpu" and bool(compute.memories())
    fast = on_gpu or compute.multiplies_bfloat16()
    dtype = "bfloat16" if fast and stored_dtype(adapters_of(model_path(model))[1]) == "bfloat16" else "float32"
    return config.model_copy(update={"model": ModelConfig.model_validate(model.model_dump() | {"dtype": dtype})})


def described_limits(config: ModelConfig) -> Limits:
    """Vocabulary and context window of a model that is not loaded. Raises ModelError."""
    folder, _ = open_model(adapters_of(model_path(config))[1])
    from transformers import AutoConfig

    with refusing(f"model {config.path}: unusable config.json"), _naming(config.path):
        described = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        check_class(described)
        context = context_of(SimpleNamespace(config=described))
        note = f"the window is {context.tokens} tokens {context.reason}" if context.reason else ""
        return Limits(described.get_text_config(decoder=True).vocab_size, context.tokens, note=note)


def load_model(config: ModelConfig) -> Any:
    """Load a model in evaluation mode on its device; raises ModelError if it can't be used.

    An adapter folder gives its base model with the adapter merged. `trainable` applies `config.lora`.
    """
    path = model_path(config)
    adapters, base = adapters_of(path)
    model = _load_full(config, base)
    for adapter in reversed(adapters):
        model = merged(model, adapter, path)
        _check_finite(model, path)
    return model


def _load_full(config: ModelConfig, path: str) -> Any:
    model = _read(config, path)
    disable_noise(model)
    _align(model)
    model = model.to(pick_device(config.device)).eval()
    _check_finite(model, path)
    with refusing(f"model {path}: its forward fails"), _naming(path):
        admit(model)
    recompute_layers(model, config)
    return model


def recompute_layers(model: Any, config: ModelConfig) -> None:
    """Apply `gradient_checkpointing`; a class without transformers' checkpointed layers recomputes all or none."""
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.gradient_checkpointing == "every_second":
        for layer in [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)][1::2]:
            layer.gradient_checkpointing = False


def _read(config: ModelConfig, path: str) -> Any:
    folder, numbers = open_model(path)
    from huggingface_hub.utils import logging as hub_logging
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    loader: Any = AutoModelForCausalLM
    logging.disable_progress_bar()  # one bar per file would break the run's own display
    logging.set_verbosity_error()  # nor its tables: their warnings are errors below
    hub_logging.set_verbosity_error()  # its retries are many lines; the error below is one
    with refusing(f"model {path}: not loadable as a causal language model"), _LOADING, torch.random.fork_rng():
        described = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with _naming(path):
            check_class(described)
            _check_size(loader, described, numbers)
        model, report = loader.from_pretrained(
            folder,
            config=described,
            dtype=DTYPES[config.dtype],
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # the error below names the first
            output_loading_info=True,
        )
    for weight, found, expected in sorted(report["mismatched_keys"]):
        message = f"weight {weight} has shape {list(found)}, config.json needs {list(expected)}; save the model again"
        raise ModelError(f"model {path}: {message}")
    if report["missing_keys"]:  # transformers would use random numbers instead
        raise ModelError(f"model {path}: weight {sorted(report['missing_keys'])[0]} is missing; save the model again")
    check_used(path, report["unexpected_keys"])
    return model


def _check_size(loader: Any, described: Any, numbers: int) -> None:
    """Reject a configuration of more weights than the files contain: the rest would be random."""
    with torch.device("meta"):
        built = loader.from_config(copy.deepcopy(described), trust_remote_code=False)
    size = sum(weight.numel() for weight in built.parameters())
    if size > 2 * numbers + _SLACK:
        raise ModelError(f"config.json describes {size:,} weights, its files hold {numbers:,}")


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise ModelError(f"model {path}: {error}") from None


def trainable(config: ModelConfig) -> Any:
    """The model for a learner, with new adapters if `config.lora` is set."""
    model = load_model(config)
    if config.lora is None:
        return model
    is_folder = config.path not in SHIPPED and Path(config.path).exists()
    return adapted(model, config.lora, str(Path(config.path).resolve()) if is_folder else config.path)


def _align(model: Any) -> None:
    """Copy weights from unaligned file memory, where sums run in another order and last bits would differ."""
    for weight in model.parameters():
        if weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()


def disable_noise(model: Any) -> None:
    """Disable dropout: the learner must match the sampler, also in layers that `recomputing` sets to training mode."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and any(kind in name for kind in NOISE):
                setattr(module, name, 0.0)


def recomputing(model: Any) -> None:
    """Training mode only for modules that need it to recompute their activations.

    Routers and attention may add noise or differ in training mode, so a recomputed layer computes in evaluation mode,
    as do the modules inside it. Without gradient checkpointing, all modules do.
    """
    for module in model.modules():
        module.training = bool(getattr(module, "gradient_checkpointing", False))
        function = getattr(module, "_gradient_checkpointing_func", None)
        if module.training and function is not None and getattr(function, "func", None) is not _evaluated:
            module._gradient_checkpointing_func = partial(_evaluated, module, function)


def _evaluated(module: Any, recompute: Any, layer: Any, *inputs: Any) -> Any:
    """`recompute(layer, *inputs)`, where `layer`, a call of `module` or of modules inside it, is in evaluation mode."""

    def call(*inputs: Any) -> Any:
        module.training = False
        try:
            return layer(*inputs)
        finally:
            module.training = True

    return recompute(call, *inputs)


@torch.no_grad()
def _check_finite(model: Any, path: str) -> None:
    for name, weight in model.named_parameters():
        if weight.numel() and not all(bool(end.isfinite()) for end in weight.aminmax()):  # NaN is both of its ends
            raise ModelError(f"model {path}: weight {name} is not finite; take another copy of the model")
