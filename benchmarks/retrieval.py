"""The retrieval server under concurrent clients; the code is in palimpsest.bench.retrieval.

PYTHONPATH=src python benchmarks/retrieval.py --passages 100000 --clients 32
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from palimpsest.bench.retrieval import Sizes, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    options = parser.parse_args()

    from palimpsest.cli.output import show_figures

    result = run(Sizes(**vars(options)))
    print(json.dumps(result))
    show_figures("retrieval", result, json=False)


if __name__ == "__main__":
    main()
