"""The overwriting agent with scripted models: prompts, memories, several questions, thinking."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.data import DataConfig
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.formats.problem_files import write_problems
from palimpsest.data.sources.file_source import build_source
from palimpsest.errors import DataError
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.policy_check import ScriptedModel
from palimpsest.memory.recall import RecallPolicy
from palimpsest.memory.registry import build_policy
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.provenance import evaluation_identity
from palimpsest.rollout.segments import segments_of
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import RecallReply, read_recall_reply, spoken, without_thinking
from palimpsest.types import Outcome, Problem, Question, Trajectory
from support.agents import Script, base_codec, family_codec, played

SMALL: dict[str, Any] = {
    "chunk_size": 20, "question_tokens": 60, "memory_tokens": 12, "answer_tokens": 8, "prompts": "short"
}  # fmt: skip
DOCUMENT = "one two three.\nfour five six.\nseven eight nine ten.\n" * 6


def play(
    policy: Any, codec: Any, reply: Callable[[Sequence[int], int], Sequence[int]], text: str | None = DOCUMENT
) -> Any:
    model = ScriptedModel(codec, reply, max_context=512)
    result = asyncio.run(model.play(policy, Problem("p", "What is seven?", ("x",), text)))
    return result, model


def say(codec: Any, *texts: str) -> Callable[[Sequence[int], int], list[int]]:
    """Replies in order; the last one again and again."""
    replies = list(texts)
    return lambda prompt, limit: [*codec.encode(replies.pop(0) if replies[1:] else replies[0]), codec.stop_ids[-1]]


def bytes_of(ids: Sequence[int]) -> bytes:
    return b"".join(i.to_bytes(4, "little") for i in ids)


def test_every_chunk_is_read_in_order_and_the_answer_sees_no_document(tiny_codec: Any) -> None:
    _, model = play(OverwritePolicy(**SMALL), tiny_codec, say(tiny_codec, " m"))
    ids = tiny_codec.encode(DOCUMENT)
    chunks = [ids[i : i + 20] for i in range(0, len(ids), 20)]
    assert len(model.prompts) == len(chunks) + 1
    for prompt, chunk in zip(model.prompts, chunks, strict=False):
        assert bytes_of(chunk) in bytes_of(prompt)
    assert "four" not in tiny_codec.decode(model.prompts[-1])


def test_the_memory_enters_the_next_prompt_as_the_ids_that_were_sampled(tiny_codec: Any) -> None:
    # Single letters: decoding and encoding again would merge them into other tokens.
    letters = [i for ch in "the color of" for i in tiny_codec.encode(ch)]
    assert tiny_codec.encode(tiny_codec.decode(letters)) != letters
    _, model = play(OverwritePolicy(**SMALL), tiny_codec, lambda prompt, limit: [*letters[:limit], 2][:limit])
    for prompt in model.prompts[1:]:
        assert bytes_of(letters[:12]) in bytes_of(prompt)


def test_control_tokens_of_a_reply_do_not_enter_the_memory(tiny_codec: Any) -> None:
    word = tiny_codec.encode("blue")
    _, plain = play(OverwritePolicy(**SMALL), tiny_codec, lambda prompt, limit: [*word, 2])
    _, model = play(OverwritePolicy(**SMALL), tiny_codec, lambda prompt, limit: [1, *word, 0, 2])
    assert model.prompts == plain.prompts


def test_section_first_shares_the_prompt_up_to_the_section_whatever_the_memory(tiny_codec: Any) -> None:
    policy = OverwritePolicy(**SMALL, layout="section_first")
    _, a = play(policy, tiny_codec, say(tiny_codec, " alpha"))
    _, b = play(policy, tiny_codec, say(tiny_codec, " beta"))
    read, _ = policy.templates(tiny_codec)
    shared = len(read.pieces[0]) + len(policy.chunks(tiny_codec.encode(DOCUMENT), tiny_codec)[1])
    assert a.prompts[1] != b.prompts[1]
    assert a.prompts[1][:shared] == b.prompts[1][:shared]
    assert (policy.shares_prefixes, OverwritePolicy(**SMALL).shares_prefixes) == (True, False)


@pytest.mark.parametrize("rule", ["overwrite", "keep"])
def test_an_empty_reply_empties_or_leaves_the_memory_as_configured(rule: Any, tiny_codec: Any) -> None:
    _, model = play(OverwritePolicy(**SMALL, empty_memory=rule), tiny_codec, say(tiny_codec, " blue", ""))
    assert ("blue" in tiny_codec.decode(model.prompts[-1])) == (rule == "keep")


@pytest.mark.parametrize("text", [None, "", "  \n "])
def test_an_empty_document_gives_no_answer(text: str | None, tiny_codec: Any) -> None:
    result, model = play(OverwritePolicy(**SMALL), tiny_codec, say(tiny_codec, "x"), text)
    assert (result.outcome, result.text, model.prompts) == (Outcome.EMPTY_CONTEXT, None, [])


@pytest.mark.parametrize("how", ["centre", "tail", "refuse"])
def test_a_document_of_too_many_chunks_is_cut_or_rejected(how: Any, tiny_codec: Any) -> None:
    policy, ids = OverwritePolicy(**SMALL, max_chunks=3, overlong=how), tiny_codec.encode(DOCUMENT)
    if how == "refuse":
        with pytest.raises(DataError, match=r"problem p: its document has \d+ tokens, max_chunks \* chunk_size = 60"):
            policy.admit(Problem("p", "?", ("x",), DOCUMENT), tiny_codec)
    else:
        joined = [i for chunk in policy.chunks(ids, tiny_codec) for i in chunk]
        assert joined == (ids[:30] + ids[-30:] if how == "centre" else ids[:60])


READING: dict[str, Any] = {
    "prompts": "short", "chunk_size": 6, "question_tokens": 40, "memory_tokens": 40, "answer_tokens": 20
}  # fmt: skip
QUESTIONS = (Question("Who ran?", ("Anna",)), Question("Where did she\nrun?", ("Rome", "Roma")))
SEVERAL = Problem.asking("p", QUESTIONS, "Anna ran.\nIt was in Rome.\n", {"evidence": ["Anna ran."]})
REPLIES = {"overwrite": " Anna, Rome", "recall": "<update> Anna, Rome</update>"}


def read_several(name: str, problem: Problem = SEVERAL, **options: Any) -> tuple[Trajectory, Script]:
    def reply(prompt: str) -> str:
        if "Answer in" not in prompt:
            return REPLIES[name]
        return "\\boxed{Anna}" if "Who ran?" in prompt else "\\boxed{Rome}"

    policy = build_policy(PolicyConfig(name=name, options={**READING, **options}))
    return played(policy, [reply] * 20, problem)


@pytest.mark.parametrize("name", REPLIES)
def test_a_document_is_read_once_and_every_question_is_answered_from_the_memory(name: str) -> None:
    trajectory, script = read_several(name)
    reads, answers = ([turn for turn in trajectory.turns if turn.name == kind] for kind in ("read", "answer"))
    decode = base_codec().decode
    assert {decode(turn.piece("question") or ()) for turn in reads} == {"1. Who ran?\n2. Where did she run?"}
    assert [decode(turn.piece("question") or ()) for turn in answers] == [one.text for one in QUESTIONS]
    assert {decode(turn.piece("memory") or ()) for turn in answers} == {" Anna, Rome"}
    assert [turn.notes["question"] for turn in answers] == [0, 1]
    assert trajectory.answers == ("\\boxed{Anna}", "\\boxed{Rome}")
    assert trajectory.answer == "1. \\boxed{Anna}\n2. \\boxed{Rome}"
    assert len(script.prompts) == len(reads) + 2
    assert "boxed{Anna}" not in script.text(-1)


def test_one_cut_answer_of_several_cuts_the_episode_and_an_empty_document_gives_none() -> None:
    policy = {tokens: OverwritePolicy(**{**READING, "answer_tokens": tokens}) for tokens in (1, 2)}
    assert played(policy[2], [" m"] * 20, SEVERAL)[0].outcome is Outcome.ANSWERED  # " m" and the stop token
    assert played(policy[1], [" m"] * 20, SEVERAL)[0].outcome is Outcome.ANSWER_TRUNCATED
    trajectory, _ = read_several("overwrite", Problem.asking("p", QUESTIONS, " "))
    assert (trajectory.outcome, trajectory.answer, trajectory.answers) == (Outcome.EMPTY_CONTEXT, None, ())


def test_a_problem_of_one_question_is_a_plain_one() -> None:
    plain = Problem.asking("p", QUESTIONS[:1], "text")
    assert plain == Problem("p", "Who ran?", ("Anna",), "text")
    assert plain.by_question == (plain,)
    with pytest.raises(ValueError, match=r"problem p: .*Problem.asking"):
        Problem("p", "Who ran?", ("Anna",), questions=QUESTIONS)


MEMORY = Problem("p", "What does Ann drink?", ("tea",), "- Bob owns cats.\n", memory=" Ann drinks tea.")


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("overwrite", " Ann drinks tea."),
        ("retrieval", " Ann drinks tea."),
        ("recall", "<update> Ann drinks tea.</update>"),
    ],
)
@pytest.mark.parametrize("layout", ["memory_first", "section_first"])
def test_the_first_prompt_contains_the_memory_of_the_problem(name: str, reply: str, layout: str) -> None:
    policy = build_policy(PolicyConfig(name=name, options={"prompts": "short", "layout": layout}))
    trajectory, script = played(policy, [reply, "\\boxed{tea}"], MEMORY)
    codec = base_codec()
    (reading,) = readings(trajectory, GroupTexts(codec))
    assert codec.decode(trajectory.turns[0].piece("memory") or ()) == reading.memory_before.text == " Ann drinks tea."
    assert "Memory: Ann drinks tea." in script.text(0)
    bare, _ = played(policy, [reply, "\\boxed{tea}"], replace(MEMORY, memory=""))
    assert codec.decode(bare.turns[0].piece("memory") or ()) == " none"


def test_the_memory_of_a_problem_is_in_its_file_and_in_the_identity_of_an_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    write_problems(path, [MEMORY, replace(MEMORY, id="bare", memory="")])
    source = build_source(DataConfig(train_files=str(path), shuffle=False), split="train")
    assert [problem.memory for problem in source.problems(step=0, count=2)] == [MEMORY.memory, ""]
    assert ["memory" in json.loads(line) for line in path.read_text().splitlines()] == [True, False]
    problems = [[replace(MEMORY, memory=memory)] for memory in ("", " Ann drinks tea.", " Ann drinks rum.")]
    assert len({str(evaluation_identity(RunConfig(), {}, one)["problems"]) for one in problems}) == 3
    path.write_text('{"question": "Who?", "answers": ["A"], "context": "A.", "memory": ["A"]}\n')
    with pytest.raises(DataError, match=r"mine\.jsonl.* memory must be a string, is list"):
        build_source(DataConfig(train_files=str(path)), split="train").problems(step=0, count=1)


TAGGED: dict[str, Any] = {"chunk_size": 60, "memory_tokens": 60, "answer_tokens": 60, "question_tokens": 60}
TEA = Problem("p", "Who?", ("Bob",), context="Bob drinks tea. " * 4)


@pytest.fixture
def codec() -> Codec:
    """Its vocabulary has <think> and </think> as control tokens, as Qwen3's."""
    return family_codec("qwen3")


@pytest.mark.parametrize(
    ("reply", "memory"),
    [
        ("<think>\nIs it Bob?\n</think>\n\nBob drinks tea.", "Bob drinks tea."),
        ("<think>Is it Bob? I wonder", ""),
        ("Bob. <think>Or Ann?</think> Tea.", "Bob. Tea."),
        ("as above</think>Bob.", "Bob."),
        ("<thinking>Is it Bob?</thinking>Bob.", "Bob."),
        (" Bob\n", " Bob\n"),
    ],
)
def test_thinking_is_trained_but_not_in_the_memory(reply: str, memory: str, codec: Codec) -> None:
    trajectory, _ = played(OverwritePolicy(**TAGGED), [reply] * 9, TEA, codec)
    read, after = trajectory.turns[:2]
    assert codec.decode(after.piece("memory") or ()) == memory
    ids = (*codec.encode_trusted(reply), codec.stop_ids[-1])
    assert read.completion.token_ids == ids
    assert sum(segments_of(trajectory)[0].loss_mask) == len(ids)


def test_thinking_that_the_prompt_opens_is_removed(codec: Codec) -> None:
    header = codec.encode_trusted("<|im_start|>assistant\n<think>\n")
    cut, ended = codec.encode_trusted("Is it Bob? I"), codec.encode_trusted("Is it?</think>\n\nBob.")
    assert without_thinking(cut, codec, header) == []
    assert without_thinking(cut, codec, codec.encode_trusted("Write <think> first:")) == cut
    assert codec.decode(without_thinking(ended, codec, header)) == "Bob."


@pytest.mark.parametrize("family", ["qwen3", "llama3"])
@pytest.mark.parametrize("reply", ["<think>a < b</think>Bob < c", "a</think>Bob", "1 < 2", "<thinking>a", "Bob é"])
def test_thinking_is_recognized_in_any_split_into_tokens(reply: str, family: str) -> None:
    codec = family_codec(family)
    ids = [i for character in reply for i in codec.encode(character)]
    assert codec.decode(without_thinking([*ids, codec.stop_ids[-1]], codec)) == spoken(reply)


def test_the_record_of_an_answer_contains_its_thinking(codec: Codec) -> None:
    answer = "<think>\\boxed{Ann}?</think>\\boxed{Bob}"
    replies = [lambda prompt: answer if "Your answer" in prompt else "Bob."] * 20
    trajectory, _ = played(OverwritePolicy(**TAGGED), replies, TEA, codec)
    assert trajectory.answer == answer
    assert spoken(answer) == "\\boxed{Bob}"


def test_tags_in_native_thinking_are_not_read(codec: Codec) -> None:
    reply = codec.encode_trusted("<think><update>a</update></think><update>b</update> <recall>c</recall>!")
    tags = read_recall_reply(reply, codec)
    assert isinstance(tags, RecallReply)
    assert (codec.decode(tags.update), tags.query, codec.decode(tags.rest)) == ("b", "c", "<update>b</update> !")
    policy = RecallPolicy(**TAGGED, next_memory="reply", malformed="accept")
    trajectory, _ = played(policy, ["<think>hm</think><update>Bob.</update>"] * 9, TEA, codec)
    assert codec.decode(trajectory.turns[1].piece("memory") or ()) == "<update>Bob.</update>"
