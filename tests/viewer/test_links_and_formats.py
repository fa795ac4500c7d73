"""Records of unknown formats are named, and links that lead out of the folder of a run or evaluation not followed."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard

from palimpsest.app.viewer_job import export
from palimpsest.errors import DataError
from palimpsest.rollout.trajectory_file import group_lines
from palimpsest.viewer.records.sources import Library, NotThere
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import evaluation_folder, group, run_folder, sample


@pytest.mark.parametrize("number", [0, 1, 3, 99, -1, "2", None, [2], True, 2.0, 1e30])
@pytest.mark.parametrize("first", [False, True])
def test_episodes_of_an_unknown_format_are_named_and_not_shown(number: Any, first: bool, tmp_path: Path) -> None:
    lines = [group_lines(group(name, (0.0,))) for name in ("tea", "ale")]
    lines[0 if first else 1] = lines[0 if first else 1].replace(
        b'"format":2', b'"format":' + json.dumps(number).encode(), 1
    )
    run = run_folder(tmp_path / "run")
    frames = b"".join(map(zstandard.compress, lines))
    (run / "trajectories" / "step-000001.jsonl.zst").write_bytes(frames)
    answers = ViewerApi(Library([run]))
    told = answers.get("/api/runs/run/steps/1/episodes")
    assert [row["id"] for row in told["rows"]] == ([] if first else ["tea"])
    assert f"format {number!r} of a trajectory is not 2, the known one" in told["torn"]
    with pytest.raises((NotThere, DataError)):
        answers.get(f"/api/runs/run/steps/1/groups/{0 if first else 1}")


def test_links_out_of_a_runs_folder_are_named_and_not_followed(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "run", [{"step": 1, "reward/mean": 0.5}], records={1: [group("tea")]})
    outside = run_folder(tmp_path / "outside", [{"step": 1, "reward/mean": 0.875}], records={1: [group("secret")]})
    (outside / "secret.yaml").write_text("password: secret\n")
    for name, target in (("config.yaml", "secret.yaml"), ("metrics.jsonl", "metrics.jsonl"), ("more", ".")):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside / target)
    record = run / "trajectories" / "step-000001.jsonl.zst"
    record.unlink()
    record.symlink_to(outside / "trajectories" / record.name)
    answers = ViewerApi(Library([tmp_path / "runs"]))
    assert [each["name"] for each in answers.get("/api/runs")["runs"]] == ["run"]
    facts = answers.get("/api/runs/run")
    assert facts["config"] == {}
    assert "link out of the folder: config.yaml, metrics.jsonl" in facts["trouble"]
    assert answers.get("/api/runs/run/metrics")["rows"] == []
    with pytest.raises(NotThere, match=r"step-000001\.jsonl\.zst links out of run"):
        answers.get("/api/runs/run/steps/1/episodes")
    with pytest.raises(NotThere, match="does not follow"):
        export([run], tmp_path / "out.eval")


def test_links_out_of_the_folder_that_was_named_are_not_followed(tmp_path: Path) -> None:
    outside = run_folder(tmp_path / "elsewhere" / "theirs", records={1: [group("secret")]})
    mine = run_folder(tmp_path / "runs" / "mine")
    for name, target in (("all", tmp_path), ("one", outside), ("latest", mine)):
        (tmp_path / "runs" / name).symlink_to(target)
    (tmp_path / "runs" / "episodes.jsonl.zst").symlink_to(outside / "trajectories" / "step-000001.jsonl.zst")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    for given in (tmp_path / "runs", tmp_path / "link"):
        assert [each.name for each in Library([given]).sources()] == ["mine"]
    assert [each.name for each in Library([tmp_path / "runs" / "one"]).sources()] == ["one"]  # named, so wanted


def test_an_export_holds_nothing_that_a_link_leads_out_to(tmp_path: Path) -> None:
    run, secret = run_folder(tmp_path / "run"), tmp_path / "secret.yaml"
    secret.write_text("password: hunter2\n")
    (run / "config.yaml").unlink()
    (run / "config.yaml").symlink_to(secret)
    page = export([run], tmp_path / "out.html")[0].path.read_bytes()
    packed = re.search(rb'id="answers">([^<]*)</script>', page)
    assert packed is not None
    assert b"hunter2" not in gzip.decompress(base64.b64decode(packed[1]))


def test_the_samples_of_an_evaluation_that_are_elsewhere_are_not_read(tmp_path: Path) -> None:
    folder, outside = (evaluation_folder(tmp_path / name, [sample("set", name, 1.0)]) for name in ("ev", "outside"))
    (folder / "samples.jsonl").unlink()
    (folder / "samples.jsonl").symlink_to(outside / "samples.jsonl")
    with pytest.raises(NotThere, match=r"samples\.jsonl links out of ev"):
        ViewerApi(Library([folder])).get("/api/runs/ev/items")


def test_links_within_a_runs_folder_are_followed(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [{"step": 1, "reward/mean": 0.5}])
    (run / "metrics.jsonl").rename(run / "rows.jsonl")
    (run / "metrics.jsonl").symlink_to("rows.jsonl")
    assert len(ViewerApi(Library([run])).get("/api/runs/run/metrics")["rows"]) == 1
