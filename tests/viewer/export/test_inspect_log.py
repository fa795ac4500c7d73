"""Exported episodes are a log that inspect itself reads."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import orjson

from palimpsest.text.codec import Codec
from palimpsest.viewer.export.inspect_log import inspect_archive, inspect_log, sample_of
from support.inspect_logs import read_by_inspect
from support.view_folders import group


def log_of(codec: Codec) -> dict[str, Any]:
    groups = [group("tea", (0.0, None, 1.0)), group("a/../b", (0.5,))]
    episodes = [(sample_of(item, at), (item, at)) for item in groups for at in range(len(item.trajectories))]
    return inspect_log(episodes, codec, "run", "some/model", 1_700_000_000.0)


def test_a_log_has_turns_of_every_episode_and_scores_of_graded_ones(tiny_codec: Codec) -> None:
    log = log_of(tiny_codec)
    ids = [(sample["id"], sample["epoch"], sample["scores"]) for sample in log["samples"]]
    assert [item[:2] for item in ids] == [("g-tea", 1), ("g-tea", 2), ("g-tea", 3), (ids[3][0], 1)]
    assert ids[3][0].startswith("g-a_.._b-")
    assert [item[2].get("reward", {}).get("value") for item in ids] == [0.0, None, 1.0, 0.5]
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == 0.5
    first = log["samples"][0]
    assert [message["role"] for message in first["messages"]] == ["user", "assistant"] * 2
    assert first["messages"][1]["content"] == tiny_codec.decode((8, 9), control=False)
    assert log_of(tiny_codec) == log
    assert len({message["id"] for sample in log["samples"] for message in sample["messages"]}) == 16


def test_an_archive_contains_the_log_in_relative_paths(tiny_codec: Codec, tmp_path: Path) -> None:
    (tmp_path / "log.eval").write_bytes(inspect_archive(log_of(tiny_codec)))
    with zipfile.ZipFile(tmp_path / "log.eval") as archive:
        names = archive.namelist()
        assert all(".." not in Path(name).parts for name in names)
        assert "samples/g-tea_epoch_2.json" in names
        assert "samples" not in orjson.loads(archive.read("header.json"))
    assert inspect_archive(log_of(tiny_codec)) == (tmp_path / "log.eval").read_bytes()


def test_inspect_reads_a_log(tiny_codec: Codec, tmp_path: Path) -> None:
    log = log_of(tiny_codec)
    (tmp_path / "log.eval").write_bytes(inspect_archive(log))
    ((status, mean, read),) = read_by_inspect(tmp_path / "log.eval")
    assert (status, mean) == ("success", 0.5)
    samples = {(item[0], item[1]): item[2:] for item in read}
    assert samples.keys() == {("g-tea", 1), ("g-tea", 2), ("g-tea", 3), ("g-a_.._b", 1)}
    question, golds, answer, messages, scores = samples["g-tea", 1]
    assert (question, golds, answer, scores) == ("What is tea?", ["gold"], "answer 0", {"reward": 0.0})
    assert messages == [message["content"] for message in log["samples"][0]["messages"]]
    assert samples["g-tea", 2][-1] == {}


def test_names_that_are_no_names_of_files_stay_apart(tiny_codec: Codec) -> None:
    groups = [group(name, (1.0,)) for name in ("a/b", "a?b", "a_b")]
    log = inspect_log([(sample_of(item, 0), (item, 0)) for item in groups], tiny_codec, "run", "some/model", 0.0)
    with zipfile.ZipFile(io.BytesIO(inspect_archive(log))) as archive:
        assert sum(name.startswith("samples/") for name in archive.namelist()) == 3
