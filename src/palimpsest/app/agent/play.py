"""One episode, to look at: a question and a document, memory by memory, to the answer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from palimpsest.agents.episode_results import Episode, in_words
from palimpsest.agents.open_agent import OpenAgent, with_agent
from palimpsest.app.config_resolution import Agent, Recipe
from palimpsest.app.evaluate.evaluation_data import as_problems
from palimpsest.app.python_calls import blocking
from palimpsest.app.python_objects import CallObjects, as_folder, check_problem, problems_of
from palimpsest.config.load import Overrides
from palimpsest.config.schema import RunConfig
from palimpsest.data.sources.file_source import build_source
from palimpsest.errors import ConfigError
from palimpsest.reward.grading import build_reward, closing, graded
from palimpsest.types import Problem


async def play_async(
    problem: Problem | Mapping[str, Any] | str | None = None,
    context: str | None = None,
    *,
    answers: str | Sequence[str] = (),
    model: Any = "embedded",
    policy: Any = None,
    reward: Any = None,
    recipe: Recipe | None = None,
    overrides: Overrides = (),
    chunks: int | None = None,
    seed: int = 0,
    base_url: str | None = None,
    api_key_env: str | None = None,
    tokenizer: Any = None,
    quiet: bool = False,
) -> Episode:
    """Run one episode, greedily by default (recipe key `eval_sampling`).

    `play` is an ordinary call and works in a notebook; `play_async` is a coroutine.

    - `problem`: a `Problem` or a dict; or a question, with its text as `context` and, for a grade, `answers`; the
      default is the first held-out problem of the recipe's data, generated with `chunks` paragraphs or questions
    - `policy`: a shipped policy, `my_module:MyPolicy`, a class or an object; the default is the recipe's
    - `quiet`: no warning of damaged checkpoints; `play` shows nothing else
    - `model`, `reward`, `recipe`, `overrides`, `seed`, `base_url`, `api_key_env`, `tokenizer`: as for `evaluate`

    Raises ConfigError, DataError or ModelError with a message that names key, value and fix.
    """
    objects = CallObjects("palimpsest.play", model)
    with objects.in_scope(), as_folder(model, tokenizer, None, objects.called) as (model, tokenizer):
        policy, overrides = objects.agent(policy, overrides, reward)
        agent = Agent(model, policy, recipe, overrides, seed, base_url, api_key_env, tokenizer)
        config = agent.config({})
        agent.model_name((lambda line: None) if quiet else (lambda line: warnings.warn(line, stacklevel=3)))
        prepared = _problem(problem, context, answers, chunks, config)
        return await with_agent(config, lambda agent: _played(agent, prepared))


play = blocking(play_async)


async def _played(agent: OpenAgent, problem: Problem) -> Episode:
    trajectory = await agent.play(problem, agent.policy_for(problem), "play")
    grade = None
    if problem.answers or agent.config.environment is not None:
        reward = build_reward(agent.config.reward, agent.engine.codec)
        grade = await closing(reward, graded(reward.answer, problem, trajectory))
    return in_words(problem, trajectory, agent.engine.codec, grade)


def _problem(
    problem: Problem | Mapping[str, Any] | str | None,
    context: str | None,
    answers: str | Sequence[str],
    chunks: int | None,
    config: RunConfig,
) -> Problem:
    _check_types(problem, context, answers)
    if problem is None:
        if context is not None or answers:
            raise ConfigError("play: context and answers need a question; pass the question first")
        return build_source(config.data, config.seed, split="eval").problems(step=0, count=1, size=chunks)[0]
    if chunks is not None:
        raise ConfigError(f"chunks={chunks}: the size of a generated problem; omit it with your own problem")
    if isinstance(problem, Mapping):
        (problem,) = as_problems(problems_of([problem], "palimpsest.play(problem=...)"))
    if isinstance(problem, Problem):
        if context is not None or answers:
            raise ConfigError(f"play: problem {problem.id} already has context and answers; omit the arguments")
        check_problem(problem, "palimpsest.play(problem=...)")
        return problem
    if not problem.strip():
        raise ConfigError("play: the question is blank; omit it to run the first problem of the recipe's data")
    golds = (answers,) if isinstance(answers, str) else tuple(answers)
    return Problem("question", problem, golds, context)


def _check_types(problem: Any, context: Any, answers: Any) -> None:
    texts = [answers] if isinstance(answers, str) else answers
    listed = isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts)
    for name, value, right, wanted in (
        ("problem", problem, isinstance(problem, Problem | Mapping | str | None), "a question, a Problem or a dict"),
        ("context", context, isinstance(context, str | None), "one text, several of them joined: '\\n'.join(texts)"),
        ("answers", answers, listed, "a text or a list of texts"),
    ):
        if not right:
            raise ConfigError(f"palimpsest.play({name}=...) is of type {type(value).__name__}: pass {wanted}")
