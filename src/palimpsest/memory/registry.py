"""Memory policies by name, as training and evaluation run them, and whether they suit problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from palimpsest import plugins
from palimpsest.config.keys import is_key_name, nearest_key
from palimpsest.config.schema import EnvironmentConfig, PolicyConfig, RunConfig
from palimpsest.errors import ConfigError, nearest
from palimpsest.memory.overwrite import LongQuestion
from palimpsest.memory.parts.prompts import KEY as PROMPTS
from palimpsest.memory.parts.tool_agent import ToolAgentPolicy
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.plugin_kinds import KINDS
from palimpsest.plugin_options import UnknownOption, options_of
from palimpsest.text.codec import Codec
from palimpsest.tools.environment import Environment, OpenEnvironment
from palimpsest.types import Problem


def policy_class(name: str) -> type[MemoryPolicy]:
    """The policy class called `name`, or of the object at `module:name`. Raises ConfigError."""
    thing = plugins.load("policy", name)
    cls = thing if isinstance(thing, type) else type(thing)
    plugins.check_class("policy", cls, name)
    return plugins.completed(cls, "policy")


def build_policy(config: PolicyConfig) -> MemoryPolicy:
    """The configured policy. Raises ConfigError naming the option, its value and what it must be."""
    try:
        policy: MemoryPolicy = plugins.build("policy", config.name, config.options)
    except UnknownOption as error:
        option = option_of(error) or ""
        error.message += nearest_key(option) if is_key_name(option) else "; policy.options={} drops those of a recipe"
        raise
    return policy


def declared_roles(policy: str) -> tuple[str, ...] | None:
    """Roles of a policy's turns; None: a custom policy that does not declare them."""
    declared = policy_class(policy).roles
    return () if declared is None and policy in KINDS["policy"].shipped else declared


def check_roles(config: RunConfig) -> None:
    """Raise ConfigError for roles that differ from those that the policy declares, if it does."""
    name = config.policy.name
    declared = declared_roles(name)
    if declared is None:
        return
    if unknown := next((role for role in config.roles if role not in declared), None):
        hint = f"{name} has {', '.join(declared) or 'no role'}{nearest(unknown, declared)}"
        raise ConfigError(f"is no role: {hint}", key=f"roles.{unknown}")
    if missing := next((role for role in declared if role not in config.roles), None):
        hint = f"set roles.{missing}.model for a frozen model, or roles.{missing}.temperature for the trained one"
        raise ConfigError(f"is missing, a role of {name}: {hint}", key=f"roles.{missing}")


def evaluated(config: PolicyConfig) -> PolicyConfig:
    """The policy in evaluation: without the options that limit how much training reads.

    >>> evaluated(PolicyConfig(name="overwrite", options={"max_chunks": 8, "chunk_size": 5000})).options
    {'chunk_size': 5000}
    """
    limits = policy_class(config.name).training_limits
    options = {name: value for name, value in config.options.items() if name not in limits}
    return PolicyConfig(name=config.name, options=options)


REPLIES = ("memory_tokens", "answer_tokens")
"""Reply budgets, whose defaults an evaluation without a run or recipe scales with the model's window."""


def trained(config: PolicyConfig) -> PolicyConfig:
    """The policy of a run or recipe in evaluation: `evaluated`, with default reply budgets written out.

    >>> trained(PolicyConfig(name="overwrite", options={"memory_tokens": 8})).options
    {'memory_tokens': 8, 'answer_tokens': 1024}
    """
    options = options_of(policy_class(config.name))
    replies = {name: options[name].default for name in REPLIES if name in options and not options[name].required}
    return PolicyConfig(name=config.name, options=replies | evaluated(config).options)


def option_of(error: ConfigError) -> str | None:
    """The policy option that the error is about, or None."""
    prefix, _, option = (error.key or "").partition("policy.options.")
    return option.partition(".")[0] if option and not prefix else None


def admit_all(
    policy: MemoryPolicy,
    problems: Iterable[Problem],
    codec: Codec,
    max_context: int,
    note: str = "",
    environment: EnvironmentConfig | None = None,
) -> None:
    """Check, before any work, that the budgets fit the model's window and that every problem fits the budgets and has
    what the environment needs.

    A policy that reads documents is rejected if no problem has one. `note`: a remark on the window.
    """
    cls = type(policy)
    path, shipped = f"{cls.__module__}:{cls.__qualname__}", KINDS["policy"].shipped
    name = next((name for name, where in shipped.items() if where == path), cls.__name__)
    with nullcontext() if environment is None else _environment(environment, policy, name) as opened:
        _check_window(policy, name, codec, max_context, note)
        _admit(policy, name, problems, codec, opened)


def _admit(
    policy: MemoryPolicy, name: str, problems: Iterable[Problem], codec: Codec, environment: Environment | None
) -> None:
    documents, long = [], list[LongQuestion]()
    for problem in problems:
        documents.append(problem.context is not None)
        _suits(problem, policy, name)
        if environment is not None:
            environment.admit(problem)
        try:
            policy.admit(problem, codec)
        except LongQuestion as error:
            long.append(error)
    if long:
        raise max(long, key=lambda error: error.tokens)  # so that one fix suffices
    if documents and policy.reads_documents and not any(documents):
        agents = _shipped(lambda cls: not cls.reads_documents and issubclass(cls, ToolAgentPolicy))
        raise ConfigError(
            f"policy.name: {name} reads documents and these problems have none; to search instead, "
            f"choose one of {agents} (a custom policy that needs none sets reads_documents = False)"
        )


def _check_window(policy: MemoryPolicy, name: str, codec: Codec, max_context: int, note: str) -> None:
    if (needed := policy.required_context(codec)) > max_context:
        sizes = [(option, getattr(policy, option, None)) for option in options_of(type(policy))]
        budgets = [f"{option}={size}" for option, size in sizes if size and option.endswith(("chunk_size", "_tokens"))]
        raise ConfigError(
            f"policy.options: prompts and budgets of {name} add up to {needed} tokens, the model's context "
            f"is {max_context}{note and f' ({note})'}; lower {', '.join(budgets) or 'its budgets'}"
        )


def _suits(problem: Problem, policy: MemoryPolicy, name: str) -> None:
    if problem.questions and not policy.answers_questions:
        raise _asks_several(problem, name)
    if problem.memory and not policy.takes_memory:
        raise _brings_memory(problem, name)


def _environment(
    environment: EnvironmentConfig, policy: MemoryPolicy, name: str
) -> AbstractContextManager[Environment]:
    """An environment that the policy acts in."""
    if not policy.acts:
        message = f"{name} acts in no environment; choose one of {_shipped(lambda cls: cls.acts)}"
        raise ConfigError(f"policy.name: {message} (a custom policy that does sets acts = True)")
    if isinstance(policy, ToolAgentPolicy) and policy.prompts in ("standard", "short"):
        raise ConfigError("asks a question; in an environment set play, play_short or a file", key=PROMPTS)
    return OpenEnvironment(environment).built()


def _shipped(suits: Callable[[type[MemoryPolicy]], bool]) -> str:
    return ", ".join(name for name in KINDS["policy"].shipped if suits(policy_class(name)))


def _brings_memory(problem: Problem, name: str) -> ConfigError:
    choices = _shipped(lambda cls: cls.takes_memory)
    return ConfigError(
        f"policy.name: {name} starts without a memory and problem {problem.id} has one; choose one of {choices}, or "
        "set data.synthetic.starts=null (for a file: drop its column `memory`). A custom policy that starts with "
        "Problem.memory sets takes_memory = True"
    )


def _asks_several(problem: Problem, name: str) -> ConfigError:
    choices = _shipped(lambda cls: cls.answers_questions)
    return ConfigError(
        f"policy.name: {name} answers one question and problem {problem.id} has {len(problem.questions)}; choose one "
        f"of {choices}, or use one row per question (a custom policy that answers them all sets "
        "answers_questions = True)"
    )
