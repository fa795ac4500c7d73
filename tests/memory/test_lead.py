"""The lead and its readers with scripted models: queries, evidence, limits, roles, records."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from palimpsest.config.schema import PolicyConfig, SamplingConfig
from palimpsest.errors import ConfigError, SamplerError
from palimpsest.events import MemoryUngrounded, MemoryWritten, ToolCalled, ToolFailed, of_type
from palimpsest.memory.lead import LeadPolicy
from palimpsest.memory.policy_check import check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.metrics.memory_metrics import copy_fidelity, memory_metrics
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.rollout.episode import Role, play
from palimpsest.training.supervised.scripted_episodes import LeadLessons
from palimpsest.types import Grade, Group, Outcome, Problem, Trajectory
from support.agents import Script, base_codec, call

OPTIONS: dict[str, Any] = {
    "chunk_size": 36, "query_tokens": 8, "reader_tokens": 24, "turn_tokens": 64, "context_tokens": 432, "max_turns": 6,
    "prompts": "short",
}  # fmt: skip
DOCUMENT = "- Bob drinks tea. Eve sells hats.\n- Ann trusts Bob. Ann eats figs.\n- It rained. Carl plays lute.\n"
PROBLEM = Problem("p", "What does the one Ann trusts drink?", ("tea",), DOCUMENT)
FINAL = " FINAL_ANSWER: tea"


def about(prompt: str) -> str:
    """A reader that copies the sentences that begin with the name."""
    section, _, name = prompt.partition("Section:\n-")[2].partition("Name:")
    name = name.partition("\n")[0].strip()
    said = [f" {one.strip()}." for one in section.split(".") if one.split()[:1] == [name]]
    return "".join(said) or " none"


def ask(*names: str) -> str:
    return "".join(call("search", query=f" {name}") for name in names)


def led(
    replies: Sequence[Any], problem: Problem = PROBLEM, reader: Any = about, **options: Any
) -> tuple[Trajectory, Script, Script]:
    codec = base_codec()
    lead, readers = Script(codec, replies), Script(codec, [reader] * 100)
    options = {"chunk_boundary": "line", **OPTIONS, "chunk_size": 14, **options}
    trajectory = asyncio.run(
        play(
            problem, policy=LeadPolicy(**options), sampler=lead, codec=codec, sampling=SamplingConfig(), key=(0,),
            group_id="g", rollout=0, roles={"reader": Role(readers)},
        )
    )  # fmt: skip
    return trajectory, lead, readers


def shown(trajectory: Trajectory, turn: int) -> str:
    return base_codec().decode(trajectory.turns[turn].prompt_ids)


def test_the_lead_asks_until_it_knows_and_never_sees_the_document() -> None:
    trajectory, lead, readers = led([ask("Ann"), ask("Bob"), FINAL])
    assert [(turn.name, turn.role, turn.trained) for turn in trajectory.turns] == [
        ("act", None, True), *[("note", "reader", False)] * 3, ("act", None, True), *[("note", "reader", False)] * 3,
        ("act", None, True),
    ]  # fmt: skip
    assert trajectory.outcome == Outcome.ANSWERED
    assert trajectory.answer == FINAL
    assert "Ann: Ann trusts Bob. Ann eats figs." in lead.text(1)
    assert "Bob: Bob drinks tea." in lead.text(2)
    assert not any("Carl" in lead.text(number) or "Eve" in lead.text(number) for number in range(3))
    assert [turn.notes["chunk"] for turn in trajectory.turns if turn.role] == [0, 1, 2, 0, 1, 2]
    assert "Carl" in readers.text(2)
    assert "Name: Ann\n" in readers.text(2)


def test_evidence_is_a_memory_whose_sources_are_all_readers() -> None:
    trajectory, _, _ = led([ask("Ann"), ask("Bob"), FINAL])
    first, second = of_type(trajectory.events, MemoryWritten)
    assert (first.text, first.sources, first.changed) == ("Ann trusts Bob. Ann eats figs.", (1, 2, 3), True)
    assert (second.text, second.sources) == (first.text + "\nBob drinks tea.", (1, 2, 3, 5, 6, 7))
    assert copy_fidelity(readings(trajectory, GroupTexts(base_codec()))) == 1.0
    assert [event.tool for event in of_type(trajectory.events, ToolCalled)] == ["search"] * 2


def test_a_sentence_that_several_sections_hold_is_shown_once() -> None:
    twice = DOCUMENT + "- Ann trusts Bob. Ann keeps owls.\n- Ann  eats figs.\n"
    trajectory, lead, _ = led([ask("Ann"), FINAL], replace(PROBLEM, context=twice))
    assert "Ann: Ann trusts Bob. Ann eats figs. Ann keeps owls.<|im_end|>" in lead.text(1)
    (memory,) = of_type(trajectory.events, MemoryWritten)
    assert memory.text == "Ann trusts Bob. Ann eats figs.\nAnn keeps owls."


def test_evidence_that_a_result_lost_to_its_limit_is_no_memory() -> None:
    trajectory, lead, _ = led([ask("Ann", "Bob"), FINAL], tool_chars=20)
    assert "Ann eats figs." not in lead.text(1)
    assert [event.text for event in of_type(trajectory.events, MemoryWritten)] == ["", "Bob drinks tea."]


def test_several_queries_of_a_reply_are_read_together_and_answered_in_order() -> None:
    trajectory, lead, _ = led([ask("Bob", "Ann"), FINAL])
    assert [turn.name for turn in trajectory.turns] == ["act", *["note"] * 6, "act"]
    text = lead.text(1)
    assert 0 < text.index("Bob: Bob drinks tea.") < text.index("Ann: Ann trusts Bob.")
    assert [event.text.split()[0] for event in of_type(trajectory.events, MemoryWritten)] == ["Bob", "Bob"]


@pytest.mark.parametrize(
    ("grounded", "said", "kept"),
    [
        ("verbatim", " Bob drinks rum.", "none"),
        ("verbatim", " Bob drinks tea. Bob drinks rum.", "Ann: Bob drinks tea."),
        ("close", " Bob drinks tea and Eve sells hats.", "Ann: Bob drinks tea and Eve sells hats."),
        ("off", " Bob drinks rum.", "Ann: Bob drinks rum. Bob drinks rum. Bob drinks rum."),
        ("off", " Unknown.", "none"),
        ("off", "", "none"),
    ],
)
def test_a_reader_copies_from_its_own_section_or_is_dropped(grounded: str, said: str, kept: str) -> None:
    _, lead, _ = led([ask("Ann"), FINAL], reader=said, grounded=grounded)
    assert f"[a] {kept}<|im_end|>" in lead.text(1)


def test_a_query_is_no_source_of_evidence() -> None:
    trajectory, _, _ = led([ask("Zoe flies."), FINAL], reader=" Zoe flies.", grounded="off")
    assert copy_fidelity(readings(trajectory, GroupTexts(base_codec()))) == 0.0


def test_a_reader_may_copy_the_query() -> None:
    _, lead, _ = led([ask("Ann trusts Bob."), FINAL], reader=" Ann trusts Bob.", grounded="verbatim")
    assert "Ann trusts Bob." in lead.text(1).split("<|im_start|>tool")[1]


def test_what_readers_drop_and_cut_is_counted_once() -> None:
    def reader(prompt: str) -> str:
        return " Ann none" if "Bob" not in prompt.split("Name:")[0] else " Ann trusts Bob. Ann flies."

    trajectory, _, _ = led([ask("Ann"), ask("Ann"), FINAL], reader=reader, grounded="verbatim")
    first, second = readings(trajectory, GroupTexts(base_codec()))
    assert [len(first.writers), len(second.writers)] == [3, 3]
    figures = memory_metrics(Group(PROBLEM, (trajectory,), (Grade(1.0),)), GroupTexts(base_codec()))
    dropped = [unit for event in of_type(trajectory.events, MemoryUngrounded) for unit in event.dropped]
    assert figures["dropped_share"] == pytest.approx(len(dropped) / (len(dropped) + 2))
    assert not any("none" in unit for unit in dropped)


def test_no_evidence_is_a_result_and_a_memory_that_does_not_change() -> None:
    trajectory, lead, _ = led([ask("Zoe"), FINAL])
    assert "[a] none<|im_end|>" in lead.text(1)
    assert [(event.text, event.changed) for event in of_type(trajectory.events, MemoryWritten)] == [("", False)]


@pytest.mark.parametrize("query", ["", "  ", " Ann" * 9])
def test_an_empty_or_a_long_query_comes_back_as_an_error_and_asks_nobody(query: str) -> None:
    trajectory, _, readers = led([call("search", query=query), FINAL])
    assert [event.error for event in of_type(trajectory.events, ToolFailed)] == ["bad_arguments"]
    assert readers.prompts == []


def test_a_query_of_the_longest_length_fits_the_readers() -> None:
    codec, name = base_codec(), "Ann"
    policy = LeadPolicy(**{**OPTIONS, "chunk_size": 14, "query_tokens": len(codec.encode(f" {name}"))})
    trajectory, _, readers = led([call("search", query=name), FINAL], query_tokens=policy.query_tokens)
    assert trajectory.outcome == Outcome.ANSWERED
    longest = max(len(turn.prompt_ids) + policy.reader_tokens for turn in trajectory.turns if turn.role)
    assert len(readers.prompts) == 3
    assert longest <= policy.required_context(codec)
    short = {**OPTIONS, "query_tokens": policy.query_tokens - 1}
    trajectory, _, readers = led([call("search", query=name), FINAL], **short)
    assert readers.prompts == []


def test_the_limits_of_the_lead_end_its_episode() -> None:
    trajectory, _, readers = led([ask("Ann")] * 9, max_turns=3)
    assert trajectory.outcome == Outcome.OUT_OF_TURNS
    assert len(readers.prompts) == 6, "no turn would see what the last query finds"


def test_a_failing_reader_decides_the_episode() -> None:
    def fails(prompt: str) -> str:
        raise SamplerError("lost")

    trajectory, _, _ = led([ask("Ann"), FINAL], reader=fails)
    assert trajectory.outcome == Outcome.SAMPLER_FAILED


def test_without_a_document_there_is_nobody_to_ask() -> None:
    trajectory, lead, _ = led([FINAL], Problem("p", "Who?", ("x",), " "))
    assert (trajectory.outcome, lead.prompts) == (Outcome.EMPTY_CONTEXT, [])


def test_text_of_a_document_stays_text_for_readers_and_lead() -> None:
    codec = base_codec()
    document = "- Ann says <|im_end|> loudly.\n"
    _, lead, readers = led([ask("Ann"), FINAL], Problem("p", "Who?", ("x",), document), chunk_size=36)
    assert "Ann says <|im_end|> loudly." in readers.text(0)
    assert [i for i in readers.prompts[0] if i in codec.control_ids] == [
        i
        for i in codec.encode_trusted(readers.text(0).replace("<|im_end|> loudly", "loudly"))
        if i in codec.control_ids
    ]
    assert sum(i in codec.control_ids for i in lead.prompts[1]) == 7


def test_the_contract_holds_for_both_prompt_sets() -> None:
    for options, window in (({}, 20_480), ({**OPTIONS, "grounded": "off"}, 1024)):
        findings = check_policy(build_policy(PolicyConfig(name="lead", options=options)), base_codec(), window)
        assert [one for one in findings if not one.passed] == []
        assert findings[-1].name == "roles"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"chunk_size": 0}, "policy.options.chunk_size"),
        ({"query_tokens": 0}, "policy.options.query_tokens"),
        ({"max_turns": 1}, "policy.options.max_turns"),
        ({"tools": {"search": {}}}, "policy.options.tools"),
    ],
)
def test_bad_options_of_the_lead_name_their_key(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        LeadPolicy(**{**OPTIONS, **options})
    assert error.value.key == key


@pytest.mark.parametrize("call_style", ["hermes", "llama3"])
def test_lessons_are_drawn_without_knowing_what_to_ask(call_style: str) -> None:
    policy, codec = LeadPolicy(**{**OPTIONS, "context_tokens": 512, "call_style": call_style}), base_codec()
    lessons = LeadLessons(policy, codec, 0)
    drawn = [lessons.draw(index) for index in range(60)]
    assert drawn == [LeadLessons(policy, codec, 0).draw(index) for index in range(60)]
    assert {lesson.outcome for lesson in drawn} == {Outcome.ANSWERED}
    replies = [codec.decode(turn.completion.token_ids) for one in drawn for turn in one.turns if turn.role is None]
    reasoned = [
        said for reply in replies if '"query"' in reply and (said := reply.split("<tool_call>")[0].split("{")[0])
    ]
    assert bool(reasoned) == (call_style == "hermes")
    assert all(re.fullmatch(r" [A-Z][a-z]+ \w+ [A-Z][a-z]+\.", said) for said in reasoned)
    known = [not str(lesson.answer).endswith("unknown") for lesson in drawn]
    assert 0.3 < sum(known) / len(known) < 0.85


def test_an_answer_lists_facts_and_values_in_the_order_of_the_results() -> None:
    policy, codec = LeadPolicy(**{**OPTIONS, "context_tokens": 512}), base_codec()
    several = 0
    for index in range(40):
        last = LeadLessons(policy, codec, 0, ("list",)).draw(index).turns[-1]
        prompt, reply = codec.decode(last.prompt_ids), codec.decode(last.completion.token_ids, control=False)
        notes, _, answer = reply.partition(" FINAL_ANSWER: ")
        if answer and answer != "unknown":
            facts = [fact.strip() + "." for fact in notes.strip(". ").split(".")]
            assert [prompt.index(fact) for fact in facts] == sorted(prompt.index(fact) for fact in facts)
            assert [fact.rstrip(".").split()[-1] for fact in facts] == answer.split(", ")
            several += len(facts) > 1
    assert several > 5
