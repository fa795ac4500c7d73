"""What looking up an earlier memory costs: milliseconds of one query among so many memories, best of five.

PYTHONPATH=src python benchmarks/recall.py
"""

from __future__ import annotations

import argparse
import random
import time

from palimpsest.memory.parts.retrievers import RETRIEVERS, Index

VOCABULARY = 2_000
WORDS = 40
"""Of a memory."""
SIZES = (100, 1_000, 10_000)


def filled(name: str, size: int) -> Index:
    """An index of `size` memories of random words."""
    rng = random.Random(0)
    vocabulary = [f"word{i}" for i in range(VOCABULARY)]
    index: Index = {str(key): kind for key, kind in RETRIEVERS.items()}[name]()
    for _ in range(size):
        index.add(" ".join(rng.choices(vocabulary, k=WORDS)))
    return index


def milliseconds(index: Index, repeats: int = 5) -> float:
    """Of one query of four words, best of `repeats`."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        index.best("word1 word2 word3 word4")
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def main() -> None:
    """Print a table in Markdown."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| ms a query | " + " | ".join(f"{size:,} memories" for size in SIZES) + " |")
    print("|---" * (len(SIZES) + 1) + "|")
    for name in RETRIEVERS:
        cells = (f"{milliseconds(filled(name, size)):.2f}" for size in SIZES)
        print(f"| `{name}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
