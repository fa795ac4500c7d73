"""The pruning agent with scripted models."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

import pytest

from palimpsest.config.schema import SamplingConfig
from palimpsest.memory.parts.tool_agent import ToolAgentPolicy
from palimpsest.memory.prune import PrunePolicy
from palimpsest.rollout.episode import play
from palimpsest.rollout.segments import segments_of
from palimpsest.text.tool_calls import CallStyle, call_text, calls_text
from palimpsest.tools.tool import ToolSpec
from palimpsest.types import Outcome
from support.agents import (
    SMALL,
    TOOL_FAMILIES,
    Script,
    base_codec,
    call,
    events,
    family_codec,
    ids_of,
    played,
    prune,
    search,
    world,
)
from support.trained_once import trained_once

A, B, C, D, E = ids_of(PrunePolicy(**SMALL), 5)
ABC = "\n".join(map(search, ("Alice", "Bob", "Carol")))


def policy(**options: Any) -> PrunePolicy:
    return PrunePolicy(**{**SMALL, **options})


def visible(text: str) -> list[str]:
    """Ids of the results that a prompt shows."""
    return [name for name in (A, B, C, D, E) if f"\n[{name}] " in text]


def test_a_prune_removes_the_results_it_names_and_its_call_stays() -> None:
    trajectory, script = played(policy(), [search("Alice"), search("Bob"), prune(A), "FINAL_ANSWER: tea"])
    before, after = script.text(2), script.text(3)
    assert (visible(before), visible(after)) == ([A, B], [B, C])
    assert search("Alice") in before
    assert search("Alice") not in after
    assert "Alice drinks tea" not in after
    assert prune(A) in after
    assert (trajectory.outcome, trajectory.answer) == (Outcome.ANSWERED, "FINAL_ANSWER: tea")
    (event,) = events(trajectory, "prune")
    assert (event.detail["deleted"], event.detail["memory"], event.detail["id"]) == ((A,), "tea", C)
    notes = [(turn.name, turn.notes["tool_calls"], turn.notes["prunes"]) for turn in trajectory.turns]
    assert notes == [("act", 0, 0), ("act", 1, 0), ("act", 2, 0), ("act", 2, 1)]


def test_a_prune_can_be_pruned() -> None:
    _, script = played(policy(), [search("Alice"), prune(A, memory="tea"), prune(B, memory="still tea")])
    assert [visible(script.text(number)) for number in (2, 3)] == [[B], [C]]
    assert '"memory": "tea"' not in script.text(3)


def test_several_prunes_of_a_reply_are_done_in_order_completely_or_not_at_all() -> None:
    replies = [ABC, "\n".join([prune(A), prune(B, "zz"), prune(C, A), prune(C)])]
    trajectory, script = played(policy(parallel_calls=9), replies)
    assert visible(script.text(2)) == [B, D, E]
    assert [event.detail["deleted"] for event in events(trajectory, "prune")] == [(A,), (C,)]
    reasons = [event.detail["reason"] for event in events(trajectory, "prune_refused")]
    assert [reason.split(" is")[0] for reason in reasons] == ['delete_ids: "zz"', f'delete_ids: "{A}"']


def test_a_rejected_last_prune_leaves_prompt_and_history_consistent() -> None:
    trajectory, script = played(policy(), [search("Alice"), f"{prune(A)}\n{prune(A)}", search("Bob")])
    for number in (2, 3):
        assert "Alice drinks" not in script.text(number)
    assert script.prompts[3][: len(script.prompts[2])] == script.prompts[2]
    trained_once(trajectory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "m", "delete_ids": []}, "delete_ids is empty: name at least one id"),
        ({"memory": "m", "delete_ids": "{A}"}, 'delete_ids="{A}" is a string: give an array'),
        ({"memory": "m", "delete_ids": ["{A}", "{A}"]}, 'delete_ids: "{A}" occurs twice'),
        ({"memory": "m", "delete_ids": ["{A}", "zz"]}, 'delete_ids: "zz" is no id in sight; there is {A}'),
        ({"memory": "m", "delete_ids": [7]}, "delete_ids[0]=7 is an integer: give a string"),
        ({"memory": " ", "delete_ids": ["{A}"]}, "memory is empty: write down what must be remembered"),
        ({"memory": ["m"], "delete_ids": ["{A}"]}, 'memory=["m"] is an array: give a string'),
        ({"delete_ids": ["{A}"]}, "memory is missing: add it (string)"),
        ({"memory": "m", "delete_ids": ["{A}"], "all": True}, "all is not an argument"),
    ],
)
def test_a_rejected_prune_removes_nothing_and_gives_the_reason(arguments: dict[str, Any], message: str) -> None:
    filled, message = json.loads(json.dumps(arguments).replace("{A}", A)), message.replace("{A}", A)
    trajectory, script = played(policy(), [search("Alice"), call("prune_context", **filled)])
    assert visible(script.text(2)) == [A, B]
    assert f"[{B}] error: {message}"[:70] in script.text(2)
    (event,) = events(trajectory, "prune_refused")
    assert event.detail["reason"].startswith(message)
    assert len(segments_of(trajectory)) == 1


def test_a_prune_cannot_name_a_result_of_its_reply() -> None:
    trajectory, script = played(policy(), [f"{search('Alice')}\n{prune(A)}"])
    assert visible(script.text(1)) == [A, B]
    assert "there is none yet" in script.text(1)
    assert not events(trajectory, "prune")


def test_one_call_of_several_is_cut_out_of_the_reply() -> None:
    _, script = played(policy(), [ABC, prune(B)])
    assert visible(script.text(2)) == [A, C, D]
    assert f"{search('Alice')}\n{search('Carol')}<|im_end|>" in script.text(2)


def test_every_sampled_token_is_trained_once_however_often_it_is_pruned() -> None:
    replies = [search("Alice") + search("Bob"), prune(A), search("Carol"), prune(B, C), prune(D), search("x")]
    trajectory, _ = played(policy(), replies)
    assert len(events(trajectory, "prune")) == 3
    assert len(segments_of(trajectory)) == 4
    trained_once(trajectory)


@pytest.mark.parametrize("style", TOOL_FAMILIES)
def test_a_prune_removes_one_of_two_calls_in_every_format(style: CallStyle) -> None:
    codec = family_codec(TOOL_FAMILIES[style])
    agent = PrunePolicy(tools={"search": {"topk": 1}}, context_tokens=20_000, turn_tokens=900)
    names = ["Alice"] if style == "harmony" else ["Alice", "Bob"]  # its stop token ends a reply after one call
    searches = [("search", {"query": name}) for name in names]
    first, last = (agent.result_id(world(), number) for number in (0, len(names)))
    pruning = call_text("prune_context", {"memory": "tea", "delete_ids": [first]}, style)
    replies = [calls_text(searches, style), pruning, "FINAL_ANSWER: tea"]
    trajectory, script = played(agent, replies, codec=codec)
    assert len(events(trajectory, "prune")) == 1
    before, after = script.text(1), script.text(2)
    assert f"[id: {first}] Alice drinks tea." in before
    assert ("Alice drinks" in after, "Bob lives in Rome." in after) == (False, len(names) == 2)
    assert f"[id: {last}] Deleted: {first}." in after
    for search_ in searches[1:]:
        assert call_text(*search_, style).strip() in after[before.index("Alice") - 200 :]
    trained_once(trajectory)


def test_without_the_prune_tool_a_prune_is_a_call_of_an_unknown_tool_and_other_tools_stay() -> None:
    agent = policy(prune=False, tools={"search": {"topk": 1}, f"{__name__}:Echo": {}})
    trajectory, script = played(agent, [search("Alice"), prune(A), call("echo")])
    assert "prune" not in script.text(0)
    assert "search echo" in script.text(0)
    assert visible(script.text(3)) == [A, B, C]
    assert [event.detail["error"] for event in events(trajectory, "tool_error")] == ["unknown_tool"]
    assert not events(trajectory, "prune")
    assert len(segments_of(trajectory)) == 1


class Echo:
    spec = ToolSpec("echo", "repeats", {"type": "object", "properties": {}})

    async def call(self, arguments: Any, problem: Any) -> str:
        return "echo"


@pytest.mark.parametrize("family", ["qwen", "llama3", "mistral"])
def test_the_standard_prompt_offers_pruning_only_with_the_tool(family: str) -> None:
    codec = family_codec(family)
    options: dict[str, Any] = {"tools": {"search": {}}, "context_tokens": 9000, "turn_tokens": 500}
    texts = [codec.decode(PrunePolicy(prune=on, **options).begin(world(), codec).ids()) for on in (True, False)]
    for word in ("prune", "[OBJECTIVE]", "[CONCLUSIONS]", "[STATUS]", "developer_message"):
        assert [word in text for text in texts] == [True, False]
    for shown in ("<user_query>\nWhat does Alice drink?\n</user_query>", "FINAL_ANSWER:", '"search"'):
        assert all(shown in text for text in texts)
    assert ToolAgentPolicy(**options).begin(world(), codec) == PrunePolicy(prune=False, **options).begin(world(), codec)


def test_episodes_of_one_policy_object_dont_touch_each_other() -> None:
    agent, problem = policy(), world()
    before = (repr(agent), asdict(problem))
    alone = played(agent, [search("Alice"), prune(A)], problem)[1].prompts
    scripts = [Script(base_codec(), [search("Alice"), last]) for last in (prune(A), search("Bob"))]

    async def together() -> None:
        common: dict[str, Any] = {"policy": agent, "codec": base_codec(), "sampling": SamplingConfig(), "key": (0,)}
        episodes = (play(problem, sampler=one, group_id="g", rollout=i, **common) for i, one in enumerate(scripts))
        await asyncio.gather(*episodes)

    asyncio.run(together())
    assert scripts[0].prompts == alone
    assert (repr(agent), asdict(problem)) == before


def test_an_episode_writes_no_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    played(policy(), [search("Alice"), prune(A)])
    assert list(tmp_path.iterdir()) == []
