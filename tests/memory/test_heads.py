"""The policy with several heads: which one a turn rewrites, what stands in sight, what is measured of it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.app.config_resolution import Agent
from palimpsest.config.reward import StateRewardConfig
from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError
from palimpsest.events import HeadWritten, of_type
from palimpsest.memory import heads, overwrite
from palimpsest.memory.heads import HeadsPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.parts.prompts import Layout
from palimpsest.memory.policy_check import ScriptedModel, check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.metrics.hazards import Hazards, Holds, Sight
from palimpsest.metrics.memory_metrics import memory_metrics, memory_steps
from palimpsest.metrics.reading_trace import Reading, Texts, last_memory, memories, readings
from palimpsest.reward.turn_rewards import turn_rewards
from palimpsest.rollout.trajectory_file import encode_groups, read_groups
from palimpsest.text.template import Template
from palimpsest.types import Grade, Group, Problem, Trajectory
from support.agents import FAMILIES, base_codec, family_codec, played

SIZES: dict[str, Any] = {"chunk_size": 6, "question_tokens": 40, "memory_tokens": 12, "answer_tokens": 8}
SHORT: dict[str, Any] = {**SIZES, "prompts": "short"}
QUESTION = "What does Alice drink?"
LINES = ("Bob has a cat.", "Alice drinks tea.", "It is cold.", "Alice owns cats.", "Bob ran.")
PROBLEM = Problem("p", QUESTION, ("tea",), "".join(f"{line}\n" for line in LINES), {"evidence": [LINES[1]]})
EQUAL = Problem("q", QUESTION, ("tea",), f"{LINES[1]}\n" * len(LINES))


def by_line(codec: Any = None, **options: Any) -> HeadsPolicy:
    """A policy that reads a line a turn: of PROBLEM with the embedded model's codec, of EQUAL with any."""
    length = max(len(base_codec().encode(line + "\n")) for line in LINES)
    if codec is not None:
        length = math.ceil(len(codec.encode(EQUAL.context)) / len(LINES))
    sizes = {"chunk_size": length, "chunk_boundary": "line", "memory_tokens": 40}
    return HeadsPolicy(**{**SHORT, **sizes, "heads": 2, **options})


def prompts_of(policy: Any, replies: Sequence[Sequence[int]], problem: Problem = PROBLEM) -> list[tuple[int, ...]]:
    codec, calls = base_codec(), iter(replies)
    model = ScriptedModel(codec, lambda prompt, limit: [*next(calls, ()), codec.stop_ids[-1]], 4000)
    asyncio.run(model.play(policy, problem))
    return model.prompts


def filled(template: Template, values: dict[str, list[int]]) -> tuple[int, ...]:
    parts = [template.pieces[0]]
    for slot, piece in zip(template.slots, template.pieces[1:], strict=True):
        parts += [tuple(values[slot]), piece]
    return tuple(i for part in parts for i in part)


def by_hand(policy: HeadsPolicy, replies: Sequence[list[int]]) -> list[tuple[int, ...]]:
    """The prompts of an episode, by the least recently updated head in so many words."""
    encode = base_codec().encode
    none, gap, question = encode(policy.texts.empty_memory), encode(policy.texts.between), encode(QUESTION)
    read, answer = policy.templates(base_codec())
    held, updated = dict.fromkeys(range(policy.heads), none), dict.fromkeys(range(policy.heads), -1)

    def shown(wanted: list[int]) -> list[int]:
        parts = [held[head] for head in wanted if held[head] not in ([], none)]
        nothing = none if any(held[head] == none for head in wanted) else []
        return [i for number, part in enumerate(parts) for i in (gap if number else []) + part] if parts else nothing

    document, prompts = encode(PROBLEM.context or ""), []
    for turn, start in enumerate(range(0, len(document), policy.chunk_size)):
        head = min(held, key=lambda each: (updated[each], each))
        section, others = document[start : start + policy.chunk_size], [each for each in held if each != head]
        values = {"question": question, "memory": held[head], "section": section, "other_heads": shown(others)}
        prompts.append(filled(read, values))
        reply = replies[turn][: policy.memory_tokens] if turn < len(replies) else []
        held[head] = held[head] if not reply and policy.empty_memory == "keep" else reply
        updated[head] = turn
    return [*prompts, filled(answer, {"question": question, "memory": shown(list(held))})]


PLAIN_IDS = [i for word in " Anna drinks tea. none" for i in base_codec().encode(word)]
REPLIES = st.lists(
    st.one_of(st.lists(st.sampled_from(PLAIN_IDS), max_size=14), st.just(base_codec().encode(" none"))), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 5),
    replies=REPLIES,
    layout=st.sampled_from(get_args(Layout)),
    empty_memory=st.sampled_from(["overwrite", "keep"]),
    texts=st.sampled_from([("short", None), ("short", "own"), ("standard", None), ("standard", "own")]),
)
def test_every_prompt_is_the_one_that_the_least_recently_updated_head_leads_to(
    count: int, replies: list[list[int]], layout: Layout, empty_memory: Any, texts: tuple[str, Any]
) -> None:
    prompts, shown = texts
    policy = HeadsPolicy(**SIZES, heads=count, prompts=prompts, shown=shown, layout=layout, empty_memory=empty_memory)
    assert prompts_of(policy, replies) == by_hand(policy, replies)


@settings(max_examples=30, deadline=None)
@given(replies=REPLIES, prompts=st.sampled_from(["short", "standard"]), empty=st.sampled_from(["overwrite", "keep"]))
def test_one_head_is_overwrite_turn_by_turn(replies: list[list[int]], prompts: str, empty: Any) -> None:
    options: Any = {**SIZES, "prompts": prompts, "empty_memory": empty}
    one, plain = HeadsPolicy(**options, heads=1), OverwritePolicy(**options)
    assert prompts_of(one, replies) == prompts_of(plain, replies)
    assert one.required_context(base_codec()) == plain.required_context(base_codec())


def test_one_head_is_measured_as_overwrite_is() -> None:
    options: Any = {**SHORT, "memory_tokens": 40, "empty_memory": "keep"}
    replies = [" Bob has a cat.", "", " Alice drinks tea. Bo ran.", " It", "", " x."]
    ours, theirs = (
        readings(played(policy, replies, PROBLEM)[0], Texts(base_codec()))
        for policy in (HeadsPolicy(**options, heads=1), OverwritePolicy(**options))
    )
    assert len(ours) == len(theirs) > 4
    for mine, other in zip(ours, theirs, strict=True):
        assert plain_reading(mine) == plain_reading(other)


def plain_reading(reading: Reading) -> dict[str, Any]:
    values = {field.name: getattr(reading, field.name) for field in dataclasses.fields(reading)}
    sources = [source.text for source in values.pop("sources")]
    return {name: str(value) for name, value in values.items()} | {"turn": values["turn"], "sources": sources}


def test_short_prompts_are_those_of_overwrite_and_show_one_head() -> None:
    assert heads.SHORT.read == overwrite.SHORT.read
    assert heads.SHORT.answer == overwrite.SHORT.answer
    codec = base_codec()
    trajectory, script = played(by_line(), [f" {line}" for line in LINES], PROBLEM)
    expected = overwrite.SHORT.template(codec, "read").fill(
        {
            name: codec.encode(text)
            for name, text in zip(("question", "memory", "section"), (QUESTION, " none", LINES[1] + "\n"), strict=True)
        }
    )
    assert script.prompts[1] == tuple(expected)
    assert [codec.decode(turn.piece("memory") or ()) for turn in trajectory.turns] == [
        " none",
        " none",
        " Bob has a cat.",
        " Alice drinks tea.",
        " It is cold.",
        " Bob ran. Alice owns cats.",
    ]


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("family", FAMILIES)
def test_all_heads_are_in_sight_as_published_each_piece_by_its_name(family: str, layout: Any) -> None:
    codec = family_codec(family)
    policy = by_line(codec, prompts="standard", layout=layout, heads=3, answer_tokens=20)
    assert policy.shows_all
    trajectory, _ = played(policy, [f"note {number}" for number in range(5)], EQUAL, codec)

    def shown(name: str) -> list[list[str]]:
        texts = [codec.decode(turn.piece(name) or ()) for turn in trajectory.turns]
        return [[part.strip() for part in text.split("\n\n")] for text in texts]

    none = ["No previous memory"]
    assert shown("memory") == [none, none, none, ["note 0"], ["note 1"], ["note 3", "note 4", "note 2"]]
    others = [none, ["note 0"], ["note 0", "note 1"], ["note 1", "note 2"], ["note 3", "note 2"]]
    assert shown("other_heads")[:5] == others
    assert trajectory.turns[-1].piece("other_heads") is None


def test_all_rollouts_share_a_section_that_stands_first_whatever_their_heads_hold() -> None:
    policy = HeadsPolicy(**SIZES, prompts="standard", layout="section_first")
    one, two = (prompts_of(policy, [base_codec().encode(said)] * 9) for said in (" tea", " rum"))
    read, _ = policy.templates(base_codec())
    shared = len(read.pieces[0]) + policy.chunk_size
    assert read.slots[0] == "section"
    assert one[1] != two[1]
    assert one[1][:shared] == two[1][:shared]


def test_thinking_and_control_tokens_enter_no_head() -> None:
    codec = family_codec("qwen3")
    policy = by_line(codec, prompts="standard", memory_tokens=60)
    said = ["<think>Is it Bob?</think>\n\nBob has a cat.", "<think>Is it", "<|im_start|>cold", "x", "y"]
    trajectory, _ = played(policy, said, EQUAL, codec)
    written = [codec.decode(event.token_ids) for event in of_type(trajectory.events, HeadWritten)]
    assert written == ["Bob has a cat.", "", "cold", "x", "y"]


@pytest.mark.parametrize("options", [SHORT, SIZES, {**SIZES, "layout": "section_first", "heads": 2, "shown": "own"}])
def test_the_contract_holds_at_the_smallest_window(options: dict[str, Any], tiny_codec: Any) -> None:
    policy = HeadsPolicy(**{**options, "chunk_size": 20})
    window = policy.required_context(tiny_codec)
    assert [f.message for f in check_policy(policy, tiny_codec, window) if not f.passed] == []


@pytest.mark.parametrize(("prompts", "answer_tokens"), [("standard", 8), ("short", 60)])
def test_no_smaller_window_would_do(prompts: str, answer_tokens: int) -> None:
    """By a model that fills every head: of the reading prompts, and of the answer's where that is longer."""
    codec = base_codec()
    policy = HeadsPolicy(**{**SIZES, "prompts": prompts, "answer_tokens": answer_tokens, "heads": 3})
    word = codec.encode(" tea")[0]
    model = ScriptedModel(codec, lambda prompt, limit: [word] * limit, 4000)
    asyncio.run(model.play(policy, PROBLEM))
    budgets = [policy.memory_tokens] * (len(model.prompts) - 1) + [policy.answer_tokens]
    unused = policy.question_tokens - len(codec.encode(QUESTION))
    longest = max(len(prompt) + budget for prompt, budget in zip(model.prompts, budgets, strict=True))
    assert policy.required_context(codec) == longest + unused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "policy.options.heads=0: must be at least 1 head"),
        ({"heads": "4"}, "policy.options.heads='4': must be a whole number"),
        ({"head": 4}, "policy.options.head is unknown to heads; did you mean heads"),
        ({"shown": "none"}, "policy.options.shown='none': choose one of all, own"),
        ({"shown": "all", "prompts": "short"}, "shown='all': the short prompts have no text read_all; set policy.opti"),
        ({"prompts": {"read": "x", "answer": "y"}, "shown": "all"}, "read_all is missing: shown=all and layout=memory"),
        ({"prompts": "long"}, "policy.options.prompts='long': choose one of standard, short"),
        ({"memory_tokens": 0}, "policy.options.memory_tokens=0: must be at least 1 token"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_policy(PolicyConfig(name="heads", options=options))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_defaults_are_the_published_ones() -> None:
    policy = HeadsPolicy()
    assert (policy.heads, policy.memory_tokens, policy.chunk_size, policy.shows_all) == (4, 1024, 5000, True)


def test_who_was_trained_to_overwrite_is_played_with_heads_by_two_settings() -> None:
    agent = Agent(recipe="memagent-quickstart", overrides=["policy.name=heads", "policy.options.heads=2"])
    config = agent.config({})
    trained, played_as = build_policy(PolicyConfig(name="overwrite", options=_without_heads(config))), config.policy
    policy: Any = build_policy(played_as)
    assert (played_as.name, policy.heads, policy.shows_all) == ("heads", 2, False)
    assert policy.templates(base_codec()) == trained.templates(base_codec())  # type: ignore[attr-defined]


def _without_heads(config: Any) -> dict[str, Any]:
    return {name: value for name, value in config.policy.options.items() if name != "heads"}


# --- what is measured -------------------------------------------------------------------------------------------------


def kept_apart(policy: Any = None) -> Trajectory:
    """Two heads: the first keeps Bob and then forgets him, the second takes the evidence in and then invents."""
    said = [
        " Bob has a cat.",
        " Alice drinks tea.",
        " It is cold.",
        " Alice drinks ale. Alice drinks tea.",
        " Bob ran.",
    ]
    return played(policy or by_line(), said, PROBLEM)[0]


def test_what_is_held_is_all_heads_together_and_what_is_written_is_one() -> None:
    texts = Texts(base_codec())
    reads = readings(kept_apart(), texts)
    assert [reading.memory_after.text for reading in reads] == [
        " Bob has a cat.",
        " Bob has a cat. Alice drinks tea.",
        " It is cold. Alice drinks tea.",
        " It is cold. Alice drinks ale. Alice drinks tea.",
        " Bob ran. Alice drinks ale. Alice drinks tea.",
    ]
    assert [reading.memory_before.text for reading in reads] == [
        " none",
        *(reading.memory_after.text for reading in reads[:-1]),
    ]
    assert [reading.written.text for reading in reads][1:3] == [" Alice drinks tea.", " It is cold."]
    assert [reading.memory_in_sight.text for reading in reads] == [
        " none",
        " none",
        " Bob has a cat.",
        " Alice drinks tea.",
        " It is cold.",
    ]
    last = last_memory(kept_apart(), texts)
    assert last is not None
    assert last.ids == kept_apart().turns[-1].piece("memory")
    assert [memory.text for memory in memories(kept_apart(), texts)] == [read.memory_after.text for read in reads]


def test_with_all_heads_in_sight_what_another_head_says_is_a_source() -> None:
    said = [" Bob has a cat.", " Bob has a cat.\n Alice drinks tea."]
    seen, unseen = (
        memory_steps(PROBLEM, played(by_line(prompts="standard", shown=shown), said, PROBLEM)[0], base_codec())
        for shown in ("all", "own")
    )
    assert seen[1].unsupported == ()
    assert unseen[1].unsupported == ("Bob has a cat.",)
    assert seen[1].reading.memory_in_sight is seen[1].reading.memory_before


def test_a_shielded_sentence_is_neither_written_nor_lost_nor_invented() -> None:
    steps = memory_steps(PROBLEM, kept_apart(), base_codec())
    assert [step.held for step in steps] == [(), (0,), (0,), (0,), (0,)]
    assert [step.written for step in steps][2:4] == [("It is cold.",), ("Alice drinks ale.", "Alice drinks tea.")]
    assert [step.unsupported for step in steps] == [(), (), (), ("Alice drinks ale.",), ()]
    assert [step.lost for step in steps] == [("none",), (), ("Bob has a cat.",), (), ("It is cold.",)]


def test_metrics_are_of_all_heads_and_copies_of_the_one_that_is_written() -> None:
    trajectory = kept_apart()
    found = memory_metrics(Group(PROBLEM, (trajectory,), (Grade(1.0),)), Texts(base_codec()))
    lengths = [len(event.memory) for event in of_type(trajectory.events, HeadWritten)]
    assert found["tokens"] == pytest.approx(sum(lengths) / 5)
    assert found["evidence_retention"] == 1.0
    assert found["copy_fidelity"] == pytest.approx(5 / 6)
    assert found["malformed_rate"] is None
    assert found["overwrite_rate"] is not None
    assert found["overwrite_rate"] < 0.6  # the other head stays


def test_reads_are_counted_by_what_all_heads_hold() -> None:
    hazards = Hazards()
    hazards.add(PROBLEM, kept_apart(), True, Texts(base_codec()))
    assert dict(hazards.transitions) == {
        (Holds.NOTHING, Sight.NOTHING, Holds.NOTHING): 1,
        (Holds.NOTHING, Sight.EVIDENCE, Holds.TRUE): 1,
        (Holds.TRUE, Sight.NOTHING, Holds.TRUE): 1,  # the turn that rewrites the other head
        (Holds.TRUE, Sight.NEAR_MISS, Holds.FALSE): 1,
        (Holds.FALSE, Sight.NOTHING, Holds.FALSE): 1,
    }
    assert +hazards.unsupported == {(Holds.TRUE, Sight.NEAR_MISS): 1}
    assert hazards.answers == {(False, True): 1}


def test_the_gain_of_a_turn_is_that_of_all_heads_and_its_sight_is_the_head_it_saw() -> None:
    rewards = turn_rewards(PROBLEM, kept_apart(), base_codec(), StateRewardConfig())
    assert [reward.update for reward in rewards][:5] == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert [reward.in_sight for reward in rewards][:5] == [0.0, 1.0, 0.0, 1.0, 0.0]


def test_what_was_held_is_read_from_a_record_too(tmp_path: Path) -> None:
    policy = by_line(empty_memory="keep")
    trajectory, _ = played(policy, [" Bob has a cat.", "", "", " Alice owns cats.", ""], PROBLEM)
    group = Group(PROBLEM, (trajectory,), (Grade(1.0),))
    file = tmp_path / "step-000001.jsonl.zst"
    file.write_bytes(encode_groups([group]))
    for one in (trajectory, read_groups(file).groups[0].trajectories[0]):
        reads = readings(one, Texts(base_codec()))
        assert [reading.changed for reading in reads] == [True, False, False, True, False]
        assert [reading.memory_after.text for reading in reads] == [" Bob has a cat."] * 3 + [
            " Bob has a cat. Alice owns cats."
        ] * 2
