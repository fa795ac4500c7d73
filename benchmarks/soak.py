"""Search for leaks: training, evaluation and a retrieval server in turn, for `--minutes`.

    python benchmarks/soak.py --minutes 45 --out soak

One process repeatedly trains a tiny run and evaluates it, like a notebook; a server process answers queries, some of
them invalid JSON, in between. After each round the script reads resident memory, open descriptors and threads of both,
and counts the live codecs and tokenizers of the first. It writes `samples.jsonl`, `soak.png` and `soak.json`: per
measure the first, last and greatest value and the slope per hour with its 95% interval, over the samples after the
first `--skip` share, in which caches fill. It exits with an error if the number of codecs or tokenizers grows.

The error is that of a straight line fitted by least squares, widened by (1 + r) / (1 - r) under a root where the
residuals of neighbours correlate by r. Not covered: what grows slower than that error, GPUs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("", "src", "tests")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--skip", type=float, default=1 / 3, help="share of the samples left out of the slope")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="folder for the figures")
    options = parser.parse_args()
    from benchmarks.long_runs.soak import run  # after `--help`: it imports torch

    run(options)


if __name__ == "__main__":
    main()
