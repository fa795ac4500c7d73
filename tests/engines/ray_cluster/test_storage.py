"""What a rank writes: read back before its hash is told; a model in several files where one would be too large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from palimpsest import files
from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded.checkpoint_state import CheckpointFacts
from palimpsest.engines.ray import sharding
from palimpsest.engines.ray.learner import RankLearner
from palimpsest.errors import CheckpointError, EngineError, NotWritten
from palimpsest.runs.checkpoint import Checkpoints
from support.disks import no_file_over
from support.processes import one_rank

FACTS = CheckpointFacts(2, version=1, grad_skipped=0, reference=None)
TENSORS = {"master/a": torch.arange(8.0), "exp_avg/a": torch.ones(8)}


@pytest.mark.parametrize(
    ("place", "told"), [(-1, r"differs from the written data \(\w+/a\)"), (12, "can't be read back")]
)
def test_a_share_that_a_disk_changed_is_no_checkpoint(
    place: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`place`: of the byte that changes between writing and reading back, in the numbers or in the header."""

    def failing(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[place] ^= 0xFF
        path.write_bytes(content)

    with one_rank(tmp_path):
        assert sharding.save_state(tmp_path, TENSORS, FACTS).keys() == {
            "learner/shard-00001-model-00001-of-00001.safetensors",
            "learner/learner.json",
        }
        monkeypatch.setattr(files, "sync", failing)
        with pytest.raises(CheckpointError, match=f"{told}.*the disk is at fault"):
            sharding.save_state(tmp_path, TENSORS, FACTS)


def test_the_same_state_is_the_same_bytes(tmp_path: Path) -> None:
    hashes = []
    with one_rank(tmp_path):
        for number in range(8):  # safetensors has six orders for the texts of a header
            (tmp_path / str(number)).mkdir()
            hashes.append(sharding.save_state(tmp_path / str(number), TENSORS, FACTS))
    assert all(each == hashes[0] for each in hashes)


@pytest.mark.parametrize("whole", [False, True])
def test_a_model_too_large_for_one_file_is_written_into_several_and_opens(
    whole: bool, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "FILE_BYTES", 40_000)  # in the place of 4 GiB
    settings: dict[str, Any] = {"model": {"path": str(tiny_model_folder)}, "engine": {"name": "ray"}}
    (tmp_path / "out").mkdir()
    with one_rank(tmp_path):
        learner = RankLearner(RunConfig.model_validate(settings), "policy")
        if whole:
            learner.publish(tmp_path / "out")
        else:
            written = learner.save(tmp_path / "out")
            assert written == files.hashes(tmp_path / "out")
    parts = sorted((tmp_path / "out").glob("model*.safetensors"))
    assert len(parts) > 2
    assert all(part.stat().st_size < 60_000 for part in parts)  # but for a weight that is larger alone
    source, opened = (AutoModelForCausalLM.from_pretrained(path) for path in (tiny_model_folder, tmp_path / "out"))
    wanted = source.state_dict()
    assert opened.state_dict().keys() == wanted.keys()
    assert all(torch.equal(weight, wanted[name]) for name, weight in opened.state_dict().items())


@pytest.mark.parametrize("size", [2_000, 100_000])
def test_a_checkpoint_or_a_publication_for_which_a_disk_has_no_room_is_told_so(
    size: int, tmp_path: Path, tiny_model_folder: Path
) -> None:
    """`size`: of which a share is larger, or the model alone."""
    settings: dict[str, Any] = {"model": {"path": str(tiny_model_folder)}, "engine": {"name": "ray"}}
    (tmp_path / "published").mkdir()
    with one_rank(tmp_path):
        learner = RankLearner(RunConfig.model_validate(settings), "policy")
        if size > 2_000:
            learner._optimizer.live = dict  # type: ignore[method-assign]  # nothing to share
        with no_file_over(size), pytest.raises(NotWritten, match="File too large"):
            learner.save(tmp_path)
        told = r"published: .*File too large.*set cluster\.folder to"
        with no_file_over(size), pytest.raises(EngineError, match=told):
            learner.publish(tmp_path / "published")


async def test_what_ranks_cant_write_says_how_much_room_there_is(tmp_path: Path) -> None:
    saving = Checkpoints(tmp_path, identity="a", keep=2)

    async def whole(folder: Path) -> dict[str, str]:
        (folder / "model").write_bytes(bytes(1000))
        return files.hashes(folder)

    async def part(folder: Path) -> dict[str, str]:
        (folder / "model").write_bytes(bytes(10))
        raise NotWritten("No space left on device")

    await saving.save(1, whole, {})
    told = (
        r"step-000002 can't be written \(No space left on device\): 10 bytes were, about 1,\d\d\d bytes are needed, \d"
    )
    with pytest.raises(CheckpointError, match=told + r"[\d,]+ are free on the disk$"):
        await saving.save(2, part, {})
    assert [path.name for path in saving.paths()] == ["step-000001"]
