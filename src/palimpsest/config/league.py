"""League files: memory methods to train and evaluate under equal conditions.

    extends: laptop                          a shipped league or a file, of which this one changes keys
    methods:
      mine: {policy: my_module:MyPolicy}     joins its methods
      lead: {train: false}                   changes a key of one of them

Guaranteed: a league's methods share its recipe, overrides, problems and token budget unless a method's own keys differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from palimpsest.config.data import OneOrMore, Sources, Task, listed
from palimpsest.config.load import Overrides, put, refuse_secrets, sections_of, shipped, split_overrides
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import Strict, leaves
from palimpsest.errors import ConfigError, nearest

UNTRAINED = "untrained"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+]*(-[A-Za-z0-9_+]+)*")
_DEEPEST = 8  # leagues that extend each other


class MethodConfig(Strict):
    """A method: one trained row and one without training."""

    policy: str | None = None
    """A shipped policy or my_module:MyPolicy; null: the recipe's."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Its options; further ones are the recipe's, as far as the policy has them."""
    recipe: str | None = None
    """Instead of the league's `recipe`; with `protocols` its policy, options and model, not its reward and sampling."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of this method's configuration, after those of the league."""
    train: bool = True
    """False: only evaluated."""
    untrained: bool = True
    """Also evaluate the model before training, in a further row."""
    model: str | None = None
    """Instead of the recipe's; at `base_url` a served name."""
    base_url: str | None = None
    """OpenAI-compatible endpoint of a method that isn't trained."""
    tokenizer: str | None = None
    """Folder or hub id of the endpoint's tokenizer."""
    api_key_env: str | None = None
    """Environment variable with the endpoint's key."""

    @model_validator(mode="after")
    def _served(self) -> MethodConfig:
        if self.base_url is not None and (self.train or self.model is None):
            raise ValueError("base_url serves a `model` that isn't trained here: set model and train: false")
        if self.model is not None and "model.path" in dict(leaves(self.overrides)):
            raise ValueError("model and the override model.path name one model each; omit one")
        return self


class LeagueConfig(Strict):
    """Everything that determines a league."""

    league: str = "league"
    """Title."""
    recipe: str = "memagent-quickstart"
    """Base of every method: a shipped recipe or a file."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Keys for every method, dotted or as sections, e.g. `train.max_tokens`."""
    seeds: OneOrMore[int] = (0, 1, 2)
    """Each seed draws training and test problems, shared by all methods."""
    families: OneOrMore[Task] = ("needle",)
    """Families of synthetic documents to train on and to average over; with `data` unused."""
    held_out: tuple[str, ...] = ()
    """Families, files or protocols that are only evaluated; not in the mean."""
    chunks: OneOrMore[int] = (4, 64, 256)
    """Lengths of evaluated documents in paragraphs; without a curriculum, the first is the training length."""
    data: Sources | None = None
    """Files to evaluate on instead of synthetic documents; each is a family."""
    protocols: dict[str, str] = Field(default_factory=dict)
    """Published protocols (`eval/NAME`) to evaluate on instead, each with the folder of its files."""
    documents: OneOrMore[int] = ()
    """Documents per context of `data`; empty: as the files have them."""
    problems: int = Field(64, ge=1)
    """Per family, size and seed."""
    metric: Literal["reward", "em", "f1", "sub_em"] = "em"
    """Accuracy of every row; `reward`: each method's own."""
    reference: str | None = None
    """Method of the paired differences; null: the first."""
    processes: int = Field(2, ge=1)
    """Methods that run at a time."""
    gpus: int = Field(1, ge=1, le=64)
    """GPUs of this machine for an evaluation without training."""
    methods: dict[str, MethodConfig]
    """Methods by name."""

    @field_validator("methods")
    @classmethod
    def _names(cls, methods: dict[str, MethodConfig]) -> dict[str, MethodConfig]:
        if not methods:
            raise ValueError("name one method at least, e.g. methods: {mine: {policy: my_module:MyPolicy}}")
        for name in methods:
            if name.endswith(f"-{UNTRAINED}"):
                raise ValueError(f"{name!r}: folders of untrained models end in -{UNTRAINED}; rename the method")
            if not _NAME.fullmatch(name) or len(name) > 100:
                raise ValueError(f"{name!r:.120} can't be a folder: use up to 100 letters, digits, _ and -")
        return methods

    @model_validator(mode="after")
    def _consistent(self) -> LeagueConfig:
        if self.reference is not None and self.reference not in self.methods:
            raise ValueError(f"reference={self.reference}: no such method{nearest(self.reference, self.methods)}")
        if twice := set(self.families) & set(self.held_out):
            raise ValueError(f"held_out={sorted(twice)[0]}: also in families; name it once")
        for name, values in (("seeds", self.seeds), ("families", self.families), ("chunks", self.chunks)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name}={list(values)}: give one at least, each once")
        if self.data is not None and not listed(self.data):
            raise ValueError("data=[]: name a file, or null for synthetic documents")
        if "policy.name" in dict(leaves(self.overrides)):
            raise ValueError("overrides.policy.name: would be every method's; set methods.NAME.policy instead")
        if self.data is not None and self.protocols:
            raise ValueError("protocols: instead of data; omit one of them")
        held_out = get_args(Task) if self.synthetic else tuple(self.protocols)
        if self.data is None and (strange := sorted(set(self.held_out) - set(held_out))):
            hint = f"{', '.join(held_out)}{nearest(strange[0], held_out)}"
            raise ValueError(f"held_out={strange[0]}: is not evaluated; evaluated are {hint}")
        if len({family_of(name) for name in self.protocols}) < len(self.protocols):
            raise ValueError(f"protocols={list(self.protocols)}: two have the same name; rename a file")
        if self.data is None and self.documents:
            raise ValueError(f"documents={list(self.documents)}: for files; set data, or chunks instead")
        return self

    @property
    def against(self) -> str:
        """Method of the paired differences."""
        return self.reference or next(iter(self.methods))

    @property
    def synthetic(self) -> bool:
        """Evaluated on synthetic documents."""
        return self.data is None and not self.protocols

    @property
    def sets(self) -> tuple[str, ...]:
        """Evaluated families of synthetic documents, those of the mean first."""
        return (*self.families, *self.held_out)


def family_of(name: str) -> str:
    """Name of a protocol or a family in the table.

    >>> family_of("eval/ruler-hqa"), family_of("needle")
    ('ruler-hqa', 'needle')
    """
    return Path(name).stem


def load_league(name_or_path: str | Path, changes: Overrides = ()) -> LeagueConfig:
    """A shipped league or a YAML file, with changed keys. Raises ConfigError.

    A key of a run (`train.max_steps=20`) changes `overrides`.
    """
    name = str(name_or_path)
    values = _values(name)
    known = values["methods"] if isinstance(values.get("methods"), dict) else {}
    for key, value, _ in split_overrides(changes):
        section = key.partition(".")[0]
        own = key in LeagueConfig.model_fields or key == "seed"  # which the league sets by `seeds`
        of_runs = section in RunConfig.model_fields and not own
        put(values, f"overrides.{key}" if of_runs else key, value)
    if isinstance(methods := values.get("methods"), dict):  # null removes an inherited one
        _check_removed(name, methods, known)
        values["methods"] = {key: method for key, method in methods.items() if method is not None}
    refuse_secrets(values, name)
    try:
        return LeagueConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_faults(error, name))) from None


def _values(name: str, depth: int = 0) -> dict[str, Any]:
    path, names = Path(name), shipped("leagues")
    if name in names:
        text = (resources.files("palimpsest") / "leagues" / f"{name}.yaml").read_text("utf-8")
    elif path.is_file():
        text = path.read_text("utf-8", errors="replace")
    else:
        hint = f"{', '.join(names)}{nearest(name, names)}"
        raise ConfigError(f"league {name}: neither a shipped league nor a file; shipped: {hint}")
    values = sections_of(text, name, "league", "keys such as `methods:`")
    parent = values.pop("extends", None)
    values.setdefault("league", path.stem)
    if parent is None:
        return values | _overridden({}, values)
    if depth == _DEEPEST:
        raise ConfigError(f"league {name}: extends {parent}: more than {_DEEPEST} leagues extend each other")
    base = _values(str(parent) if parent in names else str(path.parent / str(parent)), depth + 1)
    if isinstance(own := values.get("methods"), dict) and isinstance(inherited := base.get("methods"), dict):
        _check_removed(name, own, inherited)
        values["methods"] = inherited | {name: _method(inherited.get(name), entry) for name, entry in own.items()}
    return {**base, **values, **_overridden(base, values)}


def _overridden(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`overrides` as sections, those of `own` after those of `base`, so that null for a section empties it."""
    merged = dict[str, Any]()
    for overrides in (base.get("overrides"), own.get("overrides")):
        if overrides is not None and not isinstance(overrides, dict):
            return {"overrides": overrides}  # an error of the configuration
        for key, value, _ in split_overrides(overrides or {}):
            put(merged, key, value)
    return {"overrides": merged} if merged else {}


def _check_removed(league: str, methods: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name, entry in methods.items():
        if entry is None and name not in known:
            raise ConfigError(f"league {league}: methods.{name}=null: no such method to remove{nearest(name, known)}")


def _method(inherited: Any, own: Any) -> Any:
    """An inherited method with its own keys; the options are those of its policy."""
    if not isinstance(inherited, dict) or not isinstance(own, dict):
        return own
    is_other = own.get("policy") not in (None, inherited.get("policy"))
    kept = {name: value for name, value in inherited.items() if not (is_other and name == "options")}
    if isinstance(kept.get("options"), dict) and isinstance(own.get("options"), dict):
        own = {**own, "options": kept["options"] | own["options"]}
    return {**kept, **own, **_overridden(kept, own)}


def _faults(error: ValidationError, name: str) -> Iterator[str]:
    for detail in error.errors(include_url=False)[:5]:
        key = ".".join(map(str, detail["loc"]))
        if detail["type"] == "extra_forbidden":
            model = MethodConfig if key.startswith("methods.") else LeagueConfig
            yield f"league {name}: {key}: no such key{nearest(str(detail['loc'][-1]), model.model_fields)}"
        elif detail["type"] == "value_error":
            yield f"league {name}: {key}{key and ': '}{detail['msg'].removeprefix('Value error, ')}"
        else:
            shown = "" if isinstance(detail["input"], Mapping) else f"={detail['input']!r:.80}"
            yield f"league {name}: {key}{shown}: {detail['msg'].lower()}"
