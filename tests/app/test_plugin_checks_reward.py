"""`palimpsest check` for rewards and credit rules: each point is met by the examples and broken by a known offender."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.plugin_checks import check, kind_of
from palimpsest.errors import ConfigError, ModelError
from palimpsest.memory.policy_check import Finding
from palimpsest.text.codec import Codec

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
