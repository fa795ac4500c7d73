"""Install commands for optional features, matching the way this copy of the package was installed.

The distribution is called palimpsest-rl: `palimpsest` on PyPI is another project.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "palimpsest-rl"
CHECKOUT = Path(__file__).parents[3]
"""Folder of pyproject.toml, if this is a checkout."""


def install_line(extra: str) -> str:
    """The command that adds the packages of an extra of pyproject.toml."""
    return line_for(extra, _origin(), CHECKOUT if (CHECKOUT / "pyproject.toml").is_file() else None)


def line_for(extra: str, origin: dict[str, Any], checkout: Path | None) -> str:
    """`install_line` for pip's record of the origin (PEP 610's direct_url.json), {} without a record.

    >>> line_for("lora", {}, None)
    "pip install 'palimpsest-rl[lora]'"
    >>> line_for("lora", {"url": "file:///home/me/p", "dir_info": {"editable": True}}, None)
    "pip install -e '/home/me/p[lora]'"
    >>> line_for("lora", {"url": "https://example.org/p", "vcs_info": {"vcs": "git"}}, None)
    "pip install 'palimpsest-rl[lora] @ git+https://example.org/p'"
    """
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        return f"pip install -e '{unquote(urlsplit(url).path)}[{extra}]'"
    if checkout is not None:
        return f"pip install -e '{checkout}[{extra}]'"
    vcs = origin.get("vcs_info", {}).get("vcs")
    if vcs or url:
        return f"pip install '{DISTRIBUTION}[{extra}] @ {vcs + '+' if vcs else ''}{url}'"
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def _origin() -> dict[str, Any]:
    """direct_url.json of the installed distribution; {} for an index, or without an installation."""
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}
