"""The loop of an agent that calls tools or acts in an environment, and the prompts that such agents share.

docs/reference/policies.md describes the loop. The defaults of the limits and the structure of the prompts are from
MemAct (arXiv 2510.12635) and its code; the wording is ours. Each result has a short id. The prompt set `standard` is
for pretrained instruction models: a system message, then a user message with the question. `short` is for the embedded
model: the question and the names of the tools, without schemas.

The first observation of an environment (tools/environment.py) follows the question. The last line of a reply outside of
its calls is the action, and its observation a result with an id. The prompt sets `play` and `play_short` are for
environments; they show results as user messages.

Guaranteed: malformed calls, calls in another format, unknown tools, bad arguments, time-outs, exceptions and calls
beyond `parallel_calls` come back to the model as results with ids, are recorded as events, and end no episode; a prompt
and its reply never exceed `context_tokens`; only replies are searched for calls; sampled ids are never changed.
Not covered: a document (`Problem.context`), which is not read; a tool that blocks the event loop.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from palimpsest.errors import ConfigError, DataError, being_cancelled, nearest
from palimpsest.events import ToolCalled, ToolFailed
from palimpsest.memory.parts.history import Exchange, History, Result, sampled_text, tokens_within
from palimpsest.memory.parts.prompts import PromptSet, Slots, Wording, chosen
from palimpsest.memory.policy import Answered, MemoryPolicy, Model, require_positive
from palimpsest.seeding import keyed_random
from palimpsest.text.chat import ChatPieces, chat_pieces, described_tools, native_style, opening, user_pieces
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import spoken_spans
from palimpsest.text.template import Template, insert
from palimpsest.text.tool_calls import CallStyle, Malformed, ToolCall, calls_in
from palimpsest.text.tool_schema import argument_fault
from palimpsest.tools.tool import Tool, ToolError, ToolSpec, build_tools
from palimpsest.types import Completion, Outcome, Problem, Prompt, Span, StopReason

# ---- Texts that all agents with tools share ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPrompts(PromptSet):
    """Texts of an agent with tools, and the format of results."""

    user: Annotated[str, Slots("question", optional=("tools",))] = ""
    """{tools}: the names of the tools."""
    schemas: bool = True
    """Whether the tools are described to the model."""
    result: Annotated[str, Slots("id", "text")] = "[id: {id}] {text}"
    error_chars: int = 400
    """Longest error message; the rest is cut off."""
    results_as: Literal["tool", "user"] = "tool"
    """Messages of results."""
    short_ids: bool = False
    """a, b, ..., z, xa, ..., the same for every problem, instead of six letters and digits by problem."""


_SYSTEM = """You answer questions by research with tools. Look facts up instead of relying on what you remember, one \
small step at a time: a question often needs several searches, each building on what the last one found. Make only a \
few calls at once, read every result, and check an answer before you give it.

When you are certain, or when nothing more can be found, answer without calling a tool: a sentence or two that sum up \
what you found, then a last line that begins with FINAL_ANSWER: and holds the answer alone, as short as it can be. If \
the question has several parts named Q1, Q2 and so on, write after FINAL_ANSWER: one JSON object with these names as \
keys and the answers as strings."""

QUERY = "<user_query>\n{question}\n</user_query>"

STANDARD = ToolPrompts(system=_SYSTEM, user=QUERY)

SHORT = ToolPrompts(
    user="Problem: {question}\nTools: {tools}", schemas=False, result="[{id}] {text}", error_chars=80, short_ids=True
)

_PLAY = """You act in an environment, one step at a time. Think briefly if you need to, then give one command alone on \
the last line of your reply. You read what it did and give the next one, until the task is done."""

PLAY = ToolPrompts(system=_PLAY, user="{question}", results_as="user")

PLAY_SHORT = replace(SHORT, user="{question}", results_as="user")


# ---- The loop of an agent that calls tools -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Action:
    """The action of a reply: its characters [start, end) are `text`, a line outside of the calls."""

    text: str
    start: int
    end: int
    name: ClassVar[str] = "act"
    """The tool in events."""


Found = ToolCall | Malformed | Action

_TAG = re.compile(r"\s*(?:</?[\w|]+>|```\w*)\s*\Z")
_TOOLS = re.compile(r"(?<!\{)\{tools\}")


@dataclass(frozen=True, slots=True)
class Said:
    """The answer to a call."""

    text: str
    error: str | None = None
    """Kind of the error, or None."""


@dataclass(slots=True)
class ToolEpisode:
    """State of one episode; a policy object stores none."""

    problem: Problem
    model: Model
    history: History
    results: int = 0
    """Results so far, deleted ones included."""
    tool_calls: int = 0
    prunes: int = 0
    turns: int = 0
    """Model calls so far."""
    notes: dict[str, str] = field(default_factory=dict)
    """Notes that replaced results, by the id of the call's own result."""
    errors: set[str] = field(default_factory=set)
    """Ids of results that are errors, which may quote the agent."""
    reply: tuple[int, ...] = ()
    """[T] the latest sampled reply."""
    summary: list[int] = field(default_factory=list)
    """[T] the latest summary."""
    lines: list[str] = field(default_factory=list)
    """Lines of a summary that no model wrote."""
    rollbacks: int = 0
    """Results taken back for lack of room so far (memory/edit.py)."""
    level: int = 0
    """Latest fill of the context, in percent, of which the model was informed."""
    replies: set[tuple[int, ...]] = field(default_factory=set)
    """Sampled replies so far (memory/edit.py)."""
    evidence: dict[str, None] = field(default_factory=dict)
    """Evidence of readers, in order of its first discovery."""
    readers: list[int] = field(default_factory=list)
    """Turns of readers (`Completion.turn`)."""
    latest: str = ""
    """The latest observation of the environment."""

    def tokens_of(self, call: ToolCall) -> Span:
        """The tokens of a call in the latest reply."""
        return tokens_within(self.reply, (call.start, call.end), self.model.codec)


@dataclass(frozen=True, slots=True)
class ToolAgentPolicy(MemoryPolicy):
    """Options, with MemAct's published defaults; lengths in tokens unless the name says otherwise."""

    prompt_sets: ClassVar[Mapping[str, ToolPrompts]] = {
        "standard": STANDARD,
        "short": SHORT,
        "play": PLAY,
        "play_short": PLAY_SHORT,
    }
    reads_documents: ClassVar[bool] = False
    """It finds information with its tools."""
    acts: ClassVar[bool] = True
    reward: ClassVar[str] = "final_answer"
    """Reads the answer form of its prompts."""
    tools: Mapping[str, Mapping[str, Any] | None] = field(default_factory=lambda: {"search": {}})
    """Name, or my_module:MyTool, to options (tools/tool.py)."""
    call_style: Literal["auto", CallStyle] = "auto"
    """Format of calls; auto takes the one that reads back the calls of the model's chat template, else hermes."""
    max_turns: int = 40
    """Maximum model calls; an episode that needs more ends as out_of_turns."""
    parallel_calls: int = 5
    """Maximum calls per reply; further calls come back as errors."""
    turn_tokens: int = 4096
    """Budget of one reply; smaller near the end of the context."""
    context_tokens: int = 20_480
    """Limit of a prompt and its reply together; an episode that needs more ends as out_of_context."""
    tool_chars: int = 8192
    """Characters of a tool's text; a longer text is cut and marked."""
    tool_cut: Literal["end", "middle"] = "end"
    """Where a longer text is cut: its end, or its middle (MemAct's code)."""
    tool_timeout_s: float = 30.0
    """Seconds per call; a slower one comes back as an error."""
    prompts: str | Mapping[str, Any] = "standard"
    """`standard`, `short` for the embedded model, `play` and `play_short` for environments, or a YAML file of texts
    (docs/how-to/custom-policy.md)."""
    texts: ToolPrompts = field(init=False, repr=False, compare=False)
    """The texts that `prompts` selects."""
    built: tuple[Tool, ...] = field(init=False, repr=False, compare=False)
    """The tool objects."""

    def __post_init__(self) -> None:
        require_positive(self, "max_turns", "parallel_calls", "turn_tokens", "context_tokens", "tool_chars")
        if not self.tool_timeout_s > 0:
            raise ConfigError("must be above 0 seconds", key="policy.options.tool_timeout_s", value=self.tool_timeout_s)
        if self.turn_tokens >= self.context_tokens:
            room = f"policy.options.context_tokens={self.context_tokens}"
            message = f"leaves no room for a prompt in {room}: lower the former"
            raise ConfigError(message, key="policy.options.turn_tokens", value=self.turn_tokens)
        object.__setattr__(self, "texts", chosen(self.prompts, self.prompt_sets, self.shown_texts()))
        object.__setattr__(self, "built", build_tools(self.tools))

    # --- what the model is told --------------------------------------------------------------------------------

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.built)

    def messages(self) -> tuple[str, str]:
        return self.texts.system, self.texts.user

    def shown_texts(self) -> tuple[str, ...]:
        return ("user", "result")

    def wording(self) -> Wording:
        return Wording(self.texts, self.shown_texts())

    def template(self, codec: Codec, user: str, slots: tuple[str, ...] = ("question",)) -> Template:
        functions = [spec.function() for spec in self.specs] if self.texts.schemas else []
        names = " ".join(spec.name for spec in self.specs)
        return opening(
            codec,
            self.messages()[0],
            _TOOLS.sub(lambda _: names, user),
            slots,
            json.dumps(functions),
            described_tools(functions, self.style(codec)) if functions else "",
            (native_style(codec) or self.call_style) == self.style(codec),
        )

    def style(self, codec: Codec) -> CallStyle:
        return native_style(codec) or "hermes" if self.call_style == "auto" else self.call_style

    def calls(self, reply: Sequence[int], codec: Codec) -> tuple[ToolCall | Malformed, ...]:
        """The calls of a reply's ids; without one, what looks like a call in another format."""
        schemas = {spec.name: spec.parameters for spec in self.specs}
        return calls_in(sampled_text(reply, codec), self.style(codec), schemas)

    def found(self, reply: Sequence[int], model: Model) -> tuple[Found, ...]:
        """`calls`, and after them the action, if there is an environment. There, only calls of its tools are calls."""
        calls = self.calls(reply, model.codec)
        if model.environment is None:
            return calls
        names = {spec.name for spec in self.specs}
        calls = tuple(one for one in calls if (one.name in names if isinstance(one, ToolCall) else not one.unread))
        return (*calls, *_action(sampled_text(reply, model.codec), calls))

    def pieces(self, codec: Codec) -> ChatPieces:
        return chat_pieces(codec) if self.texts.results_as == "tool" else user_pieces(codec)

    def begin(self, problem: Problem, codec: Codec) -> History:
        opening = self.template(codec, self.messages()[1]).fill({"question": codec.encode(problem.question)})
        return History(self.pieces(codec), opening)

    def result_id(self, problem: Problem, number: int) -> str:
        """The id of an episode's result number 0, 1, ...: the same in every rollout, so that prompts are shared."""
        return (_short_id if self.texts.short_ids else _long_id)(problem.id, number)

    def shown(self, result_id: str, text: str) -> str:
        """A result as the model sees it."""
        return insert(self.texts.result, {"id": result_id, "text": text})

    # --- before an episode -------------------------------------------------------------------------------------

    def required_context(self, codec: Codec) -> int:
        return self.context_tokens

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Reject, at load, a problem without room for a first reply, or that a tool cannot serve."""
        length = len(self.begin(problem, codec).ids())
        if length + self.turn_tokens > self.context_tokens:
            raise DataError(
                f"problem {problem.id}: its first prompt has {length} tokens and policy.options.turn_tokens="
                f"{self.turn_tokens}, together more than policy.options.context_tokens={self.context_tokens}; "
                "raise the last or lower the second"
            )
        for tool in self.built:
            tool.admit(problem)

    # --- the loop ----------------------------------------------------------------------------------------------

    async def run(self, problem: Problem, model: Model) -> Answered:
        """Run until a reply has no call, the environment is done, or a limit is reached."""
        self.admit(problem, model.codec)
        environment = model.environment
        if environment is not None:
            shown = self.cut(await environment.reset(problem))
            problem = replace(problem, question=f"{problem.question}\n\n{shown}".strip())
        episode = ToolEpisode(problem, model, self.begin(problem, model.codec))
        while episode.turns < self.max_turns:
            await self.make_room(episode)
            completion = await self.generate(episode, episode.history.ids(), "act", self.turn_tokens)
            if completion is None:
                return Answered(None, Outcome.OUT_OF_CONTEXT)
            calls = self.found(completion.token_ids, model)
            if not calls and environment is None:
                return self.answered(completion, episode)
            if environment is not None or episode.turns < self.max_turns:  # otherwise no turn would see the results
                await self.answer_calls(episode, completion, calls)
            if environment is not None and environment.done:
                return Answered(episode.latest)
        return Answered(None, Outcome.OUT_OF_TURNS)

    async def make_room(self, episode: ToolEpisode) -> None:
        """Shorten the history before a turn; a no-op here."""

    async def generate(self, episode: ToolEpisode, prompt: Prompt, name: str, budget: int) -> Completion | None:
        """A model call, with its budget limited to the rest of the context; None if no room is left."""
        room = min(budget, self.context_tokens - len(prompt))
        if room < 1:
            return None
        episode.turns += 1
        counts: dict[str, Any] = {"tool_calls": episode.tool_calls, "prunes": episode.prunes}
        return await episode.model.generate(prompt, name=name, max_tokens=room, context_tokens=len(prompt), **counts)

    def answered(self, completion: Completion, episode: ToolEpisode) -> Answered:
        """The end of an episode whose last reply calls nothing."""
        text = sampled_text(completion.token_ids, episode.model.codec)
        if completion.stop_reason is not StopReason.LENGTH:
            return Answered(text)
        cut_by_context = len(completion.token_ids) < self.turn_tokens
        return Answered(text, Outcome.OUT_OF_CONTEXT if cut_by_context else Outcome.ANSWER_TRUNCATED)

    async def answer_calls(self, episode: ToolEpisode, completion: Completion, calls: Sequence[Found]) -> None:
        """Answer the calls of a reply and add both to the history. Calls that need no tool come first."""
        episode.reply = tuple(completion.token_ids)
        immediate = [self.immediate_result(episode, call, number) for number, call in enumerate(calls)]
        waiting = [self.ask(episode, call) for call, answer in zip(calls, immediate, strict=True) if answer is None]
        brought = iter(await asyncio.gather(*waiting))
        results = []
        for call, at_once in zip(calls, immediate, strict=True):
            answer = next(brought) if at_once is None else at_once
            results.append(self._result(episode, call, answer))
        episode.history = episode.history.append(Exchange(episode.reply, tuple(results)))

    def immediate_result(self, episode: ToolEpisode, call: Found, number: int) -> Said | None:
        """The answer to a call that needs no tool; otherwise None."""
        if isinstance(call, Action):
            return None if call.text else Said("no action: end with a command alone on the last line", "no_action")
        if isinstance(call, Malformed):
            return Said(call.reason, "unreadable" if call.unread else "malformed")
        if number >= self.parallel_calls:
            return Said(f"not done: at most {self.parallel_calls} calls at once", "too_many")
        spec = next((spec for spec in self.specs if spec.name == call.name), None)
        if spec is None:
            names = [one.name for one in self.specs]
            return Said(
                f"no tool {call.name[:60]!r}{nearest(call.name, names)}; there is {', '.join(names)}", "unknown_tool"
            )
        fault = argument_fault(call.arguments, spec.parameters)
        return None if fault is None else Said(fault, "bad_arguments")

    async def ask(self, episode: ToolEpisode, call: Found) -> Said:
        """The answer to a valid call, from its tool or the environment."""
        if isinstance(call, Action):
            assert episode.model.environment is not None
            episode.latest = self.cut((await episode.model.environment.step(call.text)).observation)
            return Said(episode.latest)
        assert isinstance(call, ToolCall)
        tool = next(tool for tool in self.built if tool.spec.name == call.name)
        limit = asyncio.timeout(self.tool_timeout_s)
        try:
            async with limit:
                text = await tool.call(copy.deepcopy(call.arguments), episode.problem)
            if not isinstance(text, str):
                return Said(f"{call.name} returned {type(text).__name__}, not text", "exception")
            return Said(self.cut(text))
        except ToolError as error:
            return Said(str(error), "exception")
        except (Exception, asyncio.CancelledError) as error:  # user code: exceptions are reported and counted
            if being_cancelled():
                raise
            if limit.expired():
                return Said(f"{call.name} gave no answer within {self.tool_timeout_s:g} s", "timeout")
            return Said(f"{call.name} failed: {type(error).__name__}: {error}", "exception")

    def cut(self, text: str) -> str:
        """A result's text, at most `tool_chars` of it."""
        if len(text) <= self.tool_chars:
            return text
        mark = f"[cut: {self.tool_chars} of {len(text)} characters]"
        if self.tool_cut == "end":
            return f"{text[: self.tool_chars]} {mark}"
        head = (self.tool_chars + 1) // 2
        return f"{text[:head]} {mark} {text[len(text) - (self.tool_chars - head) :]}"

    def _result(self, episode: ToolEpisode, call: Found, answer: Said) -> Result:
        result_id = self.result_id(episode.problem, episode.results)
        episode.results += 1
        text, name = answer.text, None if isinstance(call, Malformed) else call.name
        if answer.error is not None:
            episode.errors.add(result_id)
            text = "error: " + " ".join(text.split())[: self.texts.error_chars]
        ids = tuple(episode.model.codec.encode(self.shown(result_id, text)))
        self.record(episode, call, answer, {"id": result_id, "tool": name, "tokens": len(ids)})
        return Result(result_id, ids, (call.start, call.end))

    def record(self, episode: ToolEpisode, call: Found, answer: Said, about: Mapping[str, Any]) -> None:
        if answer.error is None and not isinstance(call, Malformed):
            episode.tool_calls += 1
            arguments = {"action": call.text} if isinstance(call, Action) else dict(call.arguments)
            episode.model.event(ToolCalled(**about, arguments=arguments))
        else:
            episode.model.event(ToolFailed(str(answer.error), **about, message=answer.text[:400]))


def _within(at: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= at < end for start, end in spans)


def _action(text: str, calls: Sequence[Found]) -> Iterator[Action]:
    """The last line outside of thinking and calls with a word, but no tag or fence; without one an empty action, unless
    there are calls.

    >>> [(one.text, text[one.start:one.end]) for text in ("Left?\\n go  west \\n", "") for one in _action(text, [])]
    [('go west', 'go  west'), ('', '')]
    """
    spoken, hidden = spoken_spans(text), [(one.start, one.end) for one in calls]
    if "<think" not in text and not any(text[start:end].strip() for start, end in spoken):
        spoken = [(0, len(text))]  # a stray tag ends it
    outside = "".join(sign if _within(at, spoken) and not _within(at, hidden) else "\n" for at, sign in enumerate(text))
    lines = [line for line in re.finditer(r"[^\n]+", outside) if re.search(r"\w", line[0]) and not _TAG.match(line[0])]
    if not lines and not calls:
        yield Action("", len(text), len(text))
    for line in lines[-1:]:
        start = line.start() + len(line[0]) - len(line[0].lstrip())
        yield Action(" ".join(line[0].split()), start, line.start() + len(line[0].rstrip()))


_SIGNS = "abcdefghijkmnpqrstuvwxyz23456789"
_LONG = 6


def _short_id(problem_id: str, number: int) -> str:
    """Letters in order, since a small model cannot copy unseen ids; longer from result 26 on.

    >>> [_short_id("p", number) for number in (0, 1, 25, 26, 52)]
    ['a', 'b', 'z', 'xa', 'xxa']
    """
    rounds, digit = divmod(number, len(string.ascii_lowercase))
    return "x" * rounds + string.ascii_lowercase[digit]


def _long_id(problem_id: str, number: int) -> str:
    """Six letters and digits; unique among a problem's first 2**30 results.

    >>> _long_id("p", 0), _long_id("p", 1), _long_id("q", 0)
    ('p2d33w', 'ayvmk9', '3tqhfk')
    """
    draw, count = keyed_random("result ids", problem_id), len(_SIGNS) ** _LONG
    value = (draw.randrange(count) + number * (2 * draw.randrange(count) + 1)) % count  # an odd factor: one to one
    return "".join(_SIGNS[value // len(_SIGNS) ** digit % len(_SIGNS)] for digit in range(_LONG))
