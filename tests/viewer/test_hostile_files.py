"""Files that others wrote: bombs, odd types, pipes, links to themselves. They cost little, and are told in a line."""

from __future__ import annotations

import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from palimpsest.app.viewer_job import export
from palimpsest.errors import DataError
from palimpsest.rollout import trajectory_file
from palimpsest.rollout.trajectory_file import encode_groups, group_lines
from palimpsest.types import Group
from palimpsest.viewer.records import record_index, sources
from palimpsest.viewer.records import sources as pieces
from palimpsest.viewer.records.record_index import RecordIndex
from palimpsest.viewer.records.run_status import RowFiles, holder_of
from palimpsest.viewer.records.sources import Library
from palimpsest.viewer.screens import group_screen
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import evaluation_folder, group, run_folder, sample
from support.work import calls_of

GOOD = group("good", (1.0,))
LINE = orjson.loads(group_lines(group("odd", (1.0,))))
SOME_EVENT = {"kind": "memory_cut", "before_turn": 0, "detail": {"tokens": 40, "kept": 32}}


def bomb(zeros: int, *, sized: bool) -> bytes:
    """A frame of blank lines."""
    maker = zstandard.ZstdCompressor(write_content_size=sized)
    return maker.compress(b"\n" * zeros)


@pytest.mark.parametrize("sized", [True, False])
def test_a_frame_that_unpacks_to_more_than_a_record_is_told_and_not_held(
    sized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pieces, trajectory_file):
        monkeypatch.setattr(module, "MOST_BYTES", 8 << 20)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(encode_groups([GOOD]) + bomb(64 << 20, sized=sized))
    assert path.stat().st_size < 20_000
    tracemalloc.start()
    found = RecordIndex(path).rows()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.groups, peak < 40 << 20) == (1, True)
    assert found.torn is not None
    assert "too large" in found.torn


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl"])
def test_blank_lines_cost_no_object_each(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content = b"\n" * (16 << 20) + group_lines(GOOD) + b" \n" * (8 << 20)
    path.write_bytes(content if name == "a.jsonl" else zstandard.compress(content))
    tracemalloc.start()
    index = RecordIndex(path)
    found = index.rows()
    assert (found.groups, found.torn) == (1, None)
    assert index.group(0) == GOOD
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * len(content)


def test_a_frame_of_very_many_lines_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_index, "_MOST_LINES", 10)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(group_lines(group("p", (1.0,) * 12))))
    torn = RecordIndex(path).rows().torn
    assert torn is not None
    assert "more than 10 episodes" in torn


def frames(whole: Group) -> bytes:
    return b"".join(
        encode_groups([Group(whole.problem, (one,), (grade,))])
        for one, grade in zip(whole.trajectories, whole.grades, strict=True)
    )


def test_the_rows_of_an_evaluation_are_numbered_by_draw_and_the_last_of_each_counts(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl.zst"
    path.write_bytes(b"".join(frames(group(f"p{at}", (1.0, 0.0))) for at in range(20)))
    index = RecordIndex(path)
    rows = index.rows().rows
    assert [(row["group"], row["rollout"]) for row in rows] == [(at, draw) for at in range(20) for draw in (0, 1)]
    with path.open("ab") as file:
        file.write(frames(group("p3", (0.5,))) + frames(group("new", (0.5,))))
    grown = index.rows()
    assert (grown.groups, len(grown.rows)) == (21, 41)
    assert [row["reward"] for row in grown.rows if row["group"] == 3] == [0.5, 0.0]
    assert index.group(3).grades[0].value == 0.5


def test_the_work_of_reading_an_evaluation_grows_as_its_episodes(tmp_path: Path) -> None:
    def work(count: int) -> int:
        path = tmp_path / f"{count}" / "episodes.jsonl.zst"
        path.parent.mkdir()
        path.write_bytes(b"".join(encode_groups([group(f"p{at}", (1.0,), turns=1)]) for at in range(count)))
        return calls_of(lambda: RecordIndex(path).rows())

    assert work(400) < 10 * work(50)  # 8 times the episodes; the square would be 64


ODD: dict[str, Any] = {
    "evidence null": lambda line: line["problem"].update(metadata={"evidence": None}),
    "evidence of numbers": lambda line: line["problem"].update(metadata={"evidence": [7]}),
    "answers of numbers": lambda line: line["problem"].update(answers=[7]),
    "answers a number": lambda line: line["problem"].update(answers=7),
    "metadata a number": lambda line: line["problem"].update(metadata=7),
    "answer a number": lambda line: line.update(answer=7),
    "grade a text": lambda line: line["grade"].update(value="good"),
    "grade an object": lambda line: line["grade"].update(value={"a": 1}),
    "spans no object": lambda line: line["turns"][0].update(spans=[1]),
    "spans a text": lambda line: line["turns"][0].update(spans="x"),
    "notes no object": lambda line: line["turns"][0].update(notes=[1]),
    "before_turn a text": lambda line: line.update(events=[{**SOME_EVENT, "before_turn": "0"}]),
    "defiles of other types": lambda line: line.update(events=[{**SOME_EVENT, "detail": {"tokens": "x", "kept": 1}}]),
    "ids of an event too large": lambda line: line.update(
        events=[{**SOME_EVENT, "kind": "memory", "detail": {"token_ids": [1 << 63], "text": "x", "changed": True}}]
    ),
    "defiles no object": lambda line: line.update(events=[{**SOME_EVENT, "kind": "own", "detail": 7}]),
    "ids of texts": lambda line: line["turns"][0].update(prompt_ids=["a"]),
    "ids a number": lambda line: line["turns"][0].update(prompt_ids=7),
    "ids too large": lambda line: line["turns"][0].update(prompt_ids=[1 << 63]),
    "ids negative": lambda line: line["turns"][0].update(prompt_ids=[-1]),
    "ids of fractions": lambda line: line["turns"][0].update(prompt_ids=[0.5]),
    "grade too large": lambda line: line["grade"].update(value=1e308),
    "log-probabilities too large": lambda line: line["turns"][0].update(logprobs=[-1e308, -1e308]),
    "log-probabilities of texts": lambda line: line["turns"][0].update(logprobs=["a", "b"]),
    "turns of numbers": lambda line: line.update(turns=[7]),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_group_of_other_types_is_told_in_a_line_and_the_rest_is_shown(odd: str, tmp_path: Path) -> None:
    line = orjson.loads(orjson.dumps(LINE))
    ODD[odd](line)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(
        zstandard.compress(orjson.dumps(line, option=orjson.OPT_SORT_KEYS) + b"\n") + encode_groups([GOOD])
    )
    answers = ViewerApi(Library([path]))
    at = f"/api/runs/{answers.library.sources()[0].key}/steps/all"
    rows = answers.get(f"{at}/episodes")
    assert orjson.dumps(rows)
    assert (rows["groups"], rows["torn"]) == (2, None)
    for inner in ("", "/rollouts/0", "/rollouts/0/turns/0", "/rollouts/0/turns/0/tokens"):
        with pytest.raises(DataError, match=r"a\.jsonl\.zst: group 'g-odd'") as told:
            answers.get(f"{at}/groups/0{inner}")
        assert "\n" not in str(told.value)
        assert len(str(told.value)) < 250
        assert answers.get(f"{at}/groups/1{inner}")
    (written,) = export([path], tmp_path / "out.html")
    assert any("g-odd" in each for each in written.content.notes)


def merged(levels: int) -> str:
    """Mappings that merge ten of the one before: 10 ** levels values where each merge is carried out."""
    lines = [
        f"a{at}: &a{at} {{k{at}: 1, <<: [{','.join([f'*a{at - 1}'] * 10)}]}}" if at else "a0: &a0 {x: 1}"
        for at in range(levels + 1)
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("config", "trouble"),
    [
        ("a: &a {b: *a}\n", "an alias contains itself"),
        ("a: &a [1, *a]\n", "an alias contains itself"),
        ("".join(f"k{at}: &k{at} [{', '.join([f'*k{at - 1}' if at else 'x'] * 12)}]\n" for at in range(7)), "aliases"),
        ("".join(f"k{at}: &k{at} [{', '.join([f'*k{at - 1}' if at else 'x'] * 30)}]\n" for at in range(3)), "values"),
        (merged(11), "aliases expand to too many values"),
        ("a: " + "[" * 40 + "]" * 40, "levels"),
        ("# " + "x" * (1 << 18), "more than 256 KiB"),
        ("a: [1\n", "unreadable"),
        ("just a text\n", "no keys"),
    ],
)
def test_a_configuration_that_cannot_be_shown_says_why(config: str, trouble: str, tmp_path: Path) -> None:
    (run_folder(tmp_path / "run") / "config.yaml").write_text(config)
    facts = ViewerApi(Library([tmp_path / "run"])).get("/api/runs/run")
    assert facts["config"] == {}
    assert trouble in facts["trouble"]
    assert "\n" not in facts["trouble"]
    assert export([tmp_path / "run"], tmp_path / "out.html")[0].content.data


@pytest.mark.parametrize("evaluations", [[1.0], [{"accuracy": 1}], [{"accuracy": None}], {"accuracy": 1}])
def test_a_summary_of_other_types_leaves_the_list_as_it_is(evaluations: Any, tmp_path: Path) -> None:
    folder = evaluation_folder(tmp_path / "ev", [sample("set", "a", 1.0)])
    (folder / "summary.json").write_bytes(orjson.dumps({"evaluations": evaluations}))
    run_folder(tmp_path / "run")
    rows = {row["key"]: row for row in ViewerApi(Library([tmp_path])).get("/api/runs")["runs"]}
    assert rows.keys() == {"ev", "run"}
    assert rows["ev"]["accuracy"] == []


def test_metrics_of_other_types_and_of_no_finite_sum_leave_the_list_as_it_is(tmp_path: Path) -> None:
    huge = ("reward/mean", "reward/std", "sampler/logprob_gap_mean", "groups/with_signal")
    rows = [{"step": at, **dict.fromkeys(huge, 1e308), "reward/ungraded": 1, "outcome/x": {}} for at in range(1, 300)]
    for name in ("one", "two"):
        run_folder(tmp_path / name, rows, steps=1000)
    answers = ViewerApi(Library([tmp_path]))
    assert [row["alarm"]["key"] for row in answers.get("/api/runs")["runs"]] == ["logprob_gap"] * 2


@pytest.mark.parametrize("model", ["x" * 10_000, "a\0b", ""])
def test_a_model_whose_name_no_file_can_have_shows_ids(model: str, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", records={1: [GOOD]})
    (run / "config.yaml").write_bytes(orjson.dumps({"model": {"path": model}}))
    folder = evaluation_folder(tmp_path / "ev", [sample("set", "a", 1.0)])
    (folder / "episodes.jsonl.zst").write_bytes(encode_groups([GOOD]))
    (folder / "summary.json").write_bytes(orjson.dumps({"model": model}))
    answers = ViewerApi(Library([tmp_path]))
    for at in ("run/steps/1", "ev/steps/all"):
        assert answers.get(f"/api/runs/{at}/groups/0/rollouts/0")
        why = answers.get(f"/api/runs/{at}/decoder")["why"]
        assert why.startswith("Token ids are shown instead of text")
        assert len(why) < 400


def test_of_more_runs_than_are_listed_the_newest_are_and_the_others_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MOST", 3)
    monkeypatch.setattr(sources, "_AGAIN_SECONDS", 0.0)
    for at in range(5):
        for path in (folder := run_folder(tmp_path / f"r{at}")).iterdir():
            os.utime(path, (1e9 - at, 1e9 - at))
        assert folder.is_dir()
    answers = ViewerApi(Library([tmp_path]))
    told = answers.get("/api/runs")
    assert ([run["key"] for run in told["runs"]], told["left"]) == (["r0", "r1", "r2"], 2)
    assert answers.get("/api/runs/r4")["name"] == "r4"  # a link leads to it still
    run_folder(tmp_path / "r9")
    told = answers.get("/api/runs")
    assert ([run["key"] for run in told["runs"]], told["left"]) == (["r0", "r1", "r9"], 3)


def test_a_run_that_links_lead_to_is_shown_once(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "one" / "self").symlink_to(tmp_path / "runs" / "one")
    assert [each.name for each in Library([tmp_path / "runs"]).sources()] == ["one"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "timings.jsonl", ".lock", "summary.json"])
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(name: str, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", records={1: [GOOD]})
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert list(RowFiles().rows(run / name)) == []
    assert holder_of(run) is None
    assert ViewerApi(Library([run])).get("/api/runs/run")["name"] == "run"


def test_pipes_in_an_evaluation_keep_nobody_waiting(tmp_path: Path) -> None:
    folder = evaluation_folder(tmp_path / "ev", [sample("set", "a", 1.0)])
    for name in ("evaluation.json", "episodes.jsonl.zst"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    assert len(ViewerApi(Library([folder])).get("/api/runs/ev/items")["rows"]) == 1


def test_an_episode_of_too_many_turns_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_screen, "MOST_TURNS", 3)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(encode_groups([group("long", (1.0,), turns=4), GOOD]))
    answers = ViewerApi(Library([path]))
    at = f"/api/runs/{answers.library.sources()[0].key}/steps/all"
    assert answers.get(f"{at}/episodes")["rows"][0]["turns"] == 4
    with pytest.raises(DataError, match="rollout 0 has 4 turns"):
        answers.get(f"{at}/groups/0/rollouts/0")
    assert answers.get(f"{at}/groups/1/rollouts/0")


def test_a_group_that_takes_long_keeps_nobody_from_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(encode_groups([group("slow"), GOOD]))
    answers = ViewerApi(Library([path]))
    at = f"/api/runs/{answers.library.sources()[0].key}/steps/all"
    answers.get(f"{at}/episodes")
    begun, go_on, groups_in = threading.Event(), threading.Event(), trajectory_file.groups_in

    def waiting(path: Path, frame: bytes) -> list[Group]:
        if b"g-slow" in frame:
            begun.set()
            assert go_on.wait(20)
        return groups_in(path, frame)

    monkeypatch.setattr(record_index, "groups_in", waiting)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(answers.get, f"{at}/groups/0")
        assert begun.wait(20)
        try:
            assert threads.submit(answers.get, f"{at}/groups/1").result(10)
        finally:
            go_on.set()
        assert slow.result(20)
