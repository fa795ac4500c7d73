"""The reading policies against scripted models: what they show, keep and refuse."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import palimpsest
from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError, DataError
from palimpsest.memory.document_baselines import FullContextPolicy, SlidingWindowPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.parts.chunks import split, truncate
from palimpsest.memory.policy import Answered, MemoryPolicy
from palimpsest.memory.policy_check import ScriptedModel, check_policy
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.types import Outcome, Problem

SMALL: dict[str, Any] = {
    "chunk_size": 20,
    "question_tokens": 60,
    "memory_tokens": 12,
    "answer_tokens": 8,
    "prompts": "short",
}
DOCUMENT = "one two three.\nfour five six.\nseven eight nine ten.\n" * 6


def play(
    policy: Any, codec: Any, reply: Callable[[Sequence[int], int], Sequence[int]], text: str | None = DOCUMENT
) -> Any:
    model = ScriptedModel(codec, reply, max_context=512)
    result = asyncio.run(model.play(policy, Problem("p", "What is seven?", ("x",), text)))
    return result, model


def say(codec: Any, text: str) -> Callable[[Sequence[int], int], list[int]]:
    return lambda prompt, limit: [*codec.encode(text), codec.stop_ids[-1]]


def test_every_chunk_is_read_in_order_and_the_answer_sees_no_document(tiny_codec: Any) -> None:
    policy = OverwritePolicy(**SMALL)
    _, model = play(policy, tiny_codec, say(tiny_codec, " m"))
    ids = tiny_codec.encode(DOCUMENT)
    chunks = [ids[i : i + 20] for i in range(0, len(ids), 20)]
    assert len(model.prompts) == len(chunks) + 1
    for prompt, chunk in zip(model.prompts, chunks, strict=False):
        assert bytes_of(chunk) in bytes_of(prompt)
    assert "four" not in tiny_codec.decode(model.prompts[-1])


def bytes_of(ids: Sequence[int]) -> bytes:
    return b"".join(i.to_bytes(4, "little") for i in ids)


def test_the_memory_enters_the_next_prompt_as_the_ids_that_were_sampled(tiny_codec: Any) -> None:
    # Single letters: decoding and encoding again would merge them into other tokens.
    letters = [i for ch in "the color of" for i in tiny_codec.encode(ch)]
    assert tiny_codec.encode(tiny_codec.decode(letters)) != letters
    _, model = play(OverwritePolicy(**SMALL), tiny_codec, lambda prompt, limit: [*letters[:limit], 2][:limit])
    for prompt in model.prompts[1:]:
        assert bytes_of(letters[:12]) in bytes_of(prompt)


def test_control_tokens_the_model_writes_do_not_enter_the_memory(tiny_codec: Any) -> None:
    word = tiny_codec.encode("blue")
    _, plain = play(OverwritePolicy(**SMALL), tiny_codec, lambda prompt, limit: [*word, 2])
    _, model = play(OverwritePolicy(**SMALL), tiny_codec, lambda prompt, limit: [1, *word, 0, 2])
    assert model.prompts == plain.prompts


def test_section_first_shares_the_prompt_up_to_the_section_whatever_the_memory(tiny_codec: Any) -> None:
    policy = OverwritePolicy(**SMALL, layout="section_first")
    _, a = play(policy, tiny_codec, say(tiny_codec, " alpha"))
    _, b = play(policy, tiny_codec, say(tiny_codec, " beta"))
    read, _ = policy.templates(tiny_codec)
    chunk = policy.chunks(tiny_codec.encode(DOCUMENT), tiny_codec)[1]
    shared = len(read.pieces[0]) + len(chunk)
    assert a.prompts[1] != b.prompts[1]
    assert a.prompts[1][:shared] == b.prompts[1][:shared]
    assert (policy.shares_prefixes, OverwritePolicy(**SMALL).shares_prefixes) == (True, False)


def test_an_empty_response_overwrites_or_keeps_the_memory_as_configured(tiny_codec: Any) -> None:
    replies = iter([[*tiny_codec.encode(" blue"), 2], [2]])

    def then_silence(prompt: Sequence[int], limit: int) -> list[int]:
        return next(replies, [2])

    _, overwritten = play(OverwritePolicy(**SMALL), tiny_codec, then_silence)
    assert "blue" not in tiny_codec.decode(overwritten.prompts[-1])
    replies = iter([[*tiny_codec.encode(" blue"), 2], [2]])
    _, kept = play(OverwritePolicy(**SMALL, empty_memory="keep"), tiny_codec, then_silence)
    assert "blue" in tiny_codec.decode(kept.prompts[-1])


@pytest.mark.parametrize("text", [None, "", "  \n "])
@pytest.mark.parametrize("policy", [OverwritePolicy(**SMALL), FullContextPolicy(prompts="short")])
def test_an_empty_document_is_an_outcome(policy: Any, text: str | None, tiny_codec: Any) -> None:
    result, model = play(policy, tiny_codec, say(tiny_codec, "x"), text)
    assert result == Answered(None, Outcome.EMPTY_CONTEXT)
    assert not model.prompts


def test_an_answer_cut_by_its_budget_says_so(tiny_codec: Any) -> None:
    result, _ = play(OverwritePolicy(**SMALL), tiny_codec, lambda prompt, limit: tiny_codec.encode("a " * 99)[:limit])
    assert result.outcome is Outcome.ANSWER_TRUNCATED


@pytest.mark.parametrize("how", ["centre", "tail"])
def test_an_over_long_document_keeps_max_chunks(how: Any, tiny_codec: Any) -> None:
    policy = OverwritePolicy(**SMALL, max_chunks=3, overlong=how)
    ids = tiny_codec.encode(DOCUMENT)
    joined = [i for chunk in policy.chunks(ids, tiny_codec) for i in chunk]
    assert joined == (ids[:30] + ids[-30:] if how == "centre" else ids[:60])


def test_refusal_names_the_problem_and_both_lengths(tiny_codec: Any) -> None:
    policy = OverwritePolicy(**SMALL, max_chunks=1, overlong="refuse")
    with pytest.raises(DataError, match=r"problem p: its document has \d+ tokens, max_chunks \* chunk_size = 20"):
        policy.admit(Problem("p", "?", ("x",), DOCUMENT), tiny_codec)
    with pytest.raises(DataError, match=r"problem q: its question has \d+ tokens"):
        policy.admit(Problem("q", "why " * 60, ("x",), "short"), tiny_codec)


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(st.integers(0, 5), max_size=80),
    size=st.integers(1, 12),
    newlines=st.frozensets(st.integers(0, 5), max_size=2),
)
def test_chunks_join_back_to_the_document_within_the_budget(
    ids: list[int], size: int, newlines: frozenset[int]
) -> None:
    chunks = [list(chunk) for chunk in split(ids, size, newlines)]
    assert [i for chunk in chunks for i in chunk] == ids
    assert all(0 < len(chunk) <= size for chunk in chunks)
    for chunk in chunks[:-1]:  # without a final line break it had none in reach after its first token
        assert chunk[-1] in newlines or not newlines & set(chunk[1:])


@given(ids=st.lists(st.integers(0, 9), max_size=40), limit=st.integers(1, 40))
def test_truncation_keeps_the_ends_and_the_limit(ids: list[int], limit: int) -> None:
    kept = truncate(ids, limit, "centre")
    assert len(kept) == min(len(ids), limit)
    head = (len(kept) + 1) // 2
    assert kept[:head] == ids[:head]
    assert kept[head:] == ids[len(ids) - (len(kept) - head) :]


def test_baselines_show_the_ends_or_the_last_window(tiny_codec: Any) -> None:
    options: Any = {"window_tokens": 10, "question_tokens": 60, "answer_tokens": 8, "prompts": "short"}
    ids = tiny_codec.encode(DOCUMENT)
    _, full = play(FullContextPolicy(**options), tiny_codec, say(tiny_codec, "x"))
    _, last = play(SlidingWindowPolicy(**options), tiny_codec, say(tiny_codec, "x"))
    assert bytes_of(ids[:5] + ids[-5:]) in bytes_of(full.prompts[0])
    assert bytes_of(ids[-10:]) in bytes_of(last.prompts[0])


def test_budgets_larger_than_the_window_are_refused_with_the_sum(tiny_codec: Any) -> None:
    policy = OverwritePolicy(**SMALL)
    need = policy.required_context(tiny_codec)
    admit_all(policy, [], tiny_codec, need)
    with pytest.raises(ConfigError, match=rf"add up to {need} tokens, the model's context is {need - 1}"):
        admit_all(policy, [], tiny_codec, need - 1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("overwrit", {}, "policy.name='overwrit': no such policy; did you mean overwrite"),
        ("overwrite", {"chunk_sise": 3}, "policy.options.chunk_sise is unknown to overwrite; did you mean chunk_size"),
        ("overwrite", {"chunk_size": 0}, "policy.options.chunk_size=0: must be at least 1"),
        ("overwrite", {"layout": "x"}, "policy.options.layout='x': choose one of memory_first, section_first"),
        ("overwrite", {"prompts": "x"}, "policy.options.prompts='x': choose one of standard, short"),
        ("overwrite", {"chunk_size": 2.5}, "policy.options.chunk_size=2.5: must be a whole number"),
        ("overwrite", {"chunk_size": "48"}, "policy.options.chunk_size='48': must be a whole number"),
        ("overwrite", {"max_chunks": True}, "policy.options.max_chunks=True: must be a whole number or null"),
        ("recall", {"min_similarity": "0"}, "policy.options.min_similarity='0': must be a number or null"),
        ("recall", {"retriever": "word"}, "policy.options.retriever='word': choose one of words, jaccard, tfidf, bm25"),
        ("prune", {"prune": 1}, "policy.options.prune=1: must be true or false"),
        ("prune", {"tools": ["search"]}, "policy.options.tools=['search']: must be a mapping"),
        ("prune", {"tools": {"search": {"topk": 2.5}}}, "policy.options.tools.search.topk=2.5: must be a whole number"),
        ("no_such_module:P", {}, "no module 'no_such_module'"),
        ("palimpsest.types:P", {}, "palimpsest.types has no 'P'"),
        ("palimpsest.types:Turn", {}, "policy.name='palimpsest.types:Turn': needs a method run"),
        ("threading:Thread", {}, "policy.name='threading:Thread': run is no coroutine: write async def run"),
    ],
)
def test_a_wrong_policy_is_refused_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_policy(PolicyConfig(name=name, options=options))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_class_with_run_alone_has_the_defaults_of_the_contract(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "plain_policy.py").write_text(
        "class Plain:\n"
        "    reward = 'f1'\n"
        "    def __init__(self, lines: int = 2, share: float = 0.5, other=None):\n"
        "        self.lines, self.share = lines, share\n"
        "    async def run(self, problem, model):\n"
        "        raise NotImplementedError\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    policy: Any = build_policy(PolicyConfig(name="plain_policy:Plain", options={"lines": 3, "share": 1}))
    assert MemoryPolicy in type(policy).__mro__
    assert (policy.lines, policy.share, type(policy).__name__) == (3, 1, "Plain")
    assert (policy.reward, policy.reads_documents, policy.required_context(None)) == ("f1", True, 0)
    for wrong, message in (
        ({"lines": 2.5}, "policy.options.lines=2.5: must be a whole number"),
        ({"lnies": 2}, "policy.options.lnies is unknown to plain_policy:Plain; did you mean lines?"),
        ({"share": "x"}, "policy.options.share='x': must be a number"),
    ):
        with pytest.raises(ConfigError) as error:
            build_policy(PolicyConfig(name="plain_policy:Plain", options=wrong))
        assert str(error.value).startswith(message)


def test_nobody_reads_a_policy_but_through_the_contract() -> None:
    """An optional member found by `getattr` has its default where it's read, and another where it's read next."""
    package = Path(palimpsest.__file__).parent
    members = [name for name in vars(MemoryPolicy) if not name.startswith("_")]
    text = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    asked = re.findall(r"(?:getattr|hasattr)\([^()]*, *[\"'](\w+)[\"']", text)
    assert not {name for name in asked if name in members} - {"run"}  # `run` is what makes a class a policy


class Forgetful(MemoryPolicy):
    """Breaks the contract in every way the checker looks for."""

    def __init__(self) -> None:
        self.calls = 0

    async def run(self, problem: Problem, model: Any) -> Answered:
        self.calls += 1  # state on self: prompts differ between episodes
        assert problem.context is not None
        prompt = model.codec.encode_trusted(f"{self.calls} {problem.question} {problem.context}")
        await model.generate(prompt, name="answer", max_tokens=model.max_context)
        return Answered(problem.context.split()[0])


class Reads(MemoryPolicy):
    """Shows the document in parts of 8 tokens; `parts` says which of them, given the length of the reply before."""

    async def run(self, problem: Problem, model: Any) -> Answered:
        ids, reply, at = model.codec.encode(problem.context or ""), 1, 0
        while at < len(ids):
            prompt = [*model.codec.encode("Read:"), *ids[at : at + 8]]
            done = await model.generate(prompt, name="read", max_tokens=8)
            reply = len(model.codec.strip_stop(done.token_ids))
            at = self.after(at, reply, len(ids))
        return Answered("nothing")

    def after(self, at: int, reply: int, length: int) -> int:
        """Where the next part begins."""
        return at + 8


class ReadsTwoParts(Reads):
    def after(self, at: int, reply: int, length: int) -> int:
        return at + 8 if at < 8 else length


class MeansToReadTwoParts(ReadsTwoParts):
    reads_to_end = False


class StopsAtAShortReply(Reads):
    def after(self, at: int, reply: int, length: int) -> int:
        return at + 8 if reply > 4 else length


class SkipsEverySecondPart(Reads):
    reads_to_end = False

    def after(self, at: int, reply: int, length: int) -> int:
        return at + 16


@pytest.mark.parametrize(
    ("policy", "passed", "message"),
    [
        (Reads(), True, r"all \d+ words are in the prompts, in order$"),
        (StopsAtAShortReply(), True, r"in order; the reading ends earlier with a model that answers briefly$"),
        (MeansToReadTwoParts(), True, r"the first \d+ of \d+ words are in the prompts, in order, as declared"),
        (
            ReadsTwoParts(),
            False,
            r"the reading ends after \d+ of \d+ words.*reads_to_end = False",
        ),
        (SkipsEverySecondPart(), False, r"\d+ of \d+ words never reach a prompt"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_policy_that_stops_early_on_purpose_is_told_from_one_that_loses_text(
    policy: MemoryPolicy, passed: bool, message: str, tiny_codec: Any
) -> None:
    (document,) = [finding for finding in check_policy(policy, tiny_codec, 512) if finding.name == "document"]
    assert document.passed is passed
    assert re.search(message, document.message)


def test_the_checker_passes_the_shipped_policy_and_names_what_a_broken_one_breaks(tiny_codec: Any) -> None:
    assert all(f.passed for f in check_policy(OverwritePolicy(**SMALL), tiny_codec, 512))
    failed = {f.name for f in check_policy(Forgetful(), tiny_codec, 512) if not f.passed}
    assert {"budget", "determinism", "adversarial"} <= failed
