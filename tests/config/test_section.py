"""Keys of a section that differ from their defaults."""

from __future__ import annotations

from pydantic import Field

from palimpsest.config.schema import RunConfig
from palimpsest.config.section import Strict


class Section(Strict):
    second: int = 2
    first: int = 1
    options: dict[str, int] = Field(default_factory=dict)


def test_changed_keys_are_in_the_order_of_the_section() -> None:
    assert Section().changed() == []
    assert Section(first=1, options={}).changed() == []
    assert Section(first=3, options={"a": 1}, second=0).changed() == ["second", "first", "options"]


def test_a_configuration_without_a_recipe_has_changed_nothing() -> None:
    config = RunConfig()
    assert (config.changed(), config.cluster.changed(), config.sampler.changed()) == ([], [], [])
