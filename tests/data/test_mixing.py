"""Several files as one source, with and without weights."""

from collections import Counter
from pathlib import Path

import pytest

from palimpsest.config.data import DataConfig
from palimpsest.data.formats.problem_files import write_problems
from palimpsest.data.sources.file_source import FileSource
from palimpsest.data.sources.problem_source import MixedSource, build_source, shares
from palimpsest.errors import DataError
from palimpsest.types import Problem


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str]:
    """Seven problems and five, all of them called by the same names."""
    for name, size in (("a", 7), ("b", 5)):
        problems = [Problem(f"p{i}", f"{name}{i}?", ("A",), f"{name} {i}") for i in range(size)]
        write_problems(tmp_path / f"{name}.jsonl", problems)
    return str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")


def mixed(paths: tuple[str, ...], *weights: float, seed: int = 0) -> MixedSource:
    source = build_source(DataConfig(source=paths, weights=weights, seed=seed), split="train")
    assert isinstance(source, MixedSource)
    return source


def asked(source: MixedSource | FileSource, step: int, count: int, round: int = 0) -> list[str]:
    return [problem.question for problem in source.problems(step=step, count=count, round=round)]


@pytest.mark.parametrize(("weights", "count"), [((3, 1), 4), ((3, 1), 5), ((2, 1), 2), ((1, 1), 3), ((9, 1), 3)])
def test_every_step_is_within_one_of_the_shares_and_all_steps_together_have_them(
    paths: tuple[str, str], weights: tuple[float, float], count: int
) -> None:
    source, share, total = mixed(paths, *weights), count * weights[0] / sum(weights), 0
    for step in range(400):
        questions = asked(source, step, count)
        assert len(set(questions)) == count
        first = sum(question.startswith("a") for question in questions)
        assert abs(first - share) < 1
        total += first
    assert abs(total - 400 * share) <= 3 * 400**0.5 / 2  # three standard deviations of a draw at its widest


def test_a_step_is_the_same_in_any_order_and_in_another_process(paths: tuple[str, str]) -> None:
    forward = [asked(mixed(paths, 3, 1), step, 4) for step in range(30)]
    source = mixed(paths, 3, 1)
    assert [asked(source, step, 4) for step in reversed(range(30))] == forward[::-1]
    assert [asked(mixed(paths, 3, 1, seed=1), step, 4) for step in range(30)] != forward


def test_each_file_has_epochs_of_its_own(paths: tuple[str, str]) -> None:
    source = mixed(paths, 1, 1)
    drawn = [question for step in range(7) for question in asked(source, step, 2)]
    assert Counter(drawn).most_common(1)[0][1] <= 2  # of five problems, seven draws: an epoch and the next's beginning
    assert sorted(question for question in drawn if question[0] == "a") == [f"a{i}?" for i in range(7)]
    assert sorted(question for question in drawn[:10] if question[0] == "b") == [f"b{i}?" for i in range(5)]


def test_refills_bring_others_by_the_same_shares(paths: tuple[str, str]) -> None:
    source = mixed(paths, 3, 1)
    rounds = [asked(source, 2, 4, round) for round in (1, 2)]
    assert [sum(question.startswith("a") for question in questions) for questions in rounds] == [3, 3]
    assert rounds[0] != rounds[1] != asked(source, 2, 4)
    assert asked(source, 2, 4, 1) == rounds[0]


def test_shares_add_up_and_follow_the_weights_over_many_draws() -> None:
    drawn = [shares([5, 3, 2], 4, ("k", step)) for step in range(2000)]
    assert {sum(counts) for counts in drawn} == {4}
    for at, weight in enumerate((0.5, 0.3, 0.2)):
        assert abs(sum(counts[at] for counts in drawn) / 8000 - weight) < 0.01


def test_without_weights_the_files_are_one(paths: tuple[str, str]) -> None:
    source = build_source(DataConfig(source=paths), split="train")
    assert isinstance(source, FileSource)
    epoch = [question for step in range(4) for question in asked(source, step, 3)]
    assert sorted(epoch) == sorted([f"a{i}?" for i in range(7)] + [f"b{i}?" for i in range(5)])
    ids = [problem.id for problem in source]
    assert len(set(ids)) == 12
    assert ids[6:9] == ["p6", "p0#2", "p1#2"]


def test_evaluation_reads_one_file_after_the_other_whatever_the_weights(paths: tuple[str, str]) -> None:
    config = DataConfig(source=paths, weights=(3, 1), limit=2)
    problems = build_source(config, split="eval").problems(step=0, count=99)
    assert [problem.question for problem in problems] == ["a0?", "a1?", "b0?", "b1?"]


def test_ids_stay_apart_in_a_mix(paths: tuple[str, str]) -> None:
    names = [problem.id for problem in mixed(paths, 1, 1)]
    assert len(set(names)) == 12
    assert names[7] == "p0#2"


def test_a_file_too_small_for_its_part_is_named(paths: tuple[str, str]) -> None:
    with pytest.raises(DataError, match=r"b\.jsonl holds 5 problems, its data\.weights make it give up to 6 of the 8"):
        mixed(paths, 1, 3).problems(step=0, count=8)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"source": "a.json", "weights": (1,)}, "give one above 0 for each of several files; data.source names 1"),
        ({"source": ("a", "b"), "weights": (1,)}, "data.source names 2"),
        ({"source": ("a", "b"), "weights": (1, 0)}, "give one above 0"),
        ({"source": ("a", "b"), "weights": (1, 2), "shuffle": False}, "data.weights draws from shuffled files"),
        ({"source": ("a", "synthetic")}, "a list holds files alone"),
        ({"source": ("a", "a")}, "name a file, or a list of different files"),
        ({"source": ()}, "name a file, or a list of different files"),
    ],
)
def test_lists_and_weights_that_have_no_meaning_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DataConfig.model_validate(given)


def test_a_list_of_one_is_that_one() -> None:
    assert DataConfig.model_validate({"source": ["synthetic"]}) == DataConfig()
