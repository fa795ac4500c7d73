"""What the built package says of itself: one version, and that its annotations are there to be read."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import palimpsest

ROOT = Path(__file__).parent.parent


def test_the_version_stands_in_the_package_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    source = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{palimpsest.__version__}"' in source.read_text("utf-8").splitlines()
    assert version("palimpsest") == palimpsest.__version__


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(palimpsest.__file__).parent / "py.typed").is_file()
