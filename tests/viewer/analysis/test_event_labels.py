"""The context of an agent with tools as blocks, what prunes freed, and what was requested again."""

from __future__ import annotations

import pytest

from palimpsest.events import Pruned, of_type
from palimpsest.viewer.analysis.event_labels import context_blocks, freed
from support.views import episodes

NAMES = ("prune", "tool_window", "summary", "closed_book", "overwrite", "nothing named", "no turn")


@pytest.mark.parametrize("name", NAMES)
def test_the_blocks_of_a_turn_cover_its_prompt(name: str) -> None:
    story = episodes()[name].story(0)
    for blocks, turn in zip(context_blocks(story), story.trajectory.turns, strict=True):
        assert [position for block in blocks for position in range(*block.tokens)] == list(range(len(turn.prompt_ids)))


def test_results_have_ids_and_replies_have_turns() -> None:
    story = episodes()["prune"].story(0)
    blocks = context_blocks(story)
    assert [block.id for block in blocks[2] if block.kind == "result"] == ["a", "b"]
    assert [block.turn for block in blocks[2] if block.kind == "reply"] == [0, 1]
    assert [block.turn for block in blocks[3] if block.kind == "memory"] == [2]
    assert "result" in {block.kind for block in blocks[3]}
    for block in blocks[2]:
        if block.turn is not None:
            start, end = block.tokens
            sampled = story.trajectory.turns[block.turn].completion.token_ids
            assert story.trajectory.turns[2].prompt_ids[start:end] == sampled[: end - start]


def test_a_prune_frees_what_its_prompt_loses_and_names_results_requested_again() -> None:
    story = episodes()["prune"].story(0)
    (one,) = freed(story)
    (prune,) = of_type(story.trajectory.events, Pruned)
    assert (one.turn, one.how) == (2, "prune")
    assert one.tokens == len(story.trajectory.turns[2].prompt_ids) - prune.context_tokens
    again = {deleted.id: deleted.again and (deleted.again.turn, deleted.again.how) for deleted in one.deleted}
    assert again == {"a": (4, "same call"), "b": None}
    last = story.trajectory.turns[2]
    assert [deleted.tokens for deleted in one.deleted] == [len(last.piece(f"result:{id_}") or ()) for id_ in "ab"]


def test_windows_and_summaries_free_tokens_too() -> None:
    assert [(one.how, one.tokens > 0) for one in freed(episodes()["tool_window"].story(0))] == [("window", True)]
    assert [(one.how, one.tokens > 0) for one in freed(episodes()["summary"].story(0))] == [("summary", True)] * 2
