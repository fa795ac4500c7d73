"""Finding a memory policy by name: a shipped one, or `my_module:MyPolicy` from the user's own file."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Container, Iterable
from types import FunctionType
from typing import Any

from palimpsest import plugin_options
from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError
from palimpsest.memory.document_baselines import (
    ClosedBookPolicy,
    FullContextPolicy,
    PassagesPolicy,
    SlidingWindowPolicy,
)
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.parts.tool_agent import ToolAgentPolicy
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.recall import RecallPolicy, RetrievalPolicy
from palimpsest.memory.tool_baselines import SummaryPolicy, ToolWindowPolicy
from palimpsest.plugins import completed, found, is_given, named_class
from palimpsest.text.codec import Codec
from palimpsest.types import Problem

POLICIES: dict[str, type[MemoryPolicy]] = {
    "overwrite": OverwritePolicy,
    "recall": RecallPolicy,
    "retrieval": RetrievalPolicy,
    "full_context": FullContextPolicy,
    "sliding_window": SlidingWindowPolicy,
    "passages": PassagesPolicy,
    "closed_book": ClosedBookPolicy,
    "prune": PrunePolicy,
    "tool_window": ToolWindowPolicy,
    "summary": SummaryPolicy,
}
"""All that is to edit for a further one: what else there is to know of a policy, its class says."""


def policy_class(name: str) -> type[MemoryPolicy]:
    """The class called `name`, or of the object that it means. A module is looked for in the current folder too."""
    where = f"policy.name={name!r}"
    made = made_policy(name)
    cls = named_class(name, POLICIES, where, "policy") if made is None else type(made)
    if not callable(getattr(cls, "run", None)):
        raise ConfigError(f"{where}: the class has no coroutine run(problem, model)")
    run = inspect.unwrap(cls.run)
    if isinstance(run, FunctionType) and not inspect.iscoroutinefunction(run):
        raise ConfigError(f"{where}: run is no coroutine: write async def run(self, problem, model)")
    return completed(cls, MemoryPolicy)  # type: ignore[type-abstract]


def whole_policy(policy: Any) -> MemoryPolicy:
    """An object with a coroutine `run` as a policy: what its class leaves out has the defaults of the contract."""
    whole = completed(type(policy), MemoryPolicy)  # type: ignore[type-abstract]
    if whole is type(policy):
        return policy
    made = copy.copy(policy)
    made.__class__ = whole
    return made  # type: ignore[no-any-return]


def made_policy(name: str) -> Any:
    """The object that a name means, made by a caller in Python; None: the name means a class."""
    if not is_given(name):
        return None
    thing = found(name, f"policy.name={name!r}")
    return None if isinstance(thing, type) else thing


def build_policy(config: PolicyConfig) -> MemoryPolicy:
    """The configured policy. Raises ConfigError naming the option, its value and what it must be."""
    made = made_policy(config.name)
    if made is not None and config.options:
        raise ConfigError(
            f"policy.options.{next(iter(config.options))}: {config.name} is an object, which has its options already; "
            "set them where it is made, or give the class"
        )
    if made is not None:
        policy_class(config.name)
        return whole_policy(made)
    return plugin_options.build(policy_class(config.name), config.options, "policy.options", config.name)


def evaluated(config: PolicyConfig) -> PolicyConfig:
    """The policy as evaluation plays it: without what bounds how much training reads, then with its `eval_options`.

    >>> evaluated(PolicyConfig(name="overwrite", options={"max_chunks": 8, "chunk_size": 5000})).options
    {'chunk_size': 5000}
    >>> evaluated(PolicyConfig(options={"max_chunks": 8}, eval_options={"max_chunks": 2})).options
    {'max_chunks': 2}
    """
    limits = policy_class(config.name).training_limits
    kept = {name: value for name, value in config.options.items() if name not in limits}
    return PolicyConfig(name=config.name, options={**kept, **config.eval_options})


def build_evaluated(config: PolicyConfig) -> MemoryPolicy:
    """The policy as evaluation plays it. Raises ConfigError naming an option by the key that sets it."""
    try:
        return build_policy(evaluated(config))
    except ConfigError as error:
        raise ConfigError(under_key(str(error), config.eval_options, "policy.eval_options")) from None


def under_key(message: str, options: Container[str], key: str) -> str:
    """A message that names `policy.options.NAME`, with `key` in its place for each of `options`.

    >>> under_key("policy.options.max_chunks=0: must be at least 1", {"max_chunks": 0}, "policy.eval_options")
    'policy.eval_options.max_chunks=0: must be at least 1'
    """
    return re.sub(
        r"policy\.options\.(\w+)", lambda found: f"{key}.{found[1]}" if found[1] in options else found[0], message
    )


def admit_all(
    policy: MemoryPolicy, problems: Iterable[Problem], codec: Codec, max_context: int, note: str = ""
) -> None:
    """Check, before any work, that the model's window holds the policy's budgets and every problem fits them.

    A policy that reads documents is refused where no problem has one. `note` says what is to be known of the window.
    """
    name = type(policy).__name__
    if (needed := policy.required_context(codec)) > max_context:
        raise ConfigError(
            f"policy.options: the budgets of {name} add up to {needed} tokens, the model's context "
            f"is {max_context}{note and f' ({note})'}; lower chunk_size, question_tokens, memory_tokens, answer_tokens "
            "or context_tokens"
        )
    documents = []
    for problem in problems:
        documents.append(problem.context is not None)
        if problem.questions and not policy.answers_questions:
            raise _asks_several(problem, name)
        if problem.memory and not policy.takes_memory:
            raise _brings_memory(problem, name)
        policy.admit(problem, codec)
    if documents and policy.reads_documents and not any(documents):
        raise ConfigError(
            f"policy.name: {name} reads documents and these problems have none; to let the agent search for them "
            f"choose one of {', '.join(_AGENTS)} (a policy of your own that needs none says "
            "reads_documents = False)"
        )


_AGENTS = [name for name, cls in POLICIES.items() if issubclass(cls, ToolAgentPolicy)]


def _shipped(says: str, value: bool = True) -> str:
    """Names of the shipped policies that say so of themselves."""
    return ", ".join(name for name, cls in POLICIES.items() if getattr(cls, says) is value)


def _brings_memory(problem: Problem, name: str) -> ConfigError:
    return ConfigError(
        f"policy.name: {name} begins without a memory and problem {problem.id} brings one; choose one of "
        f"{_shipped('takes_memory')}, or drop `memory` from the data (a policy of your own that begins with "
        "Problem.memory says takes_memory = True)"
    )


def _asks_several(problem: Problem, name: str) -> ConfigError:
    return ConfigError(
        f"policy.name: {name} answers one question and problem {problem.id} asks {len(problem.questions)}; choose one "
        f"of {_shipped('answers_questions')}, or give each question a row of its own (a policy of your own that "
        "answers them all says answers_questions = True)"
    )
