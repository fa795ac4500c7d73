"""Trajectory files: JSON lines in zstd frames, one line per episode.

Each frame contains the whole lines of one group, so a file cut anywhere loses only the frame that was cut.
`zstdcat FILE | jq .outcome` reads it as well. A file whose name doesn't end in .zst contains plain lines, the format of
handwritten scripted episodes. `frame_spans` and `frame_end` walk from block to block of a frame, each of which states
its size (RFC 8878, section 3.1), without decompressing. docs/reference/files.md has the fields of a line. Fields added
later are optional and read with a default, without a new format number. A record outside of its run names the tokenizer
of its ids (`tokenizer`: `Codec.digest`).

Guaranteed: equal groups give equal bytes; every token id, log-probability, note and event comes back as written. Values
outside JSON (bytes, NaN, an integer beyond 64 bits...) are written as text, with their path under `as_text`. The reader
reports the part it skipped; a line of another format is rejected with the name of the file. The walk over frames ends
at the first frame that is cut or invalid.

An index NAME.index is next to NAME.jsonl.zst: one line per frame, with a row for each of its episodes, so that a table
of them needs no frame unpacked. It may be missing, torn or shorter than the record. A reader uses the lines whose
positions and checksums match the file, and unpacks the other frames.

    index   {"start", "end", "check", "rows": [{"gid", "draw", "id", "question", "reward", "turns", ...}, ...]}

Not covered: the document (`Problem.context`), whose tokens are in the prompts; damage inside a block, which only
decompressing finds. Tuples in notes, details and metadata come back as lists, sets as sorted lists.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import zstandard

from palimpsest.config.data import how_to_get
from palimpsest.errors import DataError
from palimpsest.events import Event, event_of
from palimpsest.files import read_regular
from palimpsest.text.json_text import storable, to_json
from palimpsest.types import (
    Completion,
    Grade,
    Group,
    Outcome,
    Problem,
    Question,
    SpanReward,
    StopReason,
    Trajectory,
    Turn,
    spans_within,
)

# ---- Bounds of zstd frames, without decompressing ------------------------------------------------------------


_HEADER = 18  # bytes of the longest frame header
_BLOCK_HEADER = 3
_CHECKSUM = 4
_RLE = 1  # the block type whose size counts the repeated byte; it takes one byte itself


def frame_spans(data: bytes) -> Iterator[tuple[int, int]]:
    """[start, end) in bytes of each whole frame, in order, up to the first incomplete one.

    >>> two = zstandard.compress(b"first") + zstandard.compress(b"second")
    >>> [zstandard.decompress(two[start:end]) for start, end in frame_spans(two + b"torn")]
    [b'first', b'second']
    """
    view, start = memoryview(data), 0

    def read(at: int, count: int) -> bytes:
        return bytes(view[at : at + count])

    while (end := frame_end(read, start, len(data))) is not None:
        yield start, end
        start = end


def frame_end(read: Callable[[int, int], bytes], start: int, size: int) -> int | None:
    """The end of the frame that starts at `start`; None without one, or if it is cut.

    `read(at, count)` returns up to `count` of the `size` bytes.
    """
    head = read(start, _HEADER)
    try:
        at = start + zstandard.frame_header_size(head)
        checksum = _CHECKSUM if zstandard.get_frame_parameters(head).has_checksum else 0
    except zstandard.ZstdError:
        return None
    last = False
    while not last:
        header = read(at, _BLOCK_HEADER)
        if len(header) < _BLOCK_HEADER:
            return None
        block = int.from_bytes(header, "little")
        last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
        at += _BLOCK_HEADER + (1 if kind == _RLE else length)
    return at + checksum if at + checksum <= size else None


# ---- Trajectories as JSON lines ------------------------------------------------------------------------------


EPISODES = "episodes.jsonl.zst"
"""The record of an evaluation; that of a run is a folder."""
FORMAT = 2
LINE = re.compile(rb"\S.*")
"""A nonblank line in the content of a frame."""
_LEVEL = 3
_NOT_GRADED = Grade(None, "the record holds no grade")

NO_TOKENIZER = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """Contents of a record file."""

    groups: tuple[Group, ...]
    torn: str | None = None
    """Message about the skipped part of a cut file; None if the file is whole."""
    tokenizers: frozenset[str] = frozenset()
    """`Codec.digest` of the tokenizers of the ids; `NO_TOKENIZER` for lines without one."""


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """A JSON object for one episode.

    >>> turn = Turn((1, 2), Completion((3,), (-0.5,), StopReason.STOP), step=0, name="answer")
    >>> data = trajectory_to_json(Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED, "yes"))
    >>> data["turns"][0]["token_ids"], data["outcome"]
    ([3], 'answered')
    >>> trajectory_from_json(data).turns[0] == turn
    True
    """
    return {
        "problem_id": trajectory.problem_id,
        "group_id": trajectory.group_id,
        "rollout": trajectory.rollout,
        "outcome": trajectory.outcome.value,
        "answer": trajectory.answer,
        "turns": [turn_to_json(turn) for turn in trajectory.turns],
        "events": [
            {"kind": event.kind, "before_turn": event.before_turn, "detail": dict(event.detail)}
            for event in trajectory.events
        ],
        **({"answers": list(trajectory.answers)} if trajectory.answers else {}),
    }


def trajectory_from_json(data: Mapping[str, Any]) -> Trajectory:
    """The inverse of `trajectory_to_json`. Raises KeyError, TypeError or ValueError for anything else."""
    return Trajectory(
        problem_id=data["problem_id"],
        group_id=data["group_id"],
        rollout=data["rollout"],
        turns=tuple(turn_from_json(turn) for turn in data["turns"]),
        outcome=Outcome(data["outcome"]),
        answer=data["answer"],
        events=tuple(Event(event_of(event["kind"], event["detail"]), event["before_turn"]) for event in data["events"]),
        answers=tuple(data.get("answers", ())),
    )


def turn_to_json(turn: Turn) -> dict[str, Any]:
    completion, last = turn.completion, turn.completion.last_policy_version
    return {
        "step": turn.step,
        "name": turn.name,
        "prompt_ids": list(turn.prompt_ids),
        "token_ids": list(completion.token_ids),
        "logprobs": list(completion.logprobs),
        "stop_reason": completion.stop_reason.value,
        "policy_version": completion.policy_version,
        **({} if last == completion.policy_version else {"last_policy_version": last}),
        "notes": dict(turn.notes),
        "spans": {name: list(span) for name, span in turn.spans.items()},
        **({} if turn.role is None else {"role": turn.role, "trained": turn.trained}),
    }


def turn_from_json(data: Mapping[str, Any]) -> Turn:
    """The inverse of `turn_to_json`. Raises as `trajectory_from_json`."""
    completion = Completion(
        token_ids=tuple(data["token_ids"]),
        logprobs=tuple(data["logprobs"]),
        stop_reason=StopReason(data["stop_reason"]),
        policy_version=data["policy_version"],
        last_policy_version=data.get("last_policy_version", data["policy_version"]),
    )
    if len(completion.logprobs) != len(completion.token_ids):
        raise ValueError(f"{len(completion.token_ids)} tokens with {len(completion.logprobs)} log-probabilities")
    prompt = tuple(data["prompt_ids"])
    return Turn(
        prompt,
        completion,
        data["step"],
        data["name"],
        data["notes"],
        spans_within({name: (int(start), int(end)) for name, (start, end) in data["spans"].items()}, len(prompt)),
        role=data.get("role"),
        trained=data.get("trained", True),
    )


def grade_to_json(grade: Grade) -> dict[str, Any]:
    return {
        "value": grade.value,
        "reason": grade.reason,
        "breakdown": dict(grade.breakdown),
        "per_turn": None if grade.per_turn is None else list(grade.per_turn),
        **({} if grade.turn_weights is None else {"turn_weights": list(grade.turn_weights)}),
        **({"spans": [[s.turn, s.start, s.end, s.value] for s in grade.spans]} if grade.spans else {}),
    }


def grade_from_json(data: Mapping[str, Any] | None) -> Grade:
    """The inverse of `grade_to_json`; None (e.g. a scripted episode) is ungraded."""
    if data is None:
        return _NOT_GRADED
    per_turn, weights = data["per_turn"], data.get("turn_weights")
    return Grade(
        data["value"],
        data["reason"],
        data["breakdown"],
        None if per_turn is None else tuple(per_turn),
        None if weights is None else tuple(weights),
        tuple(SpanReward(*span) for span in data.get("spans", ())),
    )


def _problem_to_json(problem: Problem) -> dict[str, Any]:
    questions = [{"question": one.text, "answers": list(one.answers)} for one in problem.questions]
    return {
        "id": problem.id,
        "question": problem.question,
        "answers": list(problem.answers),
        "metadata": dict(problem.metadata),
        **({"questions": questions} if questions else {}),
        **({"memory": problem.memory} if problem.memory else {}),
    }


def _problem_from_json(data: Mapping[str, Any]) -> Problem:
    questions = tuple(Question(one["question"], tuple(one["answers"])) for one in data.get("questions", ()))
    leading = (data["id"], data["question"], tuple(data["answers"]))
    return Problem(*leading, None, data["metadata"], questions, data.get("memory", ""))


def group_lines(group: Group, tokenizer: str | None = None) -> bytes:
    return b"".join(_dump(line) + b"\n" for line in _lines(group, tokenizer))


def _lines(group: Group, tokenizer: str | None = None) -> Iterator[dict[str, Any]]:
    problem = _problem_to_json(group.problem)
    origin: dict[str, Any] = {"key": list(group.key)} if group.key else {}
    origin |= {} if tokenizer is None else {"tokenizer": tokenizer}
    for trajectory, grade in zip(group.trajectories, group.grades, strict=True):
        shared = {"format": FORMAT, "problem": problem, "grade": grade_to_json(grade), **origin}
        yield {**shared, **trajectory_to_json(trajectory)}


def _dump(line: Mapping[str, Any]) -> bytes:
    as_text: list[str] = []
    turns = [_storable_turn(turn, as_text, at) for at, turn in enumerate(line["turns"])]
    line = {**storable({**line, "turns": ()}, as_text), "turns": turns}
    options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY  # tokens of custom engines may be numpy's
    return orjson.dumps({**line, "as_text": as_text} if as_text else line, option=options)


def _storable_turn(turn: Mapping[str, Any], as_text: list[str], at: int) -> dict[str, Any]:
    """`turn` in storable form, without a check of its many tokens: the recorder has checked them."""
    tokens = {name: turn[name] for name in ("prompt_ids", "token_ids", "logprobs")}
    return {**storable({**turn, **dict.fromkeys(tokens)}, as_text, ("turns", str(at))), **tokens}


def encode_groups(groups: Iterable[Group], tokenizer: str | None = None) -> bytes:
    """The bytes of a record file: one zstd frame per group. Files may be joined end to end. `tokenizer`:
    `Codec.digest` of the ids' tokenizer."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, threads=0)
    return b"".join(compressor.compress(group_lines(group, tokenizer)) for group in groups)


def record_files(path: Path) -> list[Path]:
    """Records of a run, an evaluation or a folder of them, in order of names, or the file itself. Raises DataError."""
    if not path.is_dir():
        return [path]
    if (path / EPISODES).is_file():
        return [path / EPISODES]
    folder = path / "trajectories" if (path / "trajectories").is_dir() else path
    if files := sorted([*folder.glob("*.jsonl.zst"), *folder.glob("*.jsonl")]):
        return files
    raise DataError(f"{folder}: no .jsonl.zst or .jsonl of trajectories in this folder")


def read_groups(path: str | Path) -> Recording:
    """Read a record file up to the first cut or damaged frame, and report the rest.

    Raises DataError, naming the file, for a missing file and for a whole frame of something other than episodes.
    """
    path = Path(path)
    try:
        data = read_regular(path)
    except OSError as error:
        command = how_to_get(path)
        fix = f"get it with: {command}" if command else "expected a .jsonl.zst of trajectories"
        raise DataError(f"{path}: can't be read ({error.strerror}); {fix}") from None
    groups: list[Group] = []
    tokenizers = set[str]()
    torn = None
    frames = _frames(path, data) if path.suffix == ".zst" else _plain_lines(data)
    for frame in frames:
        if frame is None:
            torn = f"{path}: cut short or damaged after {len(groups)} whole groups; the rest was skipped"
            break
        rows = _rows(path, frame)
        tokenizers |= {str(row.get("tokenizer") or NO_TOKENIZER) for row in rows}
        groups += _grouped(path, rows)
    return Recording(tuple(groups), torn, frozenset(tokenizers))


MOST_BYTES, _STEP = 256 << 20, 4 << 20  # of a frame's content; of one read


def unpacked(path: Path, frame: bytes) -> bytes:
    """Content of a frame, unpacked in steps. Raises ZstdError, and DataError as soon as it is too large."""
    content = io.BytesIO()
    with zstandard.ZstdDecompressor().stream_reader(frame) as reader:
        while step := reader.read(_STEP):
            if content.tell() + len(step) > MOST_BYTES:
                raise DataError(f"{path}: a frame is too large: more than {MOST_BYTES >> 20} MiB")
            content.write(step)
    return content.getvalue()


def _frames(path: Path, data: bytes) -> Iterator[bytes | None]:
    """Content of each frame; ends with None at a frame that is cut or has a wrong checksum."""
    complete = 0
    for start, end in frame_spans(data):
        try:
            yield unpacked(path, data[start:end])
        except zstandard.ZstdError:
            break
        complete = end
    if complete < len(data):
        yield None


def _plain_lines(data: bytes) -> Iterator[bytes | None]:
    """All whole lines together, then None if the last one was cut before its newline and is not JSON."""
    complete, _, rest = data.rpartition(b"\n")
    try:
        orjson.loads(rest.strip() or b"null")
    except orjson.JSONDecodeError:
        yield complete
        yield None
        return
    yield data


def groups_in(path: Path, frame: bytes) -> list[Group]:
    """The groups in the lines of a frame or of a part of a plain file. Raises DataError, naming the file."""
    return _grouped(path, _rows(path, frame))


def _rows(path: Path, frame: bytes) -> list[dict[str, Any]]:
    return [parse_line(path, match[0]) for match in LINE.finditer(frame)]


def _grouped(path: Path, rows: Sequence[Mapping[str, Any]]) -> list[Group]:
    groups: list[Group] = []
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end].get("group_id") != rows[start].get("group_id"):
            groups.append(_group(path, rows[start:end]))
            start = end
    return groups


def parse_line(path: Path, line: bytes) -> dict[str, Any]:
    """An episode as a JSON object. Raises DataError, naming the file."""
    try:
        row: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path}: a line is not JSON ({error}); expected one trajectory per line") from None
    number = row.get("format") if isinstance(row, dict) else None
    if type(number) is not int or number != FORMAT:
        raise DataError(f"{path}: format {number!r:.60} of a trajectory is not {FORMAT}, the known one")
    return row


def _group(path: Path, rows: Sequence[Mapping[str, Any]]) -> Group:
    try:
        head = rows[0]["problem"]
        if not isinstance(head["answers"], list):
            raise TypeError(f"answers must be a list, is {head['answers']!r:.60}")
        problem = _problem_from_json(head)
        trajectories = tuple(trajectory_from_json(row) for row in rows)
        grades = tuple(grade_from_json(row.get("grade")) for row in rows)
        return Group(problem, trajectories, grades, tuple(rows[0].get("key", ())))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        name = rows[0].get("group_id")
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: group {name!r} is not a record of trajectories ({reason})") from None


# ---- Index of a record ---------------------------------------------------------------------------------------


_TEXT, _GOLDS = 240, 4
"""Limits of a row: characters of a text, and golds; the episode contains all."""


def index_of(record: Path) -> Path:
    """The index file of a record.

    >>> index_of(Path("run/step-000001.jsonl.zst")).as_posix()
    'run/step-000001.index'
    """
    return record.with_name(f"{record.name.partition('.')[0]}.index")


def index_lines(groups: Sequence[Group], encoded: bytes, at: int = 0) -> bytes:
    """The lines of the index for `encoded`, which is `encode_groups(groups)` and starts at byte `at` of its file."""
    frames = zip(groups, frame_spans(encoded), strict=True)
    return b"".join(index_line(encoded[start:end], at + start, _lines(group)) for group, (start, end) in frames)


def index_line(frame: bytes, at: int, lines: Iterable[Mapping[str, Any]]) -> bytes:
    """The line of the index for a frame at byte `at` of its file. Raises ValueError for invalid lines."""
    rows = [episode_row(line) for line in lines]
    return to_json({"start": at, "end": at + len(frame), "check": frame_check(frame), "rows": rows}) + b"\n"


def frame_check(frame: bytes) -> str:
    """The checksum at the end of a frame.

    >>> frame_check(encode_groups([]) + b"....abcd")
    '61626364'
    """
    return frame[-_CHECKSUM:].hex()


def episode_row(line: Mapping[str, Any]) -> dict[str, Any]:
    """The row of an episode: `gid` is its group's id, `draw` its rollout.

    Omits values of unexpected types. Raises ValueError for a line that is not an episode.
    """
    problem, grade = line.get("problem") or {}, line.get("grade") or {}
    try:
        turns = line["turns"]
        return {
            "gid": str(line["group_id"]),
            "draw": int(line["rollout"]),
            "id": str(problem["id"]),
            "question": _short(problem["question"]),
            "golds": [_short(gold) for gold in _list(problem["answers"])[:_GOLDS]],
            "answer": None if line["answer"] is None else _short(line["answer"]),
            "outcome": str(line["outcome"]),
            "reward": value if isinstance(value := grade.get("value"), int | float) else None,
            "reason": _reason(value, grade.get("reason")),
            "parts": dict(sorted(breakdown.items()))
            if isinstance(breakdown := grade.get("breakdown"), Mapping)
            else {},
            "events": dict(Counter(str(event["kind"]) for event in _list(line["events"]))),
            "turns": len(turns),
            "prompt_tokens": _count(turns, "prompt_ids"),
            "sampled_tokens": _count(turns, "token_ids"),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a line is not an episode ({type(error).__name__}: {error})") from None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(turns: Sequence[Any], name: str) -> int:
    return sum(len(_list(turn.get(name))) for turn in turns if isinstance(turn, Mapping))


def _reason(value: object, reason: object) -> str | None:
    if value is not None and not isinstance(value, int | float):
        return f"the recorded grade is not a number: {value!r:.60}"
    return None if reason is None else str(reason)


def _short(value: object) -> str:
    """
    >>> len(_short("word " * 100))
    240
    """
    text = str(value)
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"
