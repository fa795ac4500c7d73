"""Random access and rows, over files that grow, are cut, or were written by hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest
import zstandard

from palimpsest.errors import DataError
from palimpsest.evaluation.episode_files import read_episodes
from palimpsest.rollout.trajectory_file import encode_groups, group_lines, index_lines, index_of, read_groups
from palimpsest.types import Group
from palimpsest.viewer.records import record_index
from palimpsest.viewer.records.record_index import RecordIndex
from palimpsest.viewer.records.sources import NotThere
from support.view_folders import group

GROUPS = [
    group(f"p{place}", rewards, turns=2 + place) for place, rewards in enumerate([(0.0, 1.0), (None, 1.0, 0.5), (1.0,)])
]


def written(path: Path, groups: list[Group]) -> Path:
    lines = b"".join(map(group_lines, groups))
    path.write_bytes(encode_groups(groups) if path.suffix == ".zst" else lines)
    return path


@pytest.mark.parametrize("name", ["step-000001.jsonl.zst", "hand.jsonl"])
def test_rows_and_groups_are_those_of_the_reader(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, GROUPS)
    index, whole = RecordIndex(path), read_groups(path).groups
    found = index.rows()
    assert [(row["group"], row["rollout"]) for row in found.rows] == [
        (place, rollout) for place, each in enumerate(whole) for rollout in range(len(each.trajectories))
    ]
    for row in found.rows:
        trajectory = whole[row["group"]].trajectories[row["rollout"]]
        assert row["turns"] == len(trajectory.turns)
        assert row["prompt_tokens"] == sum(len(turn.prompt_ids) for turn in trajectory.turns)
        assert row["sampled_tokens"] == sum(len(turn.completion.token_ids) for turn in trajectory.turns)
        assert row["reward"] == whole[row["group"]].grades[row["rollout"]].value
        assert row["answer"] == trajectory.answer
    assert (found.torn, found.groups) == (None, 3)
    assert [RecordIndex(path).group(place) for place in (2, 0, 1)] == [whole[2], whole[0], whole[1]]


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl"])
def test_a_file_that_is_cut_anywhere_keeps_what_is_whole_and_tells_the_rest(name: str, tmp_path: Path) -> None:
    data = written(tmp_path / name, GROUPS).read_bytes()
    path = tmp_path / f"cut-{name}"
    for end in range(1, len(data), 37):
        path.write_bytes(data[:end])
        index, reader = RecordIndex(path), read_groups(path)
        found = index.rows()
        assert len(found.rows) == sum(len(each.trajectories) for each in reader.groups), end
        assert (found.torn is None) == (reader.torn is None), end
        with pytest.raises(NotThere):
            index.group(found.groups)


def test_a_flipped_bit_costs_its_frame_and_what_follows(tmp_path: Path) -> None:
    frames = [encode_groups([each]) for each in GROUPS]
    path = tmp_path / "a.jsonl.zst"
    damaged = bytearray(b"".join(frames))
    damaged[len(frames[0]) + len(frames[1]) // 2] ^= 1
    path.write_bytes(damaged)
    found = RecordIndex(path).rows()
    assert found.groups == 1
    assert found.torn is not None
    assert "after 1 complete groups" in found.torn


def test_a_file_that_grows_is_read_on_and_a_torn_frame_that_becomes_whole_comes_in(tmp_path: Path) -> None:
    frames = [encode_groups([each]) for each in GROUPS]
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(frames[0] + frames[1][:20])
    index = RecordIndex(path)
    assert index.rows().groups == 1
    assert index.rows().torn
    with path.open("ab") as file:
        file.write(frames[1][20:] + frames[2])
    grown = index.rows()
    assert (grown.groups, grown.torn) == (3, None)
    path.write_bytes(frames[2])
    assert [row["id"] for row in index.rows().rows] == ["p2"]


def test_a_group_of_a_plain_file_grows_with_its_lines(tmp_path: Path) -> None:
    lines = group_lines(GROUPS[1]).splitlines(keepends=True)
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines[0])
    index = RecordIndex(path)
    assert len(index.group(0).trajectories) == 1
    path.write_bytes(b"".join(lines))
    assert len(index.group(0).trajectories) == 3
    assert [row["rollout"] for row in index.rows().rows] == [0, 1, 2]


def test_an_evaluations_frames_of_a_problem_are_one_group_and_the_last_of_a_draw_counts(tmp_path: Path) -> None:
    one, other = GROUPS[1], GROUPS[0]

    def frame(whole: Group, place: int) -> bytes:
        return encode_groups([Group(whole.problem, (whole.trajectories[place],), (whole.grades[place],))])

    path = tmp_path / "episodes.jsonl.zst"
    path.write_bytes(frame(one, 2) + frame(other, 0) + frame(one, 0) + frame(one, 2))
    index, whole = RecordIndex(path), read_episodes(path).groups
    rows = sorted(index.rows().rows, key=lambda row: (row["group"], row["rollout"]))
    assert [(row["group"], row["rollout"], row["draw"]) for row in rows] == [(0, 0, 0), (0, 1, 2), (1, 0, 0)]
    assert [index.group(place) for place in (0, 1)] == list(whole)


def indexed(path: Path, groups: Sequence[Group]) -> Path:
    """A record with its index, as a run writes them."""
    written(path, list(groups))
    index_of(path).write_bytes(index_lines(groups, path.read_bytes()))
    return path


def test_an_index_says_what_the_frames_say_and_none_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = indexed(tmp_path / "a.jsonl.zst", GROUPS)
    scanned = RecordIndex(written(tmp_path / "alone.jsonl.zst", GROUPS)).rows().rows
    with monkeypatch.context() as patched:
        patched.setattr(record_index, "content_of", lambda *_, **__: pytest.fail("was unpacked"))
        assert RecordIndex(path).rows().rows == scanned
    assert RecordIndex(path).group(1) == GROUPS[1]


def test_what_an_index_lacks_or_says_of_another_file_is_read_from_the_frames(tmp_path: Path) -> None:
    path = indexed(tmp_path / "a.jsonl.zst", GROUPS)
    index, rows = index_of(path), RecordIndex(path).rows().rows
    lines = index.read_bytes().splitlines(keepends=True)
    other = index_lines(GROUPS[::-1], encode_groups(GROUPS[::-1]))
    shifted = lines[0].replace(b'"start":0', b'"start":7')
    odd = lines[0].replace(b'"turns":2', b'"turns":"2"')
    for content in (b"", b"junk\n", lines[0], lines[0] + lines[1][:-20], lines[0] + lines[2], other, shifted, odd):
        index.write_bytes(content)
        assert RecordIndex(path).rows().rows == rows, content
    path.write_bytes(path.read_bytes()[:-1])
    index.write_bytes(b"".join(lines))
    found = RecordIndex(path).rows()
    assert (found.groups, found.torn is None) == (2, False)


def test_a_record_that_grows_behind_its_index_is_read_on(tmp_path: Path) -> None:
    path = indexed(tmp_path / "a.jsonl.zst", GROUPS[:1])
    index = RecordIndex(path)
    assert index.rows().groups == 1
    with path.open("ab") as file:
        file.write(encode_groups(GROUPS[1:]))
    assert (index.rows().groups, index.group(2)) == (3, GROUPS[2])


@pytest.mark.parametrize("content", [b"{}\n", b"[]\n", b'{"turns": [1]}\n', b"null\n", b'"x"\n'])
def test_whole_lines_that_are_no_episodes_are_told(content: bytes, tmp_path: Path) -> None:
    for path in (tmp_path / "a.jsonl", tmp_path / "a.jsonl.zst"):
        path.write_bytes(content if path.suffix == ".jsonl" else zstandard.compress(content))
        found = RecordIndex(path).rows()
        assert found.rows == []
        assert found.torn


def test_a_group_that_cannot_be_built_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    line = orjson.loads(group_lines(GROUPS[2]))
    line["turns"][0]["logprobs"] = []
    path = tmp_path / "a.jsonl"
    path.write_bytes(orjson.dumps(line) + b"\n")
    with pytest.raises(DataError, match=r"a\.jsonl"):
        RecordIndex(path).group(0)


def test_a_file_that_went_says_so(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl.zst", GROUPS)
    index = RecordIndex(path)
    path.unlink()
    with pytest.raises(NotThere, match="moved or deleted"):
        index.rows()


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl.zst", GROUPS)
    before = os.stat(path).st_mtime_ns
    RecordIndex(path).rows()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert os.stat(path).st_mtime_ns == before
