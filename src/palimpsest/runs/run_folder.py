"""The folder of a run: plain files a person can read, and the rules that keep them whole.

    runs/NAME/
      config.yaml                      resolved configuration, written first, by rename
      events.jsonl                     started, resumed, saved, warnings...: what happened to the process, with times
      metrics.jsonl                    one line a step; a function of configuration and step alone
      timings.jsonl                    one line a step: seconds, tokens/s, memory; differs from run to run
      trajectories/step-000001.jsonl.zst
      checkpoints/step-000040/

Guaranteed: a folder that holds a run is opened only with `resume`, or moved aside (never deleted) with `force`; one
process at a time; on resume everything behind the checkpoint is cut off, so that config.yaml, metrics.jsonl,
trajectories and checkpoints end as the same bytes as those of a run that was never interrupted.
A folder without config.yaml but with other files (a half-written run, or not a run at all) is never written into.
Not covered: events.jsonl and timings.jsonl, which tell what really happened and so differ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from palimpsest import files
from palimpsest.config.load import dump_config, parse_config
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.runs.checkpoint import Checkpoints
from palimpsest.runs.lock import FolderLock
from palimpsest.runs.resume_rules import Change, changes, identity

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
EVENTS = "events.jsonl"
_JSON = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE


class RunFolder:
    """An open run folder. Use as a context manager, or `close` it."""

    def __init__(self, path: Path, config: RunConfig, lock: FolderLock, on_warning: Callable[[str], None]) -> None:
        """Use `open_run`."""
        self.path = path
        self.config = config
        self.on_warning = on_warning
        self._lock = lock
        self.checkpoints = Checkpoints(
            path / "checkpoints",
            identity=identity(config),
            keep=config.train.keep_checkpoints,
            warn=self.warn,
        )

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.release()

    def event(self, kind: str, **detail: Any) -> None:
        """Append to events.jsonl."""
        self._append(EVENTS, {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "kind": kind, **detail})

    def warn(self, message: str) -> None:
        """Record a warning and show it."""
        self.event("warning", message=message)
        self.on_warning(message)

    def append_metrics(self, step: int, row: Mapping[str, Any]) -> None:
        """Append one step to metrics.jsonl. Nothing in `row` may depend on clock, host or scheduling."""
        self._append(METRICS, {"step": step, **row})

    def append_timings(self, step: int, row: Mapping[str, Any]) -> None:
        """Append one step to timings.jsonl."""
        self._append(TIMINGS, {"step": step, **row})

    def record(self, step: int, encoded: bytes) -> Path:
        """Write the trajectories of one step (`encode_groups`), as one file that is there whole or not at all."""
        path = self.path / "trajectories" / f"step-{step:06d}.jsonl.zst"
        path.parent.mkdir(exist_ok=True)
        files.write_file(path, encoded)
        return path

    def flush(self) -> None:
        """Bring the appended lines to the disk: before a checkpoint that relies on them is published."""
        for name in (METRICS, TIMINGS, EVENTS):
            if (self.path / name).exists():
                files.sync(self.path / name)

    def rewind(self, step: int) -> None:
        """Remove everything that belongs to steps after `step`."""
        for name in (METRICS, TIMINGS):
            self._cut(self.path / name, step)
        folder = self.path / "trajectories"
        files.remove_leftovers(folder)
        for file in sorted(folder.glob("step-*.jsonl.zst")):
            if _step_of(file) > step:
                file.unlink()

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        line = orjson.dumps(row, option=_JSON)
        descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            written = os.write(descriptor, line)
        finally:
            os.close(descriptor)
        if written != len(line):
            raise RunError(
                f"{self.path / name}: only {written} of {len(line)} bytes could be written; is the disk full?"
            )

    def _cut(self, file: Path, step: int) -> None:
        """Keep the lines of steps up to `step`; a torn last line goes too."""
        if not file.exists():
            return
        rows = read_rows(file)
        kept = [row for row in rows if row["step"] <= step]
        if len(kept) < step and file.name == METRICS:
            self.warn(f"{file} holds {len(kept)} of {step} steps before the checkpoint: earlier lines were lost")
        files.write_file(file, b"".join(orjson.dumps(row, option=_JSON) for row in kept))


def open_run(
    path: str | Path,
    config: RunConfig,
    *,
    resume: bool = False,
    force: bool = False,
    on_warning: Callable[[str], None] = print,
) -> RunFolder:
    """Start a run in `path`, or with `resume` go on with the one there (a missing or empty folder starts one).

    `force` starts anew and renames a folder that is in the way to `NAME.old-1`, `NAME.old-2`... Raises RunError if
    the folder is in use, holds something else, or its run has a configuration that can't be changed to `config`.
    """
    path = Path(path)
    if resume and force:
        raise RunError(f"{path}: --resume continues the run, --force replaces it; give one of them")
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file; a run needs a folder")
    path.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(path)
    try:
        if force and not _empty(path):
            path, lock = _start_over(path, lock)
        return _opened(path, config, lock, resume, on_warning)
    except BaseException:
        lock.release()
        raise


def _opened(
    path: Path, config: RunConfig, lock: FolderLock, resume: bool, on_warning: Callable[[str], None]
) -> RunFolder:
    if _empty(path):
        files.remove_leftovers(path)
        files.write_file(path / CONFIG, dump_config(config).encode())
        folder = RunFolder(path, config, lock, on_warning)
        folder.event("started", pid=os.getpid())
        return folder
    if not (path / CONFIG).exists():
        found = ", ".join(_visible(path)[:3])
        raise RunError(
            f"{path} holds {found} but no {CONFIG}: not a run, or a half-written one; --force moves it aside"
        )
    if not resume:
        raise RunError(
            f"{path} holds a run ({_progress(path)}): --resume continues it, --force moves it aside "
            "(in Python resume=True, force=True)"
        )
    return _continued(path, config, lock, on_warning)


def _continued(path: Path, config: RunConfig, lock: FolderLock, on_warning: Callable[[str], None]) -> RunFolder:
    found = changes(load_config(path), config)
    refused = [change for change in found if change.verdict == "refused"]
    if refused:
        rest = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise RunError(
            f"{path / CONFIG}: a resumed run can't change {refused[0]}{rest}; set it back or start a new run"
        )
    folder = RunFolder(path, config, lock, on_warning)
    if found:
        folder.event("config_changed", changes=[_change_to_json(change) for change in found])
        files.write_file(path / CONFIG, dump_config(config).encode())
    for change in found:
        if change.verdict == "warned":
            folder.warn(f"resumed with another {change}: later steps differ from an uninterrupted run's")
    return folder


def load_config(path: str | Path) -> RunConfig:
    """The configuration of the run in `path`. Raises RunError if there is none."""
    file = Path(path) / CONFIG
    if not file.is_file():
        raise RunError(f"{path}: {f'no run, it holds no {CONFIG}' if Path(path).is_dir() else 'no such folder'}")
    try:
        return parse_config(file.read_text("utf-8"), name=str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file}: no configuration of a run ({type(error).__name__})") from None
    except ConfigError as error:
        raise RunError(f"{error}; the run was made by another version, or the file was edited") from None


def read_rows(file: str | Path) -> list[dict[str, Any]]:
    """Rows of a .jsonl file of a run; a torn last line is left out, as is all behind a damaged line.

    A missing file has no rows.
    """
    rows: list[dict[str, Any]] = []
    try:
        data = Path(file).read_bytes()
    except FileNotFoundError:
        return rows
    for line in data.split(b"\n")[:-1]:  # what follows the last newline was cut
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            break
    return rows


def _start_over(path: Path, lock: FolderLock) -> tuple[Path, FolderLock]:
    """Move the folder aside and make an empty one. Our lock file goes with the old one."""
    lock.release()
    number = 1
    while (aside := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    files.rename(path, aside)
    path.mkdir()
    return path, FolderLock(path)


def _empty(path: Path) -> bool:
    """Nothing but hidden files: new, or killed before its configuration was written."""
    return not _visible(path)


def _visible(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))


def _progress(path: Path) -> str:
    rows = read_rows(path / METRICS)
    steps = f"{rows[-1]['step']} steps" if rows else "no step finished"
    saved = [entry.name for entry in path.glob("checkpoints/step-*")]
    return f"{steps}, {'newest checkpoint ' + max(saved, key=_numeric) if saved else 'no checkpoint'}"


def _numeric(name: str) -> tuple[int, str]:
    """Sort key that puts step-1000000 after step-999999."""
    return len(name), name


def _step_of(file: Path) -> int:
    number = file.name.removeprefix("step-").split(".")[0]
    return int(number) if number.isdigit() else 0


def _change_to_json(change: Change) -> dict[str, Any]:
    return {"key": change.key, "old": change.old, "new": change.new, "verdict": change.verdict}
