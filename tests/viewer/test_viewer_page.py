"""The page in a browser: links, keys, charts, tables, filters, layout on screens and paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import Watched, watching
from support.view_folders import chunks, evaluation_folder, group, run_folder
from support.viewer import viewer

METRICS = [
    {"step": step, "reward/mean": 0.2 + step / 100, "policy/entropy": 1.0, "memory/truncated": 0.4}
    for step in range(1, 31)
]
TIMINGS = [{"step": step, "rollout_s": 1.0, "learn_s": 0.5} for step in range(1, 31)]
GROUPS = [group(f"p{address}", (0.0, 1.0, 0.5, None), turns=2 + address % 3) for address in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    shown = {"timings": TIMINGS, "events": [{"kind": "started"}], "records": dict.fromkeys((1, 2, 30), GROUPS)}
    for seed, name in enumerate(("first", "second")):
        config = f"policy:\n  options:\n    memory_tokens: {8 + seed}\n"
        run_folder(path / name, METRICS, steps=30, config=config, **shown)
    for name, right in (("eval-a", 3), ("eval-b", 1)):
        judged = [chunks(4, f"p{n}", float(n < right), metrics=_metrics(n, right)) for n in range(5)]
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


def show(watched: Watched, address: str, selector: str = ".vrow") -> Any:
    """The page at a place, once it has the selector."""
    page = watched.go(address)
    page.wait_for_selector(selector)
    return page


def about(page: Any) -> str:
    return str(page.locator(".about").inner_text())


@pytest.mark.parametrize("address", SCREENS)
def test_every_screen_opens_by_its_link_with_a_legend_and_named_columns(address: str, watched: Watched) -> None:
    page = show(watched, address, ".legend")
    assert page.locator("h1").first.inner_text() == SCREENS[address]
    assert page.locator(".notice-bad[role=alert]").count() == 0
    assert page.locator(".legend").first.inner_text().strip()
    names = page.locator("th[scope=col], [role=columnheader]").all_inner_texts()
    assert all(name.strip() for name in names)


def test_the_list_links_to_a_run_and_the_back_button_returns(watched: Watched) -> None:
    page = watched.go("#/")
    assert "0.5" in page.locator("tr", has_text="first").locator("td").nth(3).inner_text()  # the last reward
    page.get_by_role("link", name="first", exact=True).click()
    page.wait_for_selector(".chart svg")
    assert "▲ Warning" in page.locator(".notice").first.inner_text()  # 40 % of the memories are cut
    page.get_by_role("link", name="Newest episodes").click()
    page.wait_for_selector(".vrow")
    page.go_back()
    page.wait_for_selector("h1:text('first')")
    page.go_back()
    page.wait_for_selector("h1:text('Runs and evaluations')")


def test_a_click_on_a_curve_opens_the_steps_episodes_and_a_drag_zooms(watched: Watched) -> None:
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
    box = page.locator(".chart svg[role=img]").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 19, box["y"] + 60)
    page.wait_for_selector("h1:text('Episodes of step 30')")


def test_filters_of_episodes_are_in_the_address_and_survive_a_reload(watched: Watched) -> None:
    page = show(watched, "#/r/first/s/30")
    assert "48 of 48 episodes" in about(page)
    page.get_by_role("button", name=re.compile("12 episodes with a reward from 0.95")).click()
    assert "12 of 48 episodes" in about(page)
    page.get_by_role("button", name=re.compile("^Turns")).click()
    assert "sort=-turns" in page.url
    page.reload()
    watched.read()
    page.wait_for_selector(".vrow")
    assert "12 of 48 episodes" in about(page)
    assert page.locator(".vrow").first.locator("[role=cell]").nth(4).inner_text() == "4"
    assert "4 of 48 episodes" in about(show(watched, "#/r/first/s/30?q=p7"))


FOCUS = "document.activeElement.getAttribute('href') || document.activeElement.textContent"


def test_sorting_by_keyboard_keeps_the_focus(watched: Watched) -> None:
    page = show(watched, "#/r/first/s/30")
    page.get_by_role("button", name="Turns", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-sort=descending]")
    assert page.evaluate(FOCUS) == "Turns ▼"


def test_tab_reaches_all_rows_of_a_table(watched: Watched) -> None:
    page = show(watched, "#/r/first/s/30")
    page.locator(".vrow a").first.focus()
    links = [page.evaluate(FOCUS)]
    for _ in range(95):
        page.keyboard.press("Tab")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        links.append(page.evaluate(FOCUS))
    assert {f"#/r/first/s/30/e/{address}/{rollout}" for address in range(12) for rollout in range(4)} <= set(links)


@pytest.mark.parametrize("name", ["Tokens", "Evidence", "Replay", "Blame"])
def test_switching_a_tab_by_keyboard_keeps_the_focus(watched: Watched, name: str) -> None:
    page = watched.go("#/r/first/s/30/e/1/2/t/0")
    page.get_by_role("button", name=name, exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(f".segmented button[aria-pressed=true]:text-is('{name}')")
    assert page.evaluate(FOCUS) == name


def test_keys_change_the_step_and_the_help_lists_the_keys_of_every_screen(watched: Watched) -> None:
    page = show(watched, "#/r/first/s/1", "select[aria-label=Step]")
    page.keyboard.press("j")
    page.wait_for_selector("h1:text('Episodes of step 2')")
    page.keyboard.press("?")
    assert "previous step" in page.locator("dialog").inner_text()
    page.get_by_role("button", name="Close").click()
    drawing = {"← → Home End", "Enter"}
    for address, keys in {
        "#/": {"/"},
        "#/r/first": {"e", "0"} | drawing,
        "#/r/first/s/30": {"j", "k", "/", "x"} | drawing,
        "#/r/first/s/30/e/2/1": {*"jknp[]dbtg/", "Enter", "Shift+Enter"},
    }.items():
        page = show(watched, address, "#main svg[role]")
        page.keyboard.press("?")
        listed = page.locator("dialog kbd").all_inner_texts()
        assert len(listed) == len(set(listed))
        assert set(listed) == keys | {"Esc", "?"}, address
        page.get_by_role("button", name="Close").click()


def test_a_screen_that_is_left_before_it_loads_takes_no_keys(watched: Watched) -> None:
    routes: list[Any] = []
    watched.page.route("**/rollouts/1", lambda route: routes.append(route))
    watched.page.goto(f"{watched.origin}/#/r/first/s/30/e/2/1")
    watched.page.wait_for_selector(".loading")
    watched.page.evaluate("location.hash = '#/r/first/s/30/g/2'")
    page = watched.read()
    page.wait_for_selector(".matrix")
    with page.expect_response("**/rollouts/1"):
        routes[0].continue_()
    page.wait_for_timeout(300)
    page.keyboard.press("?")
    assert set(page.locator("dialog kbd").all_inner_texts()) == {"j", "k", "[", "]", "Esc", "?"}
    assert page.title() == "group 2 · step 30 · first · palimpsest"


def test_curves_are_smoothed_but_scheduled_values_are_not(shared_page: Watched, tmp_path: Path) -> None:
    names = ("curriculum/chunks", "optim/learning_rate", "reward/mean")
    rows = [{"step": step, **dict.fromkeys(names, float(step > 10))} for step in range(1, 21)]
    for row in rows:
        row["reward/mean"] = float(row["step"] == 7)
    run_folder(tmp_path / "one", rows)
    with viewer(tmp_path) as url, watching(shared_page, url) as watched:
        page = show(watched, "#/r/one", "svg[aria-label^='reward/mean']")
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


def test_keys_move_along_a_curve_and_open_a_steps_episodes(watched: Watched) -> None:
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


@pytest.mark.parametrize("input", ["keys", "mouse"])
def test_a_point_of_the_scatter_opens_its_episode(input: str, watched: Watched) -> None:
    page = watched.go("#/r/first/s/30?x=turns")
    scatter = page.locator("[role=slider][aria-label^='reward over turns']")
    scatter.wait_for()
    scatter.focus()
    page.keyboard.press("Home")
    if input == "keys":
        page.keyboard.press("ArrowRight")
    text = scatter.get_attribute("aria-valuetext")
    point = re.match(r"group (\d+), rollout (\d+): reward 0, turns 2, ", text)
    assert point is not None
    if input == "keys":
        page.keyboard.press("Enter")
    else:
        ring = scatter.locator(".ring").bounding_box()
        page.mouse.move(ring["x"] + ring["width"] / 2 + 1, ring["y"] + ring["height"] / 2)
        assert page.locator(".chart-tip:visible").inner_text().startswith(point[0])
        page.mouse.down()
        page.mouse.up()
    page.wait_for_url(lambda url: f"/e/{point[1]}/{point[2]}" in url)


def test_a_screen_is_one_page_with_parallel_requests(watched: Watched) -> None:
    """Sequential requests for modules and answers are most of the time to a first paint."""
    del watched.requests[:]
    watched.go("#/r/first/s/30/e/2/1/t/1")
    paths = [url.removeprefix(watched.origin) for url in watched.requests]
    episode = "/api/runs/first/steps/30/groups/2/rollouts/1"
    assert paths[0] == "/"
    assert set(paths[1:3]) == {episode, f"{episode}/turns/1"}
    assert all(path.startswith("/api/") for path in paths[1:])


def test_the_scatter_has_few_elements_and_separates_ungraded_from_wrong_episodes(watched: Watched) -> None:
    """Two rollouts of each group are right, one is wrong, one has no grade."""
    page = show(watched, "#/r/first/s/30?x=turns&y=sampled_tokens", ".dots")
    assert page.locator(".dots *").count() == 4
    shapes = {kind: page.locator(f".dots .{kind}").get_attribute("d") for kind in ("right", "wrong", "ungraded")}
    assert {kind: path.count("M") for kind, path in shapes.items()} == {"right": 24, "wrong": 12, "ungraded": 12}
    scatter = page.locator("[role=slider][aria-label^='tokens sampled over turns']")
    scatter.focus()
    kinds = set()
    for key in ("Home", *["ArrowRight"] * 47):
        page.keyboard.press(key)
        text = scatter.get_attribute("aria-valuetext")
        kinds |= {(rollout, kind) for rollout, kind in re.findall(r"rollout (\d+): .*, (\w+): ", text)}
    assert kinds == {("0", "wrong"), ("1", "right"), ("2", "right"), ("3", "ungraded")}


def test_without_a_tokenizer_an_episode_shows_ids_and_no_fate_of_evidence(watched: Watched) -> None:
    page = show(watched, "#/r/first/s/30/e/2/1", "text=Token ids are shown instead of text")
    page.get_by_role("button", name="Evidence").click()
    page.wait_for_selector(".verdict:text('unknown without a tokenizer')")
    page.locator("input[type=search]").fill("gold")
    page.locator("input[type=search]").press("Enter")
    assert page.locator(".hits").inner_text() == "unknown without a tokenizer"


def test_turns_are_numbered_from_one_and_addresses_from_zero(watched: Watched) -> None:
    page = show(watched, "#/r/first/s/30/e/2/1/t/1", "h2:text-is('Turn 2')")
    field = page.get_by_label("Turn", exact=True)
    assert field.input_value() == "2"
    assert page.title().startswith("turn 2 ")
    field.fill("1")
    field.press("Enter")
    page.wait_for_selector("h2:text-is('Turn 1')")
    assert page.url.endswith("/e/2/1/t/0")
    assert "turn 1" in watched.go("#/r/first/s/30/g/2").locator("#main").inner_text()


def test_skipping_to_the_content_and_following_keep_screen_and_focus(watched: Watched) -> None:
    page = watched.go("#/r/first")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url.endswith("#/r/first")
    assert page.locator("h1").first.inner_text() == "first"
    page.get_by_role("link", name="Newest episodes").focus()
    with page.expect_response(lambda answer: answer.url.endswith("/alarms")):
        pass
    page.wait_for_timeout(200)
    assert page.evaluate("document.activeElement.textContent") == "Newest episodes"


def test_light_and_dark_are_switched_by_a_button_and_paper_is_light(watched: Watched) -> None:
    page = watched.go("#/")
    colours = set()
    for _ in range(2):
        page.get_by_title("Light or dark").click()
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2
    page.evaluate("document.documentElement.dataset.colours = 'dark'")
    colour = "getComputedStyle(document.body).color"
    assert page.evaluate(colour) == "rgb(230, 232, 234)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(colour) == "rgb(31, 35, 40)"


@pytest.fixture
def on_paper(watched: Watched) -> Callable[[str, str], Any]:
    """Shows a screen on paper of 700 x 990 pixels."""

    def show_on_paper(address: str, selector: str) -> Any:
        page = show(watched, address, selector)
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 700, "height": 990})
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        return page

    return show_on_paper


@pytest.mark.parametrize("address", ["#/r/first", "#/r/first/s/30", "#/r/first/s/30/g/2"])
def test_paper_has_no_controls_and_drawings_fit_it(address: str, on_paper: Callable[[str, str], Any]) -> None:
    page = on_paper(address, "#main svg[role]")
    assert page.locator(".tools:visible, .steps:visible, #top button:visible, a.button:visible").count() == 0
    wide = "(all) => all.filter((it) => it.getBoundingClientRect().right > innerWidth + 1).length"
    assert page.locator("#main svg").evaluate_all(wide) == 0


@pytest.mark.parametrize(("address", "count"), [("#/r/first/s/30", 49), ("#/r/eval-a/items", 11)])
def test_a_table_fits_its_paper(address: str, count: int, on_paper: Callable[[str, str], Any]) -> None:
    page = on_paper(address, ".vrow")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    rows = page.locator(".vhead, .vrow").evaluate_all(
        "(all) => all.map((row) => [...row.children].map((cell) => Math.round(cell.getBoundingClientRect().left)))"
    )
    assert len(rows) == count
    assert all(row == rows[0] for row in rows)


@pytest.mark.parametrize("width", [1280, 2560])
def test_drawings_have_the_size_of_their_text(width: int, watched: Watched) -> None:
    scaled = "(all) => all.filter((it) => it.getScreenCTM().a !== 1).map((it) => it.outerHTML.slice(0, 200))"
    watched.page.set_viewport_size({"width": width, "height": 1200})
    for address in ("#/r/first", "#/r/first/s/30", "#/r/first/s/30/g/2", "#/r/first/s/30/e/2/1", "#/r/eval-a"):
        page = show(watched, address, "#main svg[role]")
        page.wait_for_timeout(100)
        assert page.locator("#main svg").evaluate_all(scaled) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_screen_fits_a_telephone(watched: Watched) -> None:
    watched.page.set_viewport_size({"width": 390, "height": 800})
    scrolled = ".scroll, .vtable, table.rows, .strip-drawing"
    outside = f"""(all) => all
        .filter((one) => !one.closest("{scrolled}") && one.getBoundingClientRect().right > 391)
        .map((one) => one.outerHTML.slice(0, 90))"""
    for address in (*SCREENS, "#/r/eval-a"):
        page = watched.go(address)
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, address
        assert page.locator("#top").bounding_box()["height"] < 90, address
        assert page.locator("#main *:visible").evaluate_all(outside) == [], address


@pytest.mark.parametrize("address", ["#/r/nobody", "#/r/first/s/77", "#/nowhere/at/all", "#/e/0/0/t/1"])
def test_an_address_with_nothing_is_an_alert(address: str, watched: Watched) -> None:
    page = show(watched, address, "[role=alert]")
    if address.startswith("#/e"):
        assert "a viewer with a single source" in page.locator("[role=alert]").inner_text()


ABSURD = (
    "#/r/first?smooth=abc&from=x&to=y",
    "#/r/first?smooth=99&from=20&to=3&more=__proto__",
    "#/r/first/s/30?sort=__proto__&x=constructor&y=zzz&outcome=<b>",
    "#/r/first/s/30/e/0/0/t/99999999?memory=__proto__&tab=__proto__&by=__proto__",
    "#/r/eval-a/items?sort=-__proto__",
    "#/r/eval-a/items?sort=nothing&show=nothing",
)


@pytest.mark.parametrize("address", ABSURD)
def test_wrong_values_in_an_address_are_ignored(address: str, watched: Watched) -> None:
    page = watched.go(address)
    page.wait_for_timeout(100)
    assert page.locator("[role=alert]").count() == 0


def test_judge_disagreements_are_first_and_problems_are_filtered(watched: Watched) -> None:
    page = show(watched, "#/r/eval-a/items")
    assert page.locator(".vrow").first.locator(".flag").count() == 1
    page.get_by_label("Which problems").select_option("disagree")
    assert about(page).startswith("2 of 10 problems · 0 of 2 episodes were recorded (evaluation.record=all")
    page.get_by_label("Which problems").select_option("all")
    page.get_by_label("Set", exact=True).select_option("recall, 64 chunks")
    assert about(page).startswith("5 of 10 problems")
    page = show(watched, "#/r/eval-a/items?sort=-length")
    assert "64" in page.locator(".vrow").first.locator("> *").nth(1).inner_text()


def test_the_short_address_and_a_key_open_a_single_source(browser: Any, shared_page: Watched, folder: Path) -> None:
    with viewer(folder / "first") as url, watching(shared_page, url) as watched:
        assert watched.go("#/e/3/2/t/1").locator("h1").first.inner_text() == "What is p3?"
    with viewer(folder, token="KEY") as url:
        page = Watched(browser, url.replace("//", "//x:KEY@"))
        assert "first" in page.go("#/").locator("#main").inner_text()
        page.close()
