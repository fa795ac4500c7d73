"""What ranks write and read together: masters and moments in shares, the model whole.

    learner/shard-00001-model-00001-of-00001.safetensors    rank 0's share of masters and moments, and so on
    learner/learner.json                                    steps taken, gradients skipped, the reference's digest
    model.safetensors, config.json, tokenizer...            the model, in model.dtype; or its adapters

torch's distributed checkpoints, in safetensors alone: their own format holds a pickle. No tensor in a share is a single
number, which its consolidation would write as 0: the count of steps is in learner.json.

Guaranteed: a share is read back and compared with memory before its hash is told; the same state in as many shares is
the same bytes; any number of ranks reads what another number wrote, bit for bit.
Not covered: a file system that not every rank sees (refused at the start, group.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from palimpsest import files
from palimpsest.config.schema import ModelConfig
from palimpsest.engines.embedded.facts import FACTS, Facts, facts_of_shares
from palimpsest.engines.embedded.handover import untied
from palimpsest.engines.embedded.lora import merged_weights, sort_targets
from palimpsest.engines.embedded.model import DTYPES
from palimpsest.engines.embedded.optim import Optimizer
from palimpsest.errors import CheckpointError, NotWritten
from palimpsest.model_files.manifest import STATE_FOLDER
from palimpsest.text.codec import Codec

FILE_BYTES = 4 << 30  # of the model's files at most, all of which rank 0 holds at once


@contextmanager
def on_disk() -> Iterator[None]:
    """Have what a disk refuses raised as NotWritten, which reaches the driver as it is."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise NotWritten(str(error) or type(error).__name__) from None


def save_state(folder: Path, tensors: Mapping[str, Tensor], facts: Facts) -> dict[str, str]:
    """Write this rank's share of `tensors` under `learner/`; the SHA-256 of each file of this rank's, by its path."""
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
    """Sort the texts in a share's header, which safetensors writes in any order: the same state is the same bytes."""
    with files.naming(file), file.open("r+b") as stored:
        size = int.from_bytes(stored.read(8), "little")
        header = json.loads(stored.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        content = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(content) <= size
        stored.seek(8)
        stored.write(content.ljust(size))


def _compare(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read a share back; raises CheckpointError where it isn't what this rank holds."""
    try:
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - no mapping
                held = tensors[name]
                share = held.to_local() if isinstance(held, DTensor) else held
                if not torch.equal(stored.get_tensor(name), share.cpu()):
                    raise CheckpointError(f"{file} does not hold what was written ({name}): the disk is at fault")
    except (KeyError, SafetensorError) as error:
        raise CheckpointError(f"{file} can't be read back ({_reason(error)}): the disk is at fault") from None


def load_state(folder: Path, optimizer: Optimizer, origin: str | None) -> None:
    """Fill masters and moments from `learner/`. Raises CheckpointError."""
    inner = folder / STATE_FOLDER
    try:
        facts = facts_of_shares(folder)
        if origin is not None and facts.reference != origin:
            raise CheckpointError(
                f"checkpoint {folder}: loss.kl_coef compares with another model than the run started from; restore "
                "the original model.path"
            )
        optimizer.allocate(facts.version)
        load(optimizer.live(), storage_reader=HuggingFaceStorageReader(str(inner)))
    except (OSError, ValueError, KeyError, SafetensorError, CheckpointException) as error:
        raise CheckpointError(f"checkpoint {folder}: {_reason(error)}; use an older one or start anew") from None
    optimizer.skipped = facts.grad_skipped


def _reason(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:300]


# ---- the model whole ----------------------------------------------------------------------------------------


def write_model(model: Any, folder: Path, config: ModelConfig, codec: Codec, *, whole: bool = False) -> list[Path]:
    """Write the model as Hugging Face has it, gathered weight by weight, on rank 0; collective.

    `whole`: adapters are merged and the output projection is written beside the embeddings it is tied to; else an
    adapted model is its adapters alone. Returns the files it wrote, on other ranks none.
    """
    adapted, first = hasattr(model, "peft_config"), dist.get_rank() == 0
    if adapted and not whole:
        weights = _adapters(model)
    else:
        weights = merged_weights(model, DTYPES[config.dtype], whole=full, tied=whole)
    before = set(folder.rglob("*")) if first else set()
    names = _write(weights, folder, "adapter_model" if adapted and not whole else "model", first)
    if not first:
        return []
    if len(names) > 1:
        index = {"metadata": {}, "weight_map": {key: file for file, keys in names.items() for key in keys}}
        files.write_plain(folder / "model.safetensors.index.json", json.dumps(index, indent=1).encode())
    _describe(model, folder, config, adapters=adapted and not whole, whole=whole)
    codec.tokenizer.save_pretrained(folder)
    return sorted(path for path in set(folder.rglob("*")) - before if path.is_file())


def _describe(model: Any, folder: Path, config: ModelConfig, *, adapters: bool, whole: bool) -> None:
    if adapters:
        model.peft_config[model.active_adapter].save_pretrained(folder)
        sort_targets(folder)
        return
    base = getattr(model, "get_base_model", lambda: model)()
    (untied(base.config) if whole else base.config).save_pretrained(folder)
    described = json.loads((folder / "config.json").read_text())
    described |= {"architectures": [type(base).__name__], "dtype": config.dtype}
    files.write_plain(folder / "config.json", (json.dumps(described, indent=2, sort_keys=True) + "\n").encode())
    if getattr(base, "generation_config", None) is not None:
        base.generation_config.save_pretrained(folder)


def full(weight: Tensor) -> Tensor:
    """The whole of a weight of which there are shares; collective."""
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach()


def _adapters(model: Any) -> Iterator[tuple[str, Tensor]]:
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            yield name.replace(f".{model.active_adapter}.", "."), full(weight)


def _write(weights: Iterator[tuple[str, Tensor]], folder: Path, stem: str, first: bool) -> dict[str, list[str]]:
    """Files of at most `FILE_BYTES`; the names of the weights in each. Ranks but the first only take part."""
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
        if held and sum(each.nbytes for each in held.values()) + value.nbytes > FILE_BYTES:
            flush()
        held[name] = value.to("cpu", copy=True).contiguous()  # two names of one tensor can't be saved
    if held:
        flush()
    if len(names) > 1:  # by the names that several files have
        (folder / f"{stem}.safetensors").rename(folder / f"{stem}-00001.safetensors")
        names = {file if "-" in file else f"{stem}-00001.safetensors": keys for file, keys in names.items()}
    return names
