"""Sharded models: how ranks shard a model, load it, and save weights, masters and moments together.

The weights go from the files straight into the shares (meta device, then torch's distributed checkpoints); no process
ever holds them all. The checks at loading (`forest_model.adopt`) run on a copy of two layers. A checkpoint holds

    learner/shard-00001-model-00001-of-00001.safetensors    rank 0's share of masters and moments, and so on
    learner/learner.json                                    steps taken, gradients skipped, the reference's digest
    model.safetensors, config.json, tokenizer...            the model, in model.dtype; or its adapters

These are torch's distributed checkpoints in safetensors, since their default format contains a pickle. No tensor in a
share is a scalar, which torch's consolidation would write as 0: the step count is in learner.json.

Guaranteed: float32 weights, gradient sums and moments for any compute dtype; the same initial adapters as in one
process; a weight that is missing, of another shape or not finite is rejected by name. A share is read back and compared
with memory before its hash is reported. The same state in the same number of shares gives the same bytes, and any
number of ranks reads it bit for bit.
Not covered: context parallelism; experts; an adapter folder as the model (export it first); a file system that not
every rank sees (rejected at the start, actor_group.py).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from palimpsest import files
from palimpsest.config.engine import ClusterConfig, model_path
from palimpsest.config.schema import Layout, ModelConfig, RunConfig
from palimpsest.engines.embedded.architecture import (
    ROOT,
    base_of,
    check_class,
    choose,
    decoder_of,
    head_of,
    last_layer_is_plain,
    text_config,
    ways_of,
)
from palimpsest.engines.embedded.checkpoint_state import FACTS, CheckpointFacts, facts_of_shares
from palimpsest.engines.embedded.forest.forest_model import adopt, hidden_at, last_layer_at, token_logprobs
from palimpsest.engines.embedded.forest.layout import Forest
from palimpsest.engines.embedded.model_loading import (
    DTYPES,
    adapted,
    disable_noise,
    merged_weights,
    plain_name,
    recompute_layers,
    sort_targets,
    untied,
)
from palimpsest.engines.embedded.optim import Optimizer
from palimpsest.errors import CheckpointError, ModelError, NotWritten
from palimpsest.models.checkpoint_manifest import STATE_FOLDER
from palimpsest.models.model_files import check_used, check_weights, refusing
from palimpsest.models.model_folder import adapters_of, open_model
from palimpsest.text.codec import Codec

CHECKED_LAYERS = 2
COLUMNS, ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj")
"""Linear layers that tensor parallelism divides by outputs and by inputs."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Source of a model, without its weights."""

    path: str
    folder: Path
    described: Any
    """The transformers configuration."""


def source_of(config: ModelConfig) -> ModelSource:
    """Raises ModelError for a model that ranks can't take."""
    from transformers import AutoConfig

    path = model_path(config)
    adapters, base = adapters_of(path)
    if adapters:
        raise ModelError(f"model {path}: is an adapter, which engine.name=ray can't start from; train from {base}")
    folder, _ = open_model(path)
    with refusing(f"model {path}: not loadable as a causal language model"):
        described = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    check_class(described)
    return ModelSource(path, folder, described)


def skeleton(source: ModelSource, layers: int | None = None, device: str = "meta") -> Any:
    """The model without its weights; with `layers`, only that many layers, with random weights."""
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


def checked_copy(source: ModelSource, layout: Layout | None = None) -> Any:
    """Copy with two random layers that passed the learner's checks, see `adopt`. Raises ModelError."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        small = skeleton(source, CHECKED_LAYERS, "cpu")
    adopt(small, layout)
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


def computed_in(model: ModelConfig) -> torch.dtype:
    return DTYPES[model.dtype]


def shard(
    run: RunConfig,
    small: Any,
    mesh: DeviceMesh,
    device: torch.device,
    temperature: float,
    *,
    entropy_gradient: bool = False,
) -> ForestModel:
    """The model of `run` with this rank's share of the weights, computed as its checked copy `small`.

    Collective over `mesh` (dp, tp).
    """
    config, cluster = run.model, run.cluster
    source = source_of(config)
    model = skeleton(source)
    if getattr(small, "generation_config", None) is not None:
        model.generation_config = small.generation_config
    if model._can_set_attn_implementation():
        model.set_attn_implementation(small.config._attn_implementation)
    choose(model, layout=ways_of(small).layout)
    recompute_layers(model, config)
    adapters: dict[str, Tensor] = {}
    if config.lora is not None:
        model, adapters = _with_adapters(model, config, source)
    divide(model, mesh["tp"])
    root = ForestModel(model, temperature, computed_in(config), entropy_gradient)
    _fully_shard(root, cluster, mesh["dp"], computed_in(config), device)
    root.to_empty(device="cpu" if cluster.cpu_offload else device)
    base_of(model).tie_weights()
    _fill_buffers(model, small, device)
    _read(model, source, adapters)
    return root.eval()


def _with_adapters(model: Any, config: ModelConfig, source: ModelSource) -> tuple[Any, dict[str, Tensor]]:
    """`model` with adapters, on the meta device, and the adapters' initial values.

    They are drawn as in one process, next to expanded weights that take no memory.
    """
    assert config.lora is not None
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.zeros(()).expand(weight.shape), requires_grad=False))
    model = adapted(model, config.lora, str(source.folder.resolve()))
    drawn = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}
    return model.to("meta"), drawn


def divide(model: Any, mesh: DeviceMesh) -> None:
    """Apply tensor parallelism. Raises ModelError for classes without a plan."""
    if mesh.size() == 1:
        return
    name, described = type(base_of(model)).__name__, text_config(base_of(model))
    if name not in ROOT:
        raise ModelError(
            f"cluster.tensor_parallel_size={mesh.size()}: unsupported for {name}; supported: {', '.join(ROOT)}"
        )
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(described, key) % mesh.size():
            raise ModelError(
                f"cluster.tensor_parallel_size={mesh.size()} does not divide the model's "
                f"{key}={getattr(described, key)}"
            )
    for layer in decoder_of(model).layers:
        for part in (layer.self_attn, layer.mlp):
            named = dict(part.named_children())
            styles = {name: ColwiseParallel() for name in COLUMNS if name in named}
            parallelize_module(part, mesh, {**styles, **{name: RowwiseParallel() for name in ROWS if name in named}})


def _fully_shard(
    root: ForestModel, cluster: ClusterConfig, mesh: DeviceMesh, dtype: torch.dtype, device: torch.device
) -> None:
    """One FSDP group per layer and one for the rest: the output projection runs once per chunk of a rank.

    FSDP gathers a layer where it is called, so the last one gets a method of the part that forests compute.
    """
    *_, last = decoder_of(root.model).layers
    shortened = last_layer_is_plain(root.model)  # FSDP's hooks would hide it
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if cluster.cpu_offload else OffloadPolicy()
    mixed = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for module in (*decoder_of(root.model).layers, root):
        fully_shard(module, mesh=mesh, mp_policy=mixed, offload_policy=offload)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)  # denominators are in the weights of the tokens
        module.set_force_sum_reduction_for_comms(True)
    if shortened:
        last.forest_at = partial(last_layer_at, last)
        register_fsdp_forward_method(last, "forest_at")


def _fill_buffers(model: Any, small: Any, device: torch.device) -> None:
    """Copy buffers that no file contains, such as rotary frequencies, from the checked copy."""
    computed = dict(small.named_buffers())
    for name, _ in list(model.named_buffers()):
        plain = plain_name(name)
        if plain not in computed:
            raise ModelError(
                f"{type(base_of(model)).__name__}: sharding does not support layers with a table ({plain})"
            )
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner).register_buffer(leaf, computed[plain].to(device), persistent=False)


@torch.no_grad()
def _read(model: Any, source: ModelSource, adapters: dict[str, Tensor]) -> None:
    weights = {plain_name(name): weight for name, weight in model.named_parameters() if name not in adapters}
    there = check_weights(source.path, source.folder)
    for name, weight in weights.items():
        if tuple(there.get(name, ())) != tuple(weight.shape):
            raise ModelError(
                f"model {source.path}: weight {name} of {tuple(weight.shape)} is missing from its files; "
                "engine.name=ray needs the weight names of the model class"
            )
    tied = {"lm_head.weight"} if text_config(base_of(model)).tie_word_embeddings else set()
    check_used(source.path, there.keys() - weights.keys() - tied)
    load(weights, storage_reader=HuggingFaceStorageReader(str(source.folder)))
    for name, weight in model.named_parameters():
        if name in adapters:
            _fill(weight, adapters[name])
    for name, weight in model.named_parameters():
        share = weight.to_local() if isinstance(weight, DTensor) else weight
        if share.numel() and not bool(share.isfinite().all()):
            raise ModelError(f"model {source.path}: weight {name} is not finite; take another copy of the model")


def _fill(weight: Tensor, value: Tensor) -> None:
    from torch.distributed.tensor import distribute_tensor

    if isinstance(weight, DTensor):
        value = distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
    weight.copy_(value)


# ---- Sharded state: masters and moments ----------------------------------------------------------------------


FILE_BYTES = 4 << 30  # per model file, at most; rank 0 has a whole file in memory


@contextmanager
def on_disk() -> Iterator[None]:
    """Raise a disk's errors as NotWritten, which reaches the driver unchanged."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise NotWritten(str(error) or type(error).__name__) from None


def save_state(folder: Path, tensors: Mapping[str, Tensor], facts: CheckpointFacts) -> dict[str, str]:
    """Write this rank's share of `tensors` under `learner/`; returns the SHA-256 of each of its files, by path."""
    inner, rank = folder / STATE_FOLDER, dist.get_rank()
    inner.mkdir(exist_ok=True)
    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(inner), save_distributed=True))
    except CheckpointException as error:
        for failure, _ in error.failures.values():
            if isinstance(failure, OSError | SafetensorError):
                raise NotWritten(str(failure)) from None
        raise CheckpointError(f"{inner} can't be written: {_reason(error)}") from error
    mine = sorted(inner.glob(f"shard-{rank + 1:05d}-*.safetensors"))
    if rank == 0:
        files.write_plain(inner / FACTS, facts.to_json().encode())
        mine.append(inner / FACTS)
    for file in mine:
        if file.suffix == ".safetensors":
            _settle(file)
        files.sync(file)
        if file.suffix == ".safetensors":
            _compare(file, tensors)
    return files.hashes(folder, mine)


def _settle(file: Path) -> None:
    """Sort the texts in a share's header, so that the same state gives the same bytes."""
    with files.naming(file), file.open("r+b") as stored:
        size = int.from_bytes(stored.read(8), "little")
        header = json.loads(stored.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        content = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(content) <= size
        stored.seek(8)
        stored.write(content.ljust(size))


def _compare(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read a share back; raises CheckpointError if it differs from this rank's memory."""
    try:
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - no mapping
                held = tensors[name]
                share = held.to_local() if isinstance(held, DTensor) else held
                if not torch.equal(stored.get_tensor(name), share.cpu()):
                    raise CheckpointError(f"{file} differs from the written data ({name}): the disk is at fault")
    except (KeyError, SafetensorError) as error:
        raise CheckpointError(f"{file} can't be read back ({_reason(error)}): the disk is at fault") from None


def load_state(folder: Path, optimizer: Optimizer, origin: str | None) -> None:
    """Fill masters and moments from `learner/`. Raises CheckpointError."""
    inner = folder / STATE_FOLDER
    try:
        facts = facts_of_shares(folder)
        if origin is not None and facts.reference != origin:
            raise CheckpointError(
                f"checkpoint {folder}: loss.kl_loss_coef compares with another model than the run's first one; "
                "restore the original model.path"
            )
        optimizer.allocate(facts.version)
        load(optimizer.live(), storage_reader=HuggingFaceStorageReader(str(inner)))
    except (OSError, ValueError, KeyError, SafetensorError, CheckpointException) as error:
        raise CheckpointError(f"checkpoint {folder}: {_reason(error)}; use an older one or start over") from None
    optimizer.skipped = facts.grad_skipped


def _reason(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:300]


# ---- Full model ----------------------------------------------------------------------------------------------


def write_model(model: Any, folder: Path, config: ModelConfig, codec: Codec, *, merged: bool = False) -> list[Path]:
    """Write the model in Hugging Face format, gathered weight by weight, on rank 0; collective.

    `merged`: merge adapters and also write an output projection that is tied to the embeddings; otherwise write only
    the adapters of an adapted model. Returns the written files, none on other ranks.
    """
    adapted, first = hasattr(model, "peft_config"), dist.get_rank() == 0
    if adapted and not merged:
        weights = _adapters(model)
    else:
        weights = merged_weights(model, DTYPES[config.dtype], gather=full, tied=merged)
    before = set(folder.rglob("*")) if first else set()
    names = _write(weights, folder, "adapter_model" if adapted and not merged else "model", first)
    if not first:
        return []
    if len(names) > 1:
        index = {"metadata": {}, "weight_map": {key: file for file, keys in names.items() for key in keys}}
        files.write_plain(folder / "model.safetensors.index.json", json.dumps(index, indent=1).encode())
    _describe(model, folder, config, adapters=adapted and not merged, merged=merged)
    codec.tokenizer.save_pretrained(folder)
    return sorted(path for path in set(folder.rglob("*")) - before if path.is_file())


def _describe(model: Any, folder: Path, config: ModelConfig, *, adapters: bool, merged: bool) -> None:
    if adapters:
        model.peft_config[model.active_adapter].save_pretrained(folder)
        sort_targets(folder)
        return
    base = base_of(model)
    (untied(base.config) if merged else base.config).save_pretrained(folder)
    described = json.loads((folder / "config.json").read_text())
    described |= {"architectures": [type(base).__name__], "dtype": config.dtype}
    files.write_plain(folder / "config.json", (json.dumps(described, indent=2, sort_keys=True) + "\n").encode())
    if getattr(base, "generation_config", None) is not None:
        base.generation_config.save_pretrained(folder)


def full(weight: Tensor) -> Tensor:
    """A sharded weight, gathered; collective."""
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach()


def _adapters(model: Any) -> Iterator[tuple[str, Tensor]]:
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            yield name.replace(f".{model.active_adapter}.", "."), full(weight)


def _write(weights: Iterator[tuple[str, Tensor]], folder: Path, stem: str, first: bool) -> dict[str, list[str]]:
    """Write files of at most `FILE_BYTES`; returns the names of the weights in each. Other ranks only take part."""
    names: dict[str, list[str]] = {}
    held: dict[str, Tensor] = {}

    def flush() -> None:
        file = f"{stem}.safetensors" if not names else f"{stem}-{len(names) + 1:05d}.safetensors"
        save_file(held, folder / file, metadata={"format": "pt"})
        names[file] = list(held)
        held.clear()

    for name, value in weights:
        if not first:
            continue
        if held and sum(tensor.nbytes for tensor in held.values()) + value.nbytes > FILE_BYTES:
            flush()
        held[name] = value.to("cpu", copy=True).contiguous()  # two names of one tensor can't be saved
    if held:
        flush()
    if len(names) > 1:  # by the names that several files have
        (folder / f"{stem}.safetensors").rename(folder / f"{stem}-00001.safetensors")
        names = {file if "-" in file else f"{stem}-00001.safetensors": keys for file, keys in names.items()}
    return names
