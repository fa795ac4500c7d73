"""An exported file in a browser: from a folder, without a server, without a request, with what was embedded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.viewer_job import export
from support.browser import Watched
from support.view_folders import group, run_folder

pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror=\"document.title='executed'\"></script><script>document.title='executed'</script>\u202e"


def test_it_opens_from_a_folder_and_asks_for_nothing(browser: Any, tmp_path: Path) -> None:
    records = {step: [group(HOSTILE, (0.0, 1.0)), group("tea")] for step in (1, 2)}
    run = run_folder(
        tmp_path / "run", [{"step": 1, "reward/mean": 0.5}, {"step": 2, "reward/mean": 0.75}], records=records
    )
    file = export([run], tmp_path / "out.html")[0].path
    shown = Watched(browser, file.as_uri())
    for location in ("#/", "#/r/run", "#/r/run/s/2"):
        shown.page.goto(f"{file.as_uri()}{location}")
        page = shown.read()
        assert page.locator("[role=alert]").count() == 0
    assert "tea" in page.locator("#main").inner_text()
    page.goto(f"{file.as_uri()}#/r/run/s/1")
    shown.page.wait_for_selector("text=missing from this exported file")
    assert {url.partition("#")[0] for url in shown.requests} == {file.as_uri()}
    assert "executed" not in page.title()
    assert shown.errors == []
    shown.close()


def test_it_opens_at_the_episode_that_was_named_and_marks_what_was_left_out(browser: Any, tmp_path: Path) -> None:
    run = run_folder(
        tmp_path / "run", [{"step": 2, "reward/mean": 0.5}], records={1: [group("tea", (0.0, 1.0)), group("cake")]}
    )
    file = export([run], tmp_path / "out.html", only="0/1", tokenizer="embedded")[0].path
    shown = Watched(browser, file.as_uri())
    shown.page.goto(file.as_uri())
    page = shown.read()
    assert page.url.endswith("#/r/run/s/1/e/0/1")
    assert page.locator("a.chip").all_inner_texts() == ["1"]
    assert "not in this file" in page.locator("span.chip").inner_text()
    page.goto(f"{file.as_uri()}#/r/run")
    page.get_by_role("link", name="Newest episodes").click()
    page.wait_for_selector(".vrow")
    assert page.locator(".vrow a").all_inner_texts() == ["group 0", "group 0", "rollout 1"]
    page.goto(f"{file.as_uri()}#/")
    for location in ("#/", "#/r/run", "#/r/run/s/1"):
        page.goto(f"{file.as_uri()}{location}")
        page.wait_for_selector("text=of the step's 4 episodes")
    page.goto(f"{file.as_uri()}#/r/run/s/1/g/0")
    page.wait_for_selector(".forest text.forest-row")
    labels = dict(
        page.locator(".forest-row").evaluate_all("(all) => all.map((it) => [it.textContent, it.parentNode.tagName])")
    )
    assert {tag for text, tag in labels.items() if "rollout 0" in text} == {"svg"}  # not in the file
    assert {tag for text, tag in labels.items() if "rollout 1" in text} == {"a"}
    page.goto(f"{file.as_uri()}#/")
    assert page.get_by_text("tick two to six").is_hidden()
    assert shown.errors == []
    shown.close()
