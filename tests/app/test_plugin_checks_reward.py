"""`palimpsest check` for rewards and credit rules: each point is met by the examples and broken by a known offender."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.plugin_checks import check, kind_of
from palimpsest.errors import ConfigError, DataError, ModelError
from palimpsest.evaluation.episode_files import EPISODES
from palimpsest.events import Event, Pruned
from palimpsest.memory.policy_check import Finding
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.text.codec import Codec
from palimpsest.types import Grade
from support.groups import sample_groups

MODULE = """
import itertools, time
COUNTER = itertools.count()

def constant(problem, trajectory): return 1.0
def counts(problem, trajectory): return float(next(COUNTER))
def needs_answer(problem, trajectory): return len(trajectory.answer) / 100
def long_is_good(problem, trajectory): return float(len(trajectory.answer or ""))
async def sleeps(problem, trajectory):
    time.sleep(0.3)
    return float(bool(trajectory.answer))

def first_wins(group): return [1.0] + [0.0] * (len(group.grades) - 1)
def upside_down(group): return [-grade.value for grade in group.grades]
def uncertain(group): return [next(COUNTER) for _ in group.grades]
def too_short(group): return []
def reads_prunes(problem, trajectory, grade):
    return grade.value - 0.1 * sum(event.kind == "prune" for event in trajectory.events)
def credits_prunes(group):
    return [[float(any(e.kind == "prune" for e in t.events))] * len(t.turns) for t in group.trajectories]
def fails_on_prunes(group):
    return [g.value / (len(t.events) == 0) for t, g in zip(group.trajectories, group.grades)]

class Base:
    def __call__(self, problem, trajectory): return 1.0
class Inherits(Base): ...
class Nothing: ...

"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "offenders.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(Path(__file__).parents[2])


def broken(findings: list[Finding]) -> set[str]:
    return {finding.name for finding in findings if not finding.passed}


def test_the_examples_keep_their_contracts(tiny_codec: Codec) -> None:
    assert broken(check("examples.own_reward:reward", {"price": 0.2}, codec=tiny_codec)) == set()
    assert broken(check("examples.own_reward:Rambling", {}, codec=tiny_codec)) == set()
    assert broken(check("examples.own_credit:MedianRule", {"decay": 0.5})) == set()


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("constant", {"range"}),
        ("counts", {"determinism", "hostile text"}),
        ("needs_answer", {"grades", "hostile text"}),
        ("long_is_good", {"hostile text"}),
        ("sleeps", {"waiting"}),
    ],
)
def test_broken_points_of_a_reward_are_reported(name: str, points: set[str], tiny_codec: Codec) -> None:
    assert broken(check(f"offenders:{name}", {}, "reward", tiny_codec)) == points


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("first_wins", {"order", "equal rewards"}),
        ("upside_down", {"equal rewards", "direction"}),
        ("uncertain", {"determinism", "order", "equal rewards"}),
        ("too_short", {"advantages"}),
    ],
)
def test_broken_points_of_a_credit_rule_are_reported(name: str, points: set[str]) -> None:
    assert points <= broken(check(f"offenders:{name}", {}))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("overwrite", "policy"),
        ("examples.quotes:QuotesPolicy", "policy"),
        ("examples.own_reward:reward", "reward"),
        ("examples.own_reward:Rambling", "layer"),
        ("examples.own_credit:MedianRule", "rule"),
        ("offenders:first_wins", "rule"),
        ("offenders:Inherits", "reward"),
        ("examples.own_format:CsvFormat", "format"),
        ("examples/own_sink.py:CsvSink", "sink"),
        ("examples.bigrams:BigramEngine", "engine"),
        ("mean_std", "rule"),
    ],
)
def test_the_command_tells_the_kinds_apart(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_what_has_a_shape_alone_is_checked_for_that() -> None:
    for name in ("examples.own_format:CsvFormat", "examples/own_sink.py:CsvSink", "examples.bigrams:BigramEngine"):
        assert broken(check(name, {})) == set()


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (("offenders:Nothing", {}), "check", "offenders:Nothing"),
        (("examples.own_sink:CsvSink", {}, "snik"), "--kind", "snik"),
        (("my_policy.py", {}), "policy.name", "my_policy.py"),
        (("examples.own_sink:CsvSink", {"size": 1}), "logging.report_to.size", None),
    ],
)
def test_what_is_no_plugin_is_rejected(arguments: Any, key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as failure:
        check(*arguments)
    assert (failure.value.key, failure.value.value) == (key, value)


def test_a_policy_must_fit_the_window_of_a_model_that_is_named(tiny_model_folder: Path) -> None:
    sizes = {"question_tokens": 40, "memory_tokens": 20, "answer_tokens": 20, "prompts": "short"}
    for chunk_size, fits in ((60, True), (600, False)):
        options = {**sizes, "chunk_size": chunk_size}
        matches = check("overwrite", options, model=str(tiny_model_folder))
        assert [one.passed for one in matches if one.name == "window"] == [fits]
    with pytest.raises(ModelError):
        check("overwrite", sizes, model="nowhere/at-all")


# ---- recorded episodes ---------------------------------------------------------------------------------------


@pytest.fixture(params=["run", "evaluation", "file"])
def record(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A group: one trajectory was pruned, one is ungraded."""
    (played, lost), grades = sample_groups(1)[0].trajectories, (Grade(1.0), Grade(0.0), Grade(None, "judge down"))
    pruned = replace(played, rollout=2, events=(Event(Pruned("b", ("a",), "tea", 3), 1),))
    group = replace(sample_groups(1)[0], trajectories=(played, pruned, lost), grades=grades)
    file = tmp_path / (EPISODES if request.param == "evaluation" else "trajectories/step-1.jsonl.zst")
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(encode_groups([group]))
    return file if request.param == "file" else tmp_path


@pytest.mark.parametrize(
    ("name", "passes", "message"),
    [
        ("mean", True, "2 of 2 have an advantage"),
        ("success_gated", True, "2 of 2 have an advantage"),
        ("offenders:credits_prunes", True, "1 of 2 have an advantage"),
        ("offenders:fails_on_prunes", False, "ZeroDivisionError"),
        ("offenders:reads_prunes", True, "1 of 2 changed"),
        ("boxed", True, "2 graded"),
    ],
)
def test_rules_rewards_and_layers_are_tried_on_recorded_episodes(
    name: str, passes: bool, message: str, record: Path
) -> None:
    kind = "reward" if name == "boxed" else None
    (finding,) = [one for one in check(name, {}, kind, episodes=record) if one.name == "recorded episodes"]
    assert (finding.passed, message in finding.message) == (passes, True), finding.message


def test_a_layer_whose_events_are_not_recorded_fails(tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl.zst").write_bytes(encode_groups(sample_groups(2)))
    findings = check("offenders:reads_prunes", {}, episodes=tmp_path / "plain.jsonl.zst")
    assert "recorded episodes" in broken(findings)
    with pytest.raises(ConfigError, match="--episodes"):
        check("overwrite", {}, episodes=tmp_path / "plain.jsonl.zst")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"no .* of trajectories"):
        check("mean", {}, episodes=tmp_path / "none")
