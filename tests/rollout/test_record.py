"""Trajectories on disk: what goes in comes out, whatever the crash."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from dataclasses import fields
from pathlib import Path

import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.errors import DataError
from palimpsest.evaluation.episode_files import first_episodes
from palimpsest.events import (
    KINDS,
    Event,
    Plain,
)
from palimpsest.rollout import trajectory_file
from palimpsest.rollout.trajectory_file import encode_groups, group_lines, read_groups
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn
from support.groups import sample_groups

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
IDS = st.lists(st.integers(0, 2**31), max_size=6).map(tuple)
NOTES = st.dictionaries(TEXT, st.one_of(st.integers(-(2**53), 2**53), TEXT, st.booleans()), max_size=3)
VALUES = {
    "str": TEXT,
    "str | None": st.none() | TEXT,
    "int": st.integers(-(2**53), 2**53),
    "int | None": st.none() | st.integers(0, 9),
    "bool": st.booleans(),
    "float | None": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "tuple[int, ...]": IDS,
    "tuple[str, ...]": st.lists(TEXT, max_size=2).map(tuple),
    "Mapping[str, Any]": NOTES,
}
HAPPENED = st.one_of(
    st.builds(Plain, TEXT.filter(lambda kind: kind not in KINDS), NOTES),
    *(st.builds(kind, **{one.name: VALUES[str(one.type)] for one in fields(kind)}) for kind in KINDS.values()),
)
"""An event of every kind."""
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    tokens = draw(IDS)
    logprobs = tuple(draw(st.lists(FLOATS, min_size=len(tokens), max_size=len(tokens))))
    first, more = draw(st.integers(0, 9)), draw(st.integers(0, 2))  # new weights may have come in between
    completion = Completion(tokens, logprobs, draw(st.sampled_from(StopReason)), first, first + more)
    prompt = draw(IDS)
    places = st.lists(st.integers(0, len(prompt)), min_size=2, max_size=2).map(lambda ends: (min(ends), max(ends)))
    spans = draw(st.dictionaries(TEXT, places, max_size=2))
    return Turn(prompt, completion, draw(st.integers(0, 99)), draw(TEXT), draw(NOTES), spans)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    name = draw(TEXT)
    size = draw(st.integers(1, 3))
    played = tuple(
        Trajectory(
            name,
            f"g/{name}",
            rollout,
            tuple(draw(st.lists(turns(), max_size=3))),
            draw(st.sampled_from(Outcome)),
            draw(st.none() | TEXT),
            tuple(Event(draw(HAPPENED), draw(st.integers(0, 9))) for _ in range(draw(st.integers(0, 2)))),
        )
        for rollout in range(size)
    )
    per_turn = st.none() | st.lists(FLOATS, max_size=2).map(tuple)
    grades = tuple(Grade(draw(st.none() | FLOATS), draw(st.none() | TEXT), {}, draw(per_turn)) for _ in range(size))
    return Group(Problem(name, draw(TEXT), ("gold",), None, draw(NOTES)), played, grades)


@settings(max_examples=60, deadline=None)
@given(st.lists(groups(), max_size=3, unique_by=lambda group: group.problem.id))
def test_groups_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, written: list[Group]) -> None:
    path = tmp_path_factory.mktemp("record") / "step.jsonl.zst"
    path.write_bytes(encode_groups(written))
    recording = read_groups(path)
    assert recording.groups == tuple(written)
    assert recording.torn is None


def test_each_line_is_an_episode_that_other_tools_can_read() -> None:
    content = zstandard.ZstdDecompressor().stream_reader(encode_groups(sample_groups()), read_across_frames=True)
    rows = [json.loads(line) for line in content.read().splitlines()]
    assert [(row["problem"]["id"], row["rollout"]) for row in rows] == [(f"p{i}", r) for i in range(3) for r in (0, 1)]
    assert rows[0]["turns"][0]["token_ids"] == [5, 6]
    assert "context" not in rows[0]["problem"]


def test_a_file_cut_anywhere_gives_every_whole_group_before_the_cut(tmp_path: Path) -> None:
    groups = sample_groups(2)
    frames = [encode_groups([group]) for group in groups]
    data = b"".join(frames)
    assert data == encode_groups(groups)
    ends = [sum(map(len, frames[:n])) for n in range(len(frames) + 1)]
    path = tmp_path / "cut.jsonl.zst"
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        recording = read_groups(path)
        whole = sum(end <= cut for end in ends) - 1
        assert [group.problem.id for group in recording.groups] == [f"p{i}" for i in range(whole)]
        assert (recording.torn is None) == (cut in ends)


def test_a_flipped_bit_never_gives_another_episode(tmp_path: Path) -> None:
    data = encode_groups(sample_groups(1))
    original = read_written(tmp_path, data)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        assert read_written(tmp_path, bytes(flipped)) in (original, ())


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.builds(Unspeakable),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.frozensets(st.integers()),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), ANYTHING))
def test_no_note_of_any_kind_keeps_an_episode_from_being_written(notes: dict[str, object]) -> None:
    turn = Turn((1,), Completion((2,), (-0.5,), StopReason.STOP), 0, "act", notes)
    events = (Event(Plain("tool", notes), 0),)
    (line,) = group_lines(one_episode(Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED, "a", events))).splitlines()
    (read,) = json.loads(line)["turns"]
    assert (read["token_ids"], read["logprobs"], len(read["notes"]) <= len(notes)) == ([2], [-0.5], True)


def one_episode(trajectory: Trajectory) -> Group:
    return Group(Problem("p", "?", ("a",)), (trajectory,), (Grade(1.0),))


def test_a_note_without_a_place_in_json_is_written_as_text_and_named() -> None:
    detail = {"size": 10**20, "name": "half \ud800", "raw": b"\x00", "by": {3: "c"}, "share": math.nan, "seen": {2, 1}}
    line = group_lines(
        one_episode(Trajectory("p", "g", 0, (), Outcome.ANSWERED, "a", (Event(Plain("tool", detail), 0),)))
    )
    row = json.loads(line)
    assert row["events"][0]["detail"] == {
        "size": "100000000000000000000",
        "name": "half \ufffd\ufffd\ufffd",
        "raw": "b'\\x00'",
        "by": {"3": "c"},
        "share": "nan",
        "seen": [1, 2],
    }
    places = ("size", "name", "raw", "by.3", "share")
    assert row["as_text"] == [f"events.0.detail.{place}" for place in places]


def read_written(folder: Path, data: bytes) -> tuple[Group, ...]:
    path = folder / "flip.jsonl.zst"
    path.write_bytes(data)
    return read_groups(path).groups


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
        ('{"format": 9}', "format 9"),
        ("[1]", "format None"),
        ('{"format": 1}', "format 1 of a trajectory is not 2"),
        ('{"format": 2, "group_id": "g", "problem": {"id": "p"}}', "group 'g' is not a record"),
        ('{"format": 2}\n{"format": 2}', "group None is not a record"),
        (
            '{"format": 2, "problem": {"id": "p", "question": "?", "answers": "Ann", "metadata": {}}}',
            "answers must be a list, is 'Ann'",
        ),
    ],
)
def test_what_is_no_record_is_refused_naming_the_file(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=message) as error:
        read_groups(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl\.zst: can't be read"):
        read_groups(tmp_path / "none.jsonl.zst")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"spans": {"memory": [0, 99]}}, "the piece 'memory' at (0, 99) is outside a prompt of 2 tokens"),
        ({"spans": {"memory": [-1, 1]}}, "the piece 'memory' at (-1, 1)"),
        ({"spans": {"memory": [1]}}, "not enough values"),
        ({"logprobs": [-0.5]}, "2 tokens with 1 log-probabilities"),
    ],
)
def test_a_turn_that_can_not_have_been_is_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    turn = Turn((1, 2), Completion((3, 4), (-0.5, -0.5), StopReason.STOP), 0, "answer")
    episode = Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED, "a")
    line = orjson.loads(group_lines(Group(Problem("p", "q", ("a",)), (episode,), (Grade(1.0),))))
    line["turns"][0] |= change
    (tmp_path / "step.jsonl").write_bytes(orjson.dumps(line) + b"\n")
    with pytest.raises(DataError, match=re.escape(reason)):
        read_groups(tmp_path / "step.jsonl")


def test_a_frame_that_unpacks_to_more_than_the_bound_is_rejected_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encode_groups(sample_groups(1))
    compressor = zstandard.ZstdCompressor().compressobj()  # its frame names no size
    bomb = compressor.compress(b'"' + b"a" * (64 << 20)) + compressor.flush()
    path = tmp_path / "step-000001.jsonl.zst"
    monkeypatch.setattr(trajectory_file, "MOST_BYTES", 8 << 20)
    tracemalloc.start()
    for data in (bomb, whole + bomb):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"step-000001\.jsonl\.zst: a frame is too large"):
            read_groups(path)
        first_episodes(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20
