"""Pages from the docstrings of every public module: python scripts/api_docs.py [FOLDER], build/docs by default."""

from __future__ import annotations

import sys
from pathlib import Path

import pdoc

PACKAGE = Path(__file__).parents[1] / "src" / "palimpsest"


def public_modules() -> list[str]:
    """Dotted names of modules without a leading underscore.

    >>> {"palimpsest", "palimpsest.types", "palimpsest.rollout.segments"} <= set(public_modules())
    True
    """
    paths = [path.relative_to(PACKAGE.parent).with_suffix("") for path in sorted(PACKAGE.rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if "._" not in name]


def write(folder: Path) -> None:
    """HTML of every public module, with an index to search in."""
    pdoc.render.configure(docformat="markdown", show_source=False)
    pdoc.pdoc(*public_modules(), output_directory=folder)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "build/docs"))
