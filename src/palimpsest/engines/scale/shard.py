"""A model of which every rank holds a share: FSDP2 over the ranks, tensor parallel within groups of them.

The weights go from the files straight into the shares (meta device, then torch's distributed checkpoints); no process
ever holds them all. What is checked of a model on loading (`forest.model.adopt`) is checked on a copy of two layers.

Guaranteed: float32 weights, sums of gradients and moments, whatever is computed in; the same adapters at the start as
in one process; a weight that is missing, of another shape or not finite is refused by name.
Not covered: a window of context shared by ranks; experts; a folder that is an adapter itself (export it first).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from palimpsest.config.cluster import ClusterConfig
from palimpsest.config.models import model_path
from palimpsest.config.schema import ModelConfig
from palimpsest.engines.embedded.architecture import check_class, head_of, text_config
from palimpsest.engines.embedded.forest.hidden import hidden_at
from palimpsest.engines.embedded.forest.layout import Forest
from palimpsest.engines.embedded.forest.logprobs import token_logprobs
from palimpsest.engines.embedded.forest.model import adopt
from palimpsest.engines.embedded.lora import adapted, plain_name
from palimpsest.engines.embedded.model import DTYPES, disable_noise
from palimpsest.engines.embedded.structure import ROOT
from palimpsest.errors import ModelError
from palimpsest.model_files.folder import adapters_of, open_model
from palimpsest.model_files.reading import refusing
from palimpsest.model_files.weights import check_used, check_weights

CHECKED_LAYERS = 2
COLUMNS, ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj")
"""Of the classes in structure.ROOT: what tensor parallel divides by its outputs, and by its inputs."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from, without its weights."""

    path: str
    folder: Path
    described: Any
    """transformers' configuration."""


def source_of(config: ModelConfig) -> Source:
    """Raises ModelError for a model that ranks can't take."""
    from transformers import AutoConfig

    path = model_path(config)
    adapters, base = adapters_of(path)
    if adapters:
        raise ModelError(f"model {path}: is an adapter, which engine.name=ray can't begin with; train from {base}")
    folder, _ = open_model(path)
    with refusing(f"model {path}: not loadable as a causal language model"):
        described = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    check_class(described)
    return Source(path, folder, described)


def skeleton(source: Source, layers: int | None = None, device: str = "meta") -> Any:
    """The model without its weights; with `layers`, with random ones of so many layers."""
    from transformers import AutoModelForCausalLM

    described = copy.deepcopy(source.described)
    if layers is not None:
        text = described.get_text_config(decoder=True)
        text.num_hidden_layers = min(layers, text.num_hidden_layers)
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[: text.num_hidden_layers]
    loader: Any = AutoModelForCausalLM
    with refusing(f"model {source.path}: not loadable as a causal language model"), torch.device(device):
        model = loader.from_config(described, dtype=torch.float32, trust_remote_code=False)
    disable_noise(model)
    return model.eval()


def checked_copy(source: Source) -> Any:
    """Two layers of random weights, on which the forest was tried. Raises ModelError."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        small = skeleton(source, CHECKED_LAYERS, "cpu")
    adopt(small)
    return small


class ForestModel(nn.Module):
    """Model, forest and log-probabilities in one forward: FSDP gathers weights where a root module is called."""

    def __init__(self, model: Any, temperature: float, dtype: torch.dtype, entropy_gradient: bool) -> None:
        super().__init__()
        self.model = model
        self.temperature, self._dtype, self._entropy_gradient = temperature, dtype, entropy_gradient
        self._vocab = int(text_config(model).vocab_size)

    def forward(self, forest: Forest) -> tuple[Tensor, Tensor]:
        """[N] log-probabilities and [N] entropies of the trained tokens."""
        return token_logprobs(
            hidden_at(self.model, forest, self._dtype),
            head_of(self.model),
            forest.predicts,
            forest.targets,
            self.temperature,
            vocab=self._vocab,
            entropy_gradient=self._entropy_gradient,
        )


def computed_in(model: ModelConfig, cluster: ClusterConfig) -> torch.dtype:
    return DTYPES[cluster.mixed_precision or model.dtype]


def shard(
    config: ModelConfig,
    cluster: ClusterConfig,
    mesh: DeviceMesh,
    device: torch.device,
    temperature: float,
    *,
    entropy_gradient: bool = False,
) -> ForestModel:
    """The model of `config` with its weights, of which this rank holds a share; collective over `mesh` (dp, tp)."""
    source = source_of(config)
    small = checked_copy(source)
    model = skeleton(source)
    if getattr(small, "generation_config", None) is not None:
        model.generation_config = small.generation_config
    model.set_attn_implementation(small.config._attn_implementation)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    adapters: dict[str, Tensor] = {}
    if config.lora is not None:
        model, adapters = _with_adapters(model, config, source)
    divide(model, mesh["tp"])
    root = ForestModel(model, temperature, computed_in(config, cluster), entropy_gradient)
    _fully_shard(root, cluster, mesh["dp"], computed_in(config, cluster), device)
    root.to_empty(device="cpu" if cluster.cpu_offload else device)
    _base(model).tie_weights()
    _fill_buffers(model, small, device)
    _read(model, source, adapters)
    return root.eval()


def _base(model: Any) -> Any:
    return getattr(model, "get_base_model", lambda: model)()


def _with_adapters(model: Any, config: ModelConfig, source: Source) -> tuple[Any, dict[str, Tensor]]:
    """`model` with adapters, on the meta device, and the values that these begin with.

    They are drawn as in one process: beside weights that take no memory, since all their numbers are one.
    """
    assert config.lora is not None
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.zeros(()).expand(weight.shape), requires_grad=False))
    model = adapted(model, config.lora, str(source.folder.resolve()))
    drawn = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}
    return model.to("meta"), drawn


def divide(model: Any, mesh: DeviceMesh) -> None:
    """Tensor parallel, for the classes that it is known of. Raises ModelError for others."""
    if mesh.size() == 1:
        return
    name, described = type(_base(model)).__name__, text_config(_base(model))
    if name not in ROOT:
        raise ModelError(f"cluster.tensor_parallel={mesh.size()}: {name} can't be divided, only {', '.join(ROOT)} can")
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(described, key) % mesh.size():
            raise ModelError(
                f"cluster.tensor_parallel={mesh.size()} does not divide the model's {key}={getattr(described, key)}"
            )
    for layer in model.get_decoder().layers:
        for part in (layer.self_attn, layer.mlp):
            named = dict(part.named_children())
            styles = {name: ColwiseParallel() for name in COLUMNS if name in named}
            parallelize_module(part, mesh, {**styles, **{name: RowwiseParallel() for name in ROWS if name in named}})


def _fully_shard(
    root: ForestModel, cluster: ClusterConfig, mesh: DeviceMesh, dtype: torch.dtype, device: torch.device
) -> None:
    """A group for each layer, and one for the rest: the output projection is called as often as a rank has chunks."""
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if cluster.cpu_offload else OffloadPolicy()
    mixed = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for module in (*root.model.get_decoder().layers, root):
        fully_shard(module, mesh=mesh, mp_policy=mixed, offload_policy=offload)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)  # denominators are in the weights of the tokens
        module.set_force_sum_reduction_for_comms(True)


def _fill_buffers(model: Any, small: Any, device: torch.device) -> None:
    """What no file holds, such as the frequencies of rotary positions, as the copy has computed it."""
    computed = dict(small.named_buffers())
    for name, _ in list(model.named_buffers()):
        plain = plain_name(name)
        if plain not in computed:
            raise ModelError(f"{type(_base(model)).__name__}: layers with a table ({plain}) can't be divided")
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner).register_buffer(leaf, computed[plain].to(device), persistent=False)


@torch.no_grad()
def _read(model: Any, source: Source, adapters: dict[str, Tensor]) -> None:
    """Fill the shares from the files, and the adapters with what they begin with."""
    weights = {plain_name(name): weight for name, weight in model.named_parameters() if name not in adapters}
    there = check_weights(source.path, source.folder)
    for name, weight in weights.items():
        if tuple(there.get(name, ())) != tuple(weight.shape):
            raise ModelError(
                f"model {source.path}: weight {name} of {tuple(weight.shape)} is not in its files by that name; "
                "engine.name=ray reads files that name weights as the class does"
            )
    tied = {"lm_head.weight"} if text_config(_base(model)).tie_word_embeddings else set()
    check_used(source.path, there.keys() - weights.keys() - tied)
    load(weights, storage_reader=HuggingFaceStorageReader(str(source.folder)))
    for name, weight in model.named_parameters():
        if name in adapters:
            _fill(weight, adapters[name])
    for name, share in _shares(model):
        if share.numel() and not bool(share.isfinite().all()):
            raise ModelError(f"model {source.path}: weight {name} is not finite; take another copy of the model")


def _fill(weight: Tensor, value: Tensor) -> None:
    from torch.distributed.tensor import distribute_tensor

    if isinstance(weight, DTensor):
        value = distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
    weight.copy_(value)


def _shares(model: Any) -> Iterator[tuple[str, Tensor]]:
    for name, weight in model.named_parameters():
        yield name, weight.to_local() if isinstance(weight, DTensor) else weight
