"""Finding a memory policy by name: a shipped one, or `my_module:MyPolicy` from the user's own file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError, nearest
from palimpsest.memory.full_context import FullContextPolicy, SlidingWindowPolicy
from palimpsest.memory.gated import GatedPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.recall import RecallPolicy
from palimpsest.memory.retrieve import RetrievalPolicy
from palimpsest.memory.summary import SummaryPolicy
from palimpsest.memory.tool_window import ToolWindowPolicy
from palimpsest.plugins import named_class
from palimpsest.text.codec import Codec
from palimpsest.types import Problem

POLICIES: dict[str, type[Any]] = {
    "overwrite": OverwritePolicy,
    "recall": RecallPolicy,
    "retrieval": RetrievalPolicy,
    "gated": GatedPolicy,
    "full_context": FullContextPolicy,
    "sliding_window": SlidingWindowPolicy,
    "prune": PrunePolicy,
    "tool_window": ToolWindowPolicy,
    "summary": SummaryPolicy,
}


def policy_class(name: str) -> type[Any]:
    """The class called `name`. A module is looked for in the current folder too."""
    return named_class(name, POLICIES, f"policy.name={name!r}", "policy")


def build_policy(config: PolicyConfig) -> MemoryPolicy:
    """The configured policy. Raises ConfigError naming the option, its value and the nearest known name."""
    cls = policy_class(config.name)
    options = dict(config.options)
    if dataclasses.is_dataclass(cls):
        known = [f.name for f in dataclasses.fields(cls) if f.init]
        for key in options:
            if key not in known:
                raise ConfigError(
                    f"policy.options.{key} is unknown to {config.name}{nearest(key, known)}; known: {', '.join(known)}"
                )
    try:
        policy = cls(**options)
    except TypeError as error:
        raise ConfigError(f"policy.options of {config.name}: {error}") from None
    if not isinstance(policy, MemoryPolicy):
        raise ConfigError(f"policy.name={config.name!r}: the class has no coroutine run(problem, model)")
    return policy


def admit_all(policy: MemoryPolicy, problems: Iterable[Problem], codec: Codec, max_context: int) -> None:
    """Check, before any work, that the model's window holds the policy's budgets and every problem fits them.

    Policies that define neither `required_context` nor `admit` are taken as they are. One that says it reads documents
    is refused where no problem has one.
    """
    required = getattr(policy, "required_context", None)
    if required is not None and (needed := required(codec)) > max_context:
        raise ConfigError(
            f"policy.options: the budgets of {type(policy).__name__} add up to {needed} tokens, the model's context "
            f"is {max_context}; lower chunk_size, question_tokens, memory_tokens, answer_tokens or context_tokens"
        )
    admit = getattr(policy, "admit", None)
    documents = []
    for problem in problems:
        documents.append(problem.context is not None)
        if admit is not None:
            admit(problem, codec)
    if documents and not any(documents) and getattr(policy, "reads_documents", False):
        searching = [name for name, cls in POLICIES.items() if not cls.reads_documents]
        raise ConfigError(
            f"policy.name: {type(policy).__name__} reads documents and these problems have none; to let the agent "
            f"search for them choose one of {', '.join(searching)}"
        )
