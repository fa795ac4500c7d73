"""The display for where this process runs."""

from __future__ import annotations

import sys

from palimpsest.progress.progress import Progress, Silent
from palimpsest.progress.terminal import Terminal


def suitable_progress(*, quiet: bool = False) -> Progress:
    """A notebook's display in a notebook's kernel, else the terminal's; none where it is to be quiet."""
    if quiet:
        return Silent()
    if in_notebook():
        from palimpsest.progress.notebook import Notebook  # imports IPython, which is there in a kernel alone

        return Notebook()
    return Terminal()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
