"""Checkpoints, models in several files and published weights of ranks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from palimpsest import files
from palimpsest.config.schema import ModelConfig, RunConfig
from palimpsest.engines.embedded.checkpoint_state import CheckpointFacts
from palimpsest.engines.embedded.model_loading import plain_name
from palimpsest.engines.ray import sharding
from palimpsest.engines.ray.learner import RankLearner
from palimpsest.errors import CheckpointError, EngineError, ModelError, NotWritten
from palimpsest.runs.checkpoint import Checkpoints
from support.disks import no_file_over
from support.models import build_llama
from support.ranks import one_rank

FACTS = CheckpointFacts(2, version=1, grad_skipped=0, reference=None)
TENSORS = {"master/a": torch.arange(8.0), "exp_avg/a": torch.ones(8)}


@pytest.mark.parametrize(
    ("offset", "message"), [(-1, r"differs from the written data \(\w+/a\)"), (12, "can't be read back")]
)
def test_a_shard_that_a_disk_changed_is_an_error(
    offset: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`offset`: of the changed byte, in the numbers or in the header."""

    def failing(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[offset] ^= 0xFF
        path.write_bytes(content)

    with one_rank(tmp_path):
        assert sharding.save_state(tmp_path, TENSORS, FACTS).keys() == {
            "learner/shard-00001-model-00001-of-00001.safetensors",
            "learner/learner.json",
        }
        monkeypatch.setattr(files, "sync", failing)
        with pytest.raises(CheckpointError, match=f"{message}.*the disk is at fault"):
            sharding.save_state(tmp_path, TENSORS, FACTS)


def test_equal_states_are_saved_as_equal_bytes(tmp_path: Path) -> None:
    with one_rank(tmp_path):
        folders = [tmp_path / str(number) for number in range(8)]  # safetensors has six orders for a header's texts
        for folder in folders:
            folder.mkdir()
        assert len({str(sharding.save_state(folder, TENSORS, FACTS)) for folder in folders}) == 1


def learner_of(folder: Path, **model: Any) -> RankLearner:
    settings = {"model": {"path": str(folder), **model}, "engine": {"name": "ray"}, "cluster": {"learners": 1}}
    return RankLearner(RunConfig.model_validate(settings), "policy")


@pytest.mark.parametrize("published", [False, True])
def test_a_model_too_large_for_one_file_is_written_into_several_and_opens(
    published: bool, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "FILE_BYTES", 40_000)  # instead of 4 GiB
    (tmp_path / "out").mkdir()
    with one_rank(tmp_path):
        learner = learner_of(tiny_model_folder)
        if published:
            learner.publish(tmp_path / "out")
        else:
            assert learner.save(tmp_path / "out") == files.hashes(tmp_path / "out")
    model_files = sorted((tmp_path / "out").glob("model*.safetensors"))
    assert len(model_files) > 2
    assert all(part.stat().st_size < 60_000 for part in model_files)  # but for a weight that is larger alone
    source, opened = (AutoModelForCausalLM.from_pretrained(path) for path in (tiny_model_folder, tmp_path / "out"))
    wanted = source.state_dict()
    assert opened.state_dict().keys() == wanted.keys()
    assert all(torch.equal(weight, wanted[name]) for name, weight in opened.state_dict().items())


@pytest.mark.parametrize("size", [2_000, 100_000])
def test_a_full_disk_is_an_error_of_a_checkpoint_and_of_a_publication(
    size: int, tmp_path: Path, tiny_model_folder: Path
) -> None:
    """`size`: the limit of a file, below a shard, or only below the model."""
    (tmp_path / "published").mkdir()
    with one_rank(tmp_path):
        learner = learner_of(tiny_model_folder)
        if size > 2_000:
            learner._optimizer.live = dict  # type: ignore[method-assign]  # nothing to share
        with no_file_over(size), pytest.raises(NotWritten, match="File too large"):
            learner.save(tmp_path)
        message = r"published: .*File too large.*set cluster\.folder to"
        with no_file_over(size), pytest.raises(EngineError, match=message):
            learner.publish(tmp_path / "published")


async def test_an_unwritten_checkpoint_names_the_free_bytes(tmp_path: Path) -> None:
    saving = Checkpoints(tmp_path, identity="a", keep=2)

    async def complete(folder: Path) -> dict[str, str]:
        (folder / "model").write_bytes(bytes(1000))
        return files.hashes(folder)

    async def partial(folder: Path) -> dict[str, str]:
        (folder / "model").write_bytes(bytes(10))
        raise NotWritten("No space left on device")

    await saving.save(1, complete, {})
    message = (
        r"step-000002 can't be written \(No space left on device\): 10 bytes were, about 1,\d\d\d bytes are needed"
    )
    with pytest.raises(CheckpointError, match=message + r", [\d,]+ are free on the disk$"):
        await saving.save(2, partial, {})
    assert [path.name for path in saving.paths()] == ["step-000001"]


@pytest.mark.parametrize(
    ("heads", "name", "reason"),
    [(4, "GPT2LMHeadModel", "supported: Llama"), (1, "LlamaForCausalLM", "does not divide .*num_key_value_heads=1")],
)
def test_models_that_cannot_be_divided_are_rejected(heads: int, name: str, reason: str) -> None:
    model = build_llama(40, num_key_value_heads=heads)
    model.__class__ = type(name, (type(model),), {})
    with pytest.raises(ModelError, match=reason):
        sharding.divide(model, SimpleNamespace(size=lambda: 2))


@pytest.mark.parametrize(("lora", "gathered"), [(None, torch.bfloat16), ({"rank": 4}, torch.float32)])
def test_weights_are_rounded_before_they_are_gathered_unless_adapters_are_merged(
    lora: Any, gathered: torch.dtype, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types: list[torch.dtype] = []
    gather = sharding.full

    def full(weight: torch.Tensor) -> torch.Tensor:
        types.append(weight.dtype)
        return gather(weight)

    monkeypatch.setattr(sharding, "full", full)
    (out := tmp_path / "weights").mkdir()
    with one_rank(tmp_path):
        learner = learner_of(tiny_model_folder, dtype="bfloat16", lora=lora)
        learner.publish(out)
        exact = {name: gather(weight) for name, weight in learner._model.named_parameters()}
    assert set(types) == {torch.bfloat16, gathered}
    written = load_file(out / "model.safetensors")
    plain = {plain_name(name): weight for name, weight in exact.items() if ".lora_" not in name}
    assert all(torch.equal(written[name], weight.bfloat16()) for name, weight in plain.items())  # new adapters add 0


@pytest.mark.parametrize(("dtype", "computed"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_learners_compute_in_the_models_dtype(dtype: Any, computed: torch.dtype) -> None:
    assert sharding.computed_in(ModelConfig(dtype=dtype)) is computed
