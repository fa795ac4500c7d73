"""Trajectories on disk: what is written is read again, whatever the crash."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.errors import DataError
from palimpsest.evaluation.episode_files import first_episodes
from palimpsest.events import KINDS, Event, Plain
from palimpsest.rollout import trajectory_file
from palimpsest.rollout.trajectory_file import encode_groups, frame_spans, group_lines, read_groups
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
)
from support.groups import make_episode, make_turn, sample_groups

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
IDS = st.lists(st.integers(0, 2**31), max_size=6).map(tuple)
NOTES = st.dictionaries(TEXT, st.one_of(st.integers(-(2**53), 2**53), TEXT, st.booleans()), max_size=3)
VALUES = {
    "str": TEXT,
    "str | None": st.none() | TEXT,
    "int": st.integers(-(2**53), 2**53),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "int | None": st.none() | st.integers(0, 9),
    "bool": st.booleans(),
    "float | None": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "tuple[int, int]": st.tuples(st.integers(0, 9), st.integers(0, 9)),
    "tuple[int, ...]": IDS,
    "tuple[str, ...]": st.lists(TEXT, max_size=2).map(tuple),
    "Mapping[str, Any]": NOTES,
}
EVENTS = st.one_of(
    st.builds(Plain, TEXT.filter(lambda kind: kind not in KINDS), NOTES),
    *(st.builds(kind, **{one.name: VALUES[str(one.type)] for one in fields(kind)}) for kind in KINDS.values()),
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ROLES = [(None, True), ("critic", True), ("critic", False)]
SPANS = st.builds(SpanReward, st.integers(0, 2), st.integers(0, 2), st.integers(3, 5), FLOATS)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    tokens = draw(IDS)
    logprobs = tuple(draw(st.lists(FLOATS, min_size=len(tokens), max_size=len(tokens))))
    first, more = draw(st.integers(0, 9)), draw(st.integers(0, 2))  # new weights may have arrived in between
    completion = Completion(tokens, logprobs, draw(st.sampled_from(StopReason)), first, first + more)
    prompt = draw(IDS)
    ends = st.lists(st.integers(0, len(prompt)), min_size=2, max_size=2).map(lambda pair: (min(pair), max(pair)))
    spans = draw(st.dictionaries(TEXT, ends, max_size=2))
    role, trained = draw(st.sampled_from(ROLES))
    return Turn(prompt, completion, draw(st.integers(0, 99)), draw(TEXT), draw(NOTES), spans, role, trained)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    name = draw(TEXT)
    events = st.lists(st.builds(Event, EVENTS, st.integers(0, 9)), max_size=2)
    played = tuple(
        make_episode(
            *draw(st.lists(turns(), max_size=3)),
            rollout=rollout,
            problem_id=name,
            group_id=f"g/{name}",
            outcome=draw(st.sampled_from(Outcome)),
            answer=draw(st.none() | TEXT),
            events=tuple(draw(events)),
        )
        for rollout in range(draw(st.integers(1, 3)))
    )
    per_turn, spans = st.none() | st.lists(FLOATS, max_size=2).map(tuple), st.lists(SPANS, max_size=2).map(tuple)
    grades = st.builds(Grade, st.none() | FLOATS, st.none() | TEXT, st.just({}), per_turn, spans=spans)
    problem = Problem(name, draw(TEXT), ("gold",), None, draw(NOTES), memory=draw(TEXT))
    return Group(problem, played, tuple(draw(grades) for _ in played))


@settings(max_examples=50)
@given(st.lists(groups(), max_size=3, unique_by=lambda group: group.problem.id))
def test_groups_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, written: list[Group]) -> None:
    path = tmp_path_factory.mktemp("record") / "step.jsonl.zst"
    path.write_bytes(encode_groups(written))
    recording = read_groups(path)
    assert recording.groups == tuple(written)
    assert recording.torn is None


def test_questions_and_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    problem = Problem.asking("p", [Question("Who ran?", ("Anna",)), Question("Where?", ("Rome", "Roma"))], "Anna ran.")
    played = make_episode(make_turn((1,), (2,)), answer="1. Anna\n2. Rome", answers=("Anna", "Rome"))
    (tmp_path / "g.jsonl.zst").write_bytes(encode_groups([Group(problem, (played,), (Grade(0.5),))]))
    (back,) = read_groups(tmp_path / "g.jsonl.zst").groups
    assert back.problem.questions == problem.questions
    assert back.trajectories == (played,)


def test_every_line_is_one_episode_of_plain_json() -> None:
    content = zstandard.ZstdDecompressor().stream_reader(encode_groups(sample_groups()), read_across_frames=True)
    rows = [json.loads(line) for line in content.read().splitlines()]
    assert [(row["problem"]["id"], row["rollout"]) for row in rows] == [(f"p{i}", r) for i in range(3) for r in (0, 1)]
    assert rows[0]["turns"][0]["token_ids"] == [5, 6]
    assert "context" not in rows[0]["problem"]


def test_a_file_cut_at_any_byte_gives_every_complete_group_before_the_cut(tmp_path: Path) -> None:
    groups = sample_groups(2)
    frames = [encode_groups([group]) for group in groups]
    data = b"".join(frames)
    assert data == encode_groups(groups)
    ends = [sum(map(len, frames[:n])) for n in range(len(frames) + 1)]
    path = tmp_path / "cut.jsonl.zst"
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        recording = read_groups(path)
        complete = sum(end <= cut for end in ends) - 1
        assert [group.problem.id for group in recording.groups] == [f"p{i}" for i in range(complete)]
        assert (recording.torn is None) == (cut in ends)
        assert [end for _, end in frame_spans(data[:cut])] == [end for end in ends[1:] if end <= cut]


def test_a_flipped_bit_never_gives_another_episode(tmp_path: Path) -> None:
    data, path = encode_groups(sample_groups(1)), tmp_path / "flip.jsonl.zst"
    path.write_bytes(data)
    original = read_groups(path).groups
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        assert read_groups(path).groups in (original, ())


class WithoutText:
    def __str__(self) -> str:
        raise RuntimeError("no words")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.builds(WithoutText),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.frozensets(st.integers()),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), ANYTHING))
def test_notes_of_any_kind_are_written(notes: dict[str, object]) -> None:
    played = make_episode(make_turn((1,), (2,), notes=notes), events=(Event(Plain("tool", notes), 0),))
    (line,) = group_lines(one_episode(played)).splitlines()
    (read,) = json.loads(line)["turns"]
    assert (read["token_ids"], read["logprobs"], len(read["notes"]) <= len(notes)) == ([2], [-0.5], True)


def one_episode(trajectory: Trajectory) -> Group:
    return Group(Problem("p", "?", ("a",)), (trajectory,), (Grade(1.0),))


def test_a_note_that_json_cannot_hold_is_written_as_text_and_named() -> None:
    detail = {"size": 10**20, "name": "half \ud800", "raw": b"\x00", "by": {3: "c"}, "share": math.nan, "seen": {2, 1}}
    row = json.loads(group_lines(one_episode(make_episode(events=(Event(Plain("tool", detail), 0),)))))
    texts = {"size": "1" + "0" * 20, "name": "half \ufffd\ufffd\ufffd", "raw": "b'\\x00'", "share": "nan"}
    assert row["events"][0]["detail"] == {**texts, "by": {"3": "c"}, "seen": [1, 2]}
    assert row["as_text"] == [f"events.0.detail.{key}" for key in ("size", "name", "raw", "by.3", "share")]


def test_plain_lines_are_read_and_an_episode_without_a_grade_is_ungraded(tmp_path: Path) -> None:
    row = json.loads(group_lines(sample_groups(1)[0]).splitlines()[0])
    del row["grade"]
    path = tmp_path / "scripted.jsonl"
    path.write_text(json.dumps(row) + "\n\n" + json.dumps({**row, "group_id": "other"})[:-20])
    recording = read_groups(path)
    assert recording.torn is not None
    assert [grade.graded for group in recording.groups for grade in group.grades] == [False]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (None, "can't be read"),
        ('{"format": 9}', "format 9"),
        ("[1]", "format None"),
        ('{"format": 1}', "format 1 of a trajectory is not 2"),
        ('{"format": 2, "group_id": "g", "problem": {"id": "p"}}', "group 'g' is not a record"),
        ('{"format": 2}\n{"format": 2}', "group None is not a record"),
        ('{"format": 2, "problem": {"id": "p", "question": "?", "answers": "Ann", "metadata": {}}}', "is 'Ann'"),
    ],
)
def test_a_file_without_records_is_rejected_with_its_name(tmp_path: Path, line: str | None, message: str) -> None:
    path = tmp_path / "other.jsonl"
    if line is not None:
        path.write_text(line + "\n")
    with pytest.raises(DataError, match=message) as error:
        read_groups(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"spans": {"memory": [0, 99]}}, "the piece 'memory' at (0, 99) is outside a prompt of 2 tokens"),
        ({"spans": {"memory": [-1, 1]}}, "the piece 'memory' at (-1, 1)"),
        ({"spans": {"memory": [1]}}, "not enough values"),
        ({"logprobs": [-0.5]}, "2 tokens with 1 log-probabilities"),
    ],
)
def test_an_impossible_turn_is_rejected(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    line = orjson.loads(group_lines(one_episode(make_episode(make_turn((1, 2), (3, 4))))))
    line["turns"][0] |= change
    (tmp_path / "step.jsonl").write_bytes(orjson.dumps(line) + b"\n")
    with pytest.raises(DataError, match=re.escape(reason)):
        read_groups(tmp_path / "step.jsonl")


def test_a_frame_above_the_size_limit_is_rejected_before_it_is_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressor = zstandard.ZstdCompressor().compressobj()  # its frame names no size
    bomb = compressor.compress(b'"' + b"a" * (64 << 20)) + compressor.flush()
    path = tmp_path / "step-000001.jsonl.zst"
    monkeypatch.setattr(trajectory_file, "MOST_BYTES", 8 << 20)
    tracemalloc.start()
    for data in (bomb, encode_groups(sample_groups(1)) + bomb):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"step-000001\.jsonl\.zst: a frame is too large"):
            read_groups(path)
        first_episodes(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20


CONTENTS = st.lists(st.binary(max_size=200) | st.binary(min_size=1, max_size=4).map(lambda part: part * 80_000))


def decompressed(data: bytes) -> list[bytes]:
    """By the library's own reader: the bytes after a frame are its unused data."""
    contents = []
    while data:
        reader = zstandard.ZstdDecompressor().decompressobj()
        contents.append(reader.decompress(data))
        data = reader.unused_data
    return contents


@settings(max_examples=30, deadline=None)
@given(contents=CONTENTS, checksum=st.booleans(), level=st.sampled_from([1, 3, 19]))
def test_frames_are_those_that_a_decompressor_finds(contents: list[bytes], checksum: bool, level: int) -> None:
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=checksum)
    data = b"".join(compressor.compress(content) for content in contents)
    spans = list(frame_spans(data))
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    assert [zstandard.ZstdDecompressor().decompress(data[a:b]) for a, b in spans] == decompressed(data) == contents


def test_blanks_after_the_last_line_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "scripted.jsonl"
    path.write_bytes(group_lines(sample_groups(1)[0]) + b"  \t")
    assert read_groups(path).torn is None


def test_tokens_of_numpy_are_numbers() -> None:
    made = make_turn(tuple(np.array([1, 2])), (3,), 0)
    completion = replace(made.completion, logprobs=(np.float32(-0.5),))
    row = json.loads(group_lines(one_episode(make_episode(replace(made, completion=completion)))))
    assert (row["turns"][0]["prompt_ids"], row["turns"][0]["logprobs"]) == ([1, 2], [-0.5])
