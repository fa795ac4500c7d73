"""Tables of leagues: figures against plain Python, blanks, pairs, seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from palimpsest.app.evaluate.evaluation_data import set_names
from palimpsest.app.league.league_files import held_out_sets
from palimpsest.app.league.league_run import method_config
from palimpsest.app.league.league_table import NOT_PLAYED, LeagueTable, MethodRow, difference, kendall_tau
from palimpsest.config.league import LeagueConfig
from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError
from palimpsest.evaluation.sample_log import Sample
from palimpsest.evaluation.statistics import wilson
from support.evaluations import sample

FAMILIES, SIZES = ("needle", "list"), (4, 64)
Rights = Mapping[tuple[str, int | None], Sequence[Sequence[int]]]
"""[seeds][problems] by cell: 1 for right."""


def league(**changes: object) -> LeagueConfig:
    methods: dict[str, object] = {"a": {}, "b": {}}
    keys = {"seeds": (0, 1, 2), "families": FAMILIES, "chunks": SIZES, "methods": methods, **changes}
    return LeagueConfig.model_validate(keys)


def row(name: str, rights: Rights, **fields: object) -> MethodRow:
    samples: dict[int, list[Sample]] = {}
    for (family, size), seeds in rights.items():
        for seed, values in enumerate(seeds):
            rows = [
                sample(f"{seed}-{family}-{size}-{n}", float(value), set=family, size=size)
                for n, value in enumerate(values)
            ]
            samples.setdefault(seed, []).extend(rows)
    method = league().methods["a"]
    config = method_config(league(), method, 0)
    return MethodRow(name=name, method=method, trained=True, config=config, samples=samples, **fields)


RIGHTS: Rights = {
    ("needle", 4): [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]],
    ("needle", 64): [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]],
    ("list", 4): [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]],
    ("list", 64): [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
}
WORSE: Rights = {cell: [[0] * len(values) for values in seeds] for cell, seeds in RIGHTS.items()}


def test_a_cell_has_the_mean_over_seeds_and_the_wider_interval() -> None:
    made = LeagueTable(league(), [row("a", RIGHTS)]).to_json()["rows"][0]
    cell = next(one for one in made["cells"] if (one["family"], one["size"]) == ("needle", 64))
    means = [0.75, 0.5, 1.0]
    half = 4.302653 * statistics.stdev(means) / math.sqrt(3)
    low, high = wilson(9, 12)
    assert cell["accuracy"] == pytest.approx(9 / 12)
    assert cell["low"] == pytest.approx(max(0.0, min(low, 0.75 - half)), abs=1e-4)
    assert cell["high"] == pytest.approx(min(1.0, max(high, 0.75 + half)), abs=1e-4)
    assert (cell["n"], cell["reason"]) == (12, None)


@pytest.mark.parametrize(("policy", "tokens"), [("overwrite", 1024), ("closed_book", None)])
def test_a_budget_that_no_option_sets_is_that_of_the_policy(policy: str, tokens: int | None) -> None:
    made = row("a", RIGHTS)
    config = made.config.model_copy(update={"policy": PolicyConfig(name=policy)})
    assert replace(made, config=config).memory_tokens == tokens


def test_equal_seeds_leave_the_interval_of_the_problems() -> None:
    made = row("a", {("needle", 4): [[1] * 8] * 3})
    found = made.accuracy([("needle", 4)])
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(wilson(24, 24)[0], abs=1e-4)


def test_means_over_families_and_the_fall_from_the_shortest_to_the_longest() -> None:
    table = LeagueTable(league(held_out=("count",)), [row("a", RIGHTS)])
    made = table.to_json()["rows"][0]
    assert [one["accuracy"] for one in made["mean"]] == pytest.approx([(11 / 12 + 3 / 12) / 2, (9 / 12 + 1 / 12) / 2])
    assert made["fall"] == pytest.approx((11 + 3 - 9 - 1) / 24)
    assert {one["family"] for one in made["cells"]} == {"needle", "list", "count"}


def test_a_blank_cell_has_its_reason_and_leaves_no_mean() -> None:
    alone = {cell: seeds for cell, seeds in RIGHTS.items() if cell[0] == "needle"}
    admitted = row("a", alone, reasons={"list, 4 chunks": "answers one question", "list, 64 chunks": "too long"})
    made = LeagueTable(league(), [admitted, row("b", {}, reasons={"": "it failed"})]).to_json()["rows"]
    assert [one["reason"] for one in made[0]["cells"]] == [None, None, "answers one question", "too long"]
    assert [one["accuracy"] for one in made[0]["mean"]] == [None, None]
    compared = LeagueTable(league(), [row("a", RIGHTS), admitted])
    assert compared.differences == {}, "over fewer families than other rows"
    shorter = LeagueTable(league().model_copy(update={"chunks": (4,)}), [row("a", RIGHTS), row("b", WORSE)])
    assert shorter.compared(shorter.rows[1]) == {("needle", 4), ("list", 4)}
    assert {one["reason"] for one in made[1]["cells"]} == {"it failed"}
    assert {one["reason"] for one in LeagueTable(league(), [row("a", {})]).to_json()["rows"][0]["cells"]} == {
        NOT_PLAYED
    }


def test_differences_are_paired_by_problem_and_corrected_for_the_rows() -> None:
    half = {cell: [values[:2] for values in seeds] for cell, seeds in WORSE.items()}
    table = LeagueTable(league(), [row("a", RIGHTS), row("b", WORSE), row("c", half), row("d", RIGHTS)])
    found = table.differences
    assert set(found) == {"b", "c", "d"}
    change, adjusted = found["b"]
    by_seed = [-(4 + 3 + 1 + 0) / 16, -(3 + 2 + 2 + 1) / 16, -(4 + 4 + 0 + 0) / 16]
    assert change.mean == pytest.approx(statistics.fmean(by_seed))
    assert (change.better, change.worse) == (0, 24)
    assert found["c"][0].worse == sum(sum(v[:2]) for seeds in RIGHTS.values() for v in seeds), "shared problems only"
    assert found["d"][0].mean == 0.0
    assert found["d"][1] == 1.0
    ps = sorted(one.p for one, _ in found.values())
    assert adjusted == pytest.approx(max(3 * ps[0], 2 * ps[1]) if change.p == ps[1] else 3 * ps[0])


def test_seeds_that_order_the_methods_alike_agree() -> None:
    table = LeagueTable(league(), [row("a", RIGHTS), row("b", WORSE)])
    assert table.agreement == 1.0
    reversed_once = {cell: [seeds[0], [1] * 4, seeds[2]] for cell, seeds in WORSE.items()}
    assert LeagueTable(league(), [row("a", RIGHTS), row("b", reversed_once)]).agreement == pytest.approx(-1 / 3)


def test_a_method_without_a_family_has_no_place_in_the_order() -> None:
    alone = {cell: seeds for cell, seeds in RIGHTS.items() if cell[0] == "needle"}
    assert LeagueTable(league(), [row("a", RIGHTS), row("b", WORSE), row("c", alone)]).agreement == 1.0


def test_the_interval_of_a_mean_contains_it_if_the_families_have_unequal_numbers() -> None:
    made = row("a", {("needle", 4): [[1] * 64], ("list", 4): [[0] * 4]}).accuracy([("needle", 4), ("list", 4)])
    assert made.mean == 0.5
    assert made.low == pytest.approx(0.5 - (1 - wilson(64, 64)[0]) / 2, abs=1e-4)
    assert made.high == pytest.approx(0.5 + wilson(0, 4)[1] / 2, abs=1e-4)


def test_differences_of_rewards_beyond_one_keep_their_ends() -> None:
    low, high = ({("needle", 4): [[at, at + 1, at, at + 2], [at, at, at + 1, at]]} for at in (0, 5))
    found = difference(row("b", high), row("a", low), [("needle", 4)])
    assert found is not None
    assert (found.mean, found.low > 1.0, found.high >= 5.0) == (5.0, True, True)


def test_rows_without_a_seed_are_compared_and_ordered_over_those_that_they_have() -> None:
    once = {cell: seeds[:1] for cell, seeds in WORSE.items()}
    short = once | {("needle", 64): [[1] * 4] * 2, ("list", 64): [[1] * 4] * 2}
    table = LeagueTable(league(), [row("a", RIGHTS), row("b", WORSE), row("c", once), row("d", short)])
    assert table.agreement == 1.0
    assert [line.partition(";")[0] for line in table.notes()] == ["c: seeds 0 only", "d: seeds 0, 1 only"]
    assert table.fall(table.rows[3]) == -1.0, "in seed 0, which has both lengths"


def test_equal_means_tie_whatever_the_order_of_their_sums() -> None:
    thirds = {("needle", 4): [[1] * 6 + [0] * 54] * 2, ("list", 4): [[1] * 12 + [0] * 48] * 2}
    halves = {("needle", 4): [[1] * 9 + [0] * 51] * 2, ("list", 4): [[1] * 9 + [0] * 51] * 2}
    made = league(seeds=(0, 1), chunks=(4,))
    assert LeagueTable(made, [row("a", thirds), row("b", halves)]).agreement is None


def test_episodes_without_a_grade_are_counted_by_reason() -> None:
    needle = [sample(f"n{n}", 1.0, set="needle", size=4) for n in range(2)]
    judged = [sample(f"{name}{n}", None, set=name, size=4) for name in ("needle", "list") for n in range(2)]
    partly = replace(row("a", {}), samples={0: [*needle, *judged]})
    made = LeagueTable(league(seeds=(0,), chunks=(4,)), [partly])
    assert made.to_json()["rows"][0]["cells"][1]["reason"].startswith("2 of 2 episodes")
    assert [line[:20] for line in made.notes()] == ["a: 2 of 2 episodes h", "a: 2 of 4 episodes h"]


def test_families_without_a_length_have_their_own_mean() -> None:
    rights: Rights = {("p", None): [[1]], ("q", 50): [[0]]}
    table = LeagueTable(league(data=["p.jsonl", "q.jsonl"]), [row("a", rights)])
    assert [(one["size"], one["accuracy"]) for one in table.to_json()["rows"][0]["mean"]] == [(50, 0.0), (None, 1.0)]


def test_costs_need_every_family() -> None:
    costs = {("needle", 4): [[1]], ("list", 4): [[1]]}
    both, alone = row("a", costs), row("b", {("needle", 4): [[1]]})
    for each in (both, alone):
        for one in each.samples[0]:
            one.measures["computed_tokens"] = 100.0
    cells = [("needle", 4), ("list", 4)]
    assert [each.mean_measure("computed_tokens", cells) for each in (both, alone)] == [100.0, None]


def test_kendalls_tau_of_a_worked_example() -> None:
    """11 of 15 pairs have the same order, 4 the other."""
    assert kendall_tau([1, 2, 3, 4, 5, 6], [3, 1, 4, 2, 6, 5]) == pytest.approx((11 - 4) / 15)


@pytest.mark.parametrize(
    ("data", "held_out", "families"),
    [
        (["x/a.jsonl", "y/a.jsonl"], "y/a.jsonl", ["x/a.jsonl"]),
        (["x/b.jsonl.gz", "x/c.jsonl.gz"], "x/c.jsonl.gz", ["b"]),
        (["x/b.jsonl.gz", "x/c.jsonl.gz"], "c", ["b"]),
    ],
)
def test_a_held_out_file_is_known_by_its_path_and_by_the_name_of_its_set(
    data: list[str], held_out: str, families: list[str]
) -> None:
    made = league(data=data, held_out=(held_out,))
    right = {(name, None): [[1]] for name in set_names(data).values()}
    assert LeagueTable(made, [row("a", right)]).families == families


def test_a_file_that_is_not_evaluated_cant_be_held_out() -> None:
    with pytest.raises(ConfigError, match=r"held_out=z\.jsonl"):
        held_out_sets(league(data=["x/a.jsonl"], held_out=("z.jsonl",)))
