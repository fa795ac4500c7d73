"""Baselines of an evaluation: the question only, the whole document, and retrieval, in one call each.

They put a score on documents into perspective: some questions need no document, a document within the window needs no
memory, and passages with the question's words often need no agent. The same model runs them once on the same problems,
under the same reward. They never enter the agent's figures.

    closed book       every problem
    whole document    problems whose whole document fits the window
    retrieval         every problem with a document, in sets with a document longer than the agent's context; prompt
                      and answer have as many tokens as the agent's longest turn

Not covered: several samples of a baseline; problems that begin with a memory.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from palimpsest.agents.open_agent import SMALL_WINDOW, fitted
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.sources.file_source import outlines, some_of
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ConfigError, DataError
from palimpsest.evaluation.runner import Entry
from palimpsest.evaluation.sample_log import Cell, SampleKey
from palimpsest.memory.document_baselines import ClosedBookPolicy, FullContextPolicy, PassagesPolicy
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.text.display_text import counted
from palimpsest.types import Problem

CLOSED_BOOK, WHOLE_DOCUMENT, RETRIEVAL = "closed book", "whole document", "retrieval"
_POLICIES = {CLOSED_BOOK: "closed_book", WHOLE_DOCUMENT: "full_context", RETRIEVAL: "passages"}
_LEAST_PASSAGES = 4  # passages in a small context
_QUESTION = "question_tokens"
_ANSWERS = ("answer_tokens", "turn_tokens")  # options that bound an agent's answer

CellProblems = Mapping[Cell, Sequence[Problem]]
"""Problems by part, a cell without a player."""


def with_baselines(
    agents: Sequence[Entry],
    cells: CellProblems,
    config: RunConfig,
    played: Sequence[PolicyConfig],
    engine: Engine,
    notify: Callable[[str], None],
    done: Container[SampleKey] = (),
) -> list[Entry]:
    """`agents`, which run the policies `played`, with the number of documents that fit the window, plus the baselines
    of `cells`. `notify` gets a message with their number and cost; `done`: episodes to skip."""
    if config.environment is not None:
        return list(agents)  # they act in none
    if any(outline.memory for problems in cells.values() for outline in outlines(problems)):
        notify("no baselines: problems begin with a memory, which baselines can't use")
        return list(agents)
    policies = {name: _policy(name, config, played[0], cells, engine, notify) for name in _POLICIES}
    tokens, names = 0, {policy.name for policy in played}
    baselines, fits = list[Entry](), dict[Cell, int]()
    for part, problems in cells.items():
        lengths, documents, longer = _looked(problems, policies, engine)
        fitting = [index for index, length in enumerate(lengths) if length is not None]
        if documents:
            fits[part] = len(fitting)
        places = {CLOSED_BOOK: range(len(lengths)), WHOLE_DOCUMENT: fitting, RETRIEVAL: documents if longer else ()}
        for name, indices in places.items():
            policy = policies[name]
            if not indices or policy is None or _POLICIES[name] in names:
                continue
            cell = replace(part, player=name, baseline=True)
            fewer = len(problems) if len(indices) < len(problems) else None
            baselines.append(Entry(cell, policy, some_of(problems, indices), part_problems=fewer))
            if name == WHOLE_DOCUMENT:
                left = zip(outlines(problems), lengths, strict=True)
                tokens += sum(size or 0 for outline, size in left if (cell, outline.id, 0) not in done)
    if baselines:
        notify(_cost_message(baselines, tokens))
    return [replace(entry, fits_window=fits.get(replace(entry.cell, player=""))) for entry in agents] + baselines


def _looked(
    problems: Sequence[Problem], policies: Mapping[str, Any], engine: Engine
) -> tuple[list[int | None], list[int], bool]:
    """[problems] tokens of each document that fits the window, otherwise None; the problems with a document; whether
    any document is longer than retrieval shows."""
    lengths, documents, longer = list[int | None](), list[int](), False
    for index, problem in enumerate(problems):  # iteration builds each problem, so iterate once
        lengths.append(_length(problem, policies[WHOLE_DOCUMENT], engine))
        if problem.context is not None:
            documents.append(index)
            longer = longer or (bool(problem.context.strip()) and _length(problem, policies[RETRIEVAL], engine) is None)
    return lengths, documents, longer


def _cost_message(baselines: Sequence[Entry], tokens: int) -> str:
    counts = {name: sum(len(entry.problems) for entry in baselines if entry.cell.player == name) for name in _POLICIES}
    named = [f"{name} on {counted(count, 'problem')}" for name, count in counts.items() if count]
    read = f", {tokens:,} tokens of documents to read" if tokens else ""
    return f"baselines: {', '.join(named)}{read} (--no-baselines skips them)"


def _length(problem: Problem, policy: Any, engine: Engine) -> int | None:
    if not isinstance(policy, FullContextPolicy):
        return None
    return policy.fitting_tokens(problem, engine.codec, engine.sampler.max_context)


def _policy(
    baseline: str,
    config: RunConfig,
    agent: PolicyConfig,
    cells: CellProblems,
    engine: Engine,
    notify: Callable[[str], None],
) -> Any:
    """The baseline with the agent's answer budget and the answer format of the reward; None, with a message, if its
    questions exceed the window."""
    name, window = _POLICIES[baseline], engine.sampler.max_context
    overrides = next((spec.options for spec in config.evaluation.baselines.values() if spec.name == name), {})
    short = agent.options.get("prompts") == "short" or window < SMALL_WINDOW
    form = "final" if config.reward.name == "final_answer" else "standard"
    options = {"prompts": form if not short else "short_final" if form == "final" else "short", **overrides}
    budgets = [agent.options[name] for name in _ANSWERS if name in agent.options]
    if budgets and "answer_tokens" not in overrides:
        options["answer_tokens"] = budgets[0]
    if _QUESTION in overrides:  # the same questions need the agent's budget
        options[_QUESTION] = max(overrides[_QUESTION], agent.options.get(_QUESTION, 0))
    elif baseline == RETRIEVAL and _QUESTION in agent.options:  # passages get the remainder
        options[_QUESTION] = agent.options[_QUESTION]
    try:
        settings = PolicyConfig(name=name, options=options)
        outlined = [outline for problems in cells.values() for outline in outlines(problems)]
        policy = build_policy(fitted(settings, problems=outlined, codec=engine.codec, max_context=window))
        if isinstance(policy, PassagesPolicy) and "window_tokens" not in overrides:
            policy = _as_wide(policy, _context_of(build_policy(agent), engine), engine)
        read = (problem for problem in chain.from_iterable(cells.values()) if problem.context is not None)
        admit_all(policy, outlined if baseline == CLOSED_BOOK else read, engine.codec, window)
    except (ConfigError, DataError) as error:
        notify(f"no baseline {baseline}: {error}")
        return None
    return policy


def _context_of(agent: MemoryPolicy, engine: Engine) -> int:
    """Tokens of an agent's longest turn; the window for policies that fill it, read nothing, or report none."""
    window = engine.sampler.max_context
    unbounded = isinstance(agent, FullContextPolicy) and agent.window_tokens is None
    if unbounded or isinstance(agent, ClosedBookPolicy):
        return window
    return min(window, agent.required_context(engine.codec) or window)


def _as_wide(policy: PassagesPolicy, context: int, engine: Engine) -> MemoryPolicy:
    """`policy` with the document tokens that fill `context` with prompt and answer. Raises ConfigError if
    none remain."""
    room = context - replace(policy, window_tokens=1).required_context(engine.codec) + 1
    if room < 1:
        raise ConfigError(f"the agent's context of {context} tokens has no room for passages and the question")
    return replace(
        policy, window_tokens=room, passage_tokens=max(1, min(policy.passage_tokens, room // _LEAST_PASSAGES))
    )
