"""Random access and rows of record files that grow, are cut, damaged or hostile."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest
import zstandard

from palimpsest.errors import DataError
from palimpsest.evaluation.episode_files import read_episodes
from palimpsest.rollout import trajectory_file
from palimpsest.rollout.trajectory_file import encode_groups, group_lines, index_lines, index_of, read_groups
from palimpsest.types import Group
from palimpsest.viewer.records import record_index, sources
from palimpsest.viewer.records.record_index import RecordIndex
from palimpsest.viewer.records.sources import NotThere
from support.view_folders import group
from support.work import calls_of

GROUPS = [
    group(f"p{position}", rewards, turns=2 + position)
    for position, rewards in enumerate([(0.0, 1.0), (None, 1.0, 0.5), (1.0,)])
]
GOOD = GROUPS[2]


def write(path: Path, groups: list[Group]) -> Path:
    lines = b"".join(map(group_lines, groups))
    path.write_bytes(encode_groups(groups) if path.suffix == ".zst" else lines)
    return path


@pytest.mark.parametrize("name", ["step-000001.jsonl.zst", "hand.jsonl"])
def test_rows_and_groups_are_equal_to_the_readers(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, GROUPS)
    index, whole = RecordIndex(path), read_groups(path).groups
    result = index.rows()
    assert [(row["group"], row["rollout"]) for row in result.rows] == [
        (position, rollout) for position, item in enumerate(whole) for rollout in range(len(item.trajectories))
    ]
    for row in result.rows:
        trajectory = whole[row["group"]].trajectories[row["rollout"]]
        assert row["turns"] == len(trajectory.turns)
        assert row["prompt_tokens"] == sum(len(turn.prompt_ids) for turn in trajectory.turns)
        assert row["sampled_tokens"] == sum(len(turn.completion.token_ids) for turn in trajectory.turns)
        assert row["reward"] == whole[row["group"]].grades[row["rollout"]].value
        assert row["answer"] == trajectory.answer
    assert (result.torn, result.groups) == (None, 3)
    assert [RecordIndex(path).group(position) for position in (2, 0, 1)] == [whole[2], whole[0], whole[1]]


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl"])
def test_a_file_that_is_cut_anywhere_shows_its_complete_groups(name: str, tmp_path: Path) -> None:
    data = write(tmp_path / name, GROUPS).read_bytes()
    path = tmp_path / f"cut-{name}"
    for end in range(1, len(data), 37):
        path.write_bytes(data[:end])
        index, reader = RecordIndex(path), read_groups(path)
        result = index.rows()
        assert len(result.rows) == sum(len(item.trajectories) for item in reader.groups), end
        assert (result.torn is None) == (reader.torn is None), end
        with pytest.raises(NotThere):
            index.group(result.groups)


def test_a_flipped_bit_costs_its_frame_and_the_rest(tmp_path: Path) -> None:
    frames = [encode_groups([item]) for item in GROUPS]
    path = tmp_path / "a.jsonl.zst"
    damaged = bytearray(b"".join(frames))
    damaged[len(frames[0]) + len(frames[1]) // 2] ^= 1
    path.write_bytes(damaged)
    result = RecordIndex(path).rows()
    assert result.groups == 1
    assert "after 1 complete groups" in (result.torn or "")


def test_a_file_that_grows_is_read_on_and_a_replaced_one_again(tmp_path: Path) -> None:
    frames = [encode_groups([item]) for item in GROUPS]
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(frames[0] + frames[1][:20])
    index = RecordIndex(path)
    assert (index.rows().groups, index.rows().torn is None) == (1, False)
    path.write_bytes(b"".join(frames))
    assert (index.rows().groups, index.rows().torn) == (3, None)
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


def frames_of(whole: Group, *positions: int) -> bytes:
    """Frames of single episodes of a group, as an evaluation writes them."""
    chosen = positions or range(len(whole.trajectories))
    return b"".join(
        encode_groups([Group(whole.problem, (whole.trajectories[at],), (whole.grades[at],))]) for at in chosen
    )


def test_an_evaluations_frames_of_a_problem_are_one_group_with_the_last_of_every_draw(tmp_path: Path) -> None:
    one, other = GROUPS[1], GROUPS[0]
    path = tmp_path / "episodes.jsonl.zst"
    path.write_bytes(frames_of(one, 2) + frames_of(other, 0) + frames_of(one, 0, 2))
    index, whole = RecordIndex(path), read_episodes(path).groups
    rows = sorted(index.rows().rows, key=lambda row: (row["group"], row["rollout"]))
    assert [(row["group"], row["rollout"], row["draw"]) for row in rows] == [(0, 0, 0), (0, 1, 2), (1, 0, 0)]
    assert [index.group(position) for position in (0, 1)] == list(whole)


def test_new_frames_of_an_evaluation_replace_draws_and_add_groups(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl.zst"
    path.write_bytes(b"".join(frames_of(group(f"p{at}", (1.0, 0.0))) for at in range(20)))
    index = RecordIndex(path)
    rows = index.rows().rows
    assert [(row["group"], row["rollout"]) for row in rows] == [(at, draw) for at in range(20) for draw in (0, 1)]
    with path.open("ab") as file:
        file.write(frames_of(group("p3", (0.5,))) + frames_of(group("new", (0.5,))))
    grown = index.rows()
    assert (grown.groups, len(grown.rows)) == (21, 41)
    assert [row["reward"] for row in grown.rows if row["group"] == 3] == [0.5, 0.0]
    assert index.group(3).grades[0].value == 0.5


def test_the_work_of_reading_an_evaluation_is_linear_in_its_episodes(tmp_path: Path) -> None:
    def work(count: int) -> int:
        path = tmp_path / f"{count}" / "episodes.jsonl.zst"
        path.parent.mkdir()
        path.write_bytes(b"".join(encode_groups([group(f"p{at}", (1.0,), turns=1)]) for at in range(count)))
        return calls_of(lambda: RecordIndex(path).rows())

    assert work(400) < 10 * work(50)  # 8 times the episodes; the square would be 64


def indexed(path: Path, groups: Sequence[Group]) -> Path:
    """A record with its index, as a run writes them."""
    write(path, list(groups))
    index_of(path).write_bytes(index_lines(groups, path.read_bytes()))
    return path


def test_rows_of_an_index_need_no_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = indexed(tmp_path / "a.jsonl.zst", GROUPS)
    scanned = RecordIndex(write(tmp_path / "alone.jsonl.zst", GROUPS)).rows().rows
    with monkeypatch.context() as patched:
        patched.setattr(record_index, "content_of", lambda *_, **__: pytest.fail("was unpacked"))
        assert RecordIndex(path).rows().rows == scanned
    assert RecordIndex(path).group(1) == GROUPS[1]


def test_rows_that_an_index_lacks_or_has_of_another_file_are_read_from_the_frames(tmp_path: Path) -> None:
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
    result = RecordIndex(path).rows()
    assert (result.groups, result.torn is None) == (2, False)


def test_a_record_that_grows_behind_its_index_is_read_on(tmp_path: Path) -> None:
    path = indexed(tmp_path / "a.jsonl.zst", GROUPS[:1])
    index = RecordIndex(path)
    assert index.rows().groups == 1
    with path.open("ab") as file:
        file.write(encode_groups(GROUPS[1:]))
    assert (index.rows().groups, index.group(2)) == (3, GROUPS[2])


@pytest.mark.parametrize("content", [b"{}\n", b"[]\n", b'{"turns": [1]}\n', b"null\n", b'"x"\n'])
def test_complete_lines_without_an_episode_are_reported(content: bytes, tmp_path: Path) -> None:
    for path in (tmp_path / "a.jsonl", tmp_path / "a.jsonl.zst"):
        path.write_bytes(content if path.suffix == ".jsonl" else zstandard.compress(content))
        result = RecordIndex(path).rows()
        assert (result.rows, bool(result.torn)) == ([], True)


def test_a_group_that_cannot_be_built_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    line = orjson.loads(group_lines(GROUPS[2]))
    line["turns"][0]["logprobs"] = []
    path = tmp_path / "a.jsonl"
    path.write_bytes(orjson.dumps(line) + b"\n")
    with pytest.raises(DataError, match=r"a\.jsonl"):
        RecordIndex(path).group(0)


def test_a_missing_file_is_reported_as_moved(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.zst", GROUPS)
    index = RecordIndex(path)
    path.unlink()
    with pytest.raises(NotThere, match="moved or deleted"):
        index.rows()


@pytest.mark.parametrize("sized", [True, False])
def test_a_frame_that_unpacks_to_more_than_a_record_is_rejected_without_its_content(
    sized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sources, trajectory_file):
        monkeypatch.setattr(module, "MOST_BYTES", 8 << 20)
    path = tmp_path / "a.jsonl.zst"
    bomb = zstandard.ZstdCompressor(write_content_size=sized).compress(b"\n" * (64 << 20))
    path.write_bytes(encode_groups(GROUPS[:1]) + bomb)
    assert path.stat().st_size < 20_000
    tracemalloc.start()
    result = RecordIndex(path).rows()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (result.groups, peak < 40 << 20) == (1, True)
    assert "too large" in (result.torn or "")


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl"])
def test_blank_lines_take_little_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content = b"\n" * (16 << 20) + group_lines(GOOD) + b" \n" * (8 << 20)
    path.write_bytes(content if name == "a.jsonl" else zstandard.compress(content))
    tracemalloc.start()
    index = RecordIndex(path)
    result = index.rows()
    assert (result.groups, result.torn) == (1, None)
    assert index.group(0) == GOOD
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * len(content)


def test_a_frame_of_very_many_lines_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_index, "_MOST_LINES", 10)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(group_lines(group("p", (1.0,) * 12))))
    assert "more than 10 episodes" in (RecordIndex(path).rows().torn or "")
