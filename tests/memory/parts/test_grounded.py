"""Memories that contain only what their sources state."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.errors import ConfigError
from palimpsest.events import EmptyMemoryKept, MemoryUngrounded, MemoryWritten
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.parts.grounded import GroundedRule, sift, unrepeated, unsupported
from palimpsest.memory.policy_check import ScriptedModel, check_policy
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.recall import RecallPolicy, RetrievalPolicy
from palimpsest.memory.tool_baselines import SummaryPolicy
from palimpsest.types import Problem
from support import agents as tool_agents
from support.agents import base_codec, events, family_codec, ids_of, played, prune, search

VERBATIM = GroundedRule("verbatim")
SECTION = "- Anna eats figs. Omar sells tea. It is 9.5 km to Rome."


def sifted(reply: str, *sources: str, rule: GroundedRule = VERBATIM, cut_off: bool = False) -> str:
    """The supported text of a reply."""
    codec = base_codec()
    return codec.decode(sift(codec.encode(reply), list(map(codec.encode, sources)), codec, rule, cut_off=cut_off).ids)


@pytest.mark.parametrize(
    ("unit", "replies", "left"),
    [
        ("sentence", [" Lea runs. Omar sells tea.", " Omar sells tea.", " lea  runs. Bo sings."],
         [" Lea runs. Omar sells tea.", "", " Bo sings."]),
        ("sentence", [" Lea runs. Bo sings. Lea runs.", ""], [" Lea runs. Bo sings.", ""]),
        ("sentence", [" Lea runs. Lea runs. Bo sings. Lea runs. Bo"], [" Lea runs. Bo sings. Bo"]),
        ("line", ["Lea runs. Bo.\n- Bo.", "Bo.\nLea."], ["Lea runs. Bo.\n- Bo.", "\nLea."]),
        ("sentence", ["12 kg.", "12 kg. 2 kg."], ["12 kg.", " 2 kg."]),
    ],
)  # fmt: skip
def test_what_a_reply_has_said_is_not_said_again(unit: Any, replies: list[str], left: list[str]) -> None:
    codec = base_codec()
    ids = [codec.encode(reply) for reply in replies]
    assert [codec.decode(one) for one in unrepeated(ids, codec, unit)] == left
    assert unrepeated(unrepeated(ids, codec, unit), codec, unit) == unrepeated(ids, codec, unit)


@pytest.mark.parametrize(
    ("reply", "left"),
    [
        (" Anna eats figs.", " Anna eats figs."),
        (" anna  EATS figs.", " anna  EATS figs."),  # case and white space don't matter
        (" Anna eats tea.", ""),
        (" Anna eats fig.", ""),  # whole words
        (" Anna eats tea. Omar sells tea.", " Omar sells tea."),
        (" Omar sells tea. Anna eats tea. Anna eats figs.", " Omar sells tea. Anna eats figs."),
        (" Omar sells tea. Omar sells tea.", " Omar sells tea. Omar sells tea."),
        ("- Anna eats figs.\n- Omar eats figs.\n", "- Anna eats figs."),
        (" It is 9 km to Rome.", ""),
        ("", ""),
        (" \n ", ""),
        (" .", ""),
    ],
)
def test_units_that_occur_in_a_source_stay(reply: str, left: str) -> None:
    assert sifted(reply, SECTION).rstrip("\n") == left


def test_a_unit_may_come_from_any_source_but_not_from_two() -> None:
    assert sifted(" Lea runs. Omar sells tea.", SECTION, " Lea runs.") == " Lea runs. Omar sells tea."
    assert sifted(" Lea runs to Omar.", "Lea runs", "to Omar.") == ""


@pytest.mark.parametrize(
    ("unit", "reply", "left"),
    [
        ("sentence", " Anna eats figs. Lea runs.", " Anna eats figs."),
        ("line", " Anna eats figs. Lea runs.", ""),
        ("item", "- Anna\nruns.\n- Omar sells tea.", "\n- Omar sells tea."),
    ],
)
def test_a_unit_stays_or_is_dropped_completely(unit: Any, reply: str, left: str) -> None:
    assert sifted(reply, SECTION, rule=GroundedRule("verbatim", unit)) == left


def test_a_unit_cut_off_by_the_budget_is_dropped() -> None:
    assert sifted(" Omar sells tea. It is 9.5 km", SECTION, cut_off=True) == " Omar sells tea."
    assert sifted(" Omar sells tea. It is 9.5 km", SECTION) == " Omar sells tea. It is 9.5 km"
    assert sifted(" Omar sells tea.", SECTION, cut_off=True) == " Omar sells tea."


@pytest.mark.parametrize("reply", [" It is 9.", " It costs $1.", " Anna was born in 1990.", " السعر ١."])
def test_a_last_number_that_the_budget_may_have_cut_is_dropped(reply: str) -> None:
    assert sifted(f" Omar sells tea.{reply}", SECTION, reply, cut_off=True) == " Omar sells tea."
    assert sifted(f" Omar sells tea.{reply}", SECTION, reply) == f" Omar sells tea.{reply}"
    quoted = reply.replace(".", ".)")
    assert sifted(f" Omar sells tea.{quoted}", SECTION, quoted, cut_off=True) == f" Omar sells tea.{quoted}"


MODES = tuple(map(GroundedRule, ("verbatim", "close")))


@pytest.mark.parametrize("rule", MODES)
@pytest.mark.parametrize(
    ("source", "cut"),
    [
        ("The rate is 1.5 percent.", "The rate is 1."),
        ("It costs $1.50 in Rome.", "It costs $1."),
        ("The town has 1,200 people.", "The town has 1"),
        ("In Oslo 1 200 people live there.", "200 people live there."),
        ("Then -5 degrees were measured.", "5 degrees were measured."),
        ("Anna left on 12/5/2010.", "Anna left on 12/5."),
        ("Anna left on 12 May 2010.", "Anna left on 12 May."),
        ("Anna left on May 12, 2010.", "Anna left on May 12."),
        ("The 1914–1918 war was lost.", "1918 war was lost."),
        ("It sold 10⁶ units.", "It sold 10."),
        ("It takes 3/4 of it.", "It takes 3."),
        ("It is 9.5 km/h in Rome.", "It is 9.5 km."),
        ("It costs 5 million in Rome.", "It costs 5."),
        ("Then 528 per cent was paid.", "Then 528."),
        ("It is 5 km per hour there.", "It is 5 km."),
        ("It is 9 m/s there.", "It is 9 m."),
        ("It was 44°C in Rome.", "It was 44°."),
        ("Anna left at 4:54 p.m. for Rome.", "Anna left at 4:54."),
        ("It costs 5₩ in Rome.", "It costs 5."),
        ("السعر هو ١٫٥ هنا.", "السعر هو ١."),
        ("दर १.५ है", "दर १."),
        ("In Oslo 1\\,200 people live there.", "200 people live there."),
        ("In Oslo 1{,}200 people live there.", "200 people live there."),
        ("The rate is 1e+7 in Rome.", "The rate is 1e"),
        ("It takes 5 1/2 hours.", "It takes 5"),
        ("It takes 5 ½ hours.", "It takes 5"),
        ("In Oslo 12\u200b000 people live there.", "000 people live there."),
        ("In Oslo one un\u00adhappy people lives.", "happy people lives."),
        ("In Oslo a super\u200dmen won.", "men won."),
        ("In Oslo a super\u2060men won.", "men won."),
    ],
)
def test_a_unit_that_cuts_a_number_is_dropped(source: str, cut: str, rule: GroundedRule) -> None:
    for unit in (cut, cut.removesuffix("."), f"{cut.removesuffix('.')}."):
        assert unsupported([unit], [source], rule) != [None]
    assert unsupported([source], [source], rule) == [None]


@pytest.mark.parametrize("rule", MODES)
@pytest.mark.parametrize(
    ("source", "unit"),
    [
        ("He left in 1990. Anna ran.", "He left in 1990."),
        ("He left in 1990 (aged 12).", "He left in 1990"),
        ("It ended in March.\n\n1966 was dry.", "It ended in March."),
        ("Anna is 9.\n- 5 cats ran.", "Anna is 9."),
        ("Then it rained. -5 degrees were measured.", "-5 degrees were measured."),
        ("It has 1,200 people.", "It has 1,200"),  # people are not a unit of measure
        ("The B-52 flew.", "The B-52 flew."),
    ],
)
def test_a_complete_number_at_the_edge_of_a_unit_is_supported(source: str, unit: str, rule: GroundedRule) -> None:
    assert unsupported([unit], [source], rule) == [None]


def test_the_sign_of_a_number_is_not_a_list_mark() -> None:
    reply = "- Anna ran.\n-5 degrees were measured."
    assert sifted(reply, reply) == reply
    assert sifted(reply, "- Anna ran.\n5 degrees were measured.") == "- Anna ran."


DIGIT = st.sampled_from("123456789٣५７")
DIGITS = st.text(DIGIT, min_size=1, max_size=3)


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """A number as texts write it, without the rule's patterns."""
    one, two, three = draw(DIGITS), draw(DIGITS), "".join(draw(st.tuples(DIGIT, DIGIT, DIGIT)))
    forms = (
        f"{one}{three}", f"{one}.{two}", f"{one},{three}", f"{one},{three}.{two}", f"-{one}", f"${one}.{two}",
        f"{one}%", f"{one}:{two}", f"{one}/{two}", f"{one}-{two}", f"{one}–{two}", f"{one}e-{two}", f"{one} km",
        f"{one}.{two} million", f"{one} {three}", f"{one} May 1{three}", f"May {one}, 1{three}", f"1{three}-05-12",
        f"{one}\\,{three}", f"{one} 1/{two}", f"{one}e+{two}",
    )  # fmt: skip
    return draw(st.sampled_from(forms))


@settings(max_examples=50)
@given(numbers(), st.data(), st.sampled_from(MODES), st.booleans())
def test_a_cut_inside_a_number_is_never_supported(number: str, data: Any, rule: GroundedRule, stop: bool) -> None:
    source = f"In Oslo the value {number} was read by Anna."
    inside = [i for i in range(1, len(number)) if not (number[i - 1].isalpha() and number[i].isalpha())]
    at = source.index(number) + data.draw(st.sampled_from(inside))
    halves = (source[:at].strip() + "." * stop, source[at:].strip())
    assert unsupported([source], [source], rule) == [None]
    assert None not in unsupported(halves, [source, f"It rained. {source}"], rule)


def test_sentences_of_scripts_without_spaces_are_units() -> None:
    codec = family_codec("qwen")
    source = codec.encode("- 安娜住在罗马。奥马尔卖茶。")
    made = sift(codec.encode("安娜住在罗马。奥马尔卖丝。"), [source], codec, VERBATIM)
    assert codec.decode(made.ids) == "安娜住在罗马。"
    assert made.dropped == (("奥马尔卖丝。", "no sentence of the prompt supports it"),)


WORDS = ("Anna", "Omar", "eats", "figs", "tea", "runs", "9.5")
SENTENCES = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join), max_size=5)


@settings(max_examples=50)
@given(SENTENCES, SENTENCES)
def test_the_supported_ids_are_sampled_ids_of_the_sentences_in_the_source(reply: list[str], source: list[str]) -> None:
    codec = base_codec()
    ids, section = (codec.encode("".join(f" {text}." for text in texts)) for texts in (reply, source))
    made = sift(ids, [section], codec, VERBATIM)
    rest = iter(ids)
    assert all(i in rest for i in made.ids)  # a subsequence
    stated = "".join(f" {text.lower()}." for text in source)  # a sentence of complete words, after a space
    wanted = [f" {text}." for text in reply if f" {text.lower()}." in stated]
    assert codec.decode(made.ids) == "".join(wanted)
    assert len(made.dropped) == len(reply) - len(wanted)


SMALL: dict[str, Any] = {
    "chunk_size": 40, "memory_tokens": 24, "answer_tokens": 12, "question_tokens": 32, "prompts": "short"
}  # fmt: skip
DOCUMENT = "Anna eats figs. Omar sells tea. " * 6


@dataclass
class Scripted(ScriptedModel):
    events: list[Any] = field(default_factory=list)

    def event(self, what: Any, /, **detail: Any) -> None:
        self.events.append(what)


def play(policy: Any, codec: Any, *texts: str) -> Scripted:
    """The model after an episode in which it gives these replies."""
    replies = iter(texts)
    model = Scripted(codec, lambda _, limit: [*codec.encode(next(replies, "x")), 2][:limit], max_context=512)
    asyncio.run(model.play(policy, Problem("p", "What is the color?", ("x",), DOCUMENT)))
    return model


@pytest.mark.parametrize("policy", [OverwritePolicy, RetrievalPolicy])
def test_a_rejected_reply_leaves_the_memory_unchanged(policy: Any, tiny_codec: Any) -> None:
    first = " Anna eats figs."
    model = play(policy(**SMALL, grounded="verbatim"), tiny_codec, first, " Anna eats tea.", "", " Omar eats figs.")
    memory = tuple(tiny_codec.encode(first))
    for prompt in model.prompts[1:]:
        assert any(tuple(prompt[at : at + len(memory)]) == memory for at in range(len(prompt)))
    kinds = [type(event) for event in model.events]
    assert kinds.count(MemoryUngrounded) >= 2
    assert EmptyMemoryKept in kinds


@pytest.mark.parametrize(
    ("rule", "reply", "events"),
    [
        ("off", " Lea runs.", False),
        ("verbatim", " What is the color of the sky?", True),  # the question is not a source
    ],
)
def test_an_unsupported_memory_is_an_event_under_the_rule(rule: Any, reply: str, events: bool, tiny_codec: Any) -> None:
    model = play(OverwritePolicy(**SMALL, grounded=rule), tiny_codec, reply)
    assert any(isinstance(event, MemoryUngrounded) for event in model.events) is events


def test_the_text_between_tags_is_sifted_and_the_event_contains_the_memory(tiny_codec: Any) -> None:
    policy = RecallPolicy(**SMALL, grounded="verbatim", reply_tokens=80)
    texts = ("<update> Anna eats figs. Lea runs.</update>", "<update> Lea runs.</update>")
    written = [event for event in play(policy, tiny_codec, *texts).events if isinstance(event, MemoryWritten)]
    assert [(event.text, event.changed) for event in written[:2]] == [
        (" Anna eats figs.", True),
        (" Anna eats figs.", False),
    ]


def test_a_reply_that_is_the_memory_cannot_be_grounded() -> None:
    with pytest.raises(ConfigError, match=r"grounded='verbatim': with policy\.options\.next_memory=reply"):
        RecallPolicy(grounded="verbatim", next_memory="reply")


def test_a_prune_with_an_unsupported_memory_is_rejected_and_one_that_quotes_is_done() -> None:
    agent = PrunePolicy(**tool_agents.SMALL, grounded="verbatim")
    (first,) = ids_of(agent, 1)
    replies = [search("Alice"), prune(first, memory="Alice drinks ale."), prune(first, memory="Alice drinks tea.")]
    trajectory, script = played(agent, replies)
    (refused,) = events(trajectory, "prune_refused")
    assert 'memory: "Alice drinks ale.": no sentence of the prompt supports it' in refused.detail["reason"]
    (dropped,) = events(trajectory, "memory_ungrounded")
    assert dropped.detail["dropped"] == ("Alice drinks ale.",)
    assert "Alice drinks tea." in script.text(2).split(prune(first, memory="Alice drinks ale."))[0]  # still shown
    assert len(events(trajectory, "prune")) == 1


def test_the_memory_of_an_accepted_prune_is_a_source_and_of_a_rejected_one_is_not() -> None:
    agent = PrunePolicy(**tool_agents.SMALL, grounded="verbatim")
    a, b = ids_of(agent, 2)
    replies = [search("Alice"), prune(a, memory="Alice drinks tea."), prune(b, memory="Alice drinks tea.")]
    assert len(events(played(agent, replies)[0], "prune")) == 2
    replies = [search("Alice"), prune(a, memory="Bob runs."), prune(b, memory="Bob runs.")]
    assert not events(played(agent, replies)[0], "prune")


def test_a_summary_contains_supported_text_or_stays_the_previous_one() -> None:
    options = {**tool_agents.SMALL, "context_tokens": 330, "turn_tokens": 100, "summary_tokens": 40}
    summaries = iter([" Alice drinks tea. Alice drinks ale.", " Bob runs.", " Alice drinks tea."])

    def reply(prompt: str) -> str:
        if prompt.rstrip().endswith("Update the memory.<|im_end|>\n<|im_start|>assistant"):
            return next(summaries, " x")
        return search(("Alice", "Bob", "Carol")[prompt.count("<|im_start|>tool") % 3])

    trajectory, _ = played(SummaryPolicy(**options, grounded="verbatim"), [reply] * 14)
    texts = [event.detail["text"] for event in events(trajectory, "summary")]
    assert texts[:2] == [" Alice drinks tea."] * 2
    assert [event.detail["changed"] for event in events(trajectory, "memory_ungrounded")][:2] == [True, False]


@pytest.mark.parametrize(
    ("policy", "more"), [(OverwritePolicy, {}), (RetrievalPolicy, {}), (RecallPolicy, {"reply_tokens": 60})]
)
def test_policies_under_the_rule_fulfil_the_contract(policy: Any, more: dict[str, Any], tiny_codec: Any) -> None:
    findings = check_policy(policy(**{**SMALL, "grounded": "verbatim", **more}), tiny_codec, 512)
    assert [finding.message for finding in findings if not finding.passed] == []
