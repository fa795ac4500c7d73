"""The model card of an export: README.md in the form of the Hugging Face hub, with the evaluation in it.

    front matter    library, base model, license, tags, and a `model-index` with the accuracy of every evaluated set
    Use             how to load the weights, and the policy with the options that they were trained with
    Evaluation      a table: rows of the agent and of what was played with the same weights, with 95% intervals
    Training        recipe, reward, steps, versions

Guaranteed: an accuracy is in the card only if the weights that were evaluated are the checkpoint's, by their
fingerprint; base model and license are in it only where they are known; names of the machine's folders and the command
line aren't; text from files is escaped.
Not covered: what the base model's license asks of its derivatives.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from palimpsest.app.composition import weights_fingerprint
from palimpsest.app.quickstart_methods import METHODS
from palimpsest.config.model import SHIPPED
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.synthetic.search_problems import SOURCE as SYNTHETIC_SEARCH
from palimpsest.errors import RunError
from palimpsest.evaluation.sample_log import IDENTITY, SUMMARY, read_identity
from palimpsest.evaluation.summary import Score
from palimpsest.files import read_regular
from palimpsest.memory.registry import evaluated
from palimpsest.models.model_folder import cached
from palimpsest.plugins import is_given, plain
from palimpsest.runs.checkpoint import CHECKPOINTS
from palimpsest.runs.resume_rules import made_with
from palimpsest.runs.run_folder import CONFIG, load_config
from palimpsest.text.display_text import printable, visible

CARD = "README.md"
REPOSITORY = "https://github.com/palimpsest-rl/palimpsest"
_TAGS = ("palimpsest", "memory-agent", "long-context", "reinforcement-learning")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_QUICKSTART = "evaluations"
_MOST_BYTES = 64 << 20
"""Of a file that is read for a card."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a card says besides what the run's folder knows."""

    name: str
    """The model's: a hub id, or the folder's name."""
    evaluations: tuple[Path, ...] = ()
    """Folders of `palimpsest eval` outside of the run's."""


@dataclass(frozen=True, slots=True)
class CardRow:
    """One accuracy, a share of 1."""

    name: str
    data: str
    accuracy: Score
    graded: int
    agent: bool
    """Whether it is the exported model's with its own policy, and belongs in the `model-index`."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What is known of an exported model."""

    name: str
    """A hub id, or the folder's name."""
    adapter: bool
    step: int | None
    config: RunConfig | None
    """Of its run."""
    base_model: str | None
    license: str | None
    versions: Mapping[str, str]
    rows: tuple[CardRow, ...]
    changed: str | None
    """How the exported weights differ from those that were evaluated."""


def card_facts(
    run: str, folder: Path, card: Card, *, step: int | None, adapter: bool, changed: str | None
) -> CardFacts:
    """Facts for the card of the model in `folder`, of `run`. Raises RunError for an evaluation of other weights."""
    config = load_config(run) if (Path(run) / CONFIG).is_file() else None
    base_model, known_license = _base(run if config is None else config.model.path)
    rows = [*_found(Path(run), folder), *(row for place in card.evaluations for row in _asked(place, folder))]
    made = made_with(run) if config is not None else {}
    return CardFacts(
        name=card.name,
        adapter=adapter,
        step=step,
        config=config,
        base_model=base_model,
        license=known_license,
        versions=made.get("versions", {}),
        rows=tuple(rows),
        changed=changed,
    )


def loading(name: str, policy: PolicyConfig | None, *, adapter: bool = False) -> dict[str, str]:
    """Lines that load a model, by the program they are for; `name`: its folder or hub id.

    >>> loading("my agent", None)["vLLM"]
    "vllm serve 'my agent'"
    """
    shell = shlex.quote(name)
    if adapter:
        lines = {"peft": f"peft.AutoPeftModelForCausalLM.from_pretrained({name!r})"}
    else:
        lines = {
            "transformers": f"transformers.AutoModelForCausalLM.from_pretrained({name!r})",
            "vLLM": f"vllm serve {shell}",
        }
    if policy is not None and is_given(policy.name):
        return lines | {"palimpsest": f"palimpsest.evaluate({name!r}, data, policy={plain(policy.name)})"}
    chosen = "" if policy is None else _as_options(evaluated(policy))
    return lines | {
        "palimpsest serve": f"palimpsest serve {shell}{chosen}",
        "palimpsest eval": f"palimpsest eval --model {shell} --data FILE{chosen}",
    }


def _as_options(policy: PolicyConfig) -> str:
    """Those that fit on a command line: no mappings, no files."""
    plain = {name: value for name, value in policy.options.items() if isinstance(value, bool | int | float)}
    names = {name: value for name, value in policy.options.items() if isinstance(value, str) and value.isidentifier()}
    given = {name: json.dumps(value) for name, value in plain.items()} | names
    settings = "".join(f" --set {shlex.quote(f'{name}={value}')}" for name, value in given.items())
    return f" --policy {shlex.quote(policy.name)}{settings}"


# ---- what is known -------------------------------------------------------------------------------------------


def _base(name: str) -> tuple[str | None, str | None]:
    """The hub id and the license of the model that training started from, each if it is known."""
    place = Path(name)
    if name in SHIPPED:
        return None, "apache-2.0"  # the package's own
    if place.parent.name == CHECKPOINTS and (place.parent.parent / CONFIG).is_file():
        return _base(load_config(place.parent.parent).model.path)
    if place.is_dir():
        front = _front_matter(place)
        return _text(front.get("base_model")), _text(front.get("license"))
    if not _HUB_ID.fullmatch(name):
        return None, None
    folder = cached(name)
    return name, None if folder is None else _text(_front_matter(folder).get("license"))


def _front_matter(folder: Path) -> Mapping[str, Any]:
    """Of a model's card; empty where there is none."""
    try:
        text = read_regular(folder / CARD, 1 << 20).decode("utf-8")
        found = yaml.safe_load(text.split("\n---", 1)[0].removeprefix("---")) if text.startswith("---\n") else {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# ---- evaluations ---------------------------------------------------------------------------------------------


def _found(run: Path, folder: Path) -> Iterator[CardRow]:
    """Those in the run's folder that evaluated these weights."""
    weights = weights_fingerprint(str(folder))
    if any(_weights(place) == weights for place in sorted((run / _QUICKSTART / "after").glob("shard-*"))):
        yield from _of_quickstart(run)
    places = [place.parent for depth in ("*", "*/*") for place in run.glob(f"{depth}/{IDENTITY}")]
    for place in sorted(places):
        if not place.is_symlink() and (place / SUMMARY).is_file() and _weights(place) == weights:
            yield from _of_evaluation(place)


def _asked(place: Path, folder: Path) -> Iterator[CardRow]:
    if not (place / IDENTITY).is_file() or not (place / SUMMARY).is_file():
        raise RunError(f"--evaluation {place}: holds no {IDENTITY} and {SUMMARY}; give the --out of palimpsest eval")
    if _weights(place) != weights_fingerprint(str(folder)):
        raise RunError(f"--evaluation {place}: evaluated other weights than those of {folder}; leave it out")
    return _of_evaluation(place)


def _weights(place: Path) -> str | None:
    return _text(read_identity(place).get("weights"))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RunError(f"{path}: can't be read as a JSON object, so the evaluation isn't known; restore or remove it")
    return found


def _of_evaluation(place: Path) -> Iterator[CardRow]:
    file, found = place / SUMMARY, _read(place / SUMMARY)
    drawn = f"{found['data']}, " if found.get("data") in ("synthetic", SYNTHETIC_SEARCH) else ""
    several = len({row["policy"] for row in found.get("evaluations", ())}) > 1
    for key in ("evaluations", "baselines"):
        for row in found.get(key, ()):
            data = drawn + str(row["data"]).rpartition("/")[2]
            kind = f", {row['baseline']} (baseline)" if key == "baselines" else ""
            name = f"{row['policy']}: {data}{kind}" if several else f"{data}{kind}"
            yield _row(file, row, name, data, agent=key == "evaluations")


def _of_quickstart(run: Path) -> Iterator[CardRow]:
    config, told, file = load_config(run), _read(run / SUMMARY), run / _QUICKSTART / SUMMARY
    method = METHODS[str(told["method"])]
    trained = int(told[method.axis.trained_key])
    for name, points in _read(file).items():
        for point, row in points.items():
            data = f"{config.data.source}, {method.axis.heading(config, int(point), trained)}"
            label = method.labels.get(name, name)
            yield _row(file, row, f"{label}: {data}", data, agent=name == method.agent)


def _row(file: Path, row: Mapping[str, Any], name: str, data: str, *, agent: bool) -> CardRow:
    try:
        return CardRow(name, data, Score(**row["accuracy"]), int(row["graded"]), agent)
    except (LookupError, TypeError, ValueError):
        raise RunError(f"{file}: {name}: holds no accuracy; restore the file, or remove it") from None


# ---- the text ------------------------------------------------------------------------------------------------


def render(facts: CardFacts) -> str:
    """The card as Markdown."""
    front = yaml.safe_dump(_metadata(facts), sort_keys=False, allow_unicode=True)
    parts = [_lead(facts), "## Use\n", _use(facts), "## Evaluation\n", _evaluation(facts), *_training(facts)]
    return f"---\n{front}---\n\n# {_plain(facts.name)}\n\n" + "\n".join(parts)


def _metadata(facts: CardFacts) -> dict[str, Any]:
    policies = [] if facts.config is None else [_slug(facts.config.policy.name)]
    results = [_result(row) for row in facts.rows if row.agent and row.accuracy.mean is not None]
    known = {
        "library_name": "peft" if facts.adapter else "transformers",
        "base_model": facts.base_model,
        "license": facts.license,
        "pipeline_tag": "text-generation",
        "tags": [*_TAGS, *policies],
        "model-index": [{"name": facts.name, "results": results}] if results else None,
    }
    return {key: value for key, value in known.items() if value is not None}


def _result(row: CardRow) -> dict[str, Any]:
    return {
        "task": {"type": "question-answering", "name": "Question answering over long documents"},
        "dataset": {"type": _slug(row.data), "name": row.data},
        "metrics": [{"type": "accuracy", "value": round(row.accuracy.mean or 0.0, 4), "name": f"accuracy, {row.name}"}],
    }


def _lead(facts: CardFacts) -> str:
    who = f"A language model exported by [palimpsest]({REPOSITORY})"
    if facts.config is None:
        return f"{who}.\n"
    after = "" if facts.step is None else f" for {facts.step:,} steps"
    base = "" if facts.base_model is None else f", starting from `{_code(facts.base_model)}`"
    policy = _code(facts.config.policy.name)
    return (
        f"{who} after training{after} as an agent with the memory policy `{policy}`{base}. The policy builds prompts "
        "and memory and is not in the weights: the lines below name it, with the options of the training.\n"
    )


def _use(facts: CardFacts) -> str:
    policy = None if facts.config is None else facts.config.policy
    lines = loading(printable(facts.name), policy, adapter=facts.adapter)
    python = [line for name, line in lines.items() if name in ("transformers", "peft")]
    shell = [line for line in lines.values() if line not in python]
    imports = [f"import {line.partition('.')[0]}\n\nmodel = {line}" for line in python]
    return "\n".join(["```python", *imports, "```\n", "```sh", *shell, "```\n"])


def _evaluation(facts: CardFacts) -> str:
    if not facts.rows:
        return "These weights were not evaluated by palimpsest.\n"
    changed = "" if facts.changed is None else f" The evaluation played the checkpoint; this export is {facts.changed}."
    table = ["| | accuracy | 95% interval | graded |", "|---|---|---|---|", *map(_table_row, facts.rows)]
    note = f"Accuracy is the mean grade of the episodes that have one.{changed}\n"
    return "\n".join([*table, "", note])


def _table_row(row: CardRow) -> str:
    score = row.accuracy
    mean = "–" if score.mean is None else f"{score.mean:.1%}"
    interval = "–" if score.low is None or score.high is None else f"{score.low:.1%} to {score.high:.1%}"
    return f"| {_plain(row.name)} | {mean} | {interval} | {row.graded} |"


def _training(facts: CardFacts) -> Sequence[str]:
    if facts.config is None:
        return ()
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    told = {
        "recipe": Path(facts.config.recipe).name,
        "reward": facts.config.reward.name,
        "seed": str(facts.config.seed),
        "steps": "" if facts.step is None else f"{facts.step:,} of {facts.config.train.steps:,}",
        "made with": versions,
    }
    return ("## Training\n", "\n".join(f"- {name}: {_plain(value)}" for name, value in told.items() if value) + "\n")


def _plain(text: str) -> str:
    """Text on a line of Markdown, without markup of its own.

    >>> _plain("a|b <b> [x](y)")
    'a\\\\|b \\\\<b\\\\> \\\\[x\\\\](y)'
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", visible(text).replace("\n", " "))


def _code(text: str) -> str:
    return visible(text).replace("\n", " ").replace("`", "'")


def _slug(text: str) -> str:
    """A name as the hub takes it.

    >>> _slug("synthetic, 64 chunks (16x)")
    'synthetic-64-chunks-16x'
    """
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "data"
