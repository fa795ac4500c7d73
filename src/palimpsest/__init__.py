"""Train and evaluate language-model agents that manage their own memory.

    import palimpsest

    run = palimpsest.train("memagent-quickstart", {"train.max_steps": 20}, out="runs/first")
    print(run.evaluate(chunks=[4, 64], limit=32))
    print(run.play(chunks=16).memories)

Names are imported on first use: a bare `import palimpsest` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from palimpsest._version import __version__ as __version__

if TYPE_CHECKING:
    from palimpsest.agents.episode_results import Asked as Asked
    from palimpsest.agents.episode_results import Episode as Episode
    from palimpsest.app.agent.ask_files import ask as ask
    from palimpsest.app.agent.ask_files import ask_async as ask_async
    from palimpsest.app.agent.play import play as play
    from palimpsest.app.agent.play import play_async as play_async
    from palimpsest.app.evaluate.evaluation_result import Evaluation as Evaluation
    from palimpsest.app.evaluate.evaluation_run import evaluate as evaluate
    from palimpsest.app.evaluate.evaluation_run import evaluate_async as evaluate_async
    from palimpsest.app.evaluate.run_comparison import Comparison as Comparison
    from palimpsest.app.evaluate.run_comparison import compare as compare
    from palimpsest.app.league.league_run import league as league
    from palimpsest.app.league.league_run import league_async as league_async
    from palimpsest.app.quickstart.quickstart_run import Quickstart as Quickstart
    from palimpsest.app.quickstart.quickstart_run import quickstart as quickstart
    from palimpsest.app.quickstart.quickstart_run import quickstart_async as quickstart_async
    from palimpsest.app.train.run_handle import Run as Run
    from palimpsest.app.train.training_run import train as train
    from palimpsest.app.train.training_run import train_async as train_async
    from palimpsest.config.load import load_recipe as load_recipe
    from palimpsest.config.schema import RunConfig as RunConfig
    from palimpsest.errors import PalimpsestError as PalimpsestError
    from palimpsest.memory.policy import Answered as Answered
    from palimpsest.memory.policy import MemoryPolicy as MemoryPolicy
    from palimpsest.memory.policy import Model as Model
    from palimpsest.text.codec import Codec as Codec
    from palimpsest.tools.tool import Tool as Tool
    from palimpsest.types import Completion as Completion
    from palimpsest.types import Grade as Grade
    from palimpsest.types import Group as Group
    from palimpsest.types import Outcome as Outcome
    from palimpsest.types import Problem as Problem
    from palimpsest.types import Question as Question
    from palimpsest.types import StopReason as StopReason
    from palimpsest.types import Trajectory as Trajectory
    from palimpsest.types import Turn as Turn


_EXPORTS: dict[str, tuple[str, ...]] = {
    "config.load": ("load_recipe",),
    "config.schema": ("RunConfig",),
    "errors": ("PalimpsestError",),
    "app.evaluate.run_comparison": ("compare", "Comparison"),
    "agents.episode_results": ("Asked", "Episode"),
    "app.agent.ask_files": ("ask", "ask_async"),
    "app.evaluate.evaluation_result": ("Evaluation",),
    "app.evaluate.evaluation_run": ("evaluate", "evaluate_async"),
    "app.agent.play": ("play", "play_async"),
    "app.league.league_run": ("league", "league_async"),
    "app.quickstart.quickstart_run": ("quickstart", "quickstart_async", "Quickstart"),
    "app.train.run_handle": ("Run",),
    "app.train.training_run": ("train", "train_async"),
    "memory.policy": ("Answered", "MemoryPolicy", "Model"),
    "text.codec": ("Codec",),
    "tools.tool": ("Tool",),
    "types": ("Completion", "Grade", "Group", "Outcome", "Problem", "Question", "StopReason", "Trajectory", "Turn"),
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'palimpsest' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"palimpsest.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
