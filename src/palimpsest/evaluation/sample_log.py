"""Evaluation log: `samples.jsonl` with one line per episode, identity, last request (`asked.json`).

A later call may request less than an earlier one: fewer samples or problems, other lengths. Earlier episodes stay in
the log, so that none is played twice. All figures are of the last request: summary.json, `rescore`, `compare`, the
viewer. `asked.json` is written before a call's first episode, so that the episodes of a killed call count.

Guaranteed: a killed process loses at most the episodes in flight; a torn last line is cut off and its episode played
again; a line that is unreadable, has a wrong checksum or holds no sample is ignored and counted; two processes can't
write to one log; a log is continued only under the identity (model, policy, data...) with which it started.
Not covered: power loss (lines are flushed to the system, not to the disk), network file systems; lines of earlier
versions before the first with a checksum, of which only the form is checked; folders of earlier versions without
`asked.json`, whose whole log counts.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from palimpsest import files
from palimpsest.config.load import parse_config
from palimpsest.errors import RunError
from palimpsest.provenance import MADE_WITH, differences, provenance
from palimpsest.types import Outcome

# ---- Identities and their differences ------------------------------------------------------------------------


_SECTIONS = {"sampling": "eval_sampling"}
"""Parts of an identity whose section of the configuration is called otherwise."""
_NAMED = 3
"""Differences that a message names; of the others it gives the number."""
_WIDTH = 60
"""Characters of a value in a message."""


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and plain values; lists and empty dictionaries are values.

    >>> dict(leaves({"data": {"seed": 0, "map": {}}, "weights": "w"}))
    {'data.seed': 0, 'data.map': {}, 'weights': 'w'}
    >>> dict(leaves({})), dict(leaves({7: {8: 0}}))
    ({}, {'7.8': 0})
    """
    if isinstance(value, dict) and (value or not key):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


@cache
def default_settings() -> Mapping[str, Any]:
    """Dotted key of a run's configuration to its default."""
    return dict(leaves(parse_config("").model_dump(mode="json")))


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """In words where `now` differs from `was`, by the first few keys; None where nothing does. A setting that `was`
    lacks and that has its default now came with a later version, and is no difference.

    >>> difference({"data": {"seed": 0, "limit": 4}}, {"data": {"seed": 2, "limit": 4}})
    'data.seed was 0, is 2'
    >>> difference({"sampling": {"temperature": 0.7}}, {"sampling": {"temperature": 0.7, "top_p": 1.0}})
    """
    old, new = (dict(leaf for key, value in each.items() for leaf in leaves(value, key)) for each in (was, now))
    differing = (key for key in {*old, *new} if key not in old or key not in new or old[key] != new[key])
    keys = sorted(key for key in differing if key in old or not _is_default(key, new[key]))
    told = [_told(key, _shown(old, key), _shown(new, key)) for key in keys[:_NAMED]]
    if len(keys) > _NAMED:
        told.append(f"{len(keys) - _NAMED} more keys differ")
    return "; ".join(told) or None


def _is_default(key: str, value: Any) -> bool:
    """Whether an identity's `key` has the default of the run's configuration."""
    section, _, name = key.partition(".")
    known = default_settings()
    setting = f"{_SECTIONS.get(section, section)}.{name}"
    return setting in known and known[setting] == value


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "not there"


def _told(key: str, was: str, now: str) -> str:
    """Of long values the part where they begin to differ."""
    shorter = min(len(was), len(now))
    same = next((at for at in range(shorter) if was[at] != now[at]), shorter)
    start = 0 if max(len(was), len(now)) <= _WIDTH else max(0, same - _WIDTH // 2)
    return f"{key} was {_cut(was, start)}, is {_cut(now, start)}"


def _cut(text: str, start: int) -> str:
    end = start + _WIDTH
    return f"{'...' if start else ''}{text[start:end]}{'...' if len(text) > end else ''}"


# ---- The log of an evaluation --------------------------------------------------------------------------------


SAMPLES = "samples.jsonl"
IDENTITY = "evaluation.json"
SUMMARY = "summary.json"
"""Figures of an evaluation, and of a quickstart."""
CHECKSUM = "crc32"
"""Of a line's other fields, under this name beside them."""
_LARGEST = 2**53
"""Beyond it a number in a line is damage: no count and no reward is that large."""


SampleKey = tuple[str, str, int]
"""Name of the set, id of the problem, number of the draw."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One episode of an evaluation and its grade."""

    name: str
    """The evaluation it belongs to; (name, id, draw) is unique."""
    id: str
    question: str
    answers: tuple[str, ...]
    answer: str | None
    """Text of the answer turn."""
    memory: str | None
    """The last memory (metrics/reading_trace.py); None where the policy has none."""
    outcome: str
    value: float | None
    """None: ungraded, for `reason`."""
    reason: str | None
    size: int | None
    """Documents or chunks of the context, where the data says so."""
    turns: int
    prompt_tokens: int
    """Summed over turns: what the model read."""
    sampled_tokens: int
    metrics: dict[str, float] = field(default_factory=dict)
    """The grade's breakdown."""
    measures: dict[str, float] = field(default_factory=dict)
    """What the caller measured on the trajectory besides, e.g. copy fidelity."""
    events: dict[str, int] = field(default_factory=dict)
    """Kind of event to number."""
    questions: list[dict[str, Any]] = field(default_factory=list)
    """Where the problem asks several, of each `question`, `answers` (its golds), `answer` and `value`."""
    document: str | None = None
    """Fingerprint of what was read: samples that share it aren't independent. None: nothing, or an older log."""
    draw: int = 0
    """Which of several samples of the problem, from 0."""
    baseline: str | None = None
    """Of an episode that was played beside the agent's, to compare: the baseline's name."""

    @property
    def key(self) -> SampleKey:
        """Name of its set, id of its problem, which sample of it."""
        return self.name, self.id, self.draw

    @property
    def without_gold(self) -> bool:
        """Whether nothing could grade it, as a question it asks has no gold."""
        return not self.answers or not all(each["answers"] for each in self.questions)

    @property
    def is_final(self) -> bool:
        """Whether playing it again would bring no grade that it hasn't."""
        return self.value is not None or (self.without_gold and Outcome(self.outcome).gradable)

    @property
    def tokens(self) -> int:
        """Tokens processed: every token of every call, read or sampled."""
        return self.prompt_tokens + self.sampled_tokens


class SampleLog:
    """An open log. `finished` holds what earlier runs graded, or no run can grade; the others are played again."""

    def __init__(self, folder: Path, identity: Mapping[str, Any] | None = None) -> None:
        """Open or create the log in `folder`.

        Raises RunError if another process writes to it or it was begun under another identity.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / SAMPLES
        self.other_versions: str | None = None
        """In words, the versions or the machine under which the log was started, where they are others now."""
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _lock(self._file, self.path)
            files.remove_leftovers(folder)
            if identity is not None:
                self.other_versions = _claim(folder, identity)
            samples, self.unreadable = _recover(self._file)
        except BaseException:
            os.close(self._file)
            raise
        self.finished = {sample.key: sample for sample in samples if sample.is_final}

    def append(self, sample: Sample) -> None:
        """Write one line."""
        line = encoded(sample)
        with files.naming(self.path):
            while line:
                line = line[os.write(self._file, line) :]

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> SampleLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def encoded(sample: Sample) -> bytes:
    """A line of the log."""
    values = asdict(sample)
    return _json({**values, CHECKSUM: zlib.crc32(_json(values))}) + b"\n"


def read_samples(path: Path) -> tuple[list[Sample], int]:
    """The samples of a finished or torn log, and how many lines could not be read.

    Of an episode that was played more than once the last line counts.
    """
    return _parse(path.read_bytes())


def _parse(data: bytes) -> tuple[list[Sample], int]:
    samples: dict[SampleKey, Sample] = {}
    unreadable, sealed = 0, False
    for line in data.splitlines():
        values = _object(line)
        sealed = sealed or CHECKSUM in values
        sample = _sample(values, sealed)
        if sample is None:
            unreadable += 1
        else:
            samples[sample.key] = sample
    return list(samples.values()), unreadable


def _json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, sort_keys=True).encode("utf-8", "replace")


def _object(line: bytes) -> dict[str, Any]:
    """Empty if the line is none."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _sample(values: dict[str, Any], sealed: bool) -> Sample | None:
    """The sample of a line, None if it is damaged; `sealed`: whether it must have a checksum."""
    digest = values.pop(CHECKSUM, None)
    try:
        if sealed and digest != zlib.crc32(_json(values)):
            return None
        if not sealed and not values.keys() <= _FORMS.keys():
            return None
        known = {name: value for name, value in values.items() if name in _FORMS}
        if not all(_FORMS[name](value) for name, value in known.items()):
            return None
        return Sample(**{**known, "answers": tuple(known["answers"])})
    except (TypeError, KeyError, RecursionError):
        return None


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST  # False for NaN as well


def _or_none(form: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or form(value)


def _all(form: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(form, value))


def _named(form: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(form, value.values()))


def _asked(value: Any) -> bool:
    return isinstance(value, dict) and all(form(value[name]) for name, form in _ASKED_FORMS.items())


_ASKED_FORMS = {"question": _text, "answers": _all(_text), "answer": _or_none(_text), "value": _or_none(_number)}
_FORMS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("name", "id", "question", "outcome"), _text),
    **dict.fromkeys(("answer", "memory", "reason", "document", "baseline"), _or_none(_text)),
    **dict.fromkeys(("turns", "prompt_tokens", "sampled_tokens", "draw"), _count),
    **dict.fromkeys(("metrics", "measures"), _named(_number)),
    "answers": _all(_text),
    "value": _or_none(_number),
    "size": _or_none(_count),
    "events": _named(_count),
    "questions": _all(_asked),
}
"""What each field of a line must be."""
assert _FORMS.keys() == {one.name for one in fields(Sample)}


def _recover(file: int) -> tuple[list[Sample], int]:
    """Cut a torn last line off and read the rest."""
    with open(file, "rb", closefd=False) as stream:  # one `os.pread` gives no more than 2 GiB
        data = stream.read()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.ftruncate(file, len(whole))
    return _parse(whole)


def set_aside_other(folder: Path, identity: Mapping[str, Any]) -> Path | None:
    """Rename a log that was begun under another identity to `NAME.old-1`, `.old-2`...; None if there is no such."""
    if not (folder / IDENTITY).exists():
        return None
    theirs = _identity(folder)
    if theirs is not None and difference(theirs, _as_read(identity)) is None:
        return None
    return files.set_aside(folder)


def refuse_in_use(folder: Path) -> None:
    """Raise RunError if a process writes to the log in `folder`."""
    path = folder / SAMPLES
    if path.exists():
        with path.open("rb") as log:
            _lock(log.fileno(), path)


def _lock(file: int, path: Path) -> None:
    """Hold the log for as long as `file` is open. The kernel gives it back when the process dies."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(f"{path} is being written by another process: wait for it, or give another --out") from None


def _claim(folder: Path, identity: Mapping[str, Any]) -> str | None:
    """Write the identity and what the log is made with, or compare both with those that are there; in words where the
    latter differs."""
    path = folder / IDENTITY
    mine = _as_read(identity)
    if not path.exists():
        write_json(path, {**mine, MADE_WITH: provenance()})
        return None
    theirs = _identity(folder)
    if theirs is None:
        raise RunError(f"{path} is not readable: give another --out, or --force to begin again")
    if differs := difference(theirs, mine):
        raise RunError(f"{folder} holds another evaluation ({differs}): give another --out, or --force to begin again")
    was = (_written(path) or {}).get(MADE_WITH)
    return differences(was, provenance()) if isinstance(was, dict) else None


def logs_below(run: Path, name: str = SAMPLES) -> dict[str, Path]:
    """The files of a name that the evaluations of a quickstart keep in its run, by EVALUATION.SHARD; those that were
    set aside (`.old-1`) are left out."""
    found = sorted(run.glob(f"evaluations/*/*/{name}"))
    return {f"{path.parent.parent.name}.{path.parent.name}": path for path in found if ".old-" not in path.parent.name}


def read_identity(folder: Path) -> dict[str, Any]:
    """The identity a log was begun under, empty where there is none. Raises RunError for one that can't be read."""
    if not (folder / IDENTITY).exists():
        return {}
    if (identity := _identity(folder)) is None:
        raise RunError(f"{folder / IDENTITY}: can't be read as JSON, so what was played isn't known; restore it")
    return identity


def _identity(folder: Path) -> dict[str, Any] | None:
    """The identity a log was begun under, None if it can't be read. What it was made with is no part of it."""
    found = _written(folder / IDENTITY)
    return None if found is None else {key: value for key, value in found.items() if key != MADE_WITH}


def _written(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _as_read(identity: Mapping[str, Any]) -> dict[str, Any]:
    """As it comes back from the file: tuples are lists."""
    return dict(json.loads(json.dumps(identity)))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file by rename: readers see the old or the new one, never half."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    files.write_file(path, text.encode("utf-8", "replace"))


# ---- Last request (asked.json) -------------------------------------------------------------------------------


ASKED = "asked.json"


@dataclass(frozen=True, slots=True)
class AskedSet:
    """What was asked for of one set."""

    samples: int
    """Episodes of each problem."""
    problems: Iterable[str]
    """Their ids."""


@dataclass(frozen=True, slots=True)
class Logged:
    """What a log holds."""

    samples: list[Sample]
    """Those that were asked for last."""
    not_asked: int = 0
    """Episodes of earlier calls, which the last one didn't ask for."""
    unreadable: int = 0
    """Lines."""


def write_asked(folder: Path, sets: Mapping[str, AskedSet]) -> None:
    """Say what a call asks for."""
    told = {name: {"samples": each.samples, "problems": list(each.problems)} for name, each in sets.items()}
    files.write_file(folder / ASKED, json.dumps(told, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def read_log(folder: Path) -> Logged:
    """The log in `folder`. Raises OSError, and RunError where what was asked for can't be read."""
    samples, unreadable = read_samples(folder / SAMPLES)
    asked = _read_asked(folder / ASKED)
    if asked is None:
        return Logged(samples, 0, unreadable)
    kept = [sample for sample in samples if sample.draw < asked.get((sample.name, sample.id), 0)]
    return Logged(kept, len(samples) - len(kept), unreadable)


def _read_asked(path: Path) -> dict[tuple[str, str], int] | None:
    """Episodes by name of the set and id of the problem; None where nothing says so."""
    try:
        told = json.loads(files.read_regular(path))
        asked = {(name, problem): each["samples"] for name, each in told.items() for problem in each["problems"]}
        if all(type(count) is int for count in asked.values()):
            return asked
        raise ValueError
    except FileNotFoundError:
        return None
    except (files.NoRegularFile, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise RunError(f"{path}: can't be read, so what was asked for isn't known; run palimpsest eval again") from None


def not_asked_told(count: int) -> str:
    """In a sentence."""
    return (
        f"{count:,} episodes of earlier calls stay in the log and are in no figure: the last call didn't ask for them"
    )
