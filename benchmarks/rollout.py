"""Embedded sampler against transformers and vLLM; the code is in palimpsest.bench.rollout."""

from __future__ import annotations

import argparse
import json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--layout", default="memory_first", choices=["memory_first", "section_first"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm-python", help="interpreter of a vLLM environment; default: $PALIMPSEST_VLLM_PYTHON")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()

    from palimpsest.bench.rollout import run

    result = run(model=options.model, layout=options.layout, rounds=options.rounds, vllm_python=options.vllm_python)
    print(json.dumps(result, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
