"""`python -m palimpsest`: the console script, where its folder isn't on the PATH."""

from __future__ import annotations

from palimpsest.cli.main import main

if __name__ == "__main__":
    main()
