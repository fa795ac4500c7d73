"""Every example of a user's own file trains, through the command line, and adding it edited no source file."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from palimpsest.cli.main import app
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.jsonl_rows import read_rows

ROOT = Path(__file__).parents[2]
SMALL = (
    "train.max_steps=1", "train.batch_size=2", "train.group_size=2", "train.save_steps=1", "train.eval_steps=null",
    "train.num_minibatches=1", "credit.dynamic_sampling=null",
    "policy.options.prompts=short", "policy.options.question_tokens=100", "policy.options.chunk_size=64",
    "policy.options.memory_tokens=16", "policy.options.answer_tokens=8", "data.curriculum=null", "cold_start=null",
    "data.synthetic.chunks=1", "sampling.temperature=1.0",
)  # fmt: skip
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))


def train(model: Path, out: Path, *overrides: str) -> list[dict[str, float]]:
    words = ["train", "memagent-quickstart", f"model.path={model}", *SMALL, *overrides, "--out", str(out)]
    app(words, standalone_mode=False)
    return read_rows(out / "metrics.jsonl")


def test_the_example_reward_and_its_layer_train(tiny_model_folder: Path, tmp_path: Path) -> None:
    (row,) = train(
        tiny_model_folder,
        tmp_path / "run",
        "reward.name=examples.own_reward:reward",
        "reward.options.price=0.2",
        "reward.layers=[{name: 'examples.own_reward:Rambling', options: {free_tokens: 2}}]",
        "credit.adv_estimator=state_mix",
        "credit.options.alpha=0.9",
        "logging.report_to=[jsonl]",
    )
    assert {"grade/right", "grade/surplus", "grade/rambling", "grade/em"} <= set(row)
    assert row["credit/trajectories"] == 4


def test_rewards_of_spans_that_no_rule_looks_at_are_warned_of_once(tiny_model_folder: Path, tmp_path: Path) -> None:
    layers = "reward.layers=['examples.own_reward:Rambling']"
    train(tiny_model_folder, tmp_path / "run", layers, "train.max_steps=2", "logging.report_to=[jsonl]")
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert events.count("the reward returns spans, but credit.adv_estimator=mean uses only the outcome") == 1


def test_the_example_credit_rule_trains(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "by_rollout.py").write_text("def reward(problem, trajectory): return trajectory.rollout\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (row,) = train(
        tiny_model_folder,
        tmp_path / "run",
        "reward.name=by_rollout:reward",
        "reward.unsupported_penalty=0",
        "credit.adv_estimator=examples.own_credit:MedianRule",
        "credit.options.decay=0.5",
        "logging.report_to=[jsonl]",
    )
    assert row["episode/turns"] == 3  # read, read, answer
    assert row["credit/advantage_abs_mean"] == pytest.approx((0.125 + 0.25 + 0.5) / 3)  # 0 and 1 against their median


def test_the_example_format_is_trained_on(tiny_model_folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "bridge.csv"
    rows = [f"Who saw bridge {n}?,P{n},P{n} saw bridge {n}.,S{n} sold it. | W{n} left." for n in range(4)]
    data.write_text("question,answer,gold,others\n" + "\n".join(rows) + "\n")
    settings = (f"data.train_files={data}", "data.format=examples.own_format:CsvFormat", "data.documents=2")
    (row,) = train(tiny_model_folder, tmp_path / "run", *settings, "logging.report_to=[jsonl]")
    assert row["step"] == 1


def test_the_example_sink_gets_every_step(tiny_model_folder: Path, tmp_path: Path) -> None:
    (row,) = train(tiny_model_folder, tmp_path / "run", "logging.report_to=['examples.own_sink:CsvSink']")
    (logged,) = csv.DictReader((tmp_path / "run" / "rewards.csv").open())
    assert float(logged["reward/mean"]) == row["reward/mean"]
    assert logged["step"] == "1"


def test_the_example_of_a_role_trains_the_writer_alone(tiny_model_folder: Path, tmp_path: Path) -> None:
    (_, row) = train(
        tiny_model_folder,
        tmp_path / "run",
        "policy.name=examples.frozen_reader:FrozenReaderPolicy",
        f"roles.reader.model={tiny_model_folder}",
        "train.max_steps=2",
        "loss.entropy_coeff=1e-6",  # a gradient, whatever the rewards
        "logging.report_to=[jsonl]",
    )
    groups = read_groups(tmp_path / "run" / "trajectories" / "step-000002.jsonl.zst").groups
    turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    names = {(turn.name, turn.role, turn.trained, turn.completion.policy_version) for turn in turns}
    assert names == {("read", None, True, 1), ("answer", "reader", False, 0)}
    assert row["credit/trained_tokens"] == sum(len(turn.completion.token_ids) for turn in turns if turn.trained)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    longer = {"bigrams.py": 90, "trl_rollouts.py": 100}  # an engine, another trainer
    most = {"gated.py": 150, "heads.py": 150, "one_step.py": 150, **longer}  # papers, a walkthrough
    assert len(path.read_text().splitlines()) <= most.get(path.name, 80)
