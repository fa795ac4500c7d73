"""The page in a browser over separate folders: hostile texts, damaged and moved files, runs that are followed."""

from __future__ import annotations

import random
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from palimpsest.evaluation.sample_log import write_request
from palimpsest.events import Event, Plain
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.runs.folder_guard import FolderLock
from palimpsest.runs.jsonl_rows import append_row
from palimpsest.types import Group
from palimpsest.viewer.records.sources import Library
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.browser import Watched, watching
from support.kill_child import STEPS
from support.killing import child, differences, killed_often
from support.view_folders import chunks, evaluation_folder, group, run_folder, sample
from support.viewer import viewer

METRICS = [{"step": step, "reward/mean": 0.5} for step in range(1, 31)]
REWARDS = {
    "tenths and twentieths": (0.0, 0.15, 0.3, 0.35, 0.6, 0.6, 0.7, 0.95, 1.0, None, None),
    "below zero, of many digits": (-0.123456781, -0.123456781, 0.0, 1 / 3, 2 / 3, 1.23456789123, None),
}


@pytest.mark.parametrize("name", REWARDS)
def test_a_bar_counts_the_episodes_that_a_click_on_it_selects(name: str, shared_page: Watched, tmp_path: Path) -> None:
    run_folder(tmp_path / "one", records={1: [group("p", REWARDS[name])]})
    counts = []
    with viewer(tmp_path / "one") as url, watching(shared_page, url) as watched:
        page = watched.go("#/r/one/s/1")
        labels = page.locator(".bin").evaluate_all("all => all.map((each) => each.ariaLabel)")
        for at, count in enumerate(int(label.split()[0]) for label in labels):
            if not count:
                continue
            page.locator(".bin").nth(at).click()
            page.wait_for_selector(".bin.chosen")
            assert page.locator(".about").inner_text().startswith(f"{count} of {len(REWARDS[name])} episodes"), at
            counts.append(count)
            page.locator(".bin").nth(at).click()
            page.wait_for_selector(".bin.chosen", state="detached")
    assert sum(counts) == sum(reward is not None for reward in REWARDS[name])


def test_a_curve_of_nearly_equal_values_is_drawn(shared_page: Watched, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "one", records={1: [group("p", (0.0, 1.0))]})
    for step, value in enumerate((0.3, 0.30000000000000004), 1):
        append_row(run / "metrics.jsonl", {"step": step, "reward/mean": value})
    with viewer(run) as url, watching(shared_page, url) as watched:
        assert watched.go("#/r/one").locator(".chart svg").count() >= 1


def test_episodes_of_earlier_requests_are_counted_above_the_problems(shared_page: Watched, tmp_path: Path) -> None:
    samples = [chunks(4, f"p{n}", 1.0) for n in range(5)]
    evaluation = evaluation_folder(tmp_path / "eval", samples)
    write_request(evaluation, [(samples[0].cell, 1, ["p0", "p3"])])
    with viewer(evaluation) as url, watching(shared_page, url) as watched:
        page = watched.go("#/r/eval/items")
        page.wait_for_selector(".vrow")
        assert page.locator(".about").inner_text().startswith("2 of 2 problems")
        assert page.get_by_text("3 episodes of earlier calls stay in the log but are excluded").count() == 1


def test_the_newest_episodes_are_those_of_the_last_step_with_a_record(shared_page: Watched, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "sparse", METRICS, steps=30, records={20: [group("p")]})
    with viewer(run) as url, watching(shared_page, url) as watched:
        page = watched.go("#/r/sparse")
        page.get_by_role("link", name="Newest episodes").click()
        page.wait_for_selector("h1:text('Episodes of step 20')")
        assert page.evaluate("document.activeElement.textContent") == "Episodes of step 20"
        assert page.title() == "step 20 · sparse · palimpsest"


def test_an_evaluation_has_no_progress_bar_and_names_a_baseline_once(shared_page: Watched, tmp_path: Path) -> None:
    sizes = (4, 64)
    rows = [chunks(size, "p", 1.0) for size in sizes]
    rows += [chunks(size, "p", 0.0, player="closed book", baseline=True) for size in sizes]
    evaluation_folder(tmp_path / "ev", rows)
    with viewer(tmp_path) as url, watching(shared_page, url) as watched:
        page = watched.go("#/r/ev")
        page.wait_for_selector(".chart .legend-item")
        assert page.locator("progress:visible").count() == 0
        assert page.locator(".chart .legend-item").all_inner_texts() == ["agent: recall", "baseline: closed book"]


def test_an_empty_folder_that_is_followed_is_named_until_a_run_starts(shared_page: Watched, tmp_path: Path) -> None:
    with viewer(tmp_path) as url, watching(shared_page, url) as watched:
        assert f"in {tmp_path}." in watched.go("#/").locator("#main").inner_text()
        run_folder(tmp_path / "new")
        watched.page.wait_for_selector("text=new")


def test_a_run_that_is_moved_while_it_is_shown_is_reported(browser: Any, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first", METRICS, records={1: [group("p")]})
    with viewer(run) as url:
        watched, other = Watched(browser, url), Watched(browser, url)
        episode, page = other.go("#/r/first/s/1/e/0/0/t/0"), watched.go("#/r/first")
        run.rename(tmp_path / "moved")
        episode.keyboard.press("t")
        episode.wait_for_selector(".tabs .notice:has-text('was moved or deleted')")
        page.wait_for_selector("[role=alert]:has-text('moved or deleted')")
        watched.close()
        other.close()


def test_a_torn_frame_is_reported_above_the_complete_groups(shared_page: Watched, tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl.zst"
    path.write_bytes(encode_groups([group(f"p{address}") for address in range(12)])[:-40])
    with viewer(path) as url, watching(shared_page, url) as watched:
        page = watched.go("#/r/torn.jsonl.zst/s/all")
        page.wait_for_selector(".vrow")
        assert "damaged after 11 complete groups" in page.locator("[role=alert]").inner_text()


HOSTILE = (
    "<script>window.hit=1</script>",
    "<img src=x onerror='window.hit=1'>",
    '"><svg onload=window.hit=1>',
    "javascript:window.hit=1",
    "<iframe srcdoc='<script>parent.hit=1</script>'>",
    "{{constructor.constructor('window.hit=1')()}}",
    "${window.hit=1}",
    "<a href=http://evil.example>x</a>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "</title><script>window.hit=1</script>",
    "\u202eevil\u202c\u0000\u0007",
    "<style>@import 'http://evil.example'</style>",
    "__proto__",
    "<base href=http://evil.example/>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hit=1>",
)


def hostile(count: int) -> list[str]:
    """Texts that would execute in a careless page, cut and joined at random."""
    rng = random.Random(0)
    texts = list(HOSTILE)
    while len(texts) < count:
        one, other = rng.choice(HOSTILE), rng.choice(HOSTILE)
        texts.append(one[: rng.randrange(len(one) + 1)] + other[rng.randrange(len(other)) :] + rng.choice(HOSTILE))
    return texts


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_hostile_texts_execute_nothing_and_request_nothing(count: int, browser: Any, tmp_path: Path) -> None:
    texts = hostile(count)
    groups = [_hostile_group(texts[address : address + 5]) for address in range(0, count, 5)]
    run = run_folder(
        tmp_path / "<img src=x onerror=window.hit=1>",
        [{"step": 1, "reward/mean": 0.5, "<img src=x onerror=window.hit=1>": 1.0}],
        records={1: groups},
        events=[{"kind": text, "detail": text} for text in texts[:200]],
        config="".join(f"k{address}: {orjson.dumps(text).decode()}\n" for address, text in enumerate(HOSTILE)),
    )
    samples = [
        sample(text[:40], f"p{at}", 0.0, answer=text, memory=text, answers=(text,)) for at, text in enumerate(texts)
    ]
    evaluation = evaluation_folder(tmp_path / "eval", samples)
    with viewer(run, evaluation) as url:
        watched = Watched(browser, url)
        keys = [row["key"] for row in ViewerApi(Library([run, evaluation])).get("/api/runs")["runs"]]
        for address in ("#/", f"#/r/{keys[0]}", f"#/r/{keys[0]}/s/1", f"#/r/{keys[1]}/items"):
            page = watched.go(address)
            _scroll(page)
            assert page.evaluate("window.hit") is None, address
            assert page.locator("script").count() == 1
            assert page.locator("main script, iframe, main img, main style, main link, main base").count() == 0
            assert "\u202e" not in page.locator("body").inner_text(), address
        assert watched.strays == []
        assert [error for error in watched.errors if "Content Security Policy" in error] == []
        watched.close()


def _scroll(page: Any) -> None:
    """Bring every row of a long table into the page once."""
    page.evaluate("""async () => {
        const table = document.querySelector('.vtable');
        for (let at = 0; table && at < table.scrollHeight; at += 600) {
            table.scrollTop = at;
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        }
    }""")


def _hostile_group(texts: list[str]) -> Group:
    made = group(texts[0], (0.0,))
    problem = replace(made.problem, question=texts[1], answers=(texts[2],), metadata={"evidence": [texts[3]]})
    event = Event(Plain(texts[0][:20], {"text": texts[4]}), 0)
    trajectory = replace(made.trajectories[0], answer=texts[4], group_id=texts[3], events=(event,))
    grade = replace(made.grades[0], value=None, reason=texts[0])
    return Group(problem, (trajectory,), (grade,))


@pytest.mark.slow
def test_a_run_is_followed_through_three_deaths_and_resumes(browser: Any, tmp_path: Path) -> None:
    """Steps that come, a process that dies with half a row written, a resume that cuts back to its checkpoint."""
    run = run_folder(tmp_path / "first", METRICS[:4], steps=30, events=[{"kind": "started"}])
    with viewer(run) as url:
        watched = Watched(browser, url)
        page = watched.go("#/r/first")
        done = 4
        for _ in range(3):
            held = FolderLock(run)
            for row in METRICS[done : done + 6]:
                append_row(run / "metrics.jsonl", row)
            done += 6
            page.wait_for_selector(f"text=step {done} of 30")
            page.wait_for_selector(".badge:text('running')")
            _die(run, held)
            page.wait_for_selector(".badge:text('dead')")
            assert "palimpsest train --resume" in page.locator(".notice-bad").first.inner_text()
            _cut_back(run, done - 2)
            done -= 2
            page.wait_for_selector(f"text=step {done} of 30")
        watched.close()
    assert watched.errors == []


@pytest.mark.slow
def test_a_run_that_is_killed_three_times_while_it_is_followed_ends_as_the_same_bytes(
    browser: Any, tmp_path: Path
) -> None:
    with child("fakes", tmp_path / "whole", "none") as process:
        assert process.wait(timeout=60) == 0
    killing = threading.Thread(target=killed_often, args=("fakes", tmp_path / "run", "none"), kwargs=KILLS)
    killing.start()
    while not (tmp_path / "run" / "config.yaml").exists():
        killing.join(0.05)
    with viewer(tmp_path) as url:
        watched = Watched(browser, url)
        page = watched.go("#/r/run")
        killing.join()
        page.wait_for_selector(f"text=step {STEPS} of {STEPS}")
        page.wait_for_selector(".badge:text('finished')")
        watched.close()
    assert watched.errors == []
    assert differences(tmp_path / "run", tmp_path / "whole") == []


KILLS = {"kills": 3, "step_s": 0.05}


def _die(run: Path, held: FolderLock) -> None:
    """Leave what a kill does: half a row, and a lock that names a process that is gone."""
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":99,"rew')
    held.release()
    text = {"pid": 2**22 + 1, "host": socket.gethostname(), "started": "2001-01-01 00:00:00"}
    (run / ".lock").write_bytes(orjson.dumps(text))


def _cut_back(run: Path, steps: int) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:steps]
    (run / "metrics.new").write_bytes(b"".join(lines))
    (run / "metrics.new").replace(run / "metrics.jsonl")
