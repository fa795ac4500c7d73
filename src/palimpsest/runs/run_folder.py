"""Run folder: readable plain files, and the rules that protect them.

    runs/NAME/
      config.yaml                      resolved configuration, written first, by rename
      events.jsonl                     started, resumed, saved, warnings...: events of the process, with times
      metrics.jsonl                    one line per step, with its checksum; a function of configuration and step
      timings.jsonl                    one line per step: seconds, tokens/s, memory; differs from run to run
      trajectories/step-000001.jsonl.zst, step-000001.index
      checkpoints/step-000040/

Guaranteed: a folder with a run is opened only with `resume`, or renamed (never deleted) with `force`; one process at a
time. A resume cuts everything after the checkpoint, so that config.yaml, metrics.jsonl, trajectories and checkpoints
end as the same bytes as in an uninterrupted run. palimpsest never writes into a folder with other files but no
config.yaml; a rejected folder stays unchanged. A damaged row of metrics costs only that row: a resume reports it and
saves it in metrics.jsonl.damaged. A run with missing checkpoints is rejected; a run killed before its first one starts
over, renames its earlier rows (metrics.jsonl.old-1, ...) and reports that.
Not covered: events.jsonl and timings.jsonl, which record processes and so differ.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.config.load import dump_config, parse_config
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.models.checkpoint_manifest import has_manifest
from palimpsest.notes import Note
from palimpsest.provenance import MADE_WITH, differences, provenance
from palimpsest.rollout.trajectory_file import encode_groups, index_lines, index_of
from palimpsest.runs.checkpoint import CHECKPOINTS, Checkpoints, checkpoint_paths, checkpoint_step, step_name
from palimpsest.runs.folder_guard import CONFIG as CONFIG
from palimpsest.runs.folder_guard import FolderLock, is_run, refuse_moving, visible_names
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
from palimpsest.text.json_text import storable
from palimpsest.types import Group

METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
TRAJECTORIES = "trajectories"
SAVED = "saved"
"""Event of a published checkpoint."""
FAILED = "failed"
"""Event of a process that an error ended."""


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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            with suppress(OSError):  # a full disk, or the folder was deleted
                text = " ".join(str(error).split()) or type(error).__name__
                self.event(FAILED if isinstance(error, Exception) else "interrupted", error=f"{text:.500}")
        self.close()

    def close(self) -> None:
        """Release the folder for other processes."""
        self._lock.release()

    def event(self, kind: str, **detail: Any) -> None:
        row = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "kind": kind, **detail}
        append_row(self.path / EVENTS, storable(row, []), checksum=False)

    def warn(self, message: str) -> None:
        """Record a warning and show it; a note is recorded with code and values."""
        note = {"code": message.code, "values": dict(message.values)} if isinstance(message, Note) else {}
        self.event("warning", message=message, **note)
        self.on_warning(message)

    @contextmanager
    def keeping_warnings(self) -> Iterator[None]:
        """Record all user warnings of the process (e.g. a lost server) within the context."""
        shown = warnings.showwarning

        def record(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, UserWarning):  # other categories concern code
                self.event("warning", message=str(message))
            shown(message, category, *where, **more)

        warnings.showwarning = record
        try:
            yield
        finally:
            warnings.showwarning = shown

    def append_metrics(self, step: int, row: Mapping[str, Any]) -> None:
        """Append one step to metrics.jsonl. `row` must not depend on clock, host or scheduling."""
        append_row(self.path / METRICS, {"step": step, **row})

    def append_timings(self, step: int, row: Mapping[str, Any]) -> None:
        append_row(self.path / TIMINGS, {"step": step, **row})

    def record(self, step: int, groups: Sequence[Group], encoded: bytes | None = None) -> Path:
        """Write trajectories and index of one step, each file atomically. `encoded`: `encode_groups(groups)`, if
        available."""
        path = _record_of(self.path / TRAJECTORIES, step)
        path.parent.mkdir(exist_ok=True)
        encoded = encoded or encode_groups(groups)
        files.write_file(path, encoded)
        files.write_file(index_of(path), index_lines(groups, encoded))
        return path

    def flush(self) -> None:
        """Sync the appended lines to the disk, before a checkpoint that relies on them."""
        for name in (METRICS, TIMINGS, EVENTS):
            if (self.path / name).exists():
                files.sync(self.path / name)

    def rewind(self, step: int, *, recorded: bool = False) -> None:
        """Remove everything after `step`. Warns of rows without a step, which are saved elsewhere, and of missing
        steps. `recorded`: steps have trajectories."""
        for name in (METRICS, TIMINGS):
            if warning := cut(self.path / name, step):
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
        """Steps to `last` with a record under every `train.record_steps` that the run has had."""
        every = {self.config.train.record_steps}
        for row in read_rows(self.path / EVENTS):
            changed = row.get("changes", []) if row.get("kind") == "config_changed" else []
            every |= {change["old"] for change in changed if change.get("key") == "train.record_steps"}
        return [step for step in range(1, last + 1) if not any(step % interval for interval in every)]

    def begin_again(self) -> None:
        """Rename the files of earlier steps before the first step of a run without a checkpoint, with a warning."""
        left = [self.path / name for name in (METRICS, TIMINGS, TRAJECTORIES) if _holds(self.path / name)]
        if left:
            names = ", ".join(files.set_aside(path).name for path in left)
            self.warn(Note("no_checkpoint", run=str(self.path), moved=names))


def _record_of(folder: Path, step: int) -> Path:
    return folder / f"{step_name(step)}.jsonl.zst"


def _holds(path: Path) -> bool:
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
    """Start a run in `path`, or with `resume` continue the run there (a missing or empty folder starts one).

    A new run records its `origin`. `force` starts over and renames an existing folder to `NAME.old-1`,
    `NAME.old-2`..., unless it contains runs or is a part of one. Raises RunError if the folder is in use, contains
    other files, or its run's configuration may not change to `config`.
    """
    path = Path(path)
    check_folder(path, config, resume=resume, force=force)  # a rejected folder must not gain a lock
    path.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(path)
    try:
        if force and not _empty(path):
            lock.release()
            files.set_aside(path)  # with our lock file in it
            path.mkdir()
            lock = FolderLock(path)
        return _opened(path, config, lock, resume, on_warning, origin)
    except BaseException:
        lock.release()
        raise


def check_folder(path: Path, config: RunConfig, *, resume: bool, force: bool) -> None:
    """Raise RunError if `open_run` rejects the folder, unless another process uses it."""
    if resume and force:
        raise RunError(f"{path}: --resume continues the run, --force replaces it; use one of them")
    if os.path.lexists(path) and not path.is_dir():
        raise RunError(f"{path} is {'a file' if path.exists() else 'a link to nothing'}; a run needs a folder")
    if path.exists() and not force:
        _check(path, config, resume)
    if path.exists() and force and not _empty(path):
        refuse_moving(path, independent=is_run(path))


def _opened(
    path: Path, config: RunConfig, lock: FolderLock, resume: bool, on_warning: Callable[[str], None], origin: RunOrigin
) -> RunFolder:
    changed = _check(path, config, resume)
    files.remove_leftovers(path)
    folder = RunFolder(path, config, lock, on_warning)
    if changed is None:
        files.write_file(path / CONFIG, dump_config(config).encode())
        detail = {"detail": dict(origin.detail)} if origin.detail else {}
        folder.event(STARTED, pid=os.getpid(), command=origin.command, **detail, **{MADE_WITH: provenance(config)})
        return folder
    end_line(path / EVENTS)
    if changed:
        folder.event("config_changed", changes=[asdict(change) for change in changed])
        files.write_file(path / CONFIG, dump_config(config).encode())
    for change in changed:
        if change.verdict == "warned":
            folder.warn(Note("config_changed_later", change=str(change)))
        else:
            on_warning(Note("config_changed", change=str(change)))
    _compare_made_with(folder)
    return folder


def _compare_made_with(folder: RunFolder) -> None:
    was, now = made_with(folder.path), provenance(folder.config)
    folder.event(CONTINUED, **{MADE_WITH: now})
    if text := differences(was, now):
        folder.warn(Note("environment_changed", differences=text))


def _check(path: Path, config: RunConfig, resume: bool) -> list[FieldChange] | None:
    """Changes of `config` to the run in `path`; None without a run. Raises RunError for an unusable folder."""
    if _empty(path):
        return None
    if not (path / CONFIG).exists():
        names = ", ".join(visible_names(path)[:3])
        raise RunError(f"{path} contains {names} but no {CONFIG}: not a run, or a half-written one; --force renames it")
    refuse_lost_checkpoints(path)
    if not resume:
        does = "continues it" if has_checkpoint(path) else "starts it over"
        raise RunError(
            f"{path} contains a run ({_progress(path)}): {resume_command(path)} {does}, --force renames it "
            "(in Python resume=True, force=True)"
        )
    if config.train.max_steps < (done := steps_done(path)):
        raise RunError(
            f"train.max_steps={config.train.max_steps}: {path} already has {done} steps; to continue, set more, "
            f"such as train.max_steps={2 * done}"
        )
    changed = changes(load_config(path), config)
    refused = [change for change in changed if change.verdict == "refused"]
    if refused:
        keys = "; ".join(map(str, refused))
        raise RunError(f"{path / CONFIG}: a resumed run can't change {keys}: restore the value or start a new run")
    return changed


def refuse_lost_checkpoints(path: Path) -> None:
    """Raise RunError for a run that saved checkpoints and has none: --resume must not start over."""
    saved = [row.get("step") for row in read_rows(path / EVENTS) if row.get("kind") == SAVED]
    folder = path / CHECKPOINTS
    if saved and not checkpoint_paths(folder):
        raise RunError(
            f"{folder} lacks the checkpoint saved after step {saved[-1]}: restore it, or start over with --force, "
            "which renames the folder"
        )


def load_config(path: str | Path) -> RunConfig:
    """Configuration of the run in `path`. Raises RunError without one."""
    file = Path(path) / CONFIG
    if not os.path.lexists(file):
        raise RunError(f"{path}: {f'no run, {CONFIG} is missing' if Path(path).is_dir() else 'no such folder'}")
    try:
        if not (text := files.read_regular(file).decode()).strip():
            raise RunError(f"{file}: is empty; restore it")
        return parse_config(text, name=str(file))
    except files.NoRegularFile as error:
        raise RunError(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RunError(f"{file}: unreadable configuration ({reason}); restore it") from None
    except ConfigError as error:
        made = dict(made_with(path).get("versions", {})).get("palimpsest", "of another version")
        way = "use that version, or copy a checkpoint out of the run: it is a model folder"
        raise RunError(f"{path}: palimpsest {made} made it, or someone edited {CONFIG}: {way}; {error}") from None


def _empty(path: Path) -> bool:
    """True for a folder with only hidden files: new, or killed before its configuration was written."""
    return not visible_names(path)


def _progress(path: Path) -> str:
    rows = read_rows(path / METRICS)
    steps = f"{rows[-1].get('step')} steps" if rows else "no step finished"
    saved = checkpoint_paths(path / CHECKPOINTS)
    return f"{steps}, {f'newest checkpoint {saved[-1].name}' if saved else 'no checkpoint'}"


def steps_done(path: Path) -> int:
    """Step of a run's newest complete checkpoint; 0 without one."""
    saved = [folder for folder in checkpoint_paths(path / CHECKPOINTS) if has_manifest(folder)]
    return checkpoint_step(saved[-1]) if saved else 0


def _step_of(file: Path) -> int:
    number = file.name.removeprefix("step-").split(".")[0]
    return int(number) if number.isdecimal() else 0
