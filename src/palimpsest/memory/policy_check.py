"""Contract checks for memory policies, run against scripted models without weights.

docs/how-to/custom-policy.md lists the checks. A policy whose `reads_documents` is False gets search problems: the
document, passages of it to find, and one more model, which searches without end. The document check is skipped, because
the prompts depend on the model.

Not covered: the quality of the policy; intended skips of document text (the finding lists the lost words).
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from palimpsest.errors import ConfigError, PromptTooLong, SamplerError, deciding, raised_at
from palimpsest.events import Event, What, as_event
from palimpsest.memory.parts.tool_agent import ToolAgentPolicy
from palimpsest.memory.policy import Answered, MemoryPolicy, Model, ended
from palimpsest.plugin_options import options_of, untyped
from palimpsest.text.codec import Codec
from palimpsest.text.tool_calls import call_text
from palimpsest.types import Completion, Problem, Question, StopReason

MAX_CALLS = 2_000
_LATE = 5  # calls side by side whose replies come in reverse order
WORDS = 600
"""Words of the test document; each occurs once."""
LONGEST = 32_768
"""Most tokens of the window of the long documents."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One point of the contract and how the policy met it."""

    name: str
    passed: bool
    message: str


class _TooManyCalls(Exception):
    pass


@dataclass
class ScriptedModel(Model):
    codec: Codec
    reply: Callable[[Sequence[int], int], Sequence[int]]
    max_context: int
    late: bool = False
    """Replies to calls side by side come in another order."""
    fails: bool = False
    """The second call fails."""
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    roles: set[str] = field(default_factory=set)
    prepared: Any = None
    overflows: list[tuple[int, int]] = field(default_factory=list)
    """(prompt tokens, max_tokens) of calls that exceed the window."""
    in_flight: int = 0
    most_in_flight: int = 0

    async def generate(
        self, prompt_ids: Sequence[int], *, name: str, max_tokens: int, role: str | None = None, **notes: Any
    ) -> Completion:
        number = len(self.prompts)
        if number >= MAX_CALLS:
            raise _TooManyCalls
        if max_tokens < 1:
            raise ValueError(f"max_tokens={max_tokens}: set it to at least 1")
        self.prompts.append(tuple(prompt_ids))
        self.roles |= {role} if role else set()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        for _ in range(1 + (_LATE - number) % _LATE if self.late else 1):
            await asyncio.sleep(0)  # lets other calls run, and another episode of the same policy object
        self.in_flight -= 1
        if len(prompt_ids) + max_tokens > self.max_context:
            self.overflows.append((len(prompt_ids), max_tokens))
            raise PromptTooLong(f"{len(prompt_ids)} + {max_tokens} tokens exceed {self.max_context}")
        if self.fails and number == 1:
            raise SamplerError("a call fails")
        ids = tuple(self.reply(prompt_ids, max_tokens))[:max_tokens]
        stop = StopReason.STOP if len(ids) < max_tokens else StopReason.LENGTH
        return Completion(ids, (0.0,) * len(ids), stop, turn=number)

    def event(self, what: What | str, /, *, turn: int | None = None, **detail: Any) -> None:
        self.events.append(Event(as_event(what, detail), len(self.prompts) if turn is None else turn + 1))

    @property
    def recorded(self) -> list[Event]:
        return sorted(self.events, key=lambda event: event.before_turn)

    async def play(self, policy: MemoryPolicy, problem: Problem) -> Answered:
        """Run one episode; exceptions of the policy propagate, of an exception group the deciding one."""
        self.prepared = policy.prepare(problem, self.codec)
        try:
            return ended(await policy.run(problem, self), problem)
        except ExceptionGroup as errors:
            raise deciding(errors) from None

    async def tried(self, policy: MemoryPolicy, problem: Problem) -> ScriptedModel:
        """`play`, whatever happens: `ends` reports errors, other findings compare the calls so far."""
        with suppress(Exception):
            await self.play(policy, problem)
        return self


def check_policy(policy: MemoryPolicy, codec: Codec, max_context: int) -> list[Finding]:
    """All findings, in the order of docs/how-to/custom-policy.md."""
    return asyncio.run(_check(policy, codec, max_context))


async def _check(policy: MemoryPolicy, codec: Codec, max_context: int) -> list[Finding]:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # errors of calls without an await
    replies = {**_replies(codec), **_searching(policy, codec)}
    words = _words(codec)
    problem = _problem(policy, "check", "Which word comes last?", "".join(words))
    try:
        findings = [_options(policy), _window(policy, codec, max_context)]
    except ConfigError as error:  # every episode would end with it
        return [_options(policy), Finding("window", False, str(error))]
    played = {}
    for name, reply in replies.items():
        model = ScriptedModel(codec, reply, max_context)
        played[name] = model
        findings.append(await _ends(policy, problem, model, f"ends, model that {name}"))
    if not any(finding.passed for finding in findings[-len(played) :]):
        return findings  # the other points would compare nothing
    findings.append(_budget(played))
    findings.append(await _determinism(policy, problem, codec, max_context))
    findings.append(await _order(policy, problem, codec, max_context))
    if policy.reads_documents:
        findings.append(await _document(policy, played, words))
        findings.append(await _long_document(policy, problem, codec, max_context))
    findings.append(await _adversarial(policy, codec, max_context))
    empty = _problem(policy, "check-empty", problem.question, "")
    brief = replies["answers briefly"]
    findings.append(await _ends(policy, empty, ScriptedModel(codec, brief, max_context), "empty document"))
    failing = ScriptedModel(codec, _long_reply(policy, codec), max_context, fails=True)
    findings.append(await _ends(policy, problem, failing, "failing call"))
    if policy.answers_questions:
        questions = [Question(word, ("none",)) for word in ("First?", "Next?", "Last?")]
        several = Problem.asking("check-several", questions, problem.context)
        findings.append(await _ends(policy, several, ScriptedModel(codec, brief, max_context), "several questions"))
    if policy.takes_memory:
        findings.append(await _memory(policy, problem, ScriptedModel(codec, brief, max_context)))
    findings.append(await _sampled_text(policy, problem, codec, max_context))
    return findings + _roles(played)


def _options(policy: MemoryPolicy) -> Finding:
    names = untyped(type(policy))
    if names:
        fix = f"annotate them in the constructor, e.g. {names[0]}: int"
        return Finding("options", False, f"nothing checks the values of {', '.join(names)}: {fix}")
    return Finding("options", True, f"{len(options_of(type(policy)))}, each of a declared type")


def _window(policy: MemoryPolicy, codec: Codec, max_context: int) -> Finding:
    needed = policy.required_context(codec)
    if needed > max_context:
        fault = f"prompts and budgets add up to {needed} tokens, the window is {max_context}"
        return Finding("window", False, f"{fault}: shorten the texts, or lower the budgets")
    return Finding("window", True, f"prompts and budgets need {needed} tokens" if needed else "no minimum window")


def _problem(policy: MemoryPolicy, name: str, question: str, document: str) -> Problem:
    """The document; for a policy that searches, also its passages of twelve words."""
    if policy.reads_documents:
        return Problem(name, question, ("none",), document)
    words = document.split() or ["nothing"]
    passages = [
        {"id": str(at), "title": f"part {at}", "text": " ".join(words[at : at + 12])} for at in range(0, len(words), 12)
    ]
    return Problem(name, question, ("none",), " ".join(words), {"passages": passages})


def _searching(policy: MemoryPolicy, codec: Codec) -> dict[str, Callable[[Sequence[int], int], Sequence[int]]]:
    if not isinstance(policy, ToolAgentPolicy):
        return {}
    name = next((spec.name for spec in policy.specs), "search")
    call = call_text(name, {"query": "part"}, policy.style(codec))
    ids = [*codec.encode_trusted(call), codec.stop_ids[0]]
    return {"searches without end": lambda prompt, limit: ids}


def _long_reply(policy: MemoryPolicy, codec: Codec) -> Callable[[Sequence[int], int], Sequence[int]]:
    return _searching(policy, codec).get("searches without end", _replies(codec)["answers briefly"])


def _replies(codec: Codec) -> dict[str, Callable[[Sequence[int], int], Sequence[int]]]:
    brief = [*codec.encode("a note"), codec.stop_ids[0]]
    filler = codec.encode(" word")[0]
    control = sorted(codec.control_ids)
    return {
        "answers briefly": lambda prompt, limit: brief,
        "fills its budget": lambda prompt, limit: [filler] * limit,
        "repeats its prompt": lambda prompt, limit: prompt,
        "says nothing": lambda prompt, limit: [codec.stop_ids[0]],
        "emits control tokens": lambda prompt, limit: control * 3,
    }


def _words(codec: Codec) -> list[str]:
    """Distinct words of one token each, so that no chunk boundary can cut one."""
    words: list[str] = []
    for index in range(codec.vocab_size):
        word = codec.decode([index])
        if word[:1] == " " and word[1:].isalpha() and word.isascii() and codec.encode(word) == [index]:
            words.append(word)
        if len(words) == WORDS:
            break
    return words


async def _ends(policy: MemoryPolicy, problem: Problem, model: ScriptedModel, name: str) -> Finding:
    try:
        result = await model.play(policy, problem)
    except PromptTooLong:
        return Finding(name, True, "ended as out_of_context (see budget)")
    except _TooManyCalls:
        fault = f"still calling the model after {MAX_CALLS} calls on a document of {WORDS} words: bound the turns"
        return Finding(name, False, fault)
    except Exception as error:  # noqa: BLE001  user code may raise anything: the fault is the finding
        if model.fails and isinstance(error, SamplerError):
            return Finding(name, True, "ended as sampler_failed")
        return Finding(name, False, f"raised {type(error).__name__}: {error} ({raised_at(error)})")
    return Finding(name, True, f"{len(model.prompts)} calls, outcome {result.outcome}")


def _budget(played: dict[str, ScriptedModel]) -> Finding:
    broken = {name: model.overflows[0] for name, model in played.items() if model.overflows}
    if broken:
        name, (prompt, limit) = next(iter(broken.items()))
        fault = f"with a model that {name} a prompt of {prompt} plus {limit} tokens exceeds the window"
        return Finding("budget", False, f"{fault}: shorten the prompt")
    longest = max((len(p) for model in played.values() for p in model.prompts), default=0)
    return Finding("budget", True, f"longest prompt {longest} tokens")


async def _determinism(policy: MemoryPolicy, problem: Problem, codec: Codec, max_context: int) -> Finding:
    reply = _long_reply(policy, codec)

    async def play(question: str) -> list[tuple[int, ...]]:
        asked = dataclasses.replace(problem, question=question)
        return (await ScriptedModel(codec, reply, max_context).tried(policy, asked)).prompts

    alone, again = await play(problem.question), await play(problem.question)
    concurrent, _ = await asyncio.gather(play(problem.question), play("What is the first word?"))
    if alone != again:
        return Finding("determinism", False, "two runs with the same replies built different prompts")
    if alone != concurrent:
        return Finding("determinism", False, "prompts change next to another episode: store no state on self")
    return Finding("determinism", True, "same prompts when repeated and next to another episode")


async def _order(policy: MemoryPolicy, problem: Problem, codec: Codec, max_context: int) -> Finding:
    models = [ScriptedModel(codec, _long_reply(policy, codec), max_context, late=late) for late in (False, True)]
    one, other = [await model.tried(policy, problem) for model in models]
    if one.prompts != other.prompts:
        fix = "start all calls that don't wait for a reply before those that do (generate_all)"
        return Finding("order", False, f"the order in which replies arrive changes the next prompts: {fix}")
    if one.recorded != other.recorded:
        fix = "pass turn=completion.turn, or record them after the calls"
        return Finding("order", False, f"the order in which replies arrive changes the events: {fix}")
    if one.most_in_flight > 1:
        return Finding("order", True, f"up to {one.most_in_flight} calls side by side, in any order of replies")
    return Finding("order", True, f"one call at a time on a document of {WORDS} words")


async def _memory(policy: MemoryPolicy, problem: Problem, model: ScriptedModel) -> Finding:
    memory = "Zed."
    await model.tried(policy, dataclasses.replace(problem, memory=memory))
    if any(memory in model.codec.decode(prompt) for prompt in model.prompts):
        return Finding("memory", True, "the memory at the start is in a prompt")
    return Finding("memory", False, "no prompt has the text of problem.memory: use it, or set takes_memory = False")


async def _sampled_text(policy: MemoryPolicy, problem: Problem, codec: Codec, max_context: int) -> Finding:
    """A reply spelled unlike the tokenizer would must keep its ids in later prompts."""
    text = " Zuq"
    spelled = tuple(i for letter in text for i in codec.encode(letter))
    if codec.decode(spelled) != text or spelled == tuple(codec.encode(text)):
        return Finding("sampled ids", True, "not checked: the tokenizer has one spelling")
    model = ScriptedModel(codec, lambda prompt, limit: [*spelled, codec.stop_ids[0]], max_context)
    for prompt in (await model.tried(policy, problem)).prompts:
        if codec.decode(prompt).count(text) > _occurrences(spelled, prompt):
            fix = "insert codec.strip_stop(completion.token_ids)"
            return Finding("sampled ids", False, f"a prompt has the text of a reply in other tokens: {fix}")
    return Finding("sampled ids", True, "the text of replies keeps its tokens in later prompts")


def _occurrences(ids: tuple[int, ...], prompt: tuple[int, ...]) -> int:
    return sum(prompt[at : at + len(ids)] == ids for at in range(len(prompt)))


def _roles(played: dict[str, ScriptedModel]) -> list[Finding]:
    roles = sorted({role for model in played.values() for role in model.roles})
    names = ", ".join(roles)
    return [Finding("roles", True, f"takes turns as {names}: each needs an entry in `roles`")] if roles else []


async def _document(policy: MemoryPolicy, played: dict[str, ScriptedModel], words: Sequence[str]) -> Finding:
    """Uses the model that sees most words, since a policy may end its reading because of a reply."""
    shown = {name: await _first_shown(policy, played[name], words) for name in _SAYS_NO_WORD if name in played}
    most = max(shown.values(), key=lambda calls: sum(call is not None for call in calls.values()))
    for calls in shown.values():
        if any(later < earlier for earlier, later in itertools.pairwise(c for c in calls.values() if c is not None)):
            return Finding("document", False, "a prompt has a later part of the document before an earlier one")
    lost = [word for word, call in most.items() if call is None]
    if lost:
        return _lost(policy, most, lost)
    early = [other for other, calls in shown.items() if None in calls.values()]
    ends = f"; the reading ends earlier with a model that {early[0]}" if early else ""
    return Finding("document", True, f"all {len(most)} words are in the prompts, in order{ends}")


def _lost(policy: MemoryPolicy, shown: dict[str, int | None], lost: Sequence[str]) -> Finding:
    """The finding for words that no model sees: a policy may drop the end of the document on purpose."""
    read = len(shown) - len(lost)
    if all(call is not None for call in list(shown.values())[:read]) and read:
        part = f"{read} of {len(shown)} words"
        if not policy.reads_to_end:
            return Finding("document", True, f"the first {part} are in the prompts, in order, as declared")
        fix = "if intended, set reads_to_end = False in the class"
        return Finding("document", False, f"the reading ends after {part}, regardless of the model: {fix}")
    return Finding("document", False, f"{len(lost)} of {len(shown)} words never reach a prompt, e.g.{lost[0]}")


async def _long_document(policy: MemoryPolicy, problem: Problem, codec: Codec, max_context: int) -> Finding:
    """Says if the prompts grow with the document; fails if they exceed what the policy declares."""
    needed, reply, longest = policy.required_context(codec), _replies(codec)["fills its budget"], list[int]()
    window = needed or min(max_context, LONGEST)
    for size in (window, 2 * window):
        text = " ".join(itertools.islice(itertools.cycle((problem.context or "").split()), size))
        model = await ScriptedModel(codec, reply, window).tried(policy, dataclasses.replace(problem, context=text))
        longest.append(max(map(len, model.prompts), default=0))
        if needed and model.overflows:
            fault = f"a document of {size:,} words leads to a prompt of {model.overflows[0][0]:,} tokens"
            return Finding("long document", False, f"{fault}; required_context declares {needed:,}")
    grow = "grow" if longest[1] > 1.5 * longest[0] or model.overflows else "don't grow"
    lengths = f"up to {longest[0]:,} tokens for {window:,} words, {longest[1]:,} for {2 * window:,}"
    return Finding("long document", True, f"prompts {grow} with the document: {lengths}")


_SAYS_NO_WORD = ("answers briefly", "says nothing", "fills its budget", "searches without end")
"""Models whose replies contain no more of the document than a one-character document also shows."""


async def _first_shown(policy: MemoryPolicy, model: ScriptedModel, words: Sequence[str]) -> dict[str, int | None]:
    """The first call whose prompt shows each word, or None; without words of the template and of replies."""
    empty = Problem("check-bare", "Which word comes last?", ("none",), "0")
    bare = await ScriptedModel(model.codec, model.reply, model.max_context).tried(policy, empty)
    ignored = {i for prompt in bare.prompts for i in prompt} | set(model.reply((), 1))
    shown: dict[int, int] = {}
    for call, prompt in enumerate(model.prompts):
        for i in prompt:
            shown.setdefault(i, call)
    ids = {word: model.codec.encode(word)[0] for word in words}
    return {word: shown.get(i) for word, i in ids.items() if i not in ignored}


async def _adversarial(policy: MemoryPolicy, codec: Codec, max_context: int) -> Finding:
    markers = [codec.decode([i]) for i in sorted(codec.control_ids)]

    async def control_tokens(words: Sequence[str]) -> list[int]:
        text = " ".join(words)
        problem = _problem(policy, "check-adversarial", text, f"Start. {text} End.")
        model = await ScriptedModel(codec, _long_reply(policy, codec), max_context).tried(policy, problem)
        return [sum(i in codec.control_ids for i in prompt) for prompt in model.prompts]

    plain, attacked = await control_tokens(["plain"]), await control_tokens(markers)
    if max(attacked, default=0) > max(plain, default=0):
        fix = "encode data with codec.encode, not with the tokenizer"
        return Finding("adversarial", False, f"control markers in the text became control tokens: {fix}")
    return Finding("adversarial", True, f"{len(markers)} control markers stay plain text")
