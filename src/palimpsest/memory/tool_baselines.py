"""Baselines with tools: a tool history summed up by the model, compacted without a model, or cut to its last tokens.

`SummaryPolicy` follows SUPO (arXiv 2510.06727). Before a turn that no longer fits in the context:

    summary = model(history, "sum up")           a separate turn, called summarise, trained like any other
    history = question, summary                  and continue from there

The paper always excludes the latest reply and its results from the summary, so that the request fits. Here they are
excluded only if it does not fit. Every reply is trained where it was sampled.

`CompactionPolicy` writes the summary without a model, from all exchanges but the latest:

    cut          each call in one line with its result, cut to `result_chars`: the rules of CliffCompaction (arXiv
                 2609.26779), whose defaults are here
    checklist    sentences of the results that contain a name or number of the question, each once

Later compactions append to the summary, which is never compacted itself; beyond `summary_tokens` its oldest lines go.

`ToolWindowPolicy` has no memory. It follows the sliding-window baseline of MemAct (arXiv 2510.12635), whose window is
8K. Before each turn the oldest replies leave with their results, whole, until the rest has at most `window_tokens`. The
question stays, and so does the latest reply with its results, even if they exceed the window.

Guaranteed: a prompt and its reply never exceed `context_tokens`; the sampled ids of a summary enter the next prompt,
without control tokens and thinking; a summary counts as one of `max_turns`.
Not covered: hallucinations in a summary, unless `grounded` is on; the paper's masking of overlong rollouts, which
belongs to training; informing the model that a reply has left the window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from palimpsest.errors import DataError, ModelError
from palimpsest.events import ExchangesDropped, SummedUp
from palimpsest.memory.parts import tool_agent
from palimpsest.memory.parts.grounded import Grounded, GroundedRule, sift
from palimpsest.memory.parts.history import Exchange, History
from palimpsest.memory.parts.prompts import Slots, shared
from palimpsest.memory.parts.tool_agent import QUERY, Action, ToolAgentPolicy, ToolEpisode, ToolPrompts
from palimpsest.memory.policy import require_positive
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import without_thinking
from palimpsest.text.sentences import Unit, sentences
from palimpsest.text.tool_calls import Malformed, ToolCall
from palimpsest.types import Completion, Problem, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPrompts(ToolPrompts):
    """Texts of the tool agent, plus texts for the summary."""

    user_summary: Annotated[str, Slots("question", "summary", optional=("tools",))] = ""
    """The question after a summary replaced the history."""
    summarise: Annotated[str, Slots()] = ""
    """Requests that summary."""


STANDARD = SummaryPrompts(
    **shared(tool_agent.STANDARD),
    user_summary=QUERY + "\n\nYour research so far, as you summed it up before the context was cleared:\n\n"
    "<summary>\n{summary}\n</summary>\n\nGo on from there.",
    summarise="The context is full and will be cleared: only the question and what you write now will be left. Sum up "
    "your research: the facts you established, each with what it rests on, what you tried without success, what is "
    "still open, and the next step. Call no tool and don't answer the question yet.",
)
"""Our wording."""

SHORT = SummaryPrompts(
    **shared(tool_agent.SHORT),
    user_summary="Problem: {question}\nMemory:{summary}\nTools: {tools}",
    summarise="Update the memory.",
)
"""For the embedded model."""

PLAY = SummaryPrompts(
    **shared(tool_agent.PLAY),
    user_summary="{question}\n\nWhat you did so far, as you summed it up before the context was cleared:\n\n"
    "<summary>\n{summary}\n</summary>\n\nGo on from there.",
    summarise="The context is full and will be cleared: only the task and what you write now will be left. Sum up "
    "where you are, what you have, what you tried, and what is left to do. Give no command yet.",
)
PLAY_SHORT = SummaryPrompts(
    **shared(tool_agent.PLAY_SHORT),
    user_summary="{question}\nMemory:{summary}",
    summarise=SHORT.summarise,
)


@dataclass(frozen=True, slots=True)
class WithSummary(ToolAgentPolicy):
    """Options of the tool agent, and the length of a summary that replaces its history."""

    prompt_sets: ClassVar[Mapping[str, SummaryPrompts]] = {
        "standard": STANDARD,
        "short": SHORT,
        "play": PLAY,
        "play_short": PLAY_SHORT,
    }
    texts: SummaryPrompts = field(init=False, repr=False, compare=False)
    summary_tokens: int = 1024
    """Budget of a summary."""

    def __post_init__(self) -> None:
        ToolAgentPolicy.__post_init__(self)
        require_positive(self, "summary_tokens")

    def shown_texts(self) -> tuple[str, ...]:
        return ("user", "result", "user_summary", "summarise")

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Reject, at load, a problem without room for a turn after a summary."""
        ToolAgentPolicy.admit(self, problem, codec)
        if self.pieces(codec).to_user is None:
            raise ModelError("the model's chat template allows no user message after tool results: summaries need one")
        length = len(self.resumed(problem, (0,) * self.summary_tokens, codec).ids())
        if length + self.turn_tokens > self.context_tokens:
            raise DataError(
                f"problem {problem.id}: with a summary its prompt has {length} tokens and policy.options.turn_tokens="
                f"{self.turn_tokens}, together more than policy.options.context_tokens={self.context_tokens}; "
                "raise the last or lower policy.options.summary_tokens"
            )

    def resumed(self, problem: Problem, summary: Sequence[int], codec: Codec) -> History:
        template = self.template(codec, self.texts.user_summary, ("question", "summary"))
        values = {"question": codec.encode(problem.question), "summary": summary}
        return History(self.pieces(codec), template.fill(values))

    def full(self, episode: ToolEpisode) -> bool:
        """Whether no room for a turn is left."""
        return len(episode.history.ids()) + self.turn_tokens > self.context_tokens


@dataclass(frozen=True, slots=True)
class SummaryPolicy(WithSummary):
    """Options of the tool agent, of the summary and its filter."""

    grounded: Grounded = "off"
    """Filter for summaries: `off`, none (published); `verbatim`, units that occur in the summarised results or the
    previous summary; `close`, also paraphrases of these. If no unit passes, the previous summary stays."""
    unit: Unit = "sentence"
    """Unit that `grounded` stores or drops whole: a `sentence`, an `item` of a list or a `line`."""

    async def make_room(self, episode: ToolEpisode) -> None:
        codec, before = episode.model.codec, episode.history
        if not self.full(episode) or episode.turns + 1 >= self.max_turns:
            return
        request = codec.encode(self.texts.summarise)
        included = before
        room = self.context_tokens - self.summary_tokens
        while included.exchanges and len(included.ids_with_user(request)) > room:
            included = replace(included, exchanges=included.exchanges[:-1])
        if not included.exchanges:
            return  # the first results fill the context: the turn ends as out_of_context
        completion = await self.generate(episode, included.ids_with_user(request), "summarise", self.summary_tokens)
        assert completion is not None
        summary = self._sifted(completion, included, episode)
        episode.history = self.resumed(episode.problem, summary, codec)
        left_out = len(before.exchanges) - len(included.exchanges)
        episode.model.event(SummedUp(len(summary), codec.decode(summary), left_out))

    def _sifted(self, completion: Completion, history: History, episode: ToolEpisode) -> list[int]:
        """[T] the next summary."""
        codec = episode.model.codec
        summary = without_thinking(completion.token_ids, codec, self.pieces(codec).generation)
        if self.grounded != "off":
            results = [result.ids for result in history.results() if result.id not in episode.errors]
            sources = [*results, episode.summary]
            cut_off = completion.stop_reason is StopReason.LENGTH
            left = sift(summary, sources, codec, GroundedRule(self.grounded, self.unit), cut_off=cut_off)
            summary = left.ids or episode.summary
            if left.dropped:
                episode.model.event(left.event(episode.summary))
        episode.summary = summary
        return summary


# ---- Compaction without a model ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactionPolicy(WithSummary):
    """Options of the tool agent, of the summary and its rule."""

    rule: Literal["cut", "checklist"] = "cut"
    """`cut`, every call and the beginning of its result; `checklist`, sentences with a name or number of the question.
    """
    result_chars: int = 500
    """Characters of a result under `cut`."""
    recent_turns: int = 3
    """Latest exchanges that stay whole; fewer if no turn fits otherwise."""

    def __post_init__(self) -> None:
        WithSummary.__post_init__(self)
        require_positive(self, "result_chars", "recent_turns")

    def shown_texts(self) -> tuple[str, ...]:
        return ("user", "result", "user_summary")

    async def make_room(self, episode: ToolEpisode) -> None:
        for recent in range(self.recent_turns, 0, -1):
            exchanges = episode.history.exchanges
            if not self.full(episode):
                return
            if len(exchanges) > recent:
                self._compact(episode, exchanges[:-recent], exchanges[-recent:])

    def _compact(self, episode: ToolEpisode, old: Sequence[Exchange], recent: Sequence[Exchange]) -> None:
        codec = episode.model.codec
        write = self._cut if self.rule == "cut" else self._checked
        for exchange in old:
            episode.lines += [line for line in write(episode, exchange) if line not in episode.lines]
        while len(ids := codec.encode(" " + "\n".join(episode.lines))) > self.summary_tokens and episode.lines[1:]:
            del episode.lines[0]
        episode.summary = ids[: self.summary_tokens] if episode.lines else []
        resumed = self.resumed(episode.problem, episode.summary, codec)
        episode.history = replace(resumed, exchanges=tuple(recent))
        episode.model.event(SummedUp(len(episode.summary), codec.decode(episode.summary), len(recent)))

    def _cut(self, episode: ToolEpisode, exchange: Exchange) -> list[str]:
        calls = self.found(exchange.reply, episode.model)
        names = {(one.start, one.end): _line(one) for one in calls if not isinstance(one, Malformed)}
        texts = zip(exchange.results, self._texts(episode, exchange), strict=True)
        return [f"{names.get(result.call, '')}: {text[: self.result_chars]}" for result, text in texts]

    def _checked(self, episode: ToolEpisode, exchange: Exchange) -> list[str]:
        wanted = set(_NAMED.findall(episode.problem.question)) - _first_words(episode.problem.question)
        units = [unit for text in self._texts(episode, exchange) for unit in sentences(text)]
        return [unit for unit in units if wanted & set(_NAMED.findall(unit))]

    def _texts(self, episode: ToolEpisode, exchange: Exchange) -> list[str]:
        """Results without their numbers."""
        decode = episode.model.codec.decode
        return [decode(one.ids, control=False).removeprefix(self.shown(one.id, "")) for one in exchange.results]


def _line(call: ToolCall | Action) -> str:
    """
    >>> _line(ToolCall("search", {"query": "Alice"}, 0, 9)), _line(Action("go north", 0, 8))
    ('search(Alice)', 'go north')
    """
    return (
        call.text
        if isinstance(call, Action)
        else f"{call.name}({', '.join(' '.join(str(value).split()) for value in call.arguments.values())})"
    )


_NAMED = re.compile(r"\b(?:[^\W\d_a-z]\w*|\d[\d.,]*\d|\d)")
"""A capitalised word, or a number."""


def _first_words(text: str) -> set[str]:
    """Words that are capitalised only because they begin a sentence.

    >>> _first_words("Q1: Whom did Ann marry? What is it?") == {"Q1", "Whom", "What"}
    True
    """
    return set(re.findall(r"(?:^|[.:?!]\s+|\n)(\w+)", text))


# ---- A baseline without memory -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolWindowPolicy(ToolAgentPolicy):
    """Options of the tool agent, and the window."""

    window_tokens: int = 8192
    """Tokens of replies and results that stay in the context."""

    def __post_init__(self) -> None:
        ToolAgentPolicy.__post_init__(self)
        require_positive(self, "window_tokens")

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Reject, at load, a problem that leaves no room for a reply next to a full window."""
        ToolAgentPolicy.admit(self, problem, codec)
        length = len(self.begin(problem, codec).ids())
        if length + self.window_tokens >= self.context_tokens:
            raise DataError(
                f"problem {problem.id}: its first prompt has {length} tokens, which with policy.options.window_tokens="
                f"{self.window_tokens} leaves no room for a reply in policy.options.context_tokens="
                f"{self.context_tokens}; lower the former or raise the latter"
            )

    async def make_room(self, episode: ToolEpisode) -> None:
        first = dropped_exchanges(episode.history.exchange_lengths(), self.window_tokens)
        if first:
            episode.history = replace(episode.history, exchanges=episode.history.exchanges[first:])
            episode.model.event(ExchangesDropped(first))


def dropped_exchanges(lengths: list[int], window: int) -> int:
    """How many of the oldest exchanges to drop.

    >>> dropped_exchanges([5, 4, 3], 12), dropped_exchanges([5, 4, 3], 7), dropped_exchanges([5, 4, 3], 1)
    (0, 1, 2)
    """
    first, total = 0, sum(lengths)
    while total > window and first < len(lengths) - 1:
        total -= lengths[first]
        first += 1
    return first
