"""Several policies, files, folders and numbers of documents in one evaluation; its GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import palimpsest as library
from palimpsest.app.config_resolution import run_config
from palimpsest.app.evaluate.evaluation_plan import EvalRequest, policy_names
from palimpsest.data.set_manifest import write_manifest
from palimpsest.engines.open import layout_on, open_engine
from palimpsest.errors import ConfigError, DataError
from palimpsest.evaluation.sample_log import read_samples
from support.command import Run
from support.small_run import small_evaluation

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8, "prompts": "short"}


def rows(number: int) -> list[dict[str, Any]]:
    """Rows in the format of HotpotQA."""
    return [
        {
            "_id": f"q{at}",
            "question": "Who ran?",
            "answer": "Ann",
            "context": [[f"T{at}", ["Ann ran. "]], [f"U{at}", ["Bob sat. "]]],
            "supporting_facts": [[f"T{at}", 0]],
        }
        for at in range(number)
    ]


def save(path: Path, values: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in values))
    return path


def evaluated(model: Path, data: Any, **options: Any) -> library.Evaluation:
    return library.evaluate(model, data, overrides=BUDGETS, baselines=False, quiet=True, **options)


def test_every_policy_plays_every_file_at_every_number_of_documents(tiny_model_folder: Path, tmp_path: Path) -> None:
    files = [save(tmp_path / "a.jsonl", rows(2)), save(tmp_path / "b.jsonl", rows(3))]
    evaluation = evaluated(tiny_model_folder, files, policy=["overwrite", "full_context"], documents=[2, 3])
    cells = [(item.cell, item.problems) for item in evaluation.summaries]
    assert sorted((cell.player, cell.set, cell.size, problems) for cell, problems in cells) == sorted(
        (policy, name, size, number)
        for policy in ("overwrite", "full_context")
        for name, number in (("a", 2), ("b", 3))
        for size in (2, 3)
    )
    assert evaluation["overwrite, a, 3 documents"].lengths[0].length == 3
    assert evaluation.policies == ("overwrite", "full_context")
    assert [cell.player for cell, _ in cells] == ["overwrite"] * 4 + ["full_context"] * 4
    assert len({sample.key for sample in evaluation}) == 20


def test_a_set_in_a_sweep_is_what_it_is_alone(tiny_model_folder: Path, tmp_path: Path) -> None:
    files = [save(tmp_path / "a.jsonl", rows(2)), save(tmp_path / "b.jsonl", rows(2))]
    sampled = {**BUDGETS, "eval_sampling.temperature": 1.0}
    (a, b) = (library.evaluate(tiny_model_folder, [item], overrides=sampled, quiet=True) for item in files)
    both = library.evaluate(tiny_model_folder, files, overrides=sampled, quiet=True)
    assert both.samples == a.samples + b.samples


def test_a_folder_stands_for_every_set_that_its_manifest_names(tiny_model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sets"
    for name in ("eval_2.jsonl", "eval_3.jsonl", "corpus.jsonl"):
        save(folder / name, rows(1))
    described = {name: {"problems": 1} for name in ("eval_2.jsonl", "eval_3.jsonl")}
    write_manifest(folder, made_by="a test", seed=0, described=described)
    evaluation = evaluated(tiny_model_folder, folder, out=tmp_path / "out")
    assert sorted(evaluation.rows) == ["eval_2", "eval_3"]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["data"] == str(folder)
    (folder / "eval_3.jsonl").unlink()
    with pytest.raises(DataError, match=r"eval_3\.jsonl: missing, .*manifest\.json names it"):
        evaluated(tiny_model_folder, folder)
    (folder / "manifest.json").write_text('{"files": {"../x": {"problems": 1}}}')
    with pytest.raises(DataError, match="names a file outside its folder"):
        evaluated(tiny_model_folder, folder)


def test_a_log_grows_by_further_numbers_of_documents(tiny_model_folder: Path, tmp_path: Path) -> None:
    path, out = save(tmp_path / "a.jsonl", rows(2)), tmp_path / "out"
    played = [evaluated(tiny_model_folder, path, documents=sizes, out=out).played for sizes in ([2, 3], [2, 3, 4])]
    assert (played, len(read_samples(out / "samples.jsonl")[0])) == ([4, 2], 6)


def test_several_samples_of_a_problem_begin_with_the_one(tiny_model_folder: Path, tmp_path: Path) -> None:
    path, out = save(tmp_path / "a.jsonl", rows(2)), tmp_path / "out"
    options: Any = {"overrides": {**BUDGETS, "eval_sampling.temperature": 1.0}, "baselines": False, "quiet": True}
    once = library.evaluate(tiny_model_folder, path, out=out, **options)
    more = library.evaluate(tiny_model_folder, path, out=out, samples=3, **options)
    assert more.played == 4  # the first of each was there
    assert [sample for sample in more if sample.draw == 0] == list(once)
    assert len({sample.answer for sample in more if sample.id == "q0"}) > 1
    assert (more["a"].samples, more["a"].problems, more["a"].graded) == (3, 2, 6)
    assert set(more["a"].pass_at) == {"1", "2", "3"}
    assert (f"pass@{3}" in more.table.columns, "pass@1" in once.table.columns) == (True, False)


def test_options_go_to_the_policies_that_have_them() -> None:
    both = EvalRequest(policy=("overwrite", "full_context"), overrides=["chunk_size=48", "answer_tokens=8"])
    overwrite, full = both.plan().policies
    assert (overwrite.options["chunk_size"], overwrite.options["answer_tokens"]) == (48, 8)
    assert full.options == {"answer_tokens": 8}
    wrong = EvalRequest(policy=("overwrite", "full_context"), overrides=["chunksize=48"])
    with pytest.raises(ConfigError, match=r"policy\.options\.chunksize: none of overwrite, full_context has"):
        wrong.plan()


def test_a_reward_beside_that_of_the_environment_is_noted() -> None:
    def noted(reward: str) -> bool:
        plan = EvalRequest(recipe="textworld-quickstart", overrides=[f"reward.name={reward}"]).plan()
        return any(note.startswith(f"reward.name={reward}") for note in plan.notes)

    assert (noted("boxed"), noted("environment")) == (True, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": ("overwrite", "prune")}, "policy=overwrite,prune: overwrite answers for reward.name=boxed, prune"),
        ({"policy": ("overwrite", "overwrite")}, "overwrite appears twice"),
        ({"data": ("a.jsonl", "synthetic")}, "data=synthetic: "),
        ({"samples": 2}, "samples=2: at temperature 0"),
        ({"samples": 0}, "samples=0: expected a whole number from 1"),
        ({"samples": 10**9}, "samples=1000000000: expected a whole number from 1 to 10,000"),
    ],
)
def test_what_one_evaluation_cannot_be_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvalRequest(**({"policy": ("overwrite",), "data": "synthetic"} | change)).plan()


def test_names_of_policies() -> None:
    assert policy_names(["a", "b"]) == policy_names("a, b") == ("a", "b")
    with pytest.raises(ConfigError, match="name one policy, or several"):
        policy_names("a,,b")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the number of GPUs that CUDA counts."""

    def has(gpus: int) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)

    return has


def test_gpus_means_one_sampler_per_gpu(machine: Callable[[int], None]) -> None:
    machine(8)
    config = EvalRequest(overrides=layout_on(3, None)).plan().config
    assert (config.engine.name, config.cluster.samplers, config.cluster.gpus_per_sampler) == ("ray", 3, 1.0)
    assert layout_on(1, None) == []


def test_supervised_training_has_one_rank_per_gpu(machine: Callable[[int], None]) -> None:
    machine(8)
    config = run_config("memact-cold-start", layout_on(3, "nll"))
    assert (config.engine.name, config.cluster.learners, config.cluster.gpus_per_learner) == ("ray", 3, 1.0)


@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
async def test_the_engine_has_room_for_as_many_copies_as_there_are_gpus(machine: Callable[[int], None]) -> None:
    machine(2)
    config = EvalRequest(overrides=layout_on(2, None)).plan().config
    await open_engine(config, objective=None).close()


@pytest.mark.parametrize(("there", "fix"), [(0, "compute on the CPU"), (2, "give --gpus 2")])
def test_fewer_gpus_than_asked_for_are_an_error_with_the_fix(
    there: int, fix: str, machine: Callable[[int], None], refused: Callable[..., str]
) -> None:
    machine(there)
    assert fix in refused("eval", "--gpus", "3", "--chunks", "1")


def test_hidden_gpus_do_not_count(machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert layout_on(2, None)
    with pytest.raises(ConfigError, match="sees 2 GPUs"):
        layout_on(3, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("eval", "--base-url", "http://127.0.0.1:1/v1"), "--gpus 2"),
        (("eval", "--regrade", "evals/first"), "--gpus 2"),
        (("sft", "--resume", "run"), "omit --gpus"),
    ],
)
def test_gpus_are_refused_where_they_have_no_effect(
    words: tuple[str, ...], message: str, refused: Callable[..., str]
) -> None:
    assert message in refused(*words, "--gpus", "2")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
def test_two_samplers_play_the_same_episodes(palimpsest: Run, tiny_model_folder: Path, tmp_path: Path) -> None:
    def played(name: str, *overrides: str) -> dict[str, Any]:
        done = palimpsest(*small_evaluation(tiny_model_folder, tmp_path / name), *overrides)
        assert done.returncode == 0, done.stderr
        rows = map(json.loads, (tmp_path / name / "samples.jsonl").read_text().splitlines())
        return {row["id"]: (row["answer"], row["value"]) for row in rows if "id" in row}

    assert played("one") == played("two", "engine.name=ray", "cluster.samplers=2")
