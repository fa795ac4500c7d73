"""Chunks of a document."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.memory.parts.chunks import split, truncate

IDS = st.lists(st.integers(0, 5), max_size=80)


@settings(max_examples=100)
@given(ids=IDS, size=st.integers(1, 12), newlines=st.frozensets(st.integers(0, 5), max_size=2))
def test_chunks_join_back_to_the_document_within_the_budget(
    ids: list[int], size: int, newlines: frozenset[int]
) -> None:
    chunks = [list(chunk) for chunk in split(ids, size, newlines)]
    assert [i for chunk in chunks for i in chunk] == ids
    assert all(0 < len(chunk) <= size for chunk in chunks)
    for chunk in chunks[:-1]:  # without a final line break it had none in reach after its first token
        assert chunk[-1] in newlines or not newlines & set(chunk[1:])


@settings(max_examples=50)
@given(ids=st.lists(st.integers(0, 9), max_size=40), limit=st.integers(1, 40))
def test_truncation_leaves_both_ends_within_the_limit(ids: list[int], limit: int) -> None:
    left = truncate(ids, limit, "centre")
    assert len(left) == min(len(ids), limit)
    head = (len(left) + 1) // 2
    assert left[:head] == ids[:head]
    assert left[head:] == ids[len(ids) - (len(left) - head) :]


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_without_room_for_a_token_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match=f"chunk_size={size}"):
        next(split([1, 2, 3], size))
