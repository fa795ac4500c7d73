"""Everything that needs a GPU, in one command of under ten minutes: python scripts/gpu_tests.py [--device cpu]

Runs the tests with the marker `gpu`, each file in a separate process, because a CUDA error spoils its process; a
hanging process is killed with all its children. The most informative files run first, because the whole run ends after
`--limit` seconds. A final table shows results, skipped parts with reasons, and figures.

OUT contains the table (summary.txt), its data (summary.json), the output of each file (NAME.log), and the figures of
the step (rl-step.json, rl-step.txt). `--device cpu` runs the same at tiny sizes, without kernels.

Uses the current Python and installs nothing: install torch with CUDA first.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
LIMIT_S = 540


@dataclass(frozen=True)
class Part:
    name: str
    file: str
    limit_s: float
    """Maximum seconds of the limit's 540."""


PARTS = (
    Part("learner", "tests/engines/embedded/test_learner_gpu.py", 150),
    Part("sampler", "tests/engines/embedded/sampling/test_sampler_gpu.py", 60),
    Part("step", "tests/training/test_loop_step_gpu.py", 240),
    Part("resume", "tests/training/test_loop_resume_gpu.py", 120),
    Part("ray", "tests/engines/ray/test_engine_gpu.py", 120),
    Part("vllm", "tests/engines/vllm/test_engine_gpu.py", 300),
)


@dataclass
class Result:
    """One test, or a file that ended before its tests."""

    part: str
    test: str
    outcome: str
    """passed, failed, skipped; not run: its file was killed, or the time was over."""
    seconds: float = 0.0
    why: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def run_parts(parts: Iterable[Part], device: str, out: Path, limit_s: float) -> list[Result]:
    """The results of all parts, in order."""
    results: list[Result] = []
    started = time.monotonic()
    for part in parts:
        left = limit_s - (time.monotonic() - started)
        if left < 1:
            results.append(Result(part.name, part.file, "not run", why=f"the {limit_s:g} s were over"))
            continue
        print(f"{part.name} ...", flush=True)
        results += run_part(part, device, out, min(left, part.limit_s * limit_s / LIMIT_S))
    return results


def run_part(part: Part, device: str, out: Path, limit_s: float) -> list[Result]:
    """The results of a file's tests, and one more where the file didn't come to its end."""
    report = out.resolve() / f"{part.name}.jsonl"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-c", str(CHECKOUT / "pyproject.toml"), "-p", "no:cacheprovider"]
    environment = {
        **with_source(),
        "PALIMPSEST_GPU_TESTS": device,
        "PALIMPSEST_GPU_REPORT": str(report),
        "PALIMPSEST_GPU_OUT": str(out.resolve()),
    }
    with (out / f"{part.name}.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "-p", "support.gpu_report", "-m", "gpu", part.file],
            cwd=CHECKOUT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        ended = wait(process, limit_s)
    lines = report.read_text().splitlines() if report.exists() else []
    results = [Result(part.name, **json.loads(line)) for line in lines]
    report.unlink(missing_ok=True)
    if not ended:
        results.append(Result(part.name, part.file, "not run", limit_s, f"killed after {limit_s:.0f} s"))
    elif process.returncode not in (0, 1) or not results:
        why = f"pytest ended with {process.returncode}: {log.name}"
        results.append(Result(part.name, part.file, "failed", why=why))
    return results


def with_source() -> dict[str, str]:
    """Environment of a process that imports this checkout, and its packages where the caller's PYTHONPATH has them.

    tests/ is left out: Ray's processes would find other modules than theirs.
    """
    path = [str(CHECKOUT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def import_error() -> str:
    """Last line of the error with which palimpsest's import fails, "" if it succeeds."""
    command = [sys.executable, "-c", "import palimpsest.cli.main, palimpsest.app.train.training_run"]
    done = subprocess.run(command, env=with_source(), stderr=subprocess.PIPE, text=True)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def wait(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Return whether the process ended within the limit; ends its session's processes in any case."""
    try:
        process.wait(limit_s)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def surroundings(device: str) -> dict[str, str]:
    """The device, and the versions that matter."""
    import torch

    seen = torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else "no GPU used"
    names = ("torch", "triton", "transformers", "ray", "vllm")
    return {"device": seen, "CUDA": str(torch.version.cuda), **{name: version(name) for name in names}}


def version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def table(results: Sequence[Result], around: dict[str, str], seconds: float) -> str:
    """The report: one line per test with its figures, and the number of each outcome."""
    lines = [", ".join(f"{name} {value}" for name, value in around.items()), ""]
    for result in results:
        lines.append(f"{result.outcome:8} {result.seconds:7.1f} s  {result.part}: {result.test}")
        lines += [f"{'':20}{result.why}"] if result.why else []
        lines += [f"{'':20}{name}: {rounded(value)}" for name, value in result.figures.items()]
    kinds = ("passed", "failed", "skipped", "not run")
    counts = ", ".join(f"{sum(result.outcome == kind for result in results)} {kind}" for kind in kinds)
    return "\n".join([*lines, "", f"{counts}; {seconds:.0f} s in all", ""])


def rounded(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--only", nargs="*", choices=[part.name for part in PARTS], help="these parts alone")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help=f"seconds in all; {LIMIT_S} without")
    options = parser.parse_args()
    if missing := [name for name in ("torch", "transformers", "pytest", "hypothesis") if find_spec(name) is None]:
        print(f"{sys.executable} has no {' and no '.join(missing)}: make test-gpu PYTHON=...", file=sys.stderr)
        return 2
    if error := import_error():
        print(f"{sys.executable} can't import palimpsest ({error}): install it, or set PYTHONPATH", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if not options.only or part.name in options.only]
    started = time.monotonic()
    results = run_parts(parts, options.device, options.out, options.limit)
    around, seconds = surroundings(options.device), time.monotonic() - started
    text = table(results, around, seconds)
    (options.out / "summary.txt").write_text(text)
    summary = {"surroundings": around, "seconds": seconds, "results": [vars(result) for result in results]}
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(text)
    if not any(result.outcome == "passed" for result in results):
        print("nothing ran: without a GPU `make test-gpu DEVICE=cpu` runs it at tiny size", file=sys.stderr)
        return 1
    return int(any(result.outcome in ("failed", "not run") for result in results))


if __name__ == "__main__":
    sys.exit(main())
