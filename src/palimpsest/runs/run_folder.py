"""Run folder: plain files that a person can read, and the rules that keep them intact.

    runs/NAME/
      config.yaml                      resolved configuration, written first, by rename
      events.jsonl                     started, resumed, saved, warnings...: what happened to the process, with times
      metrics.jsonl                    one line a step, with its checksum; a function of configuration and step alone
      timings.jsonl                    one line a step: seconds, tokens/s, memory; differs from run to run
      trajectories/step-000001.jsonl.zst, step-000001.index
      checkpoints/step-000040/

Guaranteed: a folder that holds a run is opened only with `resume`, or moved aside (never deleted) with `force`; one
process at a time. A resume cuts everything after the checkpoint, so that config.yaml, metrics.jsonl, trajectories and
checkpoints end as the same bytes as those of an uninterrupted run. A folder with other files but no config.yaml is
never written into; a rejected folder is left unchanged. A damaged row of metrics costs that row: a resume reports it
and keeps it in metrics.jsonl.damaged. A run whose checkpoints are missing is rejected; one that was killed before its
first starts over, keeps its earlier rows (metrics.jsonl.old-1, ...) and reports that.
Not covered: events.jsonl and timings.jsonl, which record what happened and so differ.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.config.load import dump_config, parse_config
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.notes import Note
from palimpsest.provenance import MADE_WITH, differences, provenance
from palimpsest.rollout.trajectory_file import encode_groups, index_lines, index_of
from palimpsest.runs.checkpoint import CHECKPOINTS, Checkpoints, checkpoint_paths, checkpoint_step, step_name
from palimpsest.runs.folder_guard import CONFIG as CONFIG
from palimpsest.runs.folder_guard import NAME as LOCK
from palimpsest.runs.folder_guard import FolderLock, is_run, refuse_moving
from palimpsest.runs.jsonl_rows import append_row, cut, end_line, read_rows, spans
from palimpsest.runs.resume_rules import (
    CONTINUED,
    EVENTS,
    STARTED,
    FieldChange,
    RunOrigin,
    changes,
    has_checkpoint,
    identity,
    made_with,
    resume_command,
)
from palimpsest.types import Group

METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
TRAJECTORIES = "trajectories"
SAVED = "saved"
"""The event of a checkpoint that was published."""


class RunFolder:
    """An open run folder. Use as a context manager, or `close` it."""

    def __init__(self, path: Path, config: RunConfig, lock: FolderLock, on_warning: Callable[[str], None]) -> None:
        """Use `open_run`."""
        self.path = path
        self.config = config
        self.on_warning = on_warning
        self._lock = lock
        self.checkpoints = Checkpoints(
            path / CHECKPOINTS,
            identity=identity(config),
            keep=config.train.save_total_limit,
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
        row = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "kind": kind, **detail}
        append_row(self.path / EVENTS, row, checksum=False)

    def warn(self, message: str) -> None:
        """Record a warning and show it; of a note also its code and values."""
        note = {"code": message.code, "values": dict(message.values)} if isinstance(message, Note) else {}
        self.event("warning", message=message, **note)
        self.on_warning(message)

    @contextmanager
    def keeping_warnings(self) -> Iterator[None]:
        """While this lasts, what is warned of anywhere in the process (that a server was lost, say) is recorded."""
        shown = warnings.showwarning

        def record(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, UserWarning):  # others are about code
                self.event("warning", message=str(message))
            shown(message, category, *where, **more)

        warnings.showwarning = record
        try:
            yield
        finally:
            warnings.showwarning = shown

    def append_metrics(self, step: int, row: Mapping[str, Any]) -> None:
        """Append one step to metrics.jsonl. Nothing in `row` may depend on clock, host or scheduling."""
        append_row(self.path / METRICS, {"step": step, **row})

    def append_timings(self, step: int, row: Mapping[str, Any]) -> None:
        """Append one step to timings.jsonl."""
        append_row(self.path / TIMINGS, {"step": step, **row})

    def record(self, step: int, groups: Sequence[Group], encoded: bytes | None = None) -> Path:
        """Write the trajectories of one step and their index, each as one file that is there whole or not at all.
        `encoded`: `encode_groups(groups)`, where it was made before."""
        path = _record_of(self.path / TRAJECTORIES, step)
        path.parent.mkdir(exist_ok=True)
        encoded = encoded or encode_groups(groups)
        files.write_file(path, encoded)
        files.write_file(index_of(path), index_lines(groups, encoded))
        return path

    def flush(self) -> None:
        """Bring the appended lines to the disk: before a checkpoint that relies on them is published."""
        for name in (METRICS, TIMINGS, EVENTS):
            if (self.path / name).exists():
                files.sync(self.path / name)

    def rewind(self, step: int, *, recorded: bool = False) -> None:
        """Remove everything that belongs to steps after `step`. Rows that are no steps' are kept aside. Both they
        and missing steps are warned of. `recorded`: whether steps have trajectories."""
        first = 0 if self.config.train.eval_on_start else 1
        for name in (METRICS, TIMINGS) if "jsonl" in self.config.logging.report_to else ():
            if warning := cut(self.path / name, step, first=first):
                self.warn(warning)
        folder = self.path / TRAJECTORIES
        if recorded and (
            missing := [number for number in self._recorded_steps(step) if not _record_of(folder, number).exists()]
        ):
            self.warn(Note("records_missing", folder=str(folder), steps=spans(missing)))
        files.remove_leftovers(folder)
        for file in sorted(folder.glob("step-*")):
            if _step_of(file) > step:
                file.unlink()

    def _recorded_steps(self, last: int) -> list[int]:
        """Steps to `last` that have a record under every `train.record_steps` that the run has had."""
        every = {self.config.train.record_steps}
        for row in read_rows(self.path / EVENTS):
            changed = row.get("changes", []) if row.get("kind") == "config_changed" else []
            every |= {change["old"] for change in changed if change.get("key") == "train.record_steps"}
        return [step for step in range(1, last + 1) if not any(step % interval for interval in every)]

    def begin_again(self) -> None:
        """Make room for the first step of a run that has no checkpoint: what steps left is kept aside, and told."""
        left = [self.path / name for name in (METRICS, TIMINGS, TRAJECTORIES) if _holds(self.path / name)]
        if left:
            names = ", ".join(files.set_aside(path).name for path in left)
            self.warn(Note("no_checkpoint", run=str(self.path), moved=names))


def _record_of(folder: Path, step: int) -> Path:
    return folder / f"{step_name(step)}.jsonl.zst"


def _holds(path: Path) -> bool:
    """Whether a file or folder of a run has anything in it."""
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def open_run(
    path: str | Path,
    config: RunConfig,
    *,
    resume: bool = False,
    force: bool = False,
    on_warning: Callable[[str], None] = print,
    origin: RunOrigin = RunOrigin(),
) -> RunFolder:
    """Start a run in `path`, or with `resume` go on with the one there (a missing or empty folder starts one).

    `origin` is written down where a run begins: how it was asked for. `force` starts anew and renames a folder that is
    in the way to `NAME.old-1`, `NAME.old-2`..., unless it holds runs or is a part of one. Raises RunError if the folder
    is in use, holds something else, or its run has a configuration that can't be changed to `config`.
    """
    path = Path(path)
    if resume and force:
        raise RunError(f"{path}: --resume continues the run, --force replaces it; give one of them")
    if os.path.lexists(path) and not path.is_dir():
        raise RunError(f"{path} is {'a file' if path.exists() else 'a link to nothing'}; a run needs a folder")
    if path.exists() and not force and not (path / LOCK).exists():
        _check(path, config, resume)  # what is refused gains no lock
    if path.exists() and force and not _empty(path):
        refuse_moving(path, independent=is_run(path))
    path.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(path)
    try:
        if force and not _empty(path):
            path, lock = _start_over(path, lock)
        return _opened(path, config, lock, resume, on_warning, origin)
    except BaseException:
        lock.release()
        raise


def _opened(
    path: Path, config: RunConfig, lock: FolderLock, resume: bool, on_warning: Callable[[str], None], origin: RunOrigin
) -> RunFolder:
    changed = _check(path, config, resume)
    files.remove_leftovers(path)
    folder = RunFolder(path, config, lock, on_warning)
    if changed is None:
        files.write_file(path / CONFIG, dump_config(config).encode())
        detail = {"detail": dict(origin.detail)} if origin.detail else {}
        folder.event(STARTED, pid=os.getpid(), command=origin.command, **detail, **{MADE_WITH: provenance()})
        return folder
    end_line(path / EVENTS)
    if changed:
        folder.event("config_changed", changes=[_change_to_json(change) for change in changed])
        files.write_file(path / CONFIG, dump_config(config).encode())
    for change in changed:
        if change.verdict == "warned":
            folder.warn(Note("config_changed_later", change=str(change)))
        else:
            on_warning(Note("config_changed", change=str(change)))
    _compare_made_with(folder)
    return folder


def _compare_made_with(folder: RunFolder) -> None:
    """Record with what a run goes on, and warn where that is other versions or another machine than before."""
    was, now = made_with(folder.path), provenance()
    folder.event(CONTINUED, **{MADE_WITH: now})
    if text := differences(was, now):
        folder.warn(Note("environment_changed", differences=text))


def _check(path: Path, config: RunConfig, resume: bool) -> list[FieldChange] | None:
    """What `config` changes of the run in `path`; None where there is no run yet. Raises RunError for a folder that
    can't be used."""
    if _empty(path):
        return None
    if not (path / CONFIG).exists():
        names = ", ".join(_visible(path)[:3])
        raise RunError(
            f"{path} holds {names} but no {CONFIG}: not a run, or a half-written one; --force moves it aside"
        )
    _refuse_lost_checkpoints(path)
    if not resume:
        does = "continues it" if has_checkpoint(path) else "begins it again"
        raise RunError(
            f"{path} holds a run ({_progress(path)}): {resume_command(path)} {does}, --force moves it aside "
            "(in Python resume=True, force=True)"
        )
    if config.train.max_steps < (done := _steps_done(path)):
        raise RunError(
            f"train.max_steps={config.train.max_steps}: {path} has {done} steps already; give more than {done} to "
            f"train on, such as train.max_steps={2 * done}"
        )
    changed = changes(load_config(path), config)
    refused = [change for change in changed if change.verdict == "refused"]
    if refused:
        rest = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise RunError(
            f"{path / CONFIG}: a resumed run can't change {refused[0]}{rest}; set it back or start a new run"
        )
    return changed


def _refuse_lost_checkpoints(path: Path) -> None:
    """Refuse a run that has saved checkpoints and has none: to begin again is not what --resume is for."""
    saved = [row.get("step") for row in read_rows(path / EVENTS) if row.get("kind") == SAVED]
    folder = path / CHECKPOINTS
    if saved and not checkpoint_paths(folder):
        raise RunError(
            f"{folder} holds no checkpoint, though one was saved after step {saved[-1]}: put it back, or begin anew "
            "with --force, which sets the folder aside"
        )


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


def _start_over(path: Path, lock: FolderLock) -> tuple[Path, FolderLock]:
    """Move the folder aside and make an empty one. Our lock file goes with the old one."""
    lock.release()
    files.set_aside(path)
    path.mkdir()
    return path, FolderLock(path)


def _empty(path: Path) -> bool:
    """Nothing but hidden files: new, or killed before its configuration was written."""
    return not _visible(path)


def _visible(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))


def _progress(path: Path) -> str:
    rows = read_rows(path / METRICS)
    steps = f"{rows[-1].get('step')} steps" if rows else "no step finished"
    saved = checkpoint_paths(path / CHECKPOINTS)
    return f"{steps}, {f'newest checkpoint {saved[-1].name}' if saved else 'no checkpoint'}"


def _steps_done(path: Path) -> int:
    """Steps of the newest checkpoint of the run in `path`; 0 before the first."""
    saved = checkpoint_paths(path / CHECKPOINTS)
    return checkpoint_step(saved[-1]) if saved else 0


def _step_of(file: Path) -> int:
    number = file.name.removeprefix("step-").split(".")[0]
    return int(number) if number.isdecimal() else 0


def _change_to_json(change: FieldChange) -> dict[str, Any]:
    return {"key": change.key, "old": change.old, "new": change.new, "verdict": change.verdict}
