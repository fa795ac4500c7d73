"""The page in a browser: every screen and its links, hostile texts, a run that goes on; what modules may not do."""

from __future__ import annotations

import random
import re
import socket
import threading
from collections.abc import Iterator
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
from palimpsest.viewer.export.inline_page import page_files
from palimpsest.viewer.records.sources import Library
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.browser import Watched, watching
from support.kill_child import STEPS
from support.killing import child, differences, killed_often
from support.view_folders import chunks, evaluation_folder, group, run_folder, sample, state_of
from support.viewer import viewer

METRICS = [
    {"step": step, "reward/mean": 0.2 + step / 100, "policy/entropy": 1.0, "memory/truncated": 0.4}
    for step in range(1, 31)
]
TIMINGS = [{"step": step, "rollout_s": 1.0, "learn_s": 0.5} for step in range(1, 31)]
GROUPS = [group(f"p{place}", (0.0, 1.0, 0.5, None), turns=2 + place % 3) for place in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    records = dict.fromkeys((1, 2, 30), GROUPS)
    for name, seed in (("first", 0), ("second", 1)):
        config = f"policy:\n  options:\n    memory_tokens: {8 + seed}\n"
        run_folder(
            path / name,
            METRICS,
            steps=30,
            timings=TIMINGS,
            events=[{"kind": "started"}],
            records=records,
            config=config,
        )
    for name, right in (("eval-a", 3), ("eval-b", 1)):
        judged = [
            chunks(
                4,
                f"p{n}",
                float(n < right),
                metrics=_metrics(n, right),
            )
            for n in range(5)
        ]
        evaluation_folder(path / name, [*judged, *(chunks(64, f"p{n}", 0.0) for n in range(5))])
    return path


def _metrics(number: int, right: int) -> dict[str, float]:
    return {"judge": float(number < right), "em": float(number == 0), "sub_em": 1.0}


@pytest.fixture(scope="module")
def origin(folder: Path) -> Iterator[str]:
    with viewer(folder) as url:
        yield url


SCREENS = {
    "#/": "Runs and evaluations",
    "#/r/first": "first",
    "#/r/first/s/30": "Episodes of step 30",
    "#/r/eval-a/items": "Problems of eval-a",
    "#/r/first/s/30/g/2": "What is p2?",
    "#/r/first/s/30/e/2/1": "What is p2?",
    "#/r/first/s/30/e/2/1/t/1": "What is p2?",
}


@pytest.mark.parametrize("place", SCREENS)
def test_every_screen_opens_by_its_link(place: str, watched: Watched) -> None:
    page = watched.go(place)
    assert page.locator("h1").first.inner_text() == SCREENS[place]
    assert page.locator(".notice-bad[role=alert]").count() == 0


def test_the_list_leads_to_a_run_and_the_back_button_back(watched: Watched) -> None:
    page = watched.go("#/")
    page.get_by_role("link", name="first", exact=True).click()
    page.wait_for_selector(".chart svg")
    assert "▲ Warning" in page.locator(".notice").first.inner_text()  # 40 % of the memories are cut
    page.get_by_role("link", name="Newest episodes").click()
    page.wait_for_selector(".vrow")
    page.go_back()
    page.wait_for_selector("h1:text('first')")
    page.go_back()
    page.wait_for_selector("h1:text('Runs and evaluations')")


def test_a_point_of_a_curve_leads_to_its_steps_episodes(watched: Watched) -> None:
    page = watched.go("#/r/first")
    box = page.locator(".chart svg[role=img]").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 19, box["y"] + 60)
    page.wait_for_selector("h1:text('Episodes of step 30')")


def test_a_drag_zooms_and_stands_in_the_address(watched: Watched) -> None:
    page = watched.go("#/r/first")
    box = page.locator(".chart svg[role=img]").first.bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 60)
    page.mouse.up()
    page.get_by_role("button", name="Show all steps").wait_for()
    assert re.search(r"from=\d+&to=\d+", page.url)
    page.reload()
    watched.read()
    page.get_by_role("button", name="Show all steps").click()
    assert "from=" not in page.url


def test_filters_of_episodes_stand_in_the_address_and_survive_a_reload(watched: Watched) -> None:
    page = watched.go("#/r/first/s/30")
    page.wait_for_selector(".vrow")
    assert "48 of 48 episodes" in page.locator(".about").inner_text()
    page.get_by_role("button", name=re.compile("12 episodes with a reward from 0.95")).click()
    assert "12 of 48 episodes" in page.locator(".about").inner_text()
    page.get_by_role("button", name=re.compile("^Turns")).click()
    assert "sort=-turns" in page.url
    page.reload()
    watched.read()
    page.wait_for_selector(".vrow")
    assert "12 of 48 episodes" in page.locator(".about").inner_text()
    assert page.locator(".vrow").first.locator("[role=cell]").nth(4).inner_text() == "4"


FOCUS = "document.activeElement.getAttribute('href') || document.activeElement.textContent"


def test_who_sorts_a_table_by_keyboard_stands_in_its_title_still(watched: Watched) -> None:
    page = watched.go("#/r/first/s/30")
    page.wait_for_selector(".vrow")
    page.get_by_role("button", name="Turns", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-sort=descending]")
    assert page.evaluate(FOCUS) == "Turns ▼"


def test_tab_leads_through_all_rows_of_a_table(watched: Watched) -> None:
    page = watched.go("#/r/first/s/30")
    page.wait_for_selector(".vrow")
    page.locator(".vrow a").first.focus()
    links = [page.evaluate(FOCUS)]
    for _ in range(95):
        page.keyboard.press("Tab")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        links.append(page.evaluate(FOCUS))
    assert {f"#/r/first/s/30/e/{place}/{rollout}" for place in range(12) for rollout in range(4)} <= set(links)


@pytest.mark.parametrize("name", ["Tokens", "Evidence", "Replay", "Blame"])
def test_who_turns_a_part_of_a_turn_by_keyboard_stands_there_still(watched: Watched, name: str) -> None:
    page = watched.go("#/r/first/s/30/e/1/2/t/0")
    page.get_by_role("button", name=name, exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(f".segmented button[aria-pressed=true]:text-is('{name}')")
    assert page.evaluate(FOCUS) == name


def test_searching_finds_a_question(watched: Watched) -> None:
    page = watched.go("#/r/first/s/30?q=p7")
    page.wait_for_selector(".vrow")
    assert "4 of 48 episodes" in page.locator(".about").inner_text()


def test_keys_are_told_and_lead_between_steps(watched: Watched) -> None:
    page = watched.go("#/r/first/s/1")
    page.wait_for_selector("select[aria-label=Step]")
    page.keyboard.press("j")
    page.wait_for_selector("h1:text('Episodes of step 2')")
    page.keyboard.press("?")
    assert "previous step" in page.locator("dialog").inner_text()


def test_the_list_of_keys_has_those_that_a_part_of_the_screen_takes(watched: Watched) -> None:
    drawing = {"← → Home End", "Enter"}
    for place, own in {
        "#/": {"/"},
        "#/r/first": {"e", "0"} | drawing,
        "#/r/first/s/30": {"j", "k", "/", "x"} | drawing,
        "#/r/first/s/30/e/2/1": {*"jknp[]dbtg/", "Enter", "Shift+Enter"},
    }.items():
        page = watched.go(place)
        page.wait_for_selector("#main svg[role]")
        page.keyboard.press("?")
        told = page.locator("dialog kbd").all_inner_texts()
        assert len(told) == len(set(told))
        assert set(told) == own | {"Esc", "?"}, place
        page.get_by_role("button", name="Close").click()


def test_a_screen_that_is_left_before_it_is_read_takes_no_keys(watched: Watched) -> None:
    held: list[Any] = []
    watched.page.route("**/rollouts/1", lambda route: held.append(route))
    watched.page.goto(f"{watched.origin}/#/r/first/s/30/e/2/1")
    watched.page.wait_for_selector(".loading")
    watched.page.evaluate("location.hash = '#/r/first/s/30/g/2'")
    page = watched.read()
    page.wait_for_selector(".matrix")
    with page.expect_response("**/rollouts/1"):
        held[0].continue_()
    page.wait_for_timeout(300)
    page.keyboard.press("?")
    assert set(page.locator("dialog kbd").all_inner_texts()) == {"j", "k", "[", "]", "Esc", "?"}
    assert page.title() == "group 2 · step 30 · first · palimpsest"


def test_every_column_of_a_table_has_a_name(watched: Watched) -> None:
    for place in SCREENS:
        page = watched.go(place)
        page.wait_for_timeout(200)
        names = page.locator("th[scope=col], [role=columnheader]").all_inner_texts()
        assert all(name.strip() for name in names), place


def test_what_a_schedule_sets_is_drawn_as_it_was(browser: Any, tmp_path: Path) -> None:
    names = ("curriculum/chunks", "optim/learning_rate", "reward/mean")
    rows = [{"step": step, **dict.fromkeys(names, float(step > 10))} for step in range(1, 21)]
    for row in rows:
        row["reward/mean"] = float(row["step"] == 7)
    run_folder(tmp_path / "one", rows)
    with viewer(tmp_path) as url, watching(browser, url) as watched:
        page = watched.go("#/r/one")
        page.wait_for_selector("svg[aria-label^='reward/mean']")
        heights = "(line) => new Set(line.getAttribute('d').match(/,[0-9.]+/g)).size"
        line = "svg[aria-label^='{}'] .line:not(.raw)"
        assert page.locator(line.format("reward/mean")).first.evaluate(heights) == 1  # an outlier makes no ramp
        assert page.locator("svg[aria-label^='reward/mean'] .raw").first.evaluate(heights) == 2
        figure = page.locator(".chart", has=page.locator("svg[aria-label^='reward/mean']"))
        assert figure.inner_text().count("reward/mean") == 1
        assert figure.locator("small").inner_text()
        steps = figure.locator(".axes text").all_text_contents()
        assert {"5", "10", "15", "20"} <= set(steps)
        for name in names[:2]:
            assert page.locator(line.format(name)).first.evaluate(heights) == 2
            assert page.locator(f"svg[aria-label^='{name}'] .raw").count() == 0


def test_keys_walk_along_a_curve_and_open_a_steps_episodes(watched: Watched) -> None:
    page = watched.go("#/r/first")
    curve = page.locator("[role=slider][aria-label^='reward/mean']")
    curve.wait_for()
    assert curve.get_attribute("aria-valuetext") == "step 30: 0.5"
    curve.focus()
    for key in ("End", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    assert curve.get_attribute("aria-valuetext") == "step 28: 0.48"
    assert "step 28" in page.locator(".chart-tip:visible").inner_text()
    page.keyboard.press("Home")
    assert curve.get_attribute("aria-valuetext") == "step 1: 0.21"
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:text('Episodes of step 1')")


def scatter_at_its_first_point(watched: Watched) -> Any:
    """Reward over turns, of a step's episodes."""
    page = watched.go("#/r/first/s/30?x=turns")
    scatter = page.locator("[role=slider][aria-label^='reward over turns']")
    scatter.wait_for()
    scatter.focus()
    page.keyboard.press("Home")
    return scatter


def episode_told(scatter: Any) -> re.Match[str]:
    """Group and rollout of the point that it stands at."""
    told = re.match(r"group (\d+), rollout (\d+): reward 0, turns 2, ", scatter.get_attribute("aria-valuetext"))
    assert told is not None
    return told


def test_keys_walk_through_the_scatter_and_open_an_episode(watched: Watched) -> None:
    scatter, page = scatter_at_its_first_point(watched), watched.page
    page.keyboard.press("ArrowRight")
    told = episode_told(scatter)
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: f"/e/{told[1]}/{told[2]}" in url)


def test_a_click_near_a_point_of_the_scatter_opens_its_episode(watched: Watched) -> None:
    scatter, page = scatter_at_its_first_point(watched), watched.page
    ring, told = scatter.locator(".ring").bounding_box(), episode_told(scatter)
    page.mouse.move(ring["x"] + ring["width"] / 2 + 1, ring["y"] + ring["height"] / 2)
    assert page.locator(".chart-tip:visible").inner_text().startswith(told[0])
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(lambda url: f"/e/{told[1]}/{told[2]}" in url)


def test_a_screen_is_one_page_and_its_answers_asked_at_once(watched: Watched) -> None:
    """Modules that are asked for one by one, and answers that wait for each other, are most of a first paint."""
    del watched.requests[:]
    watched.go("#/r/first/s/30/e/2/1/t/1")
    asked = [url.removeprefix(watched.origin) for url in watched.requests]
    episode = "/api/runs/first/steps/30/groups/2/rollouts/1"
    assert asked[0] == "/"
    assert set(asked[1:3]) == {episode, f"{episode}/turns/1"}
    assert all(path.startswith("/api/") for path in asked[1:])


def test_a_scatter_has_as_many_elements_for_many_episodes_as_for_few(watched: Watched) -> None:
    page = watched.go("#/r/first/s/30")
    page.wait_for_selector(".dots")
    assert page.locator(".dots *").count() == 4


def test_an_ungraded_episode_is_no_wrong_one_in_the_scatter(watched: Watched) -> None:
    """Of each group two rollouts are right, one is wrong, one has no grade."""
    page = watched.go("#/r/first/s/30?x=turns&y=sampled_tokens")
    page.wait_for_selector(".dots")
    shapes = {kind: page.locator(f".dots .{kind}").get_attribute("d") for kind in ("right", "wrong", "ungraded")}
    assert {kind: path.count("M") for kind, path in shapes.items()} == {"right": 24, "wrong": 12, "ungraded": 12}
    scatter = page.locator("[role=slider][aria-label^='tokens sampled over turns']")
    scatter.focus()
    kinds = set()
    for key in ("Home", *["ArrowRight"] * 47):
        page.keyboard.press(key)
        told = scatter.get_attribute("aria-valuetext")
        kinds |= {(rollout, kind) for rollout, kind in re.findall(r"rollout (\d+): .*, (\w+): ", told)}
    assert kinds == {("0", "wrong"), ("1", "right"), ("2", "right"), ("3", "ungraded")}


@pytest.mark.parametrize("width", [1280, 2560])
def test_drawings_keep_the_size_of_their_words(width: int, browser: Any, origin: str) -> None:
    with watching(browser, origin, viewport={"width": width, "height": 1200}) as watched:
        for place in ("#/r/first", "#/r/first/s/30", "#/r/first/s/30/g/2", "#/r/first/s/30/e/2/1", "#/r/eval-a"):
            page = watched.go(place)
            page.wait_for_selector("#main svg[role]")
            page.wait_for_timeout(100)
            scaled = "(all) => all.filter((it) => it.getScreenCTM().a !== 1).map((it) => it.outerHTML.slice(0, 200))"
            assert page.locator("#main svg").evaluate_all(scaled) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_a_tokenizer_an_episode_says_why_it_shows_ids(watched: Watched) -> None:
    page = watched.go("#/r/first/s/30/e/2/1")
    page.wait_for_selector("text=Token ids are shown instead of text")


def test_the_short_address_opens_the_only_thing_that_is_shown(browser: Any, folder: Path) -> None:
    with viewer(folder / "first") as url:
        watched = Watched(browser, url)
        page = watched.go("#/e/3/2/t/1")
        assert page.locator("h1").first.inner_text() == "What is p3?"
        assert watched.errors == []
        watched.close()


def test_what_judge_and_strings_disagree_about_comes_first(watched: Watched) -> None:
    page = watched.go("#/r/eval-a/items")
    page.wait_for_selector(".vrow")
    assert page.locator(".vrow").first.locator(".flag").count() == 1
    page.get_by_label("Which problems").select_option("disagree")
    told = page.locator(".about").inner_text()
    assert told.startswith("2 of 10 problems · 0 of 2 episodes were recorded (evaluation.record=all")
    page.get_by_label("Which problems").select_option("all")
    page.get_by_label("Set", exact=True).select_option("recall, 64 chunks")
    assert page.locator(".about").inner_text().startswith("5 of 10 problems")
    page = watched.go("#/r/eval-a/items?sort=-length")
    page.wait_for_selector(".vrow")
    assert "64" in page.locator(".vrow").first.locator("> *").nth(1).inner_text()


def test_episodes_that_were_not_asked_for_last_are_counted_above_the_others(browser: Any, tmp_path: Path) -> None:
    samples = [chunks(4, f"p{n}", 1.0) for n in range(5)]
    evaluation = evaluation_folder(tmp_path / "eval", samples)
    write_request(evaluation, [(samples[0].cell, 1, ["p0", "p3"])])
    with viewer(evaluation) as url:
        watched = Watched(browser, url)
        page = watched.go("#/r/eval/items")
        page.wait_for_selector(".vrow")
        assert page.locator(".about").inner_text().startswith("2 of 2 problems")
        assert page.get_by_text("3 episodes of earlier calls stay in the log but are excluded").count() == 1
        watched.close()


def test_newest_episodes_are_those_of_the_newest_step_that_has_a_record(browser: Any, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "sparse", METRICS, steps=30, records={20: GROUPS[:1]})
    with viewer(run) as url:
        watched = Watched(browser, url)
        page = watched.go("#/r/sparse")
        page.get_by_role("link", name="Newest episodes").click()
        page.wait_for_selector("h1:text('Episodes of step 20')")
        assert page.evaluate("document.activeElement.textContent") == "Episodes of step 20"
        assert page.title() == "step 20 · sparse · palimpsest"
        watched.close()


def test_skipping_to_the_content_leaves_the_screen_as_it_is(watched: Watched) -> None:
    page = watched.go("#/r/first")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url.endswith("#/r/first")
    assert page.locator("h1").first.inner_text() == "first"


def test_following_leaves_who_stands_on_a_link_there(watched: Watched, folder: Path) -> None:
    page = watched.go("#/r/first")
    page.get_by_role("link", name="Newest episodes").focus()
    with page.expect_response(lambda answer: answer.url.endswith("/alarms")):
        pass
    page.wait_for_timeout(200)
    assert page.evaluate("document.activeElement.textContent") == "Newest episodes"


def test_without_a_tokenizer_what_became_of_the_evidence_is_not_known(watched: Watched) -> None:
    page = watched.go("#/r/first/s/30/e/2/1")
    page.get_by_role("button", name="Evidence").click()
    page.wait_for_selector(".verdict:text('unknown without a tokenizer')")
    page.locator("input[type=search]").fill("gold")
    page.locator("input[type=search]").press("Enter")
    assert page.locator(".hits").inner_text() == "unknown without a tokenizer"


def test_a_dark_page_is_light_on_paper(watched: Watched) -> None:
    page = watched.go("#/")
    page.evaluate("document.documentElement.dataset.colours = 'dark'")
    colour = "getComputedStyle(document.body).color"
    assert page.evaluate(colour) == "rgb(230, 232, 234)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(colour) == "rgb(31, 35, 40)"


def test_paper_has_no_tools_and_drawings_as_wide_as_it_is(watched: Watched) -> None:
    for place in ("#/r/first", "#/r/first/s/30", "#/r/first/s/30/g/2"):
        page = watched.go(place)
        page.wait_for_selector("#main svg[role]")
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 700, "height": 990})
        assert page.locator(".tools:visible, .steps:visible, #top button:visible, a.button:visible").count() == 0
        wide = "(all) => all.filter((it) => it.getBoundingClientRect().right > innerWidth + 1).length"
        assert page.locator("#main svg").evaluate_all(wide) == 0
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": 1280, "height": 720})


@pytest.mark.parametrize("place", ["#/r/first/s/30", "#/r/eval-a/items"])
def test_a_table_is_no_wider_than_its_paper(place: str, watched: Watched) -> None:
    page = watched.go(place)
    page.wait_for_selector(".vrow")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 990})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    rows = page.locator(".vhead, .vrow").evaluate_all(
        "(all) => all.map((row) => [...row.children].map((cell) => Math.round(cell.getBoundingClientRect().left)))"
    )
    assert len(rows) == {"#/r/first/s/30": 49, "#/r/eval-a/items": 11}[place]
    assert all(row == rows[0] for row in rows)
    page.emulate_media(media="screen")


def test_an_evaluation_has_no_bar_of_steps_and_names_a_baseline_once(browser: Any, tmp_path: Path) -> None:
    sizes = (4, 64)
    rows = [chunks(size, "p", 1.0) for size in sizes]
    rows += [chunks(size, "p", 0.0, player="closed book", baseline=True) for size in sizes]
    evaluation_folder(tmp_path / "ev", rows)
    with viewer(tmp_path) as url, watching(browser, url) as watched:
        page = watched.go("#/r/ev")
        page.wait_for_selector(".chart .legend-item")
        assert page.locator("progress:visible").count() == 0
        assert page.locator(".chart .legend-item").all_inner_texts() == ["agent: recall", "baseline: closed book"]


def test_the_list_tells_the_last_rows_reward(watched: Watched) -> None:
    page = watched.go("#/")
    assert "0.5" in page.locator("tr", has_text="first").locator("td").nth(3).inner_text()


def test_a_key_in_the_address_opens_the_page(browser: Any, folder: Path) -> None:
    with viewer(folder, token="KEY") as url:
        page = Watched(browser, url.replace("//", "//x:KEY@"))
        assert "first" in page.go("#/").locator("#main").inner_text()
        page.close()


def test_an_empty_folder_that_is_followed_says_what_it_waits_for(browser: Any, tmp_path: Path) -> None:
    with viewer(tmp_path) as url:
        page = Watched(browser, url)
        assert f"in {tmp_path}." in page.go("#/").locator("#main").inner_text()
        run_folder(tmp_path / "new")
        page.page.wait_for_selector("text=new")
        page.close()


def test_light_and_dark_are_a_button_away(watched: Watched) -> None:
    page = watched.go("#/")
    colours = set()
    for _ in range(2):
        page.get_by_title("Light or dark").click()
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


@pytest.mark.parametrize("place", ["#/r/nobody", "#/r/first/s/77", "#/nowhere/at/all"])
def test_an_address_with_nothing_there_says_so(place: str, watched: Watched) -> None:
    page = watched.go(place)
    page.wait_for_selector("[role=alert]")


ABSURD = (
    "#/r/first?smooth=abc&from=x&to=y",
    "#/r/first?smooth=99&from=20&to=3&more=__proto__",
    "#/r/first/s/30?sort=__proto__&x=constructor&y=zzz&outcome=<b>",
    "#/r/first/s/30/e/0/0/t/99999999?memory=__proto__&tab=__proto__&by=__proto__",
    "#/r/eval-a/items?sort=-__proto__",
    "#/r/eval-a/items?sort=nothing&show=nothing",
)


@pytest.mark.parametrize("place", ABSURD)
def test_what_an_address_says_in_vain_is_passed_over(place: str, watched: Watched) -> None:
    page = watched.go(place)
    page.wait_for_timeout(300)
    assert page.locator("[role=alert]").count() == 0
    assert watched.errors == []


def test_a_short_address_among_several_things_says_so(watched: Watched) -> None:
    page = watched.go("#/e/0/0/t/1")
    assert "a viewer with a single source" in page.locator("[role=alert]").inner_text()


def test_a_run_that_is_deleted_under_an_episode_is_told_as_such(browser: Any, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first", METRICS, records={1: GROUPS[:1]})
    with viewer(run) as url:
        watched = Watched(browser, url)
        page = watched.go("#/r/first/s/1/e/0/0/t/0")
        run.rename(tmp_path / "moved")
        page.keyboard.press("t")
        page.wait_for_selector(".tabs .notice:has-text('was moved or deleted')")
        watched.close()


def test_no_screen_changes_the_folder(watched: Watched, folder: Path) -> None:
    before = state_of(folder)
    for place in SCREENS:
        watched.go(place)
    assert state_of(folder) == before


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
    """Texts that would do something in a page that doesn't take care, cut and joined at random."""
    rng = random.Random(0)
    found = list(HOSTILE)
    while len(found) < count:
        one, other = rng.choice(HOSTILE), rng.choice(HOSTILE)
        found.append(one[: rng.randrange(len(one) + 1)] + other[rng.randrange(len(other)) :] + rng.choice(HOSTILE))
    return found


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_hostile_texts_execute_nothing_and_ask_nobody(count: int, browser: Any, tmp_path: Path) -> None:
    texts = hostile(count)
    groups = [_hostile_group(texts[place : place + 5]) for place in range(0, count, 5)]
    name = "<img src=x onerror=window.hit=1>"
    run = run_folder(
        tmp_path / name,
        [{"step": 1, "reward/mean": 0.5, "<img src=x onerror=window.hit=1>": 1.0}],
        records={1: groups},
        events=[{"kind": text, "detail": text} for text in texts[:200]],
        config="".join(f"k{place}: {orjson.dumps(text).decode()}\n" for place, text in enumerate(HOSTILE)),
    )
    samples = [
        sample(text[:40], f"p{at}", 0.0, answer=text, memory=text, answers=(text,)) for at, text in enumerate(texts)
    ]
    evaluation = evaluation_folder(tmp_path / "eval", samples)
    with viewer(run, evaluation) as url:
        watched = Watched(browser, url)
        keys = [row["key"] for row in ViewerApi(Library([run, evaluation])).get("/api/runs")["runs"]]
        for place in ("#/", f"#/r/{keys[0]}", f"#/r/{keys[0]}/s/1", f"#/r/{keys[1]}/items"):
            page = watched.go(place)
            _scroll(page)
            assert page.evaluate("window.hit") is None, place
            assert page.locator("script").count() == 1
            assert page.locator("main script, iframe, main img, main style, main link, main base").count() == 0
            assert "\u202e" not in page.locator("body").inner_text(), place
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
    return replace(
        made,
        problem=problem,
        trajectories=(trajectory,),
        grades=(replace(made.grades[0], value=None, reason=texts[0]),),
    )


def test_a_torn_frame_is_told_above_what_is_whole(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl.zst"
    path.write_bytes(encode_groups(GROUPS)[:-40])
    with viewer(path) as url:
        watched = Watched(browser, url)
        page = watched.go("#/r/torn.jsonl.zst/s/all")
        page.wait_for_selector(".vrow")
        assert "damaged after 11 complete groups" in page.locator("[role=alert]").inner_text()
        watched.close()


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
    """What a kill leaves: half a row, and a lock that names a process that is gone."""
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":99,"rew')
    held.release()
    text = {"pid": 2**22 + 1, "host": socket.gethostname(), "started": "2001-01-01 00:00:00"}
    (run / ".lock").write_bytes(orjson.dumps(text))


def _cut_back(run: Path, steps: int) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:steps]
    (run / "metrics.new").write_bytes(b"".join(lines))
    (run / "metrics.new").replace(run / "metrics.jsonl")


def test_a_run_that_is_moved_while_it_is_shown_says_so(browser: Any, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first", METRICS)
    with viewer(run) as url:
        watched = Watched(browser, url)
        page = watched.go("#/r/first")
        run.rename(tmp_path / "moved")
        page.wait_for_selector("[role=alert]:has-text('moved or deleted')")
        watched.close()


MODULES = {name: content.decode() for name, content in page_files().items() if name.endswith(".js")}
BANNED = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc",
    r"createContextualFragment|setHTML|importScripts|\bimport\(",
    r"https?://(?!www\.w3\.org/2000/svg)",
    r"setAttribute\(\s*[\"'](style|on)",
    r"\.cssText",
)


@pytest.mark.parametrize("name", MODULES)
def test_modules_put_texts_into_the_page_as_text_alone(name: str) -> None:
    for pattern in BANNED:
        assert not re.search(pattern, MODULES[name]), pattern


@pytest.mark.parametrize("name", MODULES)
def test_modules_import_and_export_in_the_forms_that_an_export_can_join(name: str) -> None:
    lines = MODULES[name].splitlines()
    imports = [line for line in lines if re.match(r"\s*import\b", line)]
    assert all(re.fullmatch(r'import \{ [\w, ]+ \} from "\.{1,2}/[\w./-]+\.js";', line) for line in imports)
    exports = [line for line in lines if line.startswith("export")]
    assert all(re.match(r"export (function|async function|const) \w+", line) for line in exports)


def test_modules_use_what_they_import_and_export_what_another_one_does() -> None:
    imported = set[str]()
    for name, text in MODULES.items():
        for names in re.findall(r"^import \{ ([^}]+) \}", text, re.MULTILINE):
            for each in names.split(", "):
                of, _, own = each.partition(" as ")
                imported.add(of)
                assert len(re.findall(rf"(?<![\w.]){own or of}\b", text)) > 1, f"{name}: {each}"
    exported = {
        each for text in MODULES.values() for each in re.findall(r"^export .*?(?:function|const) (\w+)", text, re.M)
    }
    assert exported == imported


def test_the_page_has_nothing_inline_and_nothing_from_outside() -> None:
    page = page_files()["index.html"].decode()
    assert not re.search(r"\son\w+=|<style|style=|https?:|<script(?![^>]*src=)", page)


@pytest.mark.parametrize("place", SCREENS)
def test_every_screen_says_what_its_signs_mean(place: str, watched: Watched) -> None:
    page = watched.go(place)
    page.wait_for_selector(".legend")
    assert page.locator(".legend").first.inner_text().strip()


def test_turns_are_counted_from_one_and_addresses_from_zero(watched: Watched) -> None:
    page = watched.go("#/r/first/s/30/e/2/1/t/1")
    page.wait_for_selector("h2:text-is('Turn 2')")
    field = page.get_by_label("Turn", exact=True)
    assert field.input_value() == "2"
    assert page.title().startswith("turn 2 ")
    field.fill("1")
    field.press("Enter")
    page.wait_for_selector("h2:text-is('Turn 1')")
    assert page.url.endswith("/e/2/1/t/0")
    assert "turn 1" in watched.go("#/r/first/s/30/g/2").locator("#main").inner_text()


@pytest.mark.parametrize("place", [*SCREENS, "#/r/eval-a"])
def test_every_screen_fits_a_telephone(place: str, browser: Any, origin: str) -> None:
    with watching(browser, origin, viewport={"width": 390, "height": 800}) as watched:
        page = watched.go(place)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator("#top").bounding_box()["height"] < 90
        scrolled = ".scroll, .vtable, table.rows, .strip-drawing"
        outside = f"""(all) => all
            .filter((one) => !one.closest("{scrolled}") && one.getBoundingClientRect().right > 391)
            .map((one) => one.outerHTML.slice(0, 90))"""
        assert page.locator("#main *:visible").evaluate_all(outside) == []
