"""Python objects as arguments of a run: rewards, policies, problems, callbacks, loaded models.

    given = CallObjects("palimpsest.train", reward=my_reward, data=[{"question": ..., "answers": ..., "context": ...}])
    given.changes         {"reward.name": "object:my_reward", "data.train_files": "object:data"}
    write_loaded(model, tokenizer, Path("runs/first"))      # runs/first-model-1a2b3c4d5e6f

A function or class of an importable module has its command-line name, `my_module:my_reward`. A policy object with plain
options has the name of its class, with these options. A command can resume such a run. Any other object, including
everything from a script or a notebook, has the name `object:NAME` (plugins.py) and must be passed again on resume. A
loaded model is saved with its tokenizer in a folder whose name contains a digest of its contents.

Guaranteed: this module calls no passed object; a model's folder appears only complete, the same model gives the same
folder, and the passed model stays unchanged (training uses a copy).
Not covered: attributes of an object that changed before a resume; models of classes outside transformers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from palimpsest import files
from palimpsest.config.load import Overrides, split_overrides
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.record import problem_row
from palimpsest.errors import ConfigError
from palimpsest.plugin_kinds import KINDS, OBJECT
from palimpsest.plugin_options import options_of
from palimpsest.plugins import ARGUMENTS, DATA, load, named_objects, plain, reference
from palimpsest.types import Problem


@dataclasses.dataclass(frozen=True)
class Problems(Iterable[Mapping[str, Any]]):
    """Rows of problems from objects. Iteration raises ConfigError for an item of another kind."""

    items: Any
    """A sized iterable of mappings and `Problem`s: a list, a `datasets.Dataset`."""
    called: str
    """The argument, for messages."""

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for index, item in enumerate(self.items):
            if not isinstance(item, Mapping | Problem):
                raise ConfigError(
                    f"{self.called} item {index} is of type {type(item).__name__}: pass a dict with question, answers "
                    "and context, or a palimpsest.Problem"
                )
            if isinstance(item, Problem):
                check_problem(item, f"{self.called} item {index}")
                yield problem_row(item)
            else:
                yield item


def problems_of(data: Any, called: str) -> Problems:
    """`data` as problems. Raises ConfigError for an unsuitable type or an empty list."""
    kind = type(data).__name__
    if isinstance(data, Mapping):
        if "question" in data or "questions" in data:
            raise ConfigError(f"{called} is one problem: pass a list, [{{...}}]")
        split = next(iter(data), "train")
        raise ConfigError(f"{called} is of type {kind}: pass a list of problems, such as one split, data[{split!r}]")
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        raise ConfigError(f"{called} is of type {kind}: pass its rows, data.to_dict('records')")
    if not hasattr(data, "__len__") or not hasattr(data, "__iter__"):
        raise ConfigError(
            f"{called} is of type {kind}: pass a list of dicts or Problems, a datasets.Dataset, or a file"
        )
    if not len(data):
        raise ConfigError(f"{called} is empty: pass at least one problem")
    return Problems(data, called)


def objects_in(config: RunConfig) -> dict[str, str]:
    """Names of objects in a configuration, by argument; for callbacks only the first.

    >>> objects_in(RunConfig(policy=PolicyConfig(name="object:Mine")))
    {'policy': 'object:Mine'}
    """
    names = {
        "reward": config.reward.name,
        "policy": config.policy.name,
        "data": str(config.data.train_files),
        "callbacks": next((sink for sink in config.logging.report_to if sink.startswith(OBJECT)), ""),
    }
    return {argument: name for argument, name in names.items() if name.startswith(OBJECT)}


def check_problem(problem: Problem, called: str) -> None:
    """Raise ConfigError for an invalid field. `called`: the source of the problem, for messages."""
    question, context = problem.question, problem.context
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"{called}: Problem.question={question!r:.60}: must be a question that isn't blank")
    if not isinstance(context, str | None):
        kind = type(context).__name__
        raise ConfigError(f"{called}: Problem.context is of type {kind}: pass one text, or None for search problems")
    if not all(isinstance(gold, str) for gold in problem.answers):
        raise ConfigError(f"{called}: Problem.answers={problem.answers!r:.60}: must be texts")


class CallObjects:
    """Objects passed to a call, by their names in a configuration."""

    def __init__(self, called: str, before: Any = None) -> None:
        """`called`: the function, for messages. `before`: the resumed or used `Run`, whose objects are known too; other
        values, such as a folder, have none."""
        self.called = called
        self.held: dict[str, Any] = dict(getattr(before, "given", {}))
        self.changes: dict[str, Any] = {}
        """Configuration keys that name the objects."""

    def take_reward(self, reward: Any) -> None:
        """Take a callable, an object with `grade`, a class, or a name. Raises ConfigError."""
        if not isinstance(reward, str | type):
            reward = getattr(reward, "grade", reward)
        if not isinstance(reward, str) and not callable(reward):
            self._refuse("reward", reward, "a function (problem, trajectory), or a name")
        self.changes["reward.name"] = reward if isinstance(reward, str) else self._name("reward", reward)

    def take_policy(self, policy: Any, base: PolicyConfig | None = None) -> None:
        """Take a class, an object with a coroutine `run`, or a name. Raises ConfigError.

        A class with the same name as the recipe's, or derived from it, keeps the options of `base`.
        """
        if not isinstance(policy, str) and not hasattr(policy, "run"):
            self._refuse("policy", policy, "a class or an object with a coroutine run(problem, model), or a name")
        options = _options_of(policy)
        name = policy if isinstance(policy, str) else self._name("policy", policy if options is None else type(policy))
        named = options is None and isinstance(policy, str | type)
        if base is not None and named and (name == base.name or _derived(policy, base.name)):
            options = base.options
        self.changes["policy.name"] = name
        self.changes["policy.options"] = options or {}

    def agent(self, policy: Any, overrides: Overrides, reward: Any, *, logged: bool = False) -> tuple[Any, Overrides]:
        """(policy, overrides) that name the arguments of `evaluate`, `play` and `ask`; `logged`: into a folder that a
        later call may resume. Raises ConfigError."""
        if isinstance(policy, list | tuple):
            if other := [item for item in policy if not isinstance(item, str | type)]:
                self._refuse("policy", other[0], "names or classes in a list")
            policy = [item if isinstance(item, str) else self._name("policy", item) for item in policy]
        elif policy is not None and not isinstance(policy, str):
            self.take_policy(policy)
            policy = self.changes.pop("policy.name")
            made = {f"policy.options.{name}": value for name, value in self.changes.pop("policy.options").items()}
            self.changes |= made
            if logged and policy in self.held and not isinstance(self.held[policy], type):
                raise ConfigError(
                    f"{self.called}(policy=...): the options of a {plain(policy)} object are unknown, so a later call "
                    "can't match the episodes in `out`; pass the class, or omit `out`"
                )
        if reward is not None:
            self.take_reward(reward)
        if not self.changes:
            return policy, overrides
        return policy, self.changes | {key: value for key, value, _ in split_overrides(overrides)}

    def take_data(self, data: Any) -> None:
        """Take a list of dicts or Problems, a data set, or the name of a file. Raises ConfigError."""
        named = isinstance(data, str) or hasattr(data, "__fspath__")
        self.changes["data.train_files"] = str(data) if named else DATA
        if not named:
            self.held[DATA] = problems_of(data, f"{self.called}(data=...)")

    def take_callbacks(self, callbacks: Any, sinks: Sequence[str]) -> None:
        """Take functions `(step, metrics, timings)` or objects with `log`, next to the `sinks` without objects."""
        listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
        names = self.changes["logging.report_to"] = [sink for sink in sinks if not sink.startswith(OBJECT)]
        for callback in listed:
            call = callback if isinstance(callback, type) else getattr(callback, "log", callback)
            if not callable(call):
                self._refuse("callbacks", callback, "functions (step, metrics, timings), or objects with such a log")
            names.append(self._name("sink", call))

    @contextmanager
    def in_scope(self) -> Iterator[None]:
        """Resolve the names to the objects inside this context; an error of an object names its argument."""
        with named_objects(self.held):
            try:
                yield
            except ConfigError as error:
                argument = ARGUMENTS.get(error.key or "")
                if argument is not None and error.value in self.held:
                    error.at(f"{self.called}({argument}={plain(str(error.value))}):")
                raise

    def _name(self, kind: str, thing: Any) -> str:
        name = reference(kind, thing)
        if not name.startswith(OBJECT):
            return name
        taken = {*self.changes.get("logging.report_to", ()), self.changes.get("reward.name")}
        while name in taken and self.held.get(name) is not thing:
            name += "-2"
        self.held[name] = thing
        return name

    def _refuse(self, argument: str, value: Any, wanted: str) -> NoReturn:
        raise ConfigError(f"{self.called}({argument}=...) is of type {type(value).__name__}: pass {wanted}")


def _derived(policy: Any, name: str) -> bool:
    return isinstance(policy, type) and name in KINDS["policy"].shipped and issubclass(policy, load("policy", name))


def _options_of(policy: Any) -> dict[str, Any] | None:
    """Options of a dataclass object, if a configuration can store all of them; otherwise None."""
    if isinstance(policy, type) or not dataclasses.is_dataclass(policy):
        return None
    options = {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy) if field.init}
    if set(options) != set(options_of(type(policy))):
        return None  # custom constructor
    try:
        return dict(json.loads(json.dumps(options, allow_nan=False)))
    except (TypeError, ValueError):
        return None


# ---- Loaded models as folders --------------------------------------------------------------------------------


@contextmanager
def as_folder(model: Any, tokenizer: Any, out: Path | None, called: str) -> Iterator[tuple[Any, Any]]:
    """(model, tokenizer) as folders: a loaded model is written, with its tokenizer, next to `out`, or temporarily if
    that is None; names stay unchanged. Raises ConfigError."""
    if isinstance(model, str | os.PathLike) and (tokenizer is None or isinstance(tokenizer, str | os.PathLike)):
        yield model, tokenizer
    elif out is not None:
        yield write_loaded(model, tokenizer, out, called), None
    else:
        with tempfile.TemporaryDirectory(prefix="palimpsest-") as folder:
            yield write_loaded(model, tokenizer, Path(folder) / "loaded", called), None


def write_loaded(model: Any, tokenizer: Any, run: Path, called: str) -> Path:
    """Write both to a folder next to `run`. `called`: the function, for messages.

    Raises ConfigError for objects that can't be saved.
    """
    for argument, thing, does in (("model", model, "state_dict"), ("tokenizer", tokenizer, "decode")):
        if not hasattr(thing, "save_pretrained") or not hasattr(thing, does):
            wanted = "pass a transformers model, with tokenizer=, or a folder or hub id"
            what = "is missing" if thing is None else f"is of type {type(thing).__name__}"
            raise ConfigError(f"{called}({argument}=...) {what}: {wanted}")
    if hasattr(model, "peft_config"):
        raise ConfigError(f"{called}(model=...) has adapters: pass model.merge_and_unload()")
    run = run.resolve()
    run.parent.mkdir(parents=True, exist_ok=True)
    aside = files.new_hidden_folder(run)
    try:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        digest = hashlib.sha256(json.dumps(files.hashes(aside), sort_keys=True).encode()).hexdigest()
        folder = run.with_name(f"{run.name}-model-{digest[:12]}")
        if not folder.exists():
            files.publish_folder(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder
