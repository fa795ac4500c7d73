"""`palimpsest league`: train and evaluate memory methods under equal conditions, and tabulate them.

    OUT/league.yaml                 the league, complete
    OUT/runs/METHOD-SEED            trainings, as `palimpsest train` writes them
    OUT/evals/METHOD-SEED           evaluations, as `palimpsest eval` writes them; METHOD-untrained-SEED before training
    OUT/evals/METHOD-SEED/PROTOCOL  the same, of a league with protocols
    OUT/evals/NAME.yaml             model and configuration of that evaluation, which is renamed if they change
    OUT/league.json, league.html    the table so far, after every piece of work

Guaranteed: a killed league continues with the same call, its trainings bit for bit; finished work is not repeated; an
error of a method is the reason of its blank cells, and the other methods go on; a league with further methods, seeds,
lengths or problems continues in its folder. Work of other keys, or of an author's changed code, has no figures in the
table; it is renamed and done again.
Not covered: methods on several machines; near ties of greedy decoding, which may differ in a continued evaluation.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.app.config_resolution import run_config
from palimpsest.app.evaluate.evaluation_data import read_problems
from palimpsest.app.evaluate.evaluation_plan import OPTIONS
from palimpsest.app.evaluate.evaluation_run import evaluate
from palimpsest.app.league.league_files import ProtocolFiles, held_out_sets, protocol_files
from palimpsest.app.league.league_page import PAGE, RESULTS, write_league
from palimpsest.app.league.league_table import LeagueTable, evaluation_folder, read_row, run_folder
from palimpsest.app.python_calls import blocking, suitable_progress
from palimpsest.app.train.run_handle import Run
from palimpsest.app.train.supervised_training import check_lessons
from palimpsest.app.train.training_run import train
from palimpsest.app.worker_processes import Say, run_process, serve_parent
from palimpsest.config.league import LeagueConfig, MethodConfig, load_league
from palimpsest.config.load import Overrides, dump_config
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import leaves
from palimpsest.engines.open import layout_on, with_sampler
from palimpsest.errors import ConfigError, RunError
from palimpsest.evaluation.sample_log import SUMMARY, read_log, read_object
from palimpsest.memory.registry import build_policy, policy_class
from palimpsest.plugin_options import options_of
from palimpsest.progress.reporter import Logger, Progress, Silent, Tick
from palimpsest.provenance import INPUTS, source_digests
from palimpsest.runs.folder_guard import FolderLock, visible_names
from palimpsest.runs.resume_rules import changes, made_with
from palimpsest.runs.run_folder import CONFIG, load_config, steps_done

LEAGUE = "league.yaml"
_MAIN = "from palimpsest.app.league.league_run import main; main()"
_OF_TRAINING = ("train", "optim", "loss", "credit", "cold_start")
_OWN = {"runs", "evals", RESULTS, PAGE}
_PARTS = 100  # shown parts of a training, and of an evaluation


async def league_async(
    league: str | Path | LeagueConfig,
    overrides: Overrides = (),
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    progress: Progress | None = None,
) -> LeagueTable:
    """Train and evaluate the methods of a league and tabulate them. The same call continues an interrupted league.

    `league` is an ordinary call and works in a notebook; `league_async` is a coroutine.

    - `league`: a shipped league (`small`, `laptop`), a YAML file, or a configuration
    - `overrides`: its keys to change, and keys of every run (`train.max_steps=20`)
    - `out`: folder of runs, evaluations and table; the default is `leagues/NAME`

    Raises ConfigError or RunError with a message that names key, value and fix. An error of a method's training or
    evaluation is the reason of its blank cells.
    """
    config = league if isinstance(league, LeagueConfig) else load_league(league, overrides)
    folder, shown = Path(out or league_folder(league)), progress or suitable_progress(quiet=quiet)
    work = LeagueWork(config, folder)
    for name in config.methods:  # before anything is written
        work.config(name, config.seeds[0])
    held_out_sets(config)
    if config.data is not None:
        data = work.config(config.against, config.seeds[0]).data.model_copy(update={"val_files": config.data})
        read_problems(RunConfig(data=data), documents=config.documents)
    for note in (*(note for published in work.protocols for note in published.notes), *work.notes()):
        shown.message(note)
    with _locked(folder):
        files.write_file(folder / LEAGUE, dump_config(config).encode())
        await work.play(shown)
        table = work.table()
        write_league(table, folder)
    return table


league = blocking(league_async)


def league_folder(league: str | Path | LeagueConfig) -> Path:
    """Default folder of a league."""
    return Path("leagues") / (league.league if isinstance(league, LeagueConfig) else Path(league).stem)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    if folder.is_dir() and not (folder / LEAGUE).exists() and set(visible_names(folder)) - _OWN:
        raise RunError(f"{folder} contains other files than a league's: use another --out")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    try:
        yield
    finally:
        lock.release()


# ---- Work of a league ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeagueJob:
    """A method with one seed: its training and evaluation, or its evaluation before training."""

    name: str
    seed: int
    trained: bool

    @property
    def title(self) -> str:
        return f"{self.name}, seed {self.seed}{'' if self.trained else ', no training'}"


@dataclass(frozen=True, slots=True)
class LeagueEvaluation:
    """An evaluation of a piece of work."""

    folder: Path
    config: RunConfig
    depends_on: bytes
    """What its samples depend on, but for number and lengths of the problems, as YAML."""
    published: ProtocolFiles | None = None

    @property
    def record(self) -> Path:
        """File with `depends_on`."""
        return self.folder.with_name(f"{self.folder.name}.yaml")

    @property
    def is_other(self) -> bool:
        """True if the folder has the evaluation of another model or configuration."""
        return self.record.is_file() and self.record.read_bytes() != self.depends_on

    def set_aside_other(self) -> None:
        if self.is_other and self.folder.exists():
            files.set_aside(self.folder)


@dataclass(frozen=True)
class LeagueWork:
    """The work of a league in a folder."""

    league: LeagueConfig
    out: Path

    @cached_property
    def failed(self) -> dict[LeagueJob, str]:
        """Errors of this call."""
        return {}

    @cached_property
    def protocols(self) -> list[ProtocolFiles]:
        """Files of the protocols, as this call found them. Raises ConfigError."""
        return [protocol_files(protocol, folder) for protocol, folder in self.league.protocols.items()]

    def jobs(self) -> list[LeagueJob]:
        """All work, seed by seed, so that the table fills evenly."""
        rows = [(name, trained) for name, method in self.league.methods.items() for trained in _rows_of(method)]
        return [LeagueJob(name, seed, trained) for seed in self.league.seeds for name, trained in rows]

    def config(self, name: str, seed: int, protocol: str | None = None) -> RunConfig:
        """Configuration of a method, for a protocol if it isn't trained. Raises ConfigError.

        A policy that no example can be made for has no cold start, unless the method's own keys set it.
        """
        method = self.league.methods[name]
        if not method.train:
            protocol = protocol or next(iter(self.league.protocols), None)
        try:
            found = method_config(self.league, method, seed, protocol)
            policy = build_policy(found.policy)
        except ConfigError as error:
            raise ConfigError(f"methods.{name}: {error}") from None
        if any(key.startswith("cold_start") for key, _ in leaves(method.overrides)):
            return found
        try:
            check_lessons(found, policy)
        except ConfigError:
            return found.model_copy(update={"cold_start": None})
        return found

    def notes(self) -> Iterator[str]:
        """Methods that train without the league's cold start, and finished ones that the league leaves out."""
        seed = self.league.seeds[0]
        for name, method in self.league.methods.items():
            whole = method_config(self.league, method, seed).cold_start
            if method.train and whole is not None and self.config(name, seed).cold_start is None:
                yield f"{name}: trains without a cold start, for which its policy has no teachable()"
        if (self.out / LEAGUE).is_file():
            jobs = list[LeagueJob]()
            with suppress(ConfigError):  # damaged; this call replaces it
                jobs = LeagueWork(load_league(self.out / LEAGUE), self.out).jobs()
            played = {job.name for job in jobs if any(self.folder(job).rglob(SUMMARY))}
            if left_out := played - self.league.methods.keys():
                yield f"{self.out}: leaves out {', '.join(sorted(left_out))}, which it has figures of"

    def table(self) -> LeagueTable:
        """The table of all evaluations so far."""
        rows = []
        for name, method in self.league.methods.items():
            config = self.config(name, self.league.seeds[0])
            for trained in _rows_of(method):
                jobs = [LeagueJob(name, seed, trained) for seed in self.league.seeds]
                error = next(filter(None, map(self.failed.get, jobs)), None)
                others = {one.folder for job in jobs for one in self.others(job)}
                row = read_row(
                    self.league, self.out, name, config, trained=trained, error=error, protocols=self.protocols,
                    others=others,
                )  # fmt: skip
                rows.append(row)
        failed = {job.title: why for job, why in self.failed.items()}
        return LeagueTable(self.league, rows, failed, self.protocols)

    def folder(self, job: LeagueJob) -> Path:
        """Folder of a job's evaluation."""
        return evaluation_folder(self.out, job.name, job.seed, trained=job.trained)

    def is_done(self, job: LeagueJob) -> bool:
        """True if a job has nothing left to do."""
        folder = self.folder(job)
        summary = read_object(folder / SUMMARY) or {}
        cells = summary.get("evaluations", [])
        blank = sum(note["code"] == "left_blank" for note in summary.get("notes", ()))
        wanted = len(self.league.sets) * len(self.league.chunks)
        if not self.league.synthetic or not cells or len(cells) + blank != wanted:
            return False
        readable = Counter((one.set, one.size) for one in read_log(folder).samples if one.value is not None)
        if list(readable.values()) != [self.league.problems] * len(cells):
            return False
        config, run = self.config(job.name, job.seed), run_folder(self.out, job.name, job.seed)
        trained = (run / CONFIG).is_file() and load_config(run) == with_sampler(config, "policy") and Run(run).finished
        return not self.others(job) and (trained or not job.trained)

    def others(self, job: LeagueJob) -> list[LeagueEvaluation]:
        """Evaluations of a piece of work whose folders have that of another model, configuration or code."""
        return [one for one in self.evaluations(job) if one.is_other]

    def evaluations(self, job: LeagueJob) -> Iterator[LeagueEvaluation]:
        """The evaluations of a piece of work: one, or one per protocol."""
        method = self.league.methods[job.name]
        folder = self.folder(job)
        for published in self.protocols or (None,):
            config = self.config(job.name, job.seed, published.protocol if published else None)
            own = folder / published.name if published else folder
            asked = config if job.trained else _without_training(config)
            code = source_digests(asked.model_dump(mode="json"))
            head = [f"# model {method.model} {method.base_url or ''}"]
            head += [f"# code {json.dumps(code)}"] if code else []
            head += [f"# data {self.league.data} {self.league.documents}"] if self.league.data is not None else []
            yield LeagueEvaluation(own, config, "\n".join([*head, dump_config(asked)]).encode(), published)

    async def play(self, progress: Progress) -> None:
        """Do all work that is left, `processes` methods at a time."""
        jobs, room = self.jobs(), asyncio.Semaphore(self.league.processes)
        with progress.count("league", len(jobs) * _PARTS) as tick:
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(self._play(job, room, progress, tick))

    async def _play(self, job: LeagueJob, room: asyncio.Semaphore, progress: Progress, tick: Tick) -> None:
        done = 0

        def receive(said: int | str) -> None:
            nonlocal done
            if isinstance(said, str):
                progress.message(f"{job.title}: {said}")
            else:
                said = min(said, _PARTS - done)
                done += said
                tick(said, note=job.title)

        async with room:
            if not self.is_done(job):
                words = [str(self.out), job.name, str(job.seed), str(int(job.trained))]
                try:
                    await run_process(words, receive, _MAIN, again="run the same league again")
                except RunError as error:
                    self.failed[job] = str(error)
                    progress.message(f"{job.title}: {error}")
                write_league(self.table(), self.out)
            tick(_PARTS - done, note=job.title)


def _without_training(config: RunConfig) -> RunConfig:
    """A configuration with the keys of an evaluation."""
    sized = {"synthetic": config.data.synthetic.model_copy(update={"chunks": 1}), "curriculum": None, "limit": None}
    usual = {name: RunConfig.model_fields[name].get_default(call_default_factory=True) for name in _OF_TRAINING}
    return config.model_copy(update={**usual, "data": config.data.model_copy(update=sized)})


def _rows_of(method: MethodConfig) -> Sequence[bool]:
    """True for the trained row of a method, False for the other."""
    return (True, False) if method.train and method.untrained else (method.train,)


def method_config(league: LeagueConfig, method: MethodConfig, seed: int, protocol: str | None = None) -> RunConfig:
    """Configuration of a method's run: recipe or protocol, the league's keys, the policy, the method's keys.

    Policy and model are the recipe's: a protocol's only for a method that is not trained and names none. Options of the
    policy, the recipe's and the league's, apply as far as the policy has them. Raises ConfigError.
    """
    own = method.recipe or (league.recipe if method.train else None)
    base = protocol or own or league.recipe
    recipe = run_config(own or base)
    policy = method.policy or recipe.policy.name
    known, shared = options_of(cls := policy_class(policy)), dict(leaves(league.overrides))
    options = recipe.policy.options | {
        key.removeprefix(OPTIONS): shared.pop(key) for key in list(shared) if key.startswith(OPTIONS)
    }
    options = {name: value for name, value in options.items() if name in known} | method.options
    keys: dict[str, Any] = {"policy.name": policy, "policy.options": options}
    if not method.base_url:
        keys |= {f"model.{name}": value for name, value in recipe.model.model_dump(mode="json").items()}
    if league.synthetic:
        keys |= {"data.train_files": "synthetic", "data.synthetic.chunks": league.chunks[0]}
        keys |= dict.fromkeys(("data.val_files", "data.documents", "data.corpus"))
        keys |= {"data.synthetic.task": _learnt(league, cls), "data.synthetic.val_task": list(league.sets)}
    overrides = keys | shared | ({"model.path": method.model} if method.model and not method.base_url else {})
    overrides |= dict(leaves(method.overrides))
    if not cls.takes_memory:
        overrides["data.synthetic.starts"] = None
    return run_config(base, overrides, seed=seed)


def _learnt(league: LeagueConfig, policy: Any) -> list[str]:
    """Families to train on: a policy that answers one question can't learn from several."""
    return [name for name in league.families if name != "several" or policy.answers_questions] or list(league.families)


# ---- Work of a process ---------------------------------------------------------------------------------------


def main() -> None:
    """Train and evaluate one method with one seed, as the command line says."""
    serve_parent(_work)


def _work(say: Say, out: str, name: str, seed: str, trained: str) -> None:
    folder = Path(out)
    league = load_league(folder / LEAGUE)
    method, number, of_training = league.methods[name], int(seed), trained == "1"
    work, job = LeagueWork(league, folder), LeagueJob(name, number, of_training)
    evaluations = list(work.evaluations(job))
    for one in evaluations:
        one.set_aside_other()
    config = work.config(name, number)
    progress, model = Reported(say, _PARTS // 2 if of_training else _PARTS), method.model or config.model.path
    if of_training:
        place = run_folder(folder, name, number)
        if _is_other_run(place, config):
            say(f"{place} is of other keys or code: now {files.set_aside(place).name}")
        run = train(config, out=place, resume=True, progress=progress)
        if not run.finished:
            raise RunError("the training was interrupted; run the same league again")
        model = str(run.folder)
    for one in evaluations:
        one.record.parent.mkdir(parents=True, exist_ok=True)
        files.write_file(one.record, one.depends_on)
        evaluate(
            model,
            one.published.folder if one.published else league.data,
            recipe=None if of_training and one.published is None else one.config,
            overrides=[]
            if of_training or method.base_url or league.gpus == 1
            else layout_on(league.gpus, None, key="gpus"),
            chunks=league.chunks if league.synthetic else None,
            documents=league.documents or None,
            limit=league.problems,
            baselines=False,
            seed=number,
            base_url=method.base_url,
            api_key_env=method.api_key_env,
            tokenizer=method.tokenizer,
            out=one.folder,
            progress=Reported(say, progress.parts // len(evaluations)),
        )


def _is_other_run(run: Path, config: RunConfig) -> bool:
    """True for a run that can't continue as that of `config`: of other keys, of other code, or longer."""
    if not (run / CONFIG).is_file():
        return False
    before, now = load_config(run), with_sampler(config, "policy")
    was = {key: value for key, value in dict(made_with(run).get(INPUTS, {})).items() if key.startswith("modules.")}
    code = {f"modules.{name}": digest for name, digest in source_digests(now.model_dump(mode="json")).items()}
    refused = any(each.verdict == "refused" or each.key.startswith("optim.") for each in changes(before, now))
    return refused or was != code or steps_done(run) > now.train.max_steps


class Reported(Silent):
    """Progress as numbers of `parts` per stage of the work."""

    def __init__(self, say: Say, parts: int) -> None:
        self._say, self.parts = say, parts

    def steps(self, total: int) -> Logger:
        return _Share(self._say, self.parts, total)

    @contextmanager
    def count(self, label: str, total: int, *, done: int = 0) -> Iterator[Tick]:
        share = _Share(self._say, self.parts, total)
        share(done)
        yield share


class _Share(Logger):
    def __init__(self, say: Say, parts: int, total: int) -> None:
        self._say, self._parts, self._total, self._done, self._said = say, parts, max(1, total), 0, 0

    def __call__(self, done: int = 1, *, note: str | None = None) -> None:
        self._done += done
        parts = min(self._parts, self._parts * self._done // self._total)
        if parts > self._said:
            self._say(parts - self._said)
            self._said = parts

    def resumed(self, step: int) -> None:
        self(step)

    def log(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        self()
