"""The histogram of rewards in a browser: a bar counts exactly the episodes that a click on it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.browser import chromium, watching
from support.view_folders import group, run_folder
from support.viewer import viewer

REWARDS = {
    "tenths and twentieths": (0.0, 0.15, 0.3, 0.35, 0.6, 0.6, 0.7, 0.95, 1.0, None, None),
    "below zero, of many digits": (-0.123456781, -0.123456781, 0.0, 1 / 3, 2 / 3, 1.23456789123, None),
}


@pytest.mark.parametrize("name", REWARDS)
def test_a_bar_counts_the_episodes_that_a_click_on_it_leaves(name: str, tmp_path: Path) -> None:
    run_folder(tmp_path / "one", records={1: [group("p", REWARDS[name])]})
    left = []
    with viewer(tmp_path / "one") as url, chromium() as browser, watching(browser, url) as watched:
        page = watched.go("#/r/one/s/1")
        for at, label in enumerate(page.locator(".bin").evaluate_all("all => all.map((each) => each.ariaLabel)")):
            count = int(label.split()[0])
            if not count:
                continue
            page.locator(".bin").nth(at).click()
            page.wait_for_selector(".bin.chosen")
            told = page.locator(".about").inner_text()
            assert told.startswith(f"{count} of {len(REWARDS[name])} episodes"), label
            left.append(count)
            page.locator(".bin").nth(at).click()
            page.wait_for_selector(".bin.chosen", state="detached")
    assert sum(left) == sum(reward is not None for reward in REWARDS[name])
