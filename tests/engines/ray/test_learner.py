"""Ranks compared with one process on the same batches, without Ray. Two ranks run once for all cases."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from palimpsest import files
from palimpsest.config.schema import ModelConfig, RunConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.checkpoint_state import CheckpointFacts
from palimpsest.engines.embedded.forest import forest_model
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import load_model, trainable
from palimpsest.engines.protocol import StepBatch
from palimpsest.engines.ray.learner import RankLearner
from palimpsest.errors import CheckpointError
from palimpsest.types import Completion, StopReason
from support.forests import batch_of_rows, completed, exact, gradients, grown, largest_error
from support.models import build_llama, nats_by
from support.ranks import (
    SCORED,
    Case,
    clip_copies_that_differ,
    clip_divided,
    compute,
    compute_exactly,
    disagree,
    micro_batch,
    one_rank,
    reload,
    rounded,
    run_ranks,
    state_of,
)


def batches(count: int, depth: int = 3) -> tuple[StepBatch, ...]:
    draw = random.Random(depth)
    return tuple(batch_of_rows(grown(draw, depth=depth, length=12), draw) for _ in range(count))


STEPS = batches(3)
OPTIM = {"learning_rate": 1e-4, "eps": 1e-6}
"""With the default eps, 1e-8, a rounding error of 1e-8 moves a weight by the full rate; the float64 test uses it."""


def case(folder: Path, *, model: Any = None, cluster: Any = None, micro: int = 40, **sections: Any) -> Case:
    sections = {"optim": OPTIM, "cluster": {"learners": 4, **(cluster or {})}, **sections}
    sections |= {
        "model": {"path": str(folder), **(model or {})},
        "engine": {"name": "ray", "micro_batch_tokens": micro},
    }
    config = RunConfig.model_validate(sections)
    return Case(config, tuple((step,) for step in STEPS))


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("untied")
    build_llama(len(tiny_tokenizer), tie_word_embeddings=False, num_key_value_heads=2).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


def common(tied: Path, untied: Path) -> dict[str, Case]:
    adapters = {"lora": {"rank": 4}}
    one = Case(case(tied, micro=400).config, tuple((step,) for step in batches(3, depth=0)))
    return {
        "plain": case(tied),
        "fewer-forests-than-ranks": one,
        "lora-kl": case(tied, model=adapters, loss={"kl_loss_coef": 0.1}),
        "tensor-parallel": case(untied, cluster={"tensor_parallel_size": 2}),
    }


def rarer(tied: Path, untied: Path) -> dict[str, Case]:
    twice = Case(case(tied, loss={"old_logprobs": "recompute"}).config, tuple((s, s) for s in STEPS))
    return {
        "untied": case(untied),
        "lora": case(tied, model={"lora": {"rank": 4}}),
        "kl": case(tied, loss={"kl_loss_coef": 0.1}),
        "checkpointing": case(tied, model={"gradient_checkpointing": "every_second"}),
        "recompute": twice,
        "offload": case(tied, cluster={"cpu_offload": True}),
        "nll": Case(case(tied).config, tuple((s,) for s in STEPS), "nll"),
    }


def divided(tied: Path, untied: Path) -> dict[str, Case]:
    """Further cases of tensor parallel."""
    cluster = {"tensor_parallel_size": 2}
    decay = {**OPTIM, "weight_decay": 0.1, "max_grad_norm": 0.05}
    return {
        "divided-tied": case(tied, cluster=cluster),
        "divided-kl": case(untied, cluster=cluster, loss={"kl_loss_coef": 0.1}),
        "divided-decay": case(untied, cluster={**cluster, "cpu_offload": True}, optim=decay),
    }


class Alone(NamedTuple):
    """The result of one process."""

    losses: list[float]
    norms: list[float | None]
    gradients: dict[str, Any]
    """First step only."""
    weights: dict[str, Any]
    """After all updates."""


def alone(job: Case, model: Any = None) -> Alone:
    model = model or trainable(job.config.model)
    settings, objective = job.config, job.objective
    sizes: Any = {"objective": objective, "micro_batch_tokens": micro_batch(settings)}
    learner = ForestLearner(model, optim=settings.optim, loss=settings.loss, **sizes)
    losses = [learner.accumulate(job.updates[0][0]).loss]
    wanted = gradients(model)
    model.zero_grad(set_to_none=True)
    steps = [stats for steps in job.updates for stats in learner.update(steps)]
    return Alone(
        losses + [stats.loss for stats in steps],
        [stats.grad_norm for stats in steps],
        wanted,
        {name: p.detach() for name, p in model.named_parameters() if p.requires_grad},
    )


def assert_learned(result: dict[str, Any], wanted: Alone, floor: float = 1e-5) -> None:
    assert result["losses"].tolist() == pytest.approx(wanted.losses, abs=floor)
    for norms in result["norms"].tolist():  # of every rank
        assert norms == pytest.approx(wanted.norms, rel=floor)
    grads = {name.removeprefix("grad/"): g for name, g in result.items() if name.startswith("grad/")}
    assert largest_error(grads, wanted.gradients) < floor
    for name, weight in wanted.weights.items():
        assert float((result[f"master/{name}"] - weight).abs().max()) < floor, name


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path, untied: Path) -> Path:
    """The results of two ranks in the common cases."""
    out = tmp_path_factory.mktemp("two")
    run_ranks(2, out, compute, {name: job.on(2) for name, job in common(tiny_model_folder, untied).items()}, out)
    return out


@pytest.mark.parametrize("name", ["plain", "fewer-forests-than-ranks", "lora-kl", "tensor-parallel"])
def test_two_ranks_learn_and_score_as_one_process(name: str, two: Path, tiny_model_folder: Path, untied: Path) -> None:
    result, job = load_file(two / f"{name}.safetensors"), common(tiny_model_folder, untied)[name]
    assert_learned(result, alone(job))
    wanted = nats_by(load_model(ModelConfig(path=str(two / name))), SCORED)
    assert result["scores"].tolist() == pytest.approx(wanted, abs=1e-4)
    assert_resumes(two, name, job.config)


@pytest.mark.parametrize(("name", "keeps_logits"), [("plain", True), ("lora-kl", False)])
def test_one_rank_learns_as_one_process(
    name: str, keeps_logits: bool, tmp_path: Path, tiny_model_folder: Path, untied: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    job = common(tiny_model_folder, untied)[name].on(1)
    wanted = alone(job)
    if not keeps_logits:
        for constant, value in {"KEPT_ELEMENTS": 0, "CACHED_ELEMENTS": 1, "CPU_ROWS": 2}.items():
            monkeypatch.setattr(forest_model, constant, value)
    with one_rank(tmp_path):
        compute(0, {name: job}, tmp_path)
    assert_learned(load_file(tmp_path / f"{name}.safetensors"), wanted)


def test_one_rank_resumes_from_the_bits_of_two(two: Path, tmp_path: Path, tiny_model_folder: Path) -> None:
    saved = load_file(two / "plain.safetensors")
    with one_rank(tmp_path):
        learner = RankLearner(case(tiny_model_folder).on(1).config, "policy")
        learner.load(two / "plain")
    state = state_of(learner)
    assert learner.version == len(STEPS)
    assert len(state) == 3 * 20
    assert all(torch.equal(tensor, saved[name]) for name, tensor in state.items() if not name.startswith("grad/"))


def assert_resumes(folder: Path, name: str, job: RunConfig) -> None:
    saved = load_file(folder / f"{name}.safetensors")
    learner = ForestLearner(trainable(job.model), optim=job.optim, loss=job.loss)
    learner.load(folder / name)
    assert learner.version == len(STEPS)
    state = learner._optimizer.live()
    assert state.keys() == {key for key in saved if key.startswith(("master/", "exp_avg"))}
    assert all(torch.equal(tensor, saved[key]) for key, tensor in state.items())


def test_one_process_rejects_shards_of_another_start_or_with_one_missing(
    two: Path, tmp_path: Path, tiny_model_folder: Path, untied: Path
) -> None:
    config = common(tiny_model_folder, untied)["lora-kl"].config
    other = config.model.model_copy(update={"path": str(untied)})
    with pytest.raises(CheckpointError, match=r"restore the original model\.path"):
        ForestLearner(trainable(other), optim=config.optim, loss=config.loss).load(two / "lora-kl")
    shutil.copytree(two / "plain", tmp_path / "torn")
    next((tmp_path / "torn" / "learner").glob("shard-00001-*")).unlink()
    learner = ForestLearner(trainable(ModelConfig(path=str(tiny_model_folder))), optim=config.optim)
    with pytest.raises(CheckpointError, match="is missing; use an older one"):
        learner.load(tmp_path / "torn")


def test_a_rank_returns_the_hashes_of_its_files_and_the_model_opens(two: Path) -> None:
    hashes = [json.loads((two / f"plain-{rank}.json").read_text()) for rank in (0, 1)]
    assert not hashes[0].keys() & hashes[1].keys()
    assert hashes[0] | hashes[1] == files.hashes(two / "plain")
    assert {Path(name).suffix for name in hashes[0] | hashes[1]} <= {".safetensors", ".json", ".jinja"}  # no pickle
    model = AutoModelForCausalLM.from_pretrained(two / "plain")
    saved = load_file(two / "plain.safetensors")
    assert all(torch.equal(p, saved[f"master/{name}"]) for name, p in model.named_parameters())


def test_an_incomplete_checkpoint_or_one_of_another_kind_is_rejected(
    two: Path, tmp_path: Path, tiny_model_folder: Path
) -> None:
    (folder := tmp_path / "learner").mkdir()
    with one_rank(tmp_path):
        learner = RankLearner(case(tiny_model_folder).on(1).config, "policy")
        with pytest.raises(CheckpointError, match=r"learner\.json"):
            learner.load(tiny_model_folder)
        (folder / "learner.json").write_text(CheckpointFacts(1, 5, 0, None).to_json())
        with pytest.raises(CheckpointError, match=r"engine\.name=embedded saved it"):
            learner.load(tmp_path)
        (folder / "learner.json").write_text(CheckpointFacts(2, 5, 0, None).to_json())
        shard = next((two / "plain" / "learner").glob("shard-00001-*"))
        shutil.copy(shard, folder / "shard-00001-model-00001-of-00001.safetensors")
        with pytest.raises(CheckpointError, match="use an older one"):
            learner.load(tmp_path)


def test_published_weights_are_complete_merged_and_untied(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "sha256", None)  # the hashes are unused
    job = case(tiny_model_folder, model={"lora": {"rank": 4}}).on(1)
    with one_rank(tmp_path):
        learner = RankLearner(job.config, "policy")
        learner.update(job.parts[0][0])
        (tmp_path / "published").mkdir()
        learner.publish(tmp_path / "published")
        adapted = {name: p.full_tensor() for name, p in learner._model.named_parameters()}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "published")
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    prefix = "base_model.model.model.layers.1.mlp.down_proj"
    a, b = adapted[f"{prefix}.lora_A.default.weight"], adapted[f"{prefix}.lora_B.default.weight"]
    wanted = adapted[f"{prefix}.base_layer.weight"] + 32.0 / 4 * b @ a
    assert torch.allclose(model.model.layers[1].mlp.down_proj.weight, wanted, atol=1e-7)
    assert bool(b.any())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_learn_what_one_process_learns_in_rarer_cases(
    ranks: int, tmp_path: Path, tiny_model_folder: Path, untied: Path
) -> None:
    cases = rarer(tiny_model_folder, untied) | (common(tiny_model_folder, untied) if ranks == 4 else {})
    run_ranks(ranks, tmp_path, compute, {name: job.on(ranks) for name, job in cases.items()}, tmp_path)
    for name, job in cases.items():
        assert_learned(load_file(tmp_path / f"{name}.safetensors"), alone(job))
        if name in ("lora-kl", "tensor-parallel"):
            assert_resumes(tmp_path, name, job.config)


@pytest.mark.slow
def test_four_ranks_learn_in_float64_what_one_process_learns(
    tmp_path: Path, tiny_model_folder: Path, untied: Path
) -> None:
    folders = (tiny_model_folder, untied)
    cases = {name: rounded(job) for name, job in (rarer(*folders) | common(*folders) | divided(*folders)).items()}
    for name, job in cases.items():
        optim = job.config.optim.model_copy(update={"eps": OptimConfig().eps})
        cases[name] = replace(job, config=job.config.model_copy(update={"optim": optim}))
    run_ranks(4, tmp_path, compute_exactly, {name: job.on(4) for name, job in cases.items()}, tmp_path)
    for name, job in cases.items():
        result, wanted = load_file(tmp_path / f"{name}.safetensors"), alone(job, exact(trainable(job.config.model)))
        assert_learned(result, wanted, floor=1e-9)
        assert {tensor.dtype for tensor in result.values()} == {torch.float64}


@pytest.mark.slow
def test_four_ranks_resume_from_what_two_saved(two: Path, tmp_path: Path, tiny_model_folder: Path) -> None:
    saved = load_file(two / "plain.safetensors")
    job = case(tiny_model_folder)
    with one_rank(tmp_path):
        reload(0, job.on(1), two / "plain", tmp_path / "one.safetensors")
    run_ranks(4, tmp_path, reload, job.on(4), two / "plain", tmp_path / "four.safetensors")
    one, four = load_file(tmp_path / "one.safetensors"), load_file(tmp_path / "four.safetensors")
    for name, tensor in four.items():
        if name.startswith(("master/", "exp_avg")):
            assert torch.equal(tensor, saved[name])
        assert torch.allclose(tensor, one[name], atol=1e-6), name


@pytest.mark.slow
def test_ranks_with_different_plans_all_raise(tmp_path: Path, tiny_model_folder: Path) -> None:
    run_ranks(2, tmp_path, disagree, case(tiny_model_folder).on(2))


@pytest.mark.slow
@pytest.mark.parametrize("work", [clip_divided, clip_copies_that_differ])
def test_ranks_clip_by_one_norm_or_skip_together(work: Callable[[int], None], tmp_path: Path) -> None:
    run_ranks(4, tmp_path, work)


def test_ranks_compute_the_last_layer_only_where_tokens_are_predicted(tmp_path: Path, tiny_model_folder: Path) -> None:
    prompt, counted = 30, 4
    done = Completion(tuple(range(prompt, prompt + counted)), (0.0,) * counted, StopReason.STOP)
    batch = StepBatch((completed(range(prompt), done),))
    one = case(tiny_model_folder, micro=400)
    (part,) = Case(one.config, ((batch,),)).on(1).parts[0]
    rows: dict[int, int] = {}
    with one_rank(tmp_path):
        learner = RankLearner(Case(one.config, ()).on(1).config, "policy")
        for number, layer in enumerate(learner._model.get_decoder().layers):
            layer.mlp.register_forward_hook(lambda _, inputs, __, n=number: rows.update({n: inputs[0].shape[-2]}))
        learner.update(part)
    *before, last = (rows[number] for number in sorted(rows))
    assert set(before) == {prompt + counted - 1}  # nothing follows the last token
    assert last == counted


def test_a_resting_rank_frees_gathered_weights(tmp_path: Path, tiny_model_folder: Path) -> None:
    config = case(tiny_model_folder, cluster={"learners": 1}, loss={"kl_loss_coef": 0.1})
    with one_rank(tmp_path):
        learner = RankLearner(config.config, "policy")
        before = learner.score(SCORED)
        learner.rest()
        assert all(isinstance(weight, DTensor) for weight in learner._model.parameters())
        assert learner.score(SCORED) == before
