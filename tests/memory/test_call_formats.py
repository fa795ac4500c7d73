"""Agents whose models write calls in their own formats, or in one that the agent doesn't read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.events import ToolCalled, ToolFailed, of_type
from palimpsest.memory.prune import PrunePolicy
from palimpsest.notes import Note
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.text.chat import native_style
from palimpsest.text.tool_calls import FORMATS, CallStyle, call_text, calls_text
from palimpsest.training.step_metrics import tool_measures, tool_metrics
from palimpsest.types import Outcome
from support.agents import CALLING, SMALL, base_codec, events, family_codec, played, world
from support.trained_once import trained_once

BY_STYLE = {"hermes": "qwen", "llama3": "llama3", "mistral": "mistral"} | {name: name for name in CALLING}
NATIVE: dict[CallStyle, str] = {
    "hermes": '<tool_call>\n{"name": "search", "arguments": {"query": "Alice"}}\n</tool_call>',
    "llama3": '{"name": "search", "parameters": {"query": "Alice"}}',
    "mistral": '[TOOL_CALLS]search[ARGS]{"query": "Alice"}',
    "qwen_coder": "Hm.\n</think>\n\n<tool_call>\n<function=search>\n<parameter=query>\nAlice\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm": "\n<think>Hm.</think>\n<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>Alice</arg_value>\n"
    "</tool_call>",
    "gemma4": "<|channel>thought\nShall I <|tool_call>?<channel|>"
    '<|tool_call>call:search{query:<|"|>Alice<|"|>}<tool_call|>',
    "harmony": "<|channel|>analysis<|message|>I call to=functions.search now.<|end|><|start|>assistant<|channel|>"
    'commentary to=functions.search <|constrain|>json<|message|>{"query": "Alice"}',
    "lfm2": '<|tool_call_start|>[search(query="Alice")]<|tool_call_end|>',
}
"""As the models write them, thinking included."""


def agent(**options: Any) -> PrunePolicy:
    return PrunePolicy(tools={"search": {"topk": 1}}, context_tokens=20_000, turn_tokens=900, **options)


@pytest.mark.parametrize("style", FORMATS)
def test_a_call_in_the_models_own_format_is_answered(style: CallStyle) -> None:
    codec = family_codec(BY_STYLE[style])
    assert native_style(codec) == style
    trajectory, script = played(agent(), [NATIVE[style], "FINAL_ANSWER: tea"], codec=codec)
    (found,) = of_type(trajectory.events, ToolCalled)
    assert (found.tool, found.arguments, len(trajectory.turns)) == ("search", {"query": "Alice"}, 2)
    assert (trajectory.outcome, "To call a tool, write:" in script.text(0)) == (Outcome.ANSWERED, False)
    assert "Alice drinks tea." in script.text(1)
    trained_once(trajectory)


@pytest.mark.parametrize("style", FORMATS)
def test_a_prune_removes_one_of_two_calls_of_a_reply(style: CallStyle) -> None:
    codec, policy = family_codec(BY_STYLE[style]), agent()
    first = policy.result_id(world(), 0)
    searches = [("search", {"query": name}) for name in ("Alice", "Bob")]
    if style == "harmony":  # its stop token ends a reply after one call
        return
    prune = call_text("prune_context", {"memory": "tea", "delete_ids": [first]}, style)
    trajectory, script = played(policy, [calls_text(searches, style), prune, "FINAL_ANSWER: tea"], codec=codec)
    assert len(events(trajectory, "prune")) == 1
    assert "Alice" in script.text(1)
    assert ("Alice drinks" in script.text(2), "Bob lives in Rome." in script.text(2)) == (False, True)
    kept = script.text(2)[script.text(1).index("Alice") - 200 :]
    assert call_text(*searches[1], style).strip() in kept


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize(
    "own",
    [
        *FORMATS,
        '<atem:function_calls>\n<atem:invoke name="search">\n</atem:invoke>',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search",
        '<|START_ACTION|>[{"tool_name": "search"}]<|END_ACTION|>',
        "call:search{query:Alice}",  # Gemma 4 and LFM 2 without tokens
        "I search: [search(query='Alice')]",
        'I search.\n```json\n{"name": "search", "arguments": {"query": "Alice"}}\n```',
        'So: {"name": "lookup", "arguments": {}}',
        '[{"name": "search"}]',
        '<tool_use>{"tool": "search"}',
        "```tool_code\nsearch(query='Alice')\n```",
        "Thought: who?\n**Action:** search",
        '{"name": "search", "parameters": {"que',
        " to=browser.search<|message|>{}",
        'search[ARGS]{"query": "Alice"}',
    ],
)
def test_a_call_in_another_format_is_an_event_and_the_model_may_try_again(style: CallStyle, own: str) -> None:
    reply = NATIVE.get(own, own)  # type: ignore[call-overload]
    if own == style:
        return
    policy = agent(call_style=style)
    again = call_text("search", {"query": "Alice"}, style)
    trajectory, script = played(policy, [reply, again, "FINAL_ANSWER: tea"], codec=base_codec())
    failed, found = of_type(trajectory.events, ToolFailed), of_type(trajectory.events, ToolCalled)
    assert (len(failed), len(found), len(trajectory.turns)) == (1, 1, 3)
    assert failed[0].error in ("unreadable", "malformed")  # some openers are shared
    assert tool_measures(trajectory)[f"tool_errors_{failed[0].error}"] == 1
    assert tool_metrics([trajectory])["tool/tool_errors"] == 1
    assert "error: " in script.text(1)


def test_tools_are_described_where_the_templates_own_calls_cannot_be_read() -> None:
    silent = family_codec.__wrapped__("lfm2")  # not the shared one
    silent.tokenizer.chat_template = silent.tokenizer.chat_template.replace("m.tool_calls %}<|", "false %}<|")
    assert native_style(silent) is None
    described = silent.decode(agent().begin(world(), silent).ids())
    chosen = silent.decode(agent(call_style="lfm2").begin(world(), silent).ids())
    assert '<tool_call>\n{"name": ' in described
    assert "List of tools" not in described
    assert "List of tools" in chosen


def test_tools_are_described_in_a_format_that_the_user_chose_against_the_template() -> None:
    codec = family_codec("qwen")
    text = codec.decode(agent(call_style="llama3").begin(world(), codec).ids())
    assert call_text("NAME", {"ARGUMENT": "VALUE"}, "llama3") in text
    assert "<tools>" not in text


@pytest.mark.parametrize(
    "answer",
    [
        "FINAL_ANSWER: tea",
        "<think>a <tool_call>?</think>FINAL_ANSWER: tea",
        '{"Q1": "tea"}',
        "My search (of 2010) found tea.",
        "After search(query='Alice'): FINAL_ANSWER: tea",
        '{"name": "search"} gave \\boxed{tea}',
    ],
)
def test_an_answer_is_no_unreadable_call(answer: str) -> None:
    options = {**SMALL, "call_style": "lfm2"}
    trajectory, _ = played(PrunePolicy(**options), [answer])
    assert (len(trajectory.turns), trajectory.events) == (1, ())
    assert json.dumps(trajectory.answer)


def test_calls_in_another_format_are_a_note_of_an_evaluation_and_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bundled model writes llama3."""
    changes = {"policy.options.call_style": "mistral", "policy.options.max_turns": 3}
    options: Any = {"recipe": "memact-quickstart", "overrides": changes, "limit": 1, "baselines": False}
    row, *_ = palimpsest.evaluate("embedded-tools", **options).summaries
    assert row.measures["tool_errors_unreadable"] == 1
    assert Note("calls_unread", rate=1.0) in capsys.readouterr().err
    small = {
        "train.max_steps": 2,
        "train.batch_size": 1,
        "train.group_size": 2,
        "train.eval_steps": None,
        "cold_start": None,
    }
    run = palimpsest.train(
        "memact-quickstart", changes | small | {"model.path": "embedded-tools"}, out=tmp_path / "run", quiet=True
    )
    first, _ = read_rows(run.folder / "metrics.jsonl")
    noted = [event for event in read_rows(run.folder / "events.jsonl") if event.get("code") == "calls_unread"]
    assert [event["values"] for event in noted] == [{"rate": first["tool/tool_errors_unreadable"]}]
