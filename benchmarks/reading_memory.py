"""Peak memory of reading a large data file, row by row: python benchmarks/reading_memory.py [megabytes] [name...]

Each kind is read by `read_records` in a process of its own, as `palimpsest data inspect` does; what is told is its peak
resident memory over that of a process that has imported the reader (for parquet: pyarrow, too) and read a small file.
The parquet file is one row group, as writers make it by default, and uncompressed, the worst case.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

KINDS = ("rows.jsonl", "rows.json", "rows.csv", "rows.parquet")
ROW_CHARS = 20_000


def rows(megabytes: float) -> Iterator[dict[str, str]]:
    """Questions on documents of 20,000 characters, no two alike."""
    for number in range(max(1, int(megabytes * 1e6 / ROW_CHARS))):
        text = " ".join(f"fact {number} {place}" for place in range(ROW_CHARS // 14))
        yield {"id": f"q{number}", "question": f"Which fact is {number}?", "answers": f"fact {number}", "context": text}


def write(path: Path, megabytes: float) -> None:
    if path.suffix == ".parquet":
        _write_parquet(path, megabytes)
        return
    with path.open("w", newline="") as file:
        if path.suffix == ".csv":
            table = csv.DictWriter(file, ["id", "question", "answers", "context"])
            table.writeheader()
            table.writerows(rows(megabytes))
            return
        before, between, after = ("[\n", ",\n", "\n]") if path.suffix == ".json" else ("", "\n", "\n")
        file.write(before)
        for number, row in enumerate(rows(megabytes)):
            file.write((between if number else "") + json.dumps(row))
        file.write(after)


def _write_parquet(path: Path, megabytes: float) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(list(rows(megabytes)))
    pq.write_table(table, path, compression="none", use_dictionary=False)


def peak_mb(path: Path) -> float:
    """Peak resident memory of a process that reads the file."""
    command = [sys.executable, __file__, "read", str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def read(path: Path) -> None:
    from palimpsest.data.formats.problem_files import read_records

    for _ in read_records(path):
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    if sys.argv[1:2] == ["read"]:
        read(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("megabytes", type=float, nargs="?", default=200.0, help="size of each file")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(KINDS)}; none: all")
    options = parser.parse_args()
    megabytes, kinds = options.megabytes, options.names or KINDS
    with tempfile.TemporaryDirectory() as folder:
        print("| kind | file, MB | peak over a small file's, MB |\n|---|---|---|")
        for kind in kinds:
            path = Path(folder) / kind
            write(path, 0.02)
            small = peak_mb(path)
            write(path, megabytes)
            size = path.stat().st_size / 1e6
            print(f"| {path.suffix} | {size:.0f} | {peak_mb(path) - small:.0f} |", flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
