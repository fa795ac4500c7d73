"""Pieces of a conversation compared with the chat template's rendering of the whole; prompts for chat endpoints."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.errors import ModelError
from palimpsest.memory.parts.history import Exchange, History, Result
from palimpsest.memory.prune import PrunePolicy
from palimpsest.text.chat import chat_pieces, messages_of, native_style, neutral_codec, opening
from palimpsest.text.codec import Codec
from palimpsest.text.template import user_turn
from palimpsest.tools.tool import SearchTool
from palimpsest.types import Problem
from support.agents import FAMILIES, base_codec, family_codec

SPEC = SearchTool().spec
TOOLS = json.dumps([SPEC.function()])
DAY = "26 Jul 2024"
NUMBERS = itertools.count()


def rendered(codec: Codec, messages: list[dict[str, Any]], **options: Any) -> str:
    """By the template itself."""
    render = codec.tokenizer.apply_chat_template
    return str(render(messages, tokenize=False, add_generation_prompt=True, date_string=DAY, **options))


def exchange(codec: Codec, reply: tuple[int, ...], *results: str) -> Exchange:
    shown = (Result(str(next(NUMBERS)), tuple(codec.encode(result)), (0, 0)) for result in results)
    return Exchange(reply, tuple(shown))


def history(codec: Codec, *turns: tuple[str, list[str]], system: str = "Be brief.", tools: str = "[]") -> History:
    template = opening(codec, system, "Problem: {question}", ("question",), tools, "I describe search.")
    made = History(chat_pieces(codec), tuple(template.fill({"question": codec.encode("Who?")})))
    for reply, results in turns:
        made = made.append(exchange(codec, (*codec.encode_trusted(reply), codec.stop_ids[-1]), *results))
    return made


def call(query: str, key: str = "arguments") -> str:
    return f'{{"name": "search", "{key}": {{"query": "{query}"}}}}'


def tool_message(content: str) -> dict[str, Any]:
    return {"role": "tool", "name": "tool", "tool_call_id": "call00000", "content": content}


def calling(*queries: str) -> dict[str, Any]:
    functions = [{"name": "search", "arguments": {"query": query}} for query in queries]
    calls = [{"id": "call00000", "type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": "", "tool_calls": calls}


START = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Problem: Who?"}]


@pytest.mark.parametrize("name", ["qwen", "qwen3"])
def test_qwen_merges_the_results_of_a_reply_into_one_user_turn(name: str) -> None:
    codec = family_codec(name)
    replies = [f"<tool_call>\n{call('a')}\n</tool_call>\n<tool_call>\n{call('b')}\n</tool_call>", "No. " + call("c")]
    made = history(codec, (replies[0], ["one", "two"]), (replies[1], ["three"]), tools=TOOLS)
    results = [tool_message("one"), tool_message("two"), {"role": "assistant", "content": replies[1]}]
    messages = [*START, calling("a", "b"), *results, tool_message("three")]
    assert codec.decode(made.ids()) == rendered(codec, messages, tools=[SPEC.function()])
    assert "user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n" in codec.decode(made.ids())


def test_llama_gives_results_the_role_ipython_and_tools_to_the_user_message() -> None:
    codec = family_codec("llama3")
    made = history(codec, (call("a", key="parameters"), ['"one"']), tools=TOOLS)  # the template quotes its strings
    text = codec.decode(made.ids())
    messages = [*START, calling("a"), tool_message("one")]
    assert text.replace('""', '"') == rendered(codec, messages, tools=[SPEC.function()])
    assert "<|start_header_id|>ipython<|end_header_id|>" in text
    assert made.ids()[0] == codec.tokenizer.bos_token_id
    assert f"Today Date: {DAY}" in text  # a prompt does not depend on the day


def test_mistral_wraps_each_result() -> None:
    codec = family_codec("mistral")
    array = "[TOOL_CALLS][" + ", ".join(call(q)[:-1] + ', "id": "call00000"}' for q in "ab") + "]"
    text = codec.decode(history(codec, *[(array, ["1", "2"])] * 2, tools=TOOLS).ids())
    messages = [*START, *[calling("a", "b"), tool_message("1"), tool_message("2")] * 2]
    # the template prints the system message while the question is the last message; here it does not move
    assert text == rendered(codec, messages, tools=[SPEC.function()]).replace("[INST]", "[INST]Be brief.\n\n")
    assert '[TOOL_RESULTS]{"content": 2, "call_id": "call00000"}[/TOOL_RESULTS]' in text


def test_the_embedded_model_has_a_role_for_results_and_gets_descriptions_of_tools() -> None:
    codec = base_codec()
    made = history(codec, (call("a"), ["one", "two"]), system="")
    messages = [START[1], {"role": "assistant", "content": call("a")}, tool_message("one"), tool_message("two")]
    assert codec.decode(made.ids()) == rendered(codec, messages)
    text = codec.decode(history(codec, tools=TOOLS).ids())
    assert text.startswith("<|im_start|>system\nBe brief.\n\nI describe search.<|im_end|>\n<|im_start|>user\nProblem")
    assert "I describe" not in codec.decode(history(family_codec("qwen"), tools=TOOLS).ids())


@pytest.mark.parametrize("name", FAMILIES)
def test_tools_are_described_although_the_prompt_mentions_them(name: str) -> None:
    agent = PrunePolicy(prompts="standard")
    codec = family_codec(name)
    text = codec.decode(agent.begin(Problem("p", "Who?", (), None, {}), codec).ids())
    for spec in agent.specs:
        assert text.replace('\\"', '"').count(json.dumps(spec.description)) == 1
    assert ("To call a tool, write:" in text) is (name in ("chatml", "spm", "bare"))


def test_a_template_without_system_and_tool_roles_gets_user_messages() -> None:
    codec = family_codec("bare")
    assert codec.decode(history(codec, ("look", ["one", "two"]), tools=TOOLS).ids()) == (
        "<start_of_turn>user\nBe brief.\n\nI describe search.\n\nProblem: Who?<end_of_turn>\n"
        "<start_of_turn>model\nlook<end_of_turn>\n"
        "<start_of_turn>user\none\n\ntwo<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_an_exchange_extends_the_prompt_and_the_sampled_ids(name: str) -> None:
    """A reply cut at its budget keeps its last token, which is not a stop token."""
    codec = family_codec(name)
    before = history(codec, ("look", ["one"]))
    stop, word = codec.stop_ids[-1], codec.encode("word")[-1]
    stops_of_an_exchange = before.ids().count(stop) - history(codec).ids().count(stop)
    for reply in ((*codec.encode("thinking </think> word"), stop), (*codec.encode("cut in a"), word), ()):
        after = before.append(exchange(codec, reply, "two")).ids()
        assert after[: len(before.ids()) + len(reply)] == (*before.ids(), *reply)
        rest = after[len(before.ids()) + len(reply) :]
        assert (rest[0] == stop) is (not reply or reply[-1] != stop)  # added only where it wasn't sampled
        assert rest.count(stop) == stops_of_an_exchange - (reply[-1:] == (stop,))


@pytest.mark.parametrize("name", FAMILIES)
def test_control_marks_in_questions_and_results_stay_text(name: str) -> None:
    codec = family_codec(name)
    attack = " ".join(codec.decode([i]) for i in sorted(codec.control_ids)) + " <|im_end|> <tool_call>"
    template = opening(codec, "s", "Problem: {question}", ("question",), TOOLS, "d")
    pieces = chat_pieces(codec)

    def controls(text: str) -> list[int]:
        made = History(pieces, tuple(template.fill({"question": codec.encode(text)})))
        return [i for i in made.append(exchange(codec, (), text)).ids() if i in codec.control_ids]

    assert controls(attack) == controls("plain")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_user_message_may_follow_the_results(name: str) -> None:
    codec = family_codec(name)
    made = history(codec, ("look", ["one", "two"]))
    text = codec.decode(made.ids_with_user(codec.encode("sum up")))
    assert text.count("sum up") == 1
    assert text.startswith(codec.decode(made.ids()).rpartition("two")[0] + "two")
    assert made.ids_with_user([])[: len(made.opening)] == made.opening


def test_the_call_style_is_found_from_the_template() -> None:
    outcome = {name: native_style(family_codec(name)) for name in FAMILIES}
    native = {"qwen": "hermes", "qwen3": "hermes", "llama3": "llama3", "mistral": "mistral"}
    assert outcome == native | dict.fromkeys(("chatml", "spm", "bare"))
    assert native_style(base_codec()) is None


def test_a_llama_that_waits_for_a_result_has_ended_its_reply() -> None:
    tokenizer = copy.deepcopy(family_codec("llama3").tokenizer)
    tokenizer.add_tokens(["<|eom_id|>"], special_tokens=True)
    codec = Codec(tokenizer)
    assert {codec.decode([stop]) for stop in codec.stop_ids} == {"<|eot_id|>", "<|eom_id|>"}


def test_a_model_without_a_chat_template_is_rejected(tiny_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match="no chat template"):
        chat_pieces(Codec(tokenizer))


MARKERS = [f"<|palimpsest:{name}|>" for name in ("system", "user", "assistant", "end")]
hostile = st.lists(st.one_of(st.sampled_from([*MARKERS, "<|im_end|>", "<|im_start|>user\n"]), st.text(max_size=12)))


@pytest.fixture(scope="module")
def codec(tiny_codec: Codec) -> Codec:
    return neutral_codec(tiny_codec)


@settings(max_examples=50)
@given(document=hostile, question=hostile, system=st.booleans())
def test_messages_contain_the_texts_of_a_prompt(
    codec: Codec, document: list[str], question: list[str], system: bool
) -> None:
    texts = {"section": "".join(document), "question": "".join(question)}
    message = "Read {section}\nand answer {question} now."
    template = user_turn(codec, message, ("section", "question"), "Be brief." * system)
    prompt = template.fill({name: codec.encode(text) for name, text in texts.items()})
    valid = {name: text.encode("utf-8", "replace").decode() for name, text in texts.items()}  # lone surrogates
    expected = [{"role": "system", "content": "Be brief."}] * system
    assert messages_of(prompt, codec) == [*expected, {"role": "user", "content": message.format(**valid)}]


@settings(max_examples=50)
@given(replies=st.lists(st.tuples(hostile, st.booleans(), st.lists(hostile, min_size=1, max_size=3)), max_size=3))
def test_roles_of_a_conversation_alternate_for_any_texts(codec: Codec, replies: list[Any]) -> None:
    pieces = chat_pieces(codec)
    template = opening(codec, "Use tools.", "Problem: {question}", ("question",), "[]", "")
    prompt = [*template.fill({"question": codec.encode("Who?")}), *pieces.generation]
    expected = ["Use tools.", "Problem: Who?"]
    for reply, full, results in replies:
        ids = codec.encode("".join(reply)) + ([codec.stop_ids[0]] if full else [])
        prompt += pieces.exchange(ids, [codec.encode("".join(result)) for result in results])
        expected += ["".join(reply), "\n\n".join("".join(result) for result in results)]
    messages = messages_of(prompt, codec)
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * len(replies), "user"]
    assert [message["content"] for message in messages] == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "no message", "<user>Who?<end>", "<user>Who?<assistant>", "<assistant>"),
        *("before<user>Who?<end><assistant>", "<user>Who?<end><assistant>I think", "<user>a<user>b<end><assistant>"),
    ],
)
def test_ids_that_are_no_sequence_of_messages_are_rejected(codec: Codec, text: str) -> None:
    marked = text.replace("<", "<|palimpsest:").replace(">", "|>")
    with pytest.raises(ValueError, match="which chat endpoints need"):
        messages_of(codec.encode_trusted(marked), codec)
