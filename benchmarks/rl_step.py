"""One whole step of reinforcement learning under torch.profiler; the code is in palimpsest.bench.rl_step."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"], help="cpu: at tiny sizes")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of rl-step.json and rl-step.txt")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()

    from palimpsest.bench.rl_step import run

    result = run(options.out, device=options.device)
    print(json.dumps(result, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
