"""Evaluation log: `samples.jsonl` with one line per episode, identity, last request (`asked.json`).

A later call may request less than an earlier one: fewer samples or problems, other lengths. The log retains earlier
episodes, so that none runs twice. All figures cover the last request: summary.json, `--regrade`, `compare`, the
viewer. A call writes `asked.json` before its first episode, so that the episodes of a killed call count.

Guaranteed: a killed process loses at most the episodes in flight; a torn last line is truncated and its episode runs
again; unreadable lines, wrong checksums and lines without a sample are ignored and counted; two processes cannot write
to one log; a log accepts only the identity (model, policy, data...) with which it started.
Not covered: power loss (lines are flushed to the system, not to the disk), network file systems; a folder without
`asked.json`, whose whole log counts.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from palimpsest import files
from palimpsest.config.data import GENERATED
from palimpsest.config.keys import difference
from palimpsest.errors import RunError
from palimpsest.notes import Note
from palimpsest.provenance import MADE_WITH, differences, provenance, same_weights
from palimpsest.types import Outcome

# ---- The log of an evaluation --------------------------------------------------------------------------------


SAMPLES = "samples.jsonl"
IDENTITY = "evaluation.json"
SUMMARY = "summary.json"
"""Figures of an evaluation or of a quickstart."""
CHECKSUM = "crc32"
"""Key of the checksum over a line's other fields."""
_LARGEST = 2**53
"""A larger number in a line means damage: no count and no reward is that large."""
_SIZE = re.compile(r"[-_. ]?(\d+)([kK]?)$")
"""The size at the end of a set's name."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Problems of one set at one size, with their player."""

    set: str
    """Name of a data file, its path if two have the same name, `synthetic` or `synthetic_search`."""
    size: int | None
    """Requested size in `unit`; None: the size of the data."""
    unit: str | None
    """`documents` (per context), `chunks` (per generated document), `objectives` (questions per problem) or None:
    unknown."""
    player: str
    """Name of the policy or baseline."""
    baseline: bool = False
    """True if the player is a baseline."""

    @property
    def part(self) -> str:
        """Text of set and size.

        >>> Cell("dev", 50, "documents", "recall").part, Cell("synthetic", 1, "chunks", "recall").part
        ('dev, 50 documents', '1 chunk')
        """
        if self.size is None:
            return self.set
        if self.unit is None:
            return f"{self.set}, size {self.size}"
        sized = f"{self.size} {self.unit.removesuffix('s') if self.size == 1 else self.unit}"
        return sized if self.set in GENERATED else f"{self.set}, {sized}"

    @property
    def family(self) -> str:
        """The set without the size at the end of its name.

        >>> Cell("needle_64", None, None, "recall").family, Cell("qa-32k", None, None, "recall").family
        ('needle', 'qa')
        """
        return _SIZE.sub("", self.set)

    @property
    def size_in_name(self) -> int:
        """The size at the end of the set's name, or 0.

        >>> Cell("qa-32k", None, None, "recall").size_in_name, Cell("test-4", None, None, "edit").size_in_name
        (32000, 4)
        """
        found = _SIZE.search(self.set)
        return int(found[1]) * (1000 if found[2] else 1) if found else 0

    @property
    def title(self) -> str:
        """Unique text of player and part.

        >>> Cell("dev", None, None, "closed book", baseline=True).title
        'closed book, dev'
        """
        return f"{self.player}, {self.part}"

    @property
    def task(self) -> str:
        """Name of the set without the size: shared by files of one task at several sizes.

        >>> Cell("eval_50", 50, None, "recall").task, Cell("eval_50_hard", 50, None, "recall").task
        ('eval', 'eval__hard')
        """
        return re.sub(rf"(?<!\d){self.size}(?!\d)", "", self.set).strip(" _-.|") or self.set

    @property
    def order(self) -> tuple[str, int, str, bool, str]:
        """Sort key: task by task, from small to large, the agent first."""
        task, size = (self.family, self.size_in_name) if self.size is None else (self.task, self.size)
        return task, size, self.set, self.baseline, self.player


SampleKey = tuple[Cell, str, int]
"""Cell, id of the problem, number of the draw."""

Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]


class AskedQuestion(BaseModel, extra="forbid", strict=True):
    """Schema of one of several questions of a problem."""

    question: str
    answers: list[str]
    answer: str | None
    value: Number | None


def _valid_question(values: dict[str, Any]) -> dict[str, Any]:
    AskedQuestion.model_validate(values)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One episode of an evaluation and its grade: a line of samples.jsonl."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    set: str
    size: Count | None = None
    unit: str | None = None
    player: str
    baseline: bool = False
    """With the fields above, the `Cell` of the sample; (cell, id, draw) is unique."""
    id: str
    question: str
    answers: tuple[str, ...]
    answer: str | None
    """Text of the answer turn."""
    memory: str | None
    """The last memory (metrics/reading_trace.py); None for policies without one."""
    outcome: str
    value: Number | None
    """None: ungraded, for `reason`."""
    reason: str | None
    length: Count | None
    """Documents or chunks of this context, if the data states it."""
    turns: Count
    prompt_tokens: Count
    sampled_tokens: Count
    metrics: dict[str, Number] = field(default_factory=dict)
    """The grade's breakdown."""
    measures: dict[str, Number] = field(default_factory=dict)
    """Further measures of the trajectory, e.g. copy fidelity."""
    events: dict[str, Count] = field(default_factory=dict)
    """Number of events per kind."""
    questions: list[Annotated[dict[str, Any], AfterValidator(_valid_question)]] = field(default_factory=list)
    """For a problem with several questions: `question`, `answers` (golds), `answer` and `value` of each."""
    document: str | None = None
    """Fingerprint of the document; samples that share it are dependent. None: no document."""
    draw: Count = 0
    """Number of the sample within its problem, from 0."""
    grading: dict[str, str | bool] = field(default_factory=dict)
    """Grading rules that the data set declares (`types.GRADING`)."""

    @property
    def cell(self) -> Cell:
        return Cell(self.set, self.size, self.unit, self.player, self.baseline)

    @property
    def key(self) -> SampleKey:
        return self.cell, self.id, self.draw

    @property
    def group_id(self) -> str:
        """Group id of its episode in the record."""
        return group_id(self.cell, self.id)

    @property
    def without_gold(self) -> bool:
        """True if a question lacks a gold, so that no grader of answers can grade the sample."""
        if self.value is not None or not Outcome(self.outcome).gradable:
            return False
        return not (self.answers and all(question["answers"] for question in self.questions))

    @property
    def is_final(self) -> bool:
        """True if another run of the episode cannot add a grade."""
        return self.value is not None or (self.without_gold and Outcome(self.outcome).gradable)

    @property
    def tokens(self) -> int:
        """Tokens processed: every token of every call, read or sampled."""
        return self.prompt_tokens + self.sampled_tokens


def group_id(cell: Cell, problem: str) -> str:
    """Group id of a problem's episodes in the record."""
    return f"{cell.title}/{problem}"


class SampleLog:
    """An open log. `finished` contains the final samples of earlier calls; other episodes run again."""

    def __init__(self, folder: Path, identity: Mapping[str, Any] | None = None) -> None:
        """Open or create the log in `folder`.

        Raises RunError if another process writes to it or it has another identity.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / SAMPLES
        self.warnings: list[str] = []
        """Warnings for the user."""
        self._file = files.open_descriptor(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            _lock(self._file, self.path)
            files.remove_leftovers(folder)
            changed = None if identity is None else _claim(folder, identity)
            samples, unreadable = _recover(self._file)
        except BaseException:
            os.close(self._file)
            raise
        self.finished = {sample.key: sample for sample in samples if sample.is_final}
        if unreadable:
            self.warnings.append(f"{self.path}: {unreadable} unreadable lines; their episodes run again")
        if changed and self.finished:
            self.warnings.append(
                f"{folder}: earlier episodes ran with other versions or on another machine ({changed}); the rest may "
                "round differently"
            )

    def append(self, sample: Sample) -> None:
        line = encoded(sample)
        with files.naming(self.path):
            while line:
                line = line[os.write(self._file, line) :]

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> SampleLog:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def encoded(sample: Sample) -> bytes:
    values = asdict(sample)
    return _json({**values, CHECKSUM: zlib.crc32(_json(values))}) + b"\n"


def read_samples(path: Path) -> tuple[list[Sample], int]:
    """Samples of a finished or torn log, and the number of unreadable lines. An episode's last line counts."""
    return _parse(files.read_regular(path))


def _parse(data: bytes) -> tuple[list[Sample], int]:
    samples: dict[SampleKey, Sample] = {}
    unreadable = 0
    for line in data.splitlines():
        sample = _sample(line)
        if sample is None:
            unreadable += 1
        else:
            samples[sample.key] = sample
    return list(samples.values()), unreadable


def _json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, sort_keys=True).encode("utf-8", "replace")


_LINE = TypeAdapter(Sample)


def _sample(line: bytes) -> Sample | None:
    try:
        values = json.loads(line)
        digest, content = values.pop(CHECKSUM), _json(values)
        return _LINE.validate_json(content) if digest == zlib.crc32(content) else None
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None


def _recover(file: int) -> tuple[list[Sample], int]:
    with open(file, "rb", closefd=False) as stream:  # one `os.pread` returns at most 2 GiB
        data = stream.read()
    complete = data[: data.rfind(b"\n") + 1]
    if len(complete) < len(data):
        os.ftruncate(file, len(complete))
    return _parse(complete)


def set_aside_other(folder: Path, identity: Mapping[str, Any]) -> Path | None:
    """Rename a log with another identity to `NAME.old-1`, `.old-2`...; None if there is none."""
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
        with files.open_regular(path) as log:
            _lock(log.fileno(), path)


def _lock(file: int, path: Path) -> None:
    """Lock the log for as long as `file` is open. The kernel releases the lock when the process dies."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(f"another process writes to {path}: wait for it, or use another --out") from None


def _claim(folder: Path, identity: Mapping[str, Any]) -> str | None:
    """Write the identity and provenance of a new log, or compare them with the existing ones. Returns differences of
    the provenance as text. Raises RunError if the identity differs."""
    path = folder / IDENTITY
    if not path.exists():
        write_json(path, {**_as_read(identity), MADE_WITH: provenance()})
        return None
    refuse_another(folder, identity)
    was = (read_object(path) or {}).get(MADE_WITH)
    return differences(was, provenance()) if isinstance(was, dict) else None


def refuse_another(folder: Path, identity: Mapping[str, Any]) -> None:
    """Raise RunError if the log in `folder` has another identity."""
    if not (folder / IDENTITY).exists():
        return
    if (theirs := _identity(folder)) is None:
        raise RunError(f"{folder / IDENTITY} is not readable: use another --out, or --force to start over")
    if same_weights(theirs, identity.get("weights")) is None:
        why = "an earlier version hashed parts of its weights only"
        raise RunError(f"{folder}: {why}: use another --out, or --force to start over")
    if differs := difference(theirs, _as_read(identity)):
        raise RunError(f"{folder} contains another evaluation ({differs}): use another --out, or --force to start over")


def logs_below(run: Path, name: str = SAMPLES) -> dict[str, Path]:
    """Files named `name` in the evaluations of a quickstart run, by EVALUATION.SHARD; skips renamed ones (`.old-1`)."""
    paths = sorted(run.glob(f"evaluations/*/*/{name}"))
    return {
        f"{path.parent.parent.name}.{path.parent.name}": path for path in paths if not files.is_set_aside(path.parent)
    }


def read_identity(folder: Path) -> dict[str, Any]:
    """Identity of the log in `folder`, empty without one. Raises RunError if it is unreadable."""
    if not (folder / IDENTITY).exists():
        return {}
    if (identity := _identity(folder)) is None:
        raise RunError(f"{folder / IDENTITY} is not valid JSON, so its settings are unknown: restore the file")
    return identity


def _identity(folder: Path) -> dict[str, Any] | None:
    identity = read_object(folder / IDENTITY)
    return None if identity is None else {key: value for key, value in identity.items() if key != MADE_WITH}


def read_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if it is missing or unreadable."""
    try:
        value = json.loads(files.read_regular(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _as_read(identity: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(identity)))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file by rename, so that readers never see half of it."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    files.write_file(path, text.encode("utf-8", "replace"))


# ---- Last request (asked.json) -------------------------------------------------------------------------------


REQUESTED = "asked.json"


@dataclass(frozen=True, slots=True)
class Logged:
    samples: list[Sample]
    """Samples of the last request."""
    not_asked: int = 0
    """Episodes of earlier calls outside the last request."""
    unreadable: int = 0
    """Lines."""
    missing: int = 0
    """Requested episodes that have not ended."""

    def notes(self, folder: Path) -> list[Note]:
        counts = {"lines_unreadable": self.unreadable, "episodes_not_requested": self.not_asked}
        counts["episodes_missing"] = self.missing
        return [Note(code, folder=str(folder), count=count) for code, count in counts.items() if count]


def write_request(folder: Path, requested: Iterable[tuple[Cell, int, Iterable[str]]]) -> None:
    """Write the request of a call: cells, episodes per problem, ids of the problems."""
    rows = [{**asdict(cell), "samples": samples, "problems": list(problems)} for cell, samples, problems in requested]
    files.write_file(folder / REQUESTED, json.dumps(rows, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def read_log(folder: Path) -> Logged:
    """The log in `folder`. Raises OSError, and RunError if the request is unreadable."""
    samples, unreadable = read_samples(folder / SAMPLES)
    requested = _read_requested(folder / REQUESTED)
    if requested is None:
        return Logged(samples, 0, unreadable)
    selected = [sample for sample in samples if sample.draw < requested.get((sample.cell, sample.id), 0)]
    return Logged(selected, len(samples) - len(selected), unreadable, sum(requested.values()) - len(selected))


def _read_requested(path: Path) -> dict[tuple[Cell, str], int] | None:
    try:
        rows = [(row.pop("samples"), row.pop("problems"), row) for row in json.loads(files.read_regular(path))]
        requested = {(Cell(**cell), problem): count for count, problems, cell in rows for problem in problems}
        if all(type(count) is int for count in requested.values()):
            return requested
        raise ValueError
    except FileNotFoundError:
        return None
    except (files.NoRegularFile, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise RunError(f"{path} is not readable, so the last request is unknown: run palimpsest eval again") from None
