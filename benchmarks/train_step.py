"""Embedded learner against padded training of every segment by itself; the code is in palimpsest.bench.train_step."""

from __future__ import annotations

import argparse
import json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--segments", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()

    from palimpsest.bench.train_step import run

    result = run(model=options.model, segments=options.segments, repeats=options.repeats)
    print(json.dumps(result, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
