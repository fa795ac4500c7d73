"""Exported episodes are a record again, and a log that inspect itself reads."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import orjson

from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.text.codec import Codec
from palimpsest.viewer.export.export_lines import Described, entries_of, inspect_archive, inspect_log, json_lines
from support.inspect_logs import read_by_inspect
from support.view_folders import group

TOLD = Described("run", "some/model", 1_700_000_000.0)


def log_of(codec: Codec) -> dict[str, Any]:
    return inspect_log(entries_of([group("tea", (0.0, None, 1.0)), group("a/../b", (0.5,))]), codec, TOLD)


def test_json_lines_are_a_record(tmp_path: Path) -> None:
    groups = (group("tea", (0.0, None)), group("cocoa"))
    (tmp_path / "some.jsonl").write_bytes(json_lines(groups))
    assert read_groups(tmp_path / "some.jsonl").groups == groups


def test_a_log_tells_each_episode_with_its_turns_and_no_score_where_there_is_no_grade(tiny_codec: Codec) -> None:
    log = log_of(tiny_codec)
    ids = [(sample["id"], sample["epoch"], sample["scores"]) for sample in log["samples"]]
    assert [each[:2] for each in ids] == [("g-tea", 1), ("g-tea", 2), ("g-tea", 3), ("g-a_.._b", 1)]
    assert [each[2].get("reward", {}).get("value") for each in ids] == [0.0, None, 1.0, 0.5]
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == 0.5
    first = log["samples"][0]
    assert [message["role"] for message in first["messages"]] == ["user", "assistant"] * 2
    assert first["messages"][1]["content"] == tiny_codec.decode((8, 9), control=False)
    assert log_of(tiny_codec) == log
    assert len({message["id"] for sample in log["samples"] for message in sample["messages"]}) == 16


def test_an_archive_holds_the_log_in_parts_that_stay_inside(tiny_codec: Codec, tmp_path: Path) -> None:
    (tmp_path / "log.eval").write_bytes(inspect_archive(log_of(tiny_codec)))
    with zipfile.ZipFile(tmp_path / "log.eval") as archive:
        names = archive.namelist()
        assert all(".." not in Path(name).parts for name in names)
        assert "samples/g-tea_epoch_2.json" in names
        assert "samples" not in orjson.loads(archive.read("header.json"))
    assert inspect_archive(log_of(tiny_codec)) == (tmp_path / "log.eval").read_bytes()


def test_inspect_reads_both_forms(tiny_codec: Codec, tmp_path: Path) -> None:
    log = log_of(tiny_codec)
    (tmp_path / "log.eval").write_bytes(inspect_archive(log))
    (tmp_path / "log.json").write_bytes(orjson.dumps(log))
    archive, plain = read_by_inspect(tmp_path / "log.eval", tmp_path / "log.json")
    assert sorted(archive[2]) == sorted(plain[2])
    assert archive[:2] == plain[:2] == ["success", 0.5]
    samples = {(each[0], each[1]): each[2:] for each in plain[2]}
    assert samples.keys() == {("g-tea", 1), ("g-tea", 2), ("g-tea", 3), ("g-a_.._b", 1)}
    question, golds, answer, messages, scores = samples["g-tea", 1]
    assert (question, golds, answer, scores) == ("What is tea?", ["gold"], "answer 0", {"reward": 0.0})
    assert messages == [message["content"] for message in log["samples"][0]["messages"]]
    assert samples["g-tea", 2][-1] == {}
