"""Prefix forests against separate segments; the code is in palimpsest.bench.forest and, for a GPU, forest_cuda."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any


def measured(options: argparse.Namespace) -> dict[str, Any]:
    from palimpsest.bench import forest, forest_cuda
    from palimpsest.report.plots import plot_scaling

    if options.device == "cuda":
        return forest_cuda.run(device="cuda")
    if options.dry_run:
        return forest_cuda.run(device="cpu")
    sizes = replace(forest.Sizes(), rounds=options.rounds, micro_batch_tokens=options.micro_batch_tokens)
    result = forest.run(model=options.model, sizes=sizes, trl_python=options.trl_python)
    if options.plot:
        plot_scaling(result["scaling"], options.plot)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dry-run", action="store_true", help="the GPU's table on this CPU, at tiny sizes")
    parser.add_argument("--model", default="embedded", help="its size is taken; CPU only, as the next four")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--micro-batch-tokens", type=int, default=32768)
    parser.add_argument("--trl-python", help="interpreter of a TRL environment; default: $PALIMPSEST_TRL_PYTHON")
    parser.add_argument("--plot", help="write cost over work to this PNG")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    print(json.dumps(measured(options), indent=None if options.json else 1))


if __name__ == "__main__":
    main()
