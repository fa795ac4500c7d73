"""`palimpsest eval`: any policy on any data file with any model."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palimpsest.config.data import SearchDataConfig
from palimpsest.config.models import model_path
from palimpsest.config.reward import JUDGE_OPERATION
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.search_synthetic import SOURCE as SYNTHETIC_SEARCH
from palimpsest.data.source import build_source
from palimpsest.engines.open import open_engine, using
from palimpsest.errors import ConfigError, DataError
from palimpsest.evaluate.run import Arena, EvalSet, Measure, evaluate_sets
from palimpsest.evaluate.samples import IDENTITY, SAMPLES, write_json
from palimpsest.evaluate.summary import EvalSummary, Score
from palimpsest.jobs.budgets import fitted
from palimpsest.jobs.requests import EvalRequest
from palimpsest.jobs.show import note, progress, stdout, table
from palimpsest.measures.memory import memory_metrics, reply_metrics
from palimpsest.measures.tools import tool_measures
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.reward.compose import build_reward, check_reward
from palimpsest.reward.grading import closing
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Group, Problem, Trajectory

SUMMARY = "summary.json"
SYNTHETIC_PROBLEMS = 64
"""Problems per length where --limit doesn't say."""


def run_evaluation(request: EvalRequest, config: RunConfig) -> list[EvalSummary]:
    """Evaluate, print a table, write samples.jsonl and summary.json if there is an --out."""
    build_policy(config.policy)
    check_reward(config.reward)
    named = read_problems(request, config)
    engine = open_engine(config, objective=None)
    everything = [problem for _, problems in named for problem in problems]
    window = engine.sampler.max_context
    policy_config = fitted(config.policy, problems=everything, codec=engine.codec, max_context=window)
    policy = build_policy(policy_config)
    admit_all(policy, everything, engine.codec, window)
    note(f"{policy_config.name}: " + ", ".join(f"{k}={v}" for k, v in policy_config.options.items()))
    reward = build_reward(config.reward, engine.codec, request.out)
    arena = Arena(
        sampler=engine.sampler,
        codec=engine.codec,
        grader=reward.answer,
        sampling=config.eval_sampling,
        key=(config.seed, "eval"),
        measure=measure_memory(engine.codec),
    )
    if request.out is not None and request.force:
        _clear(request.out)
    with progress("episodes", len(everything)) as tick:
        played = evaluate_sets(
            longest_first([EvalSet(name, problems, policy) for name, problems in named]),
            arena,
            out=request.out,
            concurrency=engine.limits.concurrency,
            identity=_identity(config, policy_config, request),
            on_progress=lambda _: tick(),
            on_warning=note,
        )
        summaries = asyncio.run(using(engine, closing(reward, played)))
    _publish(request, config, policy_config, summaries)
    return summaries


def read_problems(request: EvalRequest, config: RunConfig) -> list[tuple[str, list[Problem]]]:
    """Problems to play, one list a document length, under the name their figures get."""
    if request.data == "synthetic":
        return [
            (f"{chunks} chunks", _synthetic(config, chunks, request.limit or SYNTHETIC_PROBLEMS))
            for chunks in _lengths(request.chunks, config.data.synthetic.chunks)
        ]
    if request.data == SYNTHETIC_SEARCH or config.data.search is not None:
        return _searched(request, config)
    if request.chunks is not None:
        raise ConfigError(
            f"--chunks {request.chunks}: the length of synthetic documents; {request.data} takes --documents"
        )
    problems = build_source(config.data, split="eval").problems(step=0, count=sys.maxsize)
    if not problems:
        raise DataError(f"{request.data}: holds no problems")
    return [(Path(request.data).stem, problems)]


def _searched(request: EvalRequest, config: RunConfig) -> list[tuple[str, list[Problem]]]:
    """Search problems, one list a number of objectives."""
    if request.chunks is not None:
        raise ConfigError(f"--chunks {request.chunks}: the length of synthetic documents; search takes --objectives")
    search = config.data.search or SearchDataConfig()
    drawn = request.limit or SYNTHETIC_PROBLEMS
    count = drawn if request.data == SYNTHETIC_SEARCH else sys.maxsize  # of a file, all; --limit counts its rows
    source = build_source(config.data, split="eval")
    return [
        (f"{size} objective{'s' if size > 1 else ''}", source.problems(step=0, count=count, size=size))
        for size in sorted(set(search.objectives))
    ]


def _synthetic(config: RunConfig, chunks: int, count: int) -> list[Problem]:
    return build_source(config.data, split="eval").problems(step=0, count=count, size=chunks)


def _lengths(text: str | None, default: int) -> list[int]:
    if text is None:
        return [default]
    try:
        lengths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        lengths = [0]
    if lengths[0] < 1:
        raise ConfigError(f"--chunks {text}: expected lengths such as 4,64,256")
    return lengths


def longest_first(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Sets by the length of their first problem, so that short episodes fill the batch beside long ones."""
    return sorted(sets, key=lambda one: _length(one.problems[0]) if one.problems else (0, 0), reverse=True)


def _length(problem: Problem) -> tuple[int, int]:
    """Of the document, or of the questions where there is none."""
    return (len(problem.context), 0) if problem.context is not None else (0, len(problem.question))


def measure_memory(codec: Codec) -> Measure:
    """What is measured on every episode besides its grade: copy fidelity, memory length, prunes, context size..."""

    def measure(problem: Problem, trajectory: Trajectory, grade: Grade) -> dict[str, float]:
        group = Group(problem, (trajectory,), (grade,))
        found = memory_metrics(group, codec) | reply_metrics(group, codec) | tool_measures(trajectory)
        return {name: value for name, value in found.items() if value is not None}

    return measure


def _identity(config: RunConfig, policy: PolicyConfig, request: EvalRequest) -> dict[str, Any]:
    """What must be the same for samples to belong together."""
    search = config.data.search
    return {
        "model": config.model.path,
        "weights": weights_fingerprint(model_path(config.model)),
        "policy": policy.model_dump(mode="json"),
        "data": request.data,
        "documents": request.documents,
        "corpus": config.data.corpus,
        "data_seed": config.data.seed,
        "synthetic": config.data.synthetic.model_dump(mode="json", exclude={"chunks"}),
        **({"search": search.model_dump(mode="json", exclude={"objectives"})} if search else {}),
        "reward": config.reward.model_dump(mode="json", exclude={"judge": set(JUDGE_OPERATION)}),
        "sampling": config.eval_sampling.model_dump(mode="json"),
        "seed": config.seed,
    }


def weights_fingerprint(path: str) -> str | None:
    """Hash over name, size and both ends of every weight file of a folder; None for a hub id."""
    files = sorted(Path(path).glob("*.safetensors"))
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as stream:
            digest.update(f"{file.name}:{size}:".encode() + stream.read(1 << 20))
            stream.seek(max(0, size - (1 << 20)))
            digest.update(stream.read())
    return digest.hexdigest()[:16] if files else None


def _clear(out: Path) -> None:
    """Remove what an earlier evaluation wrote, and nothing else."""
    for name in (SAMPLES, IDENTITY, SUMMARY):
        (out / name).unlink(missing_ok=True)


def _publish(request: EvalRequest, config: RunConfig, policy: PolicyConfig, summaries: Sequence[EvalSummary]) -> None:
    ordered = sorted(summaries, key=lambda s: s.tokens_per_document)
    title = f"{policy.name} on {request.data}, model {config.model.path}"
    console = stdout()
    console.print(table(title, _COLUMNS, [_row(summary) for summary in ordered]))
    ungraded = sum(summary.ungraded for summary in summaries)
    if ungraded:
        console.print(f"{ungraded} episodes have no grade and are not in the accuracy; run again to play them again")
    if request.out is not None:
        write_json(
            request.out / SUMMARY,
            {
                "policy": policy.model_dump(mode="json"),
                "model": config.model.path,
                "data": request.data,
                "documents": request.documents,
                "reward": config.reward.name,
                "seed": config.seed,
                "evaluations": [summary.to_json() for summary in ordered],
            },
        )
        note(f"{request.out / SAMPLES}, {request.out / SUMMARY}")


_COLUMNS = [
    "",
    "problems",
    "accuracy",
    "95%",
    "em",
    "f1",
    "sub-em",
    "evidence kept",
    "turns",
    "tokens/document",
]


def _row(summary: EvalSummary) -> list[str]:
    metric, kept = summary.metrics, summary.measures.get("evidence_retention")
    return [
        summary.name,
        str(summary.problems),
        percent(summary.accuracy.mean),
        interval(summary.accuracy),
        *(percent(metric.get(name)) for name in ("em", "f1", "sub_em")),
        percent(kept),
        f"{summary.turns_per_document:.1f}",
        f"{summary.tokens_per_document:,.0f}",
    ]


def percent(value: float | None) -> str:
    """One decimal, or a dash for what is not known."""
    return "–" if value is None else f"{100 * value:.1f}"


def interval(score: Score) -> str:
    """Both ends of a 95% interval in percent."""
    return "–" if score.low is None or score.high is None else f"{100 * score.low:.0f}–{100 * score.high:.0f}"
