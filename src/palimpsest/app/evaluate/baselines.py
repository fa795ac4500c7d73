"""What is always played next to an agent: the question alone, the whole document, and retrieval, in one call each.

A score on documents means little by itself: what a model answers without the document it knew; where the whole
document fits the window a set measures reading, not memory; and what the passages with the question's words answer
needs no agent. They are played by the same model on the same problems, under the same reward, once each, and never
enter the agent's figures.

    closed book       every problem
    whole document    the problems whose document fits the window, whole
    retrieval         every problem with a document, of a set with a longer one than the agent's context holds; its
                      prompt and answer have as many tokens as the agent's longest turn

Not covered: several samples of a baseline; problems that begin with a memory, which have none.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from palimpsest.app.composition import SMALL_WINDOW, fitted
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.sources.file_source import outlines, some_of
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ConfigError, DataError
from palimpsest.evaluation.runner import Entry
from palimpsest.evaluation.sample_log import Cell, SampleKey
from palimpsest.memory.document_baselines import ClosedBookPolicy, FullContextPolicy, PassagesPolicy
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.types import Problem

CLOSED_BOOK, WHOLE_DOCUMENT, RETRIEVAL = "closed book", "whole document", "retrieval"
_POLICIES = {CLOSED_BOOK: "closed_book", WHOLE_DOCUMENT: "full_context", RETRIEVAL: "passages"}
_LEAST_PASSAGES = 4  # that a small context holds, so that there is something to choose from
_QUESTION = "question_tokens"
_ANSWERS = ("answer_tokens", "turn_tokens")  # options that bound an agent's answer

Parts = Mapping[Cell, Sequence[Problem]]
"""Problems by part: cells whose player is not chosen yet."""


def with_baselines(
    agents: Sequence[Entry],
    parts: Parts,
    config: RunConfig,
    played: Sequence[PolicyConfig],
    engine: Engine,
    tell: Callable[[str], None],
    done: Container[SampleKey] = (),
) -> list[Entry]:
    """`agents`, which play the policies `played`, with the number of documents that fit the window, and the baselines
    of `parts`. `tell` gets a message with their number and cost; `done`: episodes that need not be played."""
    if any(each.memory for problems in parts.values() for each in outlines(problems)):
        tell("no baselines: problems begin with a memory, which a baseline has no place for")
        return list(agents)
    policies = {name: _policy(name, config, played[0], parts, engine, tell) for name in _POLICIES}
    tokens, asked = 0, {each.name for each in played}
    baselines, fits = list[Entry](), dict[Cell, int]()
    for part, problems in parts.items():
        lengths, documents, longer = _looked(problems, policies, engine)
        fitting = [place for place, length in enumerate(lengths) if length is not None]
        if documents:
            fits[part] = len(fitting)
        places = {CLOSED_BOOK: range(len(lengths)), WHOLE_DOCUMENT: fitting, RETRIEVAL: documents if longer else ()}
        for name, own in places.items():
            policy = policies[name]
            if not own or policy is None or _POLICIES[name] in asked:
                continue
            cell = replace(part, player=name, baseline=True)
            fewer = len(problems) if len(own) < len(problems) else None
            baselines.append(Entry(cell, policy, some_of(problems, own), part_problems=fewer))
            if name == WHOLE_DOCUMENT:
                left = zip(outlines(problems), lengths, strict=True)
                tokens += sum(size or 0 for each, size in left if (cell, each.id, 0) not in done)
    if baselines:
        tell(_told(baselines, tokens))
    return [replace(each, fits_window=fits.get(replace(each.cell, player=""))) for each in agents] + baselines


def _looked(
    problems: Sequence[Problem], policies: Mapping[str, Any], engine: Engine
) -> tuple[list[int | None], list[int], bool]:
    """[problems] tokens of the documents that fit the window whole; which problems have a document; whether one is
    longer than retrieval shows."""
    lengths, documents, longer = list[int | None](), list[int](), False
    for place, problem in enumerate(problems):  # each is built for it, so once
        lengths.append(_length(problem, policies[WHOLE_DOCUMENT], engine))
        if problem.context is not None:
            documents.append(place)
            longer = longer or (bool(problem.context.strip()) and _length(problem, policies[RETRIEVAL], engine) is None)
    return lengths, documents, longer


def _told(baselines: Sequence[Entry], tokens: int) -> str:
    counts = {name: sum(len(each.problems) for each in baselines if each.cell.player == name) for name in _POLICIES}
    parts = [f"{name} on {count:,} problems" for name, count in counts.items() if count]
    read = f", {tokens:,} tokens of documents to read" if tokens else ""
    return f"baselines: {', '.join(parts)}{read} (--no-baselines leaves them out)"


def _length(problem: Problem, policy: Any, engine: Engine) -> int | None:
    """Tokens of the document, if it fits whole."""
    if not isinstance(policy, FullContextPolicy):
        return None
    return policy.fitting_tokens(problem, engine.codec, engine.sampler.max_context)


def _policy(
    baseline: str,
    config: RunConfig,
    agent: PolicyConfig,
    parts: Parts,
    engine: Engine,
    tell: Callable[[str], None],
) -> Any:
    """The baseline with the agent's budget for an answer and the form of answer that the reward reads; None, and why,
    where its questions don't fit the window."""
    name, window = _POLICIES[baseline], engine.sampler.max_context
    own = next((each.options for each in config.evaluation.baselines.values() if each.name == name), {})
    short = agent.options.get("prompts") == "short" or window < SMALL_WINDOW
    form = "final" if config.reward.name == "final_answer" else "standard"
    options = {"prompts": form if not short else "short_final" if form == "final" else "short", **own}
    budgets = [agent.options[each] for each in _ANSWERS if each in agent.options]
    if budgets and "answer_tokens" not in own:
        options["answer_tokens"] = budgets[0]
    if _QUESTION in own:  # what was asked for the agent's questions holds for the same questions here
        options[_QUESTION] = max(own[_QUESTION], agent.options.get(_QUESTION, 0))
    elif baseline == RETRIEVAL and _QUESTION in agent.options:  # what it leaves is for passages
        options[_QUESTION] = agent.options[_QUESTION]
    try:
        given = PolicyConfig(name=name, options=options)
        asked = [each for problems in parts.values() for each in outlines(problems)]
        policy = build_policy(fitted(given, problems=asked, codec=engine.codec, max_context=window))
        if isinstance(policy, PassagesPolicy) and "window_tokens" not in own:
            policy = _as_wide(policy, _context_of(build_policy(agent), engine), engine)
        read = (each for each in chain.from_iterable(parts.values()) if each.context is not None)
        admit_all(policy, asked if baseline == CLOSED_BOOK else read, engine.codec, window)
    except (ConfigError, DataError) as error:
        tell(f"no baseline {baseline}: {error}")
        return None
    return policy


def _context_of(agent: MemoryPolicy, engine: Engine) -> int:
    """Tokens of an agent's longest turn; the window where it takes all of that, reads nothing, or doesn't say."""
    window = engine.sampler.max_context
    unbounded = isinstance(agent, FullContextPolicy) and agent.window_tokens is None
    if unbounded or isinstance(agent, ClosedBookPolicy):
        return window
    return min(window, agent.required_context(engine.codec) or window)


def _as_wide(policy: PassagesPolicy, context: int, engine: Engine) -> MemoryPolicy:
    """`policy` with as many document tokens as bring prompt and answer to `context` tokens. Raises ConfigError where
    that leaves none."""
    room = context - replace(policy, window_tokens=1).required_context(engine.codec) + 1
    if room < 1:
        raise ConfigError(f"the agent's context of {context} tokens has no room for passages and the question")
    return replace(
        policy, window_tokens=room, passage_tokens=max(1, min(policy.passage_tokens, room // _LEAST_PASSAGES))
    )
