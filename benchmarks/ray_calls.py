"""Calls without a token at the ports of a run on Ray, from another interface and from loopback.

    python benchmarks/ray_calls.py --restarts 5

The script trains the bundled model with engine.name=ray. It calls `StartSync` without a token at each port of its
processes, at the machine's external address, which another machine could reach. Then it calls it --restarts times at
the loopback port of gcs_server, which aborts Ray 2.60's. The table shows the ports, the number that answered at the
machine's address, the number of survived aborts (cluster.max_restarts is --restarts), and the run's exit status.

Not covered: a cluster that the user started (`cluster.address`), whose operator configures its addresses.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("src", "tests")]

import psutil  # noqa: E402  found by the line above

from support.cluster import ClusterRun, own_address  # noqa: E402
from support.ray_ports import call_without_a_token, heads_with_ranks, ports_of  # noqa: E402


def listening(process: psutil.Process) -> list[int]:
    try:
        return ports_of(process)
    except psutil.Error:
        return []


def abort(run: ClusterRun) -> None:
    """Ends the run's gcs_server with one call, once its ranks are there."""
    while not (heads := heads_with_ranks(run)):
        time.sleep(0.2)
    for port in ports_of(heads[0]):
        call_without_a_token(f"127.0.0.1:{port}")
    heads[0].wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = ClusterRun(Path(folder) / "run", steps=2 * given.restarts + 2)
        process = run.start(f"cluster.max_restarts={given.restarts}")
        run.wait_for_step(1)
        ports = sorted({port for each in run.processes() for port in listening(each)})
        reached = [port for port in ports if call_without_a_token(f"{own_address()}:{port}") != "UNAVAILABLE"]
        for number in range(given.restarts):
            run.wait_for_step(number + 1)
            abort(run)
        output, _ = process.communicate(timeout=900)
        gone = run.gone() and not run.folders_left()
    survived = sum(f"restart {number + 1} of {given.restarts}" in output for number in range(given.restarts))
    left = "nothing" if gone else "something"
    print("| ports | reached from another interface | aborts | survived | exit status | left behind |")
    print("|---|---|---|---|---|---|")
    print(f"| {len(ports)} | {len(reached)} | {given.restarts} | {survived} | {process.returncode} | {left} |")
    sys.exit(bool(reached or process.returncode or not gone or survived < given.restarts))


if __name__ == "__main__":
    main()
