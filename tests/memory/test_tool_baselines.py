"""Baselines of the pruning agent: the last tokens of the tool history, a summary of it, and one without a model."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.errors import ConfigError, DataError
from palimpsest.memory.policy_check import check_policy
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.tool_baselines import CompactionPolicy, SummaryPolicy, ToolWindowPolicy
from palimpsest.rollout.segments import segments_of
from palimpsest.types import Outcome
from support.agents import FACTS, PASSAGES, SMALL, base_codec, events, family_codec, ids_of, played, search, world
from support.trained_once import trained_once

NAMES = ("Alice", "Bob", "Carol", "David", "Emma")
SEARCHES = [search(name) for name in NAMES]


def exchange_tokens(fact: str, name: str, result_id: str) -> int:
    """A call, the stop token, the result between its marks, and the header of the next reply."""
    codec = base_codec()
    text = f"{search(name)}<|im_end|>\n<|im_start|>tool\n[{result_id}] {fact}<|im_end|>\n<|im_start|>assistant\n"
    return len(codec.encode_trusted(text))


def test_the_oldest_replies_are_dropped_with_their_results() -> None:
    agent = ToolWindowPolicy(**SMALL)
    ids = ids_of(agent, 5)
    lengths = [exchange_tokens(fact, name, one) for fact, name, one in zip(FACTS, NAMES, ids, strict=True)]
    window = sum(lengths[2:4])  # at the fourth turn the second and third call fit only if they are shorter
    trajectory, script = played(ToolWindowPolicy(window_tokens=window, **SMALL), SEARCHES)
    for number in range(1, 6):
        text, total = script.text(number), 0
        shown = [fact in text for fact in FACTS[:number]]
        expected: list[Any] = []
        for length in reversed(lengths[:number]):
            total += length
            expected.insert(0, total <= window or not expected)
        assert shown == expected
        assert "Problem: What does Alice drink?" in text
    dropped = sum(fact not in script.text(5) for fact in FACTS)
    assert sum(event.detail["exchanges"] for event in events(trajectory, "window")) == dropped
    trained_once(trajectory)


def test_a_wide_window_is_the_plain_agent_and_a_narrow_one_shows_the_latest_results() -> None:
    wide = played(ToolWindowPolicy(window_tokens=1200, **SMALL), SEARCHES)[1].prompts
    assert wide == played(PrunePolicy(prune=False, **SMALL), SEARCHES)[1].prompts
    _, script = played(ToolWindowPolicy(window_tokens=1, **SMALL), SEARCHES)
    assert [fact in script.text(5) for fact in FACTS] == [False] * 4 + [True]


def test_a_window_that_fills_the_context_is_rejected() -> None:
    codec = base_codec()
    room = 1500 - len(codec.encode_trusted(played(ToolWindowPolicy(window_tokens=1, **SMALL), [])[1].text(0)))
    ToolWindowPolicy(window_tokens=room - 1, **SMALL).admit(world(), codec)
    for window in (room, 8192):
        with pytest.raises(DataError, match=rf"window_tokens={window} leaves no room .*context_tokens=1500; lower"):
            ToolWindowPolicy(window_tokens=window, **SMALL).admit(world(), codec)


def summary_policy(**options: Any) -> SummaryPolicy:
    return SummaryPolicy(**{**SMALL, "context_tokens": 330, "turn_tokens": 100, "summary_tokens": 40, **options})


def until_full(prompt: str) -> str:
    """Searches, and summarises on request."""
    if prompt.rstrip().endswith("Update the memory.<|im_end|>\n<|im_start|>assistant"):
        return f" {FACTS[0]}"
    return search(NAMES[prompt.count("<|im_start|>tool") % 5])


def test_a_full_context_is_replaced_by_the_question_and_a_summary() -> None:
    trajectory, script = played(summary_policy(), [until_full] * 12)
    names = [turn.name for turn in trajectory.turns]
    at = names.index("summarise")
    assert names[:at] == ["act"] * at
    before, request, after = script.text(at - 1), script.text(at), script.text(at + 1)
    assert request.startswith(before)  # the request follows the history: the same segment
    assert after == (
        "<|im_start|>user\nProblem: What does Alice drink?\nMemory: Alice drinks tea.\nTools: search<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert names.count("summarise") >= 2  # and again when it is full again
    assert all(len(turn.prompt_ids) + len(turn.completion.token_ids) <= 330 for turn in trajectory.turns)
    assert len(segments_of(trajectory)) == 1 + names.count("summarise")
    assert len(trajectory.turns) == 13
    trained_once(trajectory)


def test_results_without_room_next_to_the_request_are_not_summarised() -> None:
    long = {"id": "0", "title": "", "text": "Alice " * 220}
    trajectory, script = played(
        summary_policy(context_tokens=330),
        [search("Bob"), search("Alice"), until_full],
        world(passages=[long, PASSAGES[1]]),
    )
    (event,) = events(trajectory, "summary")
    assert event.detail["left_out"] == 1
    assert "Alice Alice" not in script.text(2)
    trained_once(trajectory)


def test_results_that_fill_the_context_or_too_many_turns_end_the_episode() -> None:
    long = {"id": "0", "title": "", "text": "Alice " * 400}
    trajectory, _ = played(summary_policy(), [search("Alice")], world(passages=[long]))
    assert (trajectory.outcome, [turn.name for turn in trajectory.turns]) == (Outcome.OUT_OF_CONTEXT, ["act"])
    trajectory, _ = played(summary_policy(max_turns=6), [until_full] * 20)
    assert trajectory.outcome is Outcome.OUT_OF_TURNS
    assert len(trajectory.turns) <= 6  # a summary counts as a turn


def test_impossible_sizes_are_rejected() -> None:
    with pytest.raises(DataError, match=r"with a summary its prompt has \d+ tokens"):
        summary_policy(summary_tokens=250).admit(world(), base_codec())
    for wrong in (lambda: summary_policy(summary_tokens=0), lambda: ToolWindowPolicy(window_tokens=0, **SMALL)):
        with pytest.raises(ConfigError, match="=0: must be at least 1"):
            wrong()


def compacted(question: str = "What does Alice drink?", **options: Any) -> tuple[list[str], Any, Any]:
    """Lines of the memory in the last prompt, after five searches; the trajectory; the script."""
    sizes = {"context_tokens": 330, "turn_tokens": 100, "summary_tokens": 120, "recent_turns": 2, **options}
    trajectory, script = played(CompactionPolicy(**{**SMALL, **sizes}), SEARCHES, world(question=question))
    memory = script.text(5).partition("Memory: ")[2].partition("\nTools: search")[0]
    return memory.splitlines(), trajectory, script


def test_a_compaction_cuts_old_results_and_leaves_the_latest_exchanges() -> None:
    lines, trajectory, script = compacted(result_chars=11)
    whole = [fact in script.text(5) for fact in FACTS]
    assert whole == sorted(whole)  # the latest ones
    assert whole[-1]
    gone = list(zip(NAMES, FACTS, strict=True))[: whole.count(False)]
    assert lines == [f"search({name}): {fact[:11]}" for name, fact in gone]
    assert {turn.name for turn in trajectory.turns} == {"act"}  # no call of the model
    assert len(segments_of(trajectory)) == 1 + len(events(trajectory, "summary"))
    trained_once(trajectory)


def test_a_checklist_has_the_sentences_that_name_what_the_question_names() -> None:
    lines, _, script = compacted("What do Alice and Bob drink?", rule="checklist", recent_turns=1)
    gone = [fact for fact in FACTS if fact not in script.text(5).partition("Tools: search")[2]]
    assert len(gone) >= 2
    assert lines == [fact for fact in gone if "Alice" in fact or "Bob" in fact]


def test_the_oldest_lines_leave_a_full_summary_and_it_is_not_compacted_again() -> None:
    every, *_ = compacted(result_chars=11)
    few, trajectory, _ = compacted(result_chars=11, summary_tokens=20)
    assert 0 < len(few) < len(every)
    assert few == every[-len(few) :]
    lengths = [event.detail["tokens"] for event in events(trajectory, "summary")]
    assert max(lengths) <= 20
    (line,), *_ = compacted(result_chars=200, summary_tokens=4)  # longer than the summary: cut, not lost
    assert every[-1].startswith(line)


@pytest.mark.parametrize("family", ["qwen", "llama3", "mistral", "bare"])
def test_a_summary_can_be_requested_in_every_template(family: str) -> None:
    agent = SummaryPolicy(tools={"search": {"topk": 1}}, context_tokens=4000, turn_tokens=1500, summary_tokens=300)
    agent.admit(world(), family_codec(family))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (PrunePolicy, {}),
        (PrunePolicy, {"tools": {"search": {"source": "document"}}}),
        (ToolWindowPolicy, {"window_tokens": 300}),
        (SummaryPolicy, {"summary_tokens": 64}),
        (CompactionPolicy, {"summary_tokens": 64}),
        (CompactionPolicy, {"summary_tokens": 64, "rule": "checklist"}),
    ],
)
def test_the_agents_fulfil_the_contract_of_policies(kind: type[Any], options: dict[str, Any]) -> None:
    agent = kind(**{**SMALL, "turn_tokens": 64, "context_tokens": 600, **options})
    findings = check_policy(agent, base_codec(), 600)
    assert [finding.message for finding in findings if not finding.passed] == []
    assert any("searches without end" in finding.name for finding in findings)
