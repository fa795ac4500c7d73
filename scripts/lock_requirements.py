"""Write requirements-dev.txt: every package of a development environment with its version and hashes, for any platform.

    pip install uv && python scripts/lock_requirements.py              # the newest versions that pyproject.toml allows
    python scripts/lock_requirements.py --constraint versions.txt      # versions of a `pip freeze`

The file omits torch and its CUDA libraries, because scripts/install_torch.py chooses the build. It includes build
requirements (`build-system.requires`, and `EDITABLE`). `make test LOCKED=1` installs it with `--require-hashes`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements-dev.txt"
EDITABLE = "editables"
"""Hatchling's requirement for editable installs."""

HEAD = "# Written by scripts/lock_requirements.py. torch is not in it: scripts/install_torch.py installs its build.\n"
_OF_TORCH = re.compile(r"(?:torch|triton|cuda-.*|nvidia-.*)==")


def without_torch(lock: str) -> str:
    """The requirements of a lock file, each with its hashes, but torch's own build.

    >>> without_torch("torch==2.13.0 \\\\\\n    --hash=sha256:aa\\nnumpy==2.4.6 \\\\\\n    --hash=sha256:bb\\n")
    'numpy==2.4.6 \\\\\\n    --hash=sha256:bb\\n'
    """
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    return "".join(entry for entry in entries if not _OF_TORCH.match(entry))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constraint", type=Path, help="a file of versions to keep, such as a `pip freeze`")
    chosen = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build.txt"
        build.write_text("\n".join([*project["build-system"]["requires"], EDITABLE]), "utf-8")
        given = ["--constraint", str(chosen.constraint)] if chosen.constraint else []
        command = ["uv", "pip", "compile", str(ROOT / "pyproject.toml"), str(build), "--extra", "dev", *given]
        options = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate"]
        index = ["--default-index", "https://pypi.org/simple"]
        done = subprocess.run([*command, *options, *index], check=True, capture_output=True, text=True)
    LOCK.write_text(HEAD + without_torch(done.stdout), "utf-8")


if __name__ == "__main__":
    main()
