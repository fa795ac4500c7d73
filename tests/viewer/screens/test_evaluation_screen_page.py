"""The pages of an evaluation in a browser: scores of all episodes first, agent and baselines separate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from palimpsest.evaluation.sample_log import Sample
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.types import Group
from support.browser import Watched
from support.view_folders import chunks, evaluation_folder, group
from support.viewer import viewer

AGENT = [chunks(4, f"p{n}", 1.0) for n in range(6)] + [chunks(64, "p6", 0.0)]
BASELINES = [chunks(4, f"p{n}", 0.0, player="closed book", baseline=True) for n in range(6)]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = evaluation_folder(tmp_path_factory.mktemp("evals") / "eval", [*BASELINES, *AGENT])
    (folder / "summary.json").write_bytes(orjson.dumps({"model": "some/model", "policy": {"name": "overwrite"}}))
    wrong = [_recorded(one) for one in (*BASELINES, *AGENT) if not one.value]
    (folder / "episodes.jsonl.zst").write_bytes(encode_groups(wrong))
    with viewer(folder) as url:
        yield url


def _recorded(episode: Sample) -> Group:
    made = group(episode.id, (0.0,))
    named = tuple(replace(one, group_id=episode.group_id) for one in made.trajectories)
    return Group(made.problem, named, made.grades)


def rows_of(page: Any) -> list[list[str]]:
    return [row.locator("td").all_inner_texts() for row in page.locator("table.scores tbody tr").all()]


def test_the_episodes_page_has_the_scores_of_all_and_the_agents_episodes(watched: Watched) -> None:
    page = watched.go("#/r/eval/s/all")
    page.wait_for_selector(".vrow")
    assert [(row[0], row[1], row[2], row[7]) for row in rows_of(page)] == [
        ("agent: recall", "4 chunks", "100.0", "0"),
        ("agent: recall", "64 chunks", "0.0", "1"),
        ("baseline: closed book", "4 chunks", "0.0", "6"),
    ]
    text = page.locator("#main").inner_text()
    assert "1 of 7 recorded episodes in 1 groups (agent: recall)" in text
    assert "7 of 13 episodes were recorded" in text
    assert "mean reward" not in text
    page.get_by_label("Agent").select_option("baseline: closed book")
    assert "6 of 7 recorded episodes" in page.locator(".about").inner_text()
    assert "player=baseline" in page.url
    assert "baseline: closed book" in page.locator(".vrow").first.inner_text()


def test_the_page_of_an_episode_names_its_player(watched: Watched) -> None:
    page = watched.go("#/r/eval/s/all/e/0/0")
    assert "baseline: closed book, 4 chunks" in page.locator(".episode-head").inner_text()
    page.wait_for_selector(".tabs")
    assert "version" not in page.locator(".tabs .card-head").inner_text()
    page = watched.go("#/r/eval/s/all/g/6")
    assert "agent: recall, 64 chunks" in page.locator(".episode-head").inner_text()


def test_the_page_of_an_evaluation_starts_with_facts_and_a_table_of_scores(watched: Watched) -> None:
    page = watched.go("#/r/eval")
    page.wait_for_selector("table.scores")
    facts = page.locator(".facts .fact").all_inner_texts()
    assert [fact.split("\n") for fact in facts] == [["Model", "some/model"], ["Policy", "overwrite"]]
    heads = page.locator("table.scores th").all_inner_texts()
    assert heads == ["Agent", "Set", "Accuracy, %", "95% interval, %", "Problems", "Episodes", "Ungraded"]
    assert rows_of(page)[0] == [
        "agent: recall",
        "4 chunks",
        "100.0",
        "61–100",
        "6",
        "6",
        "",
    ]  # Wilson's of 6 of 6: 0.6097 to 1
    names = page.locator(".chart .legend-item").all_inner_texts()
    assert names == ["agent: recall", "baseline: closed book"]


def test_the_axes_of_every_picture_have_names(watched: Watched) -> None:
    page = watched.go("#/r/eval")
    page.wait_for_selector(".chart svg[role=img]")
    assert page.locator(".axis-name").all_text_contents() == ["length", "accuracy"]
    page = watched.go("#/r/eval/s/all?player=all")
    page.wait_for_selector(".dots, .histogram")
    assert page.locator(".axis-name").all_text_contents()[:2] == ["reward", "episodes"]
    assert len(page.locator(".axis-name").all_text_contents()) == 4
