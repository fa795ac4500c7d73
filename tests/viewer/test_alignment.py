"""Which words two texts share, in order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from palimpsest.viewer.analysis.memory_diff import aligned

SEQUENCES = st.lists(st.integers(0, 6), max_size=40)


@given(before=SEQUENCES, after=SEQUENCES)
def test_runs_ascend_and_are_equal_in_both(before: list[int], after: list[int]) -> None:
    done = (0, 0)
    for run in aligned(before, after):
        assert run.length > 0
        assert run.before >= done[0]
        assert run.after >= done[1]
        done = (run.before + run.length, run.after + run.length)
        assert before[run.before : done[0]] == after[run.after : done[1]]
    assert done[0] <= len(before)
    assert done[1] <= len(after)


@given(text=st.lists(st.integers(0, 50), max_size=60))
def test_a_text_keeps_all_of_itself(text: list[int]) -> None:
    assert sum(run.length for run in aligned(text, text)) == len(text)


def test_what_is_put_in_or_taken_out_leaves_the_rest() -> None:
    draw = random.Random(0)
    before = [draw.randrange(300) for _ in range(700)]
    after = [*before[:200], 1000, 1001, *before[200:500], *before[520:]]
    assert sum(run.length for run in aligned(before, after)) == 680


def test_a_word_that_two_texts_share_by_chance_is_not_kept_amid_others() -> None:
    assert aligned(["a", "b", "c", "in", "d", "e", "f"], ["u", "v", "w", "in", "x", "y", "z"]) == []
    assert [run.length for run in aligned(["Ann", "toured", "Lima"], ["Bo", "toured", "Oslo"])] == [1]


def test_long_texts_of_few_words_are_compared_in_bounded_work() -> None:
    compared = 0

    class Word:
        def __init__(self, value: int) -> None:
            self.value = value

        def __hash__(self) -> int:
            return hash(self.value)

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return isinstance(other, Word) and self.value == other.value

    draw = random.Random(1)
    before, after = ([Word(draw.randrange(30)) for _ in range(2000)] for _ in range(2))
    aligned(before, after)
    assert compared < 50_000
