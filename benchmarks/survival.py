"""Survival of runs: kills, failing disks, flipped bits, hostile strings, broken files, with selectable counts.

    python benchmarks/survival.py --kills 50 --faults 500 --flips 500 --strings 500 --files 2000

    kills     a process of the real engine on a tiny model gets SIGKILL at a random moment and resumes, repeatedly
    faults    a random file operation of a run fails like a full or broken disk; the run resumes
    flips     a random bit of a random file of a stopped run flips; the run resumes
    strings   runs and records questions and documents of control tokens, escapes, half characters, markup
    files     reads data files and recipes after cutting, doubling and inserting random bytes

Disturbed runs are compared with an undisturbed one, byte by byte. Every trial ends in one of four ways:

    unharmed  the same as without the disturbance
    said      rejected, or reported a loss by name
    silent    another result without a report
    crashed   a traceback

Every trial has a separate seed, made of `--seed` and its number; `--only flips:17` repeats one. Prints a table and
writes `survival.json`; exits with 1 if anything was silent, crashed or left behind.
Not covered: power loss, several bits together, changes to open files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("", "src", "tests")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in ("kills", "faults", "flips", "strings", "files"):
        parser.add_argument(f"--{kind}", type=int, default=0, metavar="N")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most, shared out among the kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="KIND:NUMBER", help="repeat one trial, and say what came of it")
    parser.add_argument("--out", type=Path, default=Path("survival.json"))
    options = parser.parse_args()
    from benchmarks.long_runs.survival import run  # after `--help`: it imports torch

    run(options)


if __name__ == "__main__":
    main()
