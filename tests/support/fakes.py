"""Ten-line fakes around the training loop: no torch, instant, deterministic."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from palimpsest.config.schema import RunConfig
from palimpsest.engines.protocol import CompletionDelta, Limits, SamplerStats, StepBatch, UpdateStats
from palimpsest.files import hashes
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.runs.loggers import JsonlLogger, LoggerSet
from palimpsest.runs.run_folder import RunFolder
from palimpsest.training.loop import Trainer
from palimpsest.types import Completion, Grade, Outcome, Problem, SamplingParams, StopReason, Trajectory, Turn


def first_lessons(lessons: Any, count: int) -> list[Trajectory]:
    return [lessons.draw(index) for index in range(count)]


class LetterCodec:
    """One token per character; id 0 stops."""

    stop_ids = (0,)
    control_ids = frozenset({0})
    thinking_ids: frozenset[int] = frozenset()

    def encode_trusted(self, text: str) -> list[int]:
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Iterable[int], *, control: bool = True) -> str:
        return "".join(chr(i) for i in ids if i != 0)

    def strip_stop(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(i for i in ids if i != 0)


class Killed(BaseException):
    """The process ended."""


class SeedSampler:
    """Answers 'yes' or 'no ' by the seed; raises the errors of `fail`, is killed after `dies_after` calls."""

    max_context = 1000

    def __init__(self, *, fail: Sequence[Exception] = (), learner: Any = None, dies_after: int | None = None) -> None:
        self.calls: list[tuple[tuple[int, ...], SamplingParams]] = []
        self._fail, self._dies_after, self._learner = list(fail), dies_after, learner

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> Completion:
        if len(self.calls) == self._dies_after:
            raise Killed
        self.calls.append((tuple(prompt_ids), params))
        await asyncio.sleep(0)
        if self._fail:
            raise self._fail.pop(0)
        word = "yes" if params.seed % 2 else "no "
        return Completion((*map(ord, word), 0), (-0.5,) * 4, StopReason.STOP, self.version)

    @property
    def version(self) -> int:
        return self._learner.version if self._learner else 0

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> AsyncIterator[CompletionDelta]:
        completion = await self.generate(prompt_ids, params, session=session)
        for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
            yield CompletionDelta((token,), (logprob,))
        yield CompletionDelta(completion=completion)

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
        return (-0.5,) * len(ids)

    def stats(self) -> SamplerStats:
        return SamplerStats(requests=len(self.calls), generated_tokens=4 * len(self.calls))


class TwoTurnPolicy(MemoryPolicy):
    """Reads, then answers."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        prompt = model.codec.encode(problem.question + (problem.context or ""))
        memory = await model.generate(prompt, name="read", max_tokens=8, chunk=0, memory_tokens=0)
        model.event("wrote", tokens=len(memory.token_ids))
        reply = await model.generate(memory.token_ids, name="answer", max_tokens=8)
        return Answered(model.codec.decode(reply.token_ids))


class YesGrader:
    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        if not trajectory.outcome.gradable:
            return Grade(None, f"episode ended as {trajectory.outcome}")
        value = float(trajectory.answer == "yes")
        return Grade(value, breakdown={"em": value})


class ConstantGrader:
    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        return Grade(1.0)


class HashLearner:
    """Its weights are a hash of all its batches, so that any difference in order or content shows."""

    limits = Limits(vocab=256, max_context=1000)

    def __init__(self) -> None:
        self.version = 0
        self.weights = ""

    async def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
        return [self.step(batch) for batch in steps]

    def step(self, batch: StepBatch) -> UpdateStats:
        self.weights = hashlib.sha256((self.weights + repr(batch.segments)).encode()).hexdigest()
        self.version += 1
        tokens = sum(len(row.weights) for row in batch.segments)
        norm = int(self.weights[:4], 16) / 1000
        return UpdateStats(loss=1.0, tokens=tokens, token_sums={"kl": 0.25 * tokens}, grad_norm=norm, seconds=0.1)

    async def save(self, folder: Path) -> dict[str, str]:
        (folder / "model.safetensors").write_text(self.weights)
        (folder / "learner").mkdir()
        (folder / "learner" / "state.json").write_text(json.dumps({"version": self.version}))
        return hashes(folder)

    async def load(self, folder: Path) -> None:
        self.weights = (folder / "model.safetensors").read_text()
        self.version = json.loads((folder / "learner" / "state.json").read_text())["version"]

    async def publish(self) -> int:
        return self.version


class NumberedSource:
    """Problems named after (step, round, index), with contexts of the curriculum's length."""

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        return [
            Problem(f"p{step}-{round}-{i}", "yes? ", ("yes",), "fact. " * (size or 1), {"evidence": ["yes"]})
            for i in range(count)
        ]


def small_config(**train: Any) -> RunConfig:
    sizes = {"max_steps": 6, "batch_size": 2, "group_size": 4, "save_steps": 2, "save_total_limit": 2}
    return RunConfig.model_validate({"train": {**sizes, **train}, "logging": {"report_to": ["jsonl"]}})


def changed(config: RunConfig, **sections: Any) -> RunConfig:
    values = config.model_dump(mode="json")
    return RunConfig.model_validate(
        values | {name: (values[name] or {}) | section for name, section in sections.items()}
    )


def make_trainer(folder: RunFolder, **components: Any) -> Trainer:
    """A trainer of fakes; `components` replace any of them."""
    learner = components.pop("learner", None) or HashLearner()
    defaults: dict[str, Any] = {
        "config": folder.config,
        "folder": folder,
        "codec": LetterCodec(),
        "sampler": SeedSampler(learner=learner),
        "learner": learner,
        "policy": TwoTurnPolicy(),
        "source": NumberedSource(),
        "grader": YesGrader(),
        "loggers": LoggerSet([JsonlLogger(folder)]),
    }
    return Trainer(**{**defaults, **components})


def answered(text: str = "yes", *, rollout: int = 0, group_id: str = "g") -> Trajectory:
    """A one-turn trajectory that sampled `text`."""
    completion = Completion(tuple(map(ord, text)), (-0.25,) * len(text), StopReason.STOP)
    return Trajectory("p", group_id, rollout, (Turn((1, 2), completion, 0, "answer"),), Outcome.ANSWERED, text)
