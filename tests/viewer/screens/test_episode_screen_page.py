"""The screens of an episode and of a group in a browser: content, keys, links, every kind of agent."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.agent.recorded_origin import EpisodeRef, locate_episode
from palimpsest.events import Event, Replayed
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.text.answers import unboxed
from palimpsest.types import Grade, Group
from palimpsest.viewer.screens.episode_screen import blame_view, episode_view
from palimpsest.viewer.screens.group_screen import Opened
from palimpsest.viewer.screens.turn_screen import turn_view
from support.agents import base_codec
from support.browser import Watched, watching
from support.view_folders import evaluation_folder, run_folder, sample
from support.viewer import viewer
from support.views import episodes, reading

KINDS = [name for name in sorted(episodes()) if episodes()[name].codec is base_codec()]
CONFIG = "model:\n  path: embedded\n"
HOSTILE = "<img src=x onerror='window.hit=1'></script><script>window.hit=1</script>\u202e"


def twice(opened: Opened) -> Group:
    """A group of two rollouts that did the same."""
    (trajectory,) = opened.group.trajectories
    return Group(opened.group.problem, (trajectory, replace(trajectory, rollout=1)), (Grade(1.0), Grade(0.0)))


GROUPS = [twice(episodes()[name]) for name in KINDS]


def hostile(group: Group) -> Group:
    evidence = {"evidence": [HOSTILE]}
    problem = replace(group.problem, question=HOSTILE, answers=(HOSTILE,), questions=(), metadata=evidence)
    trajectories = (replace(one, answer=HOSTILE) for one in group.trajectories)
    return replace(group, problem=problem, trajectories=tuple(trajectories))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("runs") / "one"
    run_folder(path, records={1: [hostile(group) for group in GROUPS], 2: GROUPS}, config=CONFIG)
    with viewer(path) as url:
        yield url


def at(name: str, turn: int | None = None, step: int = 2) -> str:
    return f"#/r/one/s/{step}/e/{KINDS.index(name)}/0" + ("" if turn is None else f"/t/{turn}")


def shown(page: Any, turn: int) -> None:
    script = "(turn) => document.querySelector('.turn-head h2')?.textContent === 'Turn ' + (turn + 1)"
    page.wait_for_function(script, arg=turn)


def show(watched: Watched, name: str, turn: int) -> Any:
    page = watched.go(at(name, turn))
    shown(page, turn)
    return page


OFTEN = ("overwrite", "recall", "prune", "full_context")  # the others when there is time


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in KINDS])
def test_every_kind_of_agent_has_an_episode_and_a_group(name: str, watched: Watched) -> None:
    page = watched.go(at(name, 0))
    assert page.locator(".cell").count() == len(GROUPS[KINDS.index(name)].trajectories[0].turns)
    shown(page, 0)
    answer = unboxed(GROUPS[KINDS.index(name)].trajectories[0].answer)
    assert page.locator(".fact-answer").inner_text() == answer.strip()
    page.keyboard.press("t")
    page.wait_for_selector(".token")
    page.keyboard.press("b")
    page = watched.go(f"#/r/one/s/2/g/{KINDS.index(name)}")
    assert page.locator(".matrix tbody tr").count() == 2


PARTS = """(all) => all.map((one) => {
    const own = one.cloneNode(true);
    own.querySelectorAll(".hidden").forEach((hidden) => hidden.remove());
    return [one.className.replace("o-", "").replace("lost", "dropped"), own.textContent];
})"""


def test_the_difference_on_the_page_is_the_computed_one(watched: Watched) -> None:
    group = Opened(GROUPS[KINDS.index("overwrite")], base_codec())
    for turn in range(3):
        page = show(watched, "overwrite", turn)
        expected = [[part["origin"], part["text"].lstrip()] for part in turn_view(group, 0, turn)["diff"]]
        assert page.locator(".memory-text > :is(span, del)").evaluate_all(PARTS) == expected
    last = len(group.group.trajectories[0].turns) - 1
    page = watched.go(at("overwrite", last))
    page.get_by_role("heading", name=f"Turn {last + 1}", exact=True).wait_for()
    assert page.locator("section.memory").count() == 0  # it writes no memory


def test_keys_and_buttons_change_the_turn_in_the_address(watched: Watched) -> None:
    page = show(watched, "overwrite", 0)
    page.keyboard.press("j")
    shown(page, 1)
    assert page.evaluate("location.hash").endswith("/t/1")
    page.keyboard.press("k")
    shown(page, 0)
    page.get_by_role("button", name="next turn (j)").click()
    shown(page, 1)
    page.go_back()
    shown(page, 0)
    page.reload()
    shown(page, 0)
    shown(watched.go(f"#/e/{KINDS.index('overwrite')}/0/t/2"), 2)  # of the only run


def test_brackets_change_the_episode(watched: Watched) -> None:
    page = watched.go(at("overwrite"))
    page.keyboard.press("]")
    page.wait_for_url(lambda url: f"/e/{KINDS.index('overwrite')}/1" in url)
    watched.read()
    page.wait_for_selector(".chip.now >> text=1")
    page.keyboard.press("[")
    page.wait_for_url(lambda url: url.endswith(f"/e/{KINDS.index('overwrite')}/0"))


def test_blame_names_the_turn_of_every_run_of_words(watched: Watched) -> None:
    group = Opened(GROUPS[KINDS.index("overwrite")], base_codec())
    page = show(watched, "overwrite", 2)
    page.keyboard.press("b")
    page.wait_for_selector(".blame-span")
    turns = page.locator(".blame-span sup").all_inner_texts()
    assert turns == [str(one["turn"] + 1) for one in blame_view(group, 0, 2)["spans"]]
    page.keyboard.press("b")
    page.wait_for_selector(".memory-text:not(.blame-text)")


def test_the_view_of_an_episode_is_in_its_address(watched: Watched) -> None:
    page = show(watched, "overwrite", 2)
    for key in ("b", "t"):
        page.keyboard.press(key)
    page.get_by_role("button", name="Trained").click()
    page.wait_for_selector(".blame-span")
    address = page.url
    assert address.endswith("/t/2?memory=blame&tab=tokens&by=trained")
    page.keyboard.press("k")
    shown(page, 1)
    assert page.url.endswith("/t/1?memory=blame&tab=tokens&by=trained")
    page.goto("about:blank")
    page.goto(address)
    watched.read()
    page.wait_for_selector(".blame-span")
    page.wait_for_selector("button[aria-pressed=true]:text('Trained')")
    page.keyboard.press("b")
    page.wait_for_selector(".memory-text:not(.blame-text)")
    assert "memory=" not in page.url
    assert watched.go(at("overwrite", 2) + "?memory=toString&tab=constructor").locator("[role=alert]").count() == 0


def test_a_turn_with_an_edited_memory_has_a_mark(shared_page: Watched, tmp_path: Path) -> None:
    group = GROUPS[KINDS.index("overwrite")]
    edited = Event(Replayed("g, rollout 0", 2, " Alice drinks tea."), 2)
    first, second = group.trajectories
    path = tmp_path / "replay.jsonl.zst"
    path.write_bytes(encode_groups([replace(group, trajectories=(first, replace(second, events=(edited,))))]))
    with viewer(path, tokenizer="embedded") as url, watching(shared_page, url) as watched:
        page = watched.go("#/e/0/1/t/1")
        page.wait_for_selector(".turn-mark-edited")
        assert page.locator(".cell-edited text").text_content() == "E"
        assert page.locator(".legend-edited").inner_text() == "E"


def test_the_command_that_replays_from_the_shown_memory(shared_page: Watched, tmp_path: Path) -> None:
    """Path, link, next turn and memory are quoted for a shell."""
    group = GROUPS[KINDS.index("overwrite")]
    run = run_folder(tmp_path / "it's", records={7: [group]}, config=CONFIG)
    evaluation = evaluation_folder(run / "evaluations" / "after" / "shard-1-of-1", [sample("set", "a", 0.0)])
    (evaluation / "episodes.jsonl.zst").write_bytes(encode_groups([group]))
    (tmp_path / "alone.jsonl.zst").write_bytes(encode_groups([group]))
    memory = turn_view(Opened(group, base_codec()), 0, 1)["memory"]["after"].strip()
    with viewer(run, tmp_path / "alone.jsonl.zst", tokenizer="embedded") as url, watching(shared_page, url) as watched:
        for step, link in (
            ("7", EpisodeRef(run / "trajectories" / "step-000007.jsonl.zst", 0, 0)),
            ("after.shard-1-of-1", EpisodeRef(evaluation / "episodes.jsonl.zst", 0, 0)),
        ):
            page = watched.go(f"#/r/it-s/s/{step}/e/0/0/t/1?tab=replay")
            page.wait_for_selector(".command")
            words = shlex.split(page.locator(".command").inner_text())
            assert words[:2] == ["palimpsest", "replay"]
            assert locate_episode(words[2]) == link
            assert words[3:] == ["--turn", "3", "--memory", memory]
        page = watched.go("#/r/alone.jsonl.zst/s/all/e/0/0/t/1?tab=replay")
        page.wait_for_selector("text=Replay needs")


def test_memories_are_searched(watched: Watched) -> None:
    page = show(watched, "overwrite", 0)
    page.keyboard.press("/")
    page.keyboard.type("DRINKS tea")
    page.keyboard.press("Enter")
    shown(page, 1)
    assert page.locator(".hits").inner_text() == "in 2 of 4 memories"
    page.locator(".memory .o-section").first.focus()
    assert "drinks tea" in page.locator(".piece .highlighted").first.inner_text()


def test_fates_link_to_their_turns(watched: Watched) -> None:
    group = Opened(GROUPS[KINDS.index("overwrite")], base_codec())
    (fate,) = episode_view(group, 0)["fates"]
    page = show(watched, "overwrite", 0)
    page.get_by_role("button", name="Evidence").click()
    page.locator(".tab-body a", has_text=f"turn {fate['seen'][0] + 1}").first.click()
    shown(page, fate["seen"][0])


def test_on_paper_the_rows_of_the_strip_align_with_their_labels(watched: Watched) -> None:
    page = show(watched, "overwrite", 1)
    page.set_viewport_size({"width": 700, "height": 990})
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    boxes = "(all) => all.map((it) => { const box = it.getBoundingClientRect(); return [box.top, box.bottom] })"
    labels = page.locator(".strip-label").evaluate_all(boxes)
    rows = page.locator(".strip .cells, .strip .lane, .strip .sizes").evaluate_all(boxes)
    assert len(labels) == len(rows) == 3
    for (top, bottom), (above, below) in zip(labels, rows, strict=True):
        assert top <= (above + below) / 2 <= bottom
    assert page.locator(".strip svg").evaluate("it => it.getBoundingClientRect().right") < 700
    page.emulate_media(media="screen")


def test_pruning_agents_show_their_context_and_results_requested_again(watched: Watched) -> None:
    page = show(watched, "prune", 2)
    assert page.locator(".column").count() == 6
    assert "requested again at turn 5" in page.locator(".needed-later").inner_text()


@pytest.mark.parametrize("name", ["overwrite", "prune"])
def test_hostile_questions_answers_and_evidence_are_text(name: str, watched: Watched) -> None:
    for link in (at(name, 1, step=1), f"#/r/one/s/1/g/{KINDS.index(name)}"):
        page = watched.go(link)
        page.wait_for_selector(".episode-head h1")
        assert page.evaluate("window.hit") is None
        assert (page.locator("script").count(), page.locator("main img").count()) == (1, 0)
        assert "\u202e" not in page.content()


@pytest.mark.parametrize("turns", [1024, pytest.param(5000, marks=pytest.mark.slow)])
def test_all_turns_of_a_long_episode_fit_and_a_column_links_to_its_worst_turn(
    turns: int, shared_page: Watched, tmp_path: Path
) -> None:
    steps = [(" It rained.", " It rained.")] * turns
    steps[turns // 2 + 1] = (" It rained.", " Zed eats hay.")
    path = tmp_path / "long.jsonl.zst"
    path.write_bytes(encode_groups([reading(*steps).group]))
    with viewer(path) as url, watching(shared_page, url) as watched:
        page = watched.go("#/e/0/0/t/3")
        drawing, columns = page.locator(".strip-drawing"), page.locator(".strip .column")
        assert drawing.evaluate("it => it.scrollWidth <= it.clientWidth")
        assert 100 <= columns.count() < turns / 2
        numbers = [int(text) for text in page.locator(".strip-numbers text").all_text_contents()]
        assert numbers[-1] > turns * 0.9
        note = re.search(r"a column is (\d+) turns", page.locator(".strip-note").inner_text())
        assert note is not None
        columns.nth((turns // 2 + 1) // int(note[1])).locator("rect").first.click()
        page.wait_for_selector(f"h2:text-is('Memory after turn {turns // 2 + 2}')", timeout=5000)
