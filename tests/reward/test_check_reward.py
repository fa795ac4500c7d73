"""`palimpsest check` for rewards and credit rules: each point is met by the examples and broken by a known offender."""

from __future__ import annotations

from pathlib import Path

import pytest

from palimpsest.app.plugin_checks import _kind, check, check_reward, check_rule
from palimpsest.errors import ConfigError
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

"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "offenders.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def broken(findings: list[Finding]) -> set[str]:
    return {finding.name for finding in findings if not finding.passed}


def test_the_examples_keep_their_contracts(tiny_codec: Codec) -> None:
    assert broken(check_reward("examples.own_reward:reward", {"price": 0.2}, tiny_codec)) == set()
    assert broken(check_reward("examples.own_reward:Rambling", {}, tiny_codec, layer=True)) == set()
    assert broken(check_rule("examples.own_credit:MedianRule", {"decay": 0.5})) == set()


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
def test_a_reward_is_told_what_it_breaks(name: str, points: set[str], tiny_codec: Codec) -> None:
    assert broken(check_reward(f"offenders:{name}", {}, tiny_codec)) == points


def test_a_reward_that_raises_without_an_answer_is_told_in_words(tiny_codec: Codec) -> None:
    (first, *_) = check_reward("offenders:needs_answer", {}, tiny_codec)
    assert "cost the agent nothing; no answer: offenders:needs_answer raised TypeError" in first.message


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("first_wins", {"order", "equal rewards"}),
        ("upside_down", {"equal rewards", "direction"}),
        ("uncertain", {"determinism", "order", "equal rewards"}),
        ("too_short", {"advantages"}),
    ],
)
def test_a_credit_rule_is_told_what_it_breaks(name: str, points: set[str]) -> None:
    assert points <= broken(check_rule(f"offenders:{name}", {}))


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
    ],
)
def test_the_command_tells_the_kinds_apart(name: str, kind: str) -> None:
    assert _kind(name, {}) == kind


@pytest.mark.parametrize(
    "name", ["examples.own_format:CsvFormat", "examples.own_sink:CsvSink", "examples.bigrams:BigramEngine"]
)
def test_what_is_of_another_kind_is_refused_with_what_can_be_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=r"neither a policy \(run\).* a tool is checked with a policy .*'tools=\{"):
        check(name, {})


def test_a_kind_that_is_none_and_a_file_are_refused() -> None:
    with pytest.raises(ConfigError, match="--kind sink: choose one of policy, reward, layer, rule"):
        check("examples.own_sink:CsvSink", {}, "sink")
    with pytest.raises(ConfigError, match="such as my_policy:MyPolicy"):
        check("my_policy.py", {})
