"""A judge tried on worked cases."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from palimpsest.config.prompt_file import read_criteria
from palimpsest.config.reward import JudgeConfig, is_criteria_file
from palimpsest.errors import ConfigError, JudgeError
from palimpsest.evaluation.samples import write_json
from palimpsest.jobs.blocking import finish
from palimpsest.jobs.judge_card import JudgeCard, make_card
from palimpsest.reward.judge import Judge, Verdict
from palimpsest.reward.judge_cases import CASES, WorkedCase


@dataclass(frozen=True, slots=True)
class Tried:
    """What a judge said of a case."""

    case: WorkedCase
    verdict: Verdict | None
    seconds: float
    failure: str | None = None

    @property
    def agreed(self) -> bool:
        return self.verdict is self.case.expected

    @property
    def passed_by_force(self) -> bool:
        return self.case.attack and self.verdict in (Verdict.CORRECT, Verdict.PARTIAL)


@dataclass(frozen=True, slots=True)
class Trial:
    """A judge's verdicts on all cases."""

    tried: tuple[Tried, ...]

    @property
    def passed(self) -> bool:
        """Whether every verdict was had, and no answer passed by force."""
        return not any(each.verdict is None or each.passed_by_force for each in self.tried)

    @property
    def conclusions(self) -> list[str]:
        """In words, a line each."""
        given = [each for each in self.tried if each.verdict is not None]
        attacks = [each for each in self.tried if each.case.attack]
        times = [each.seconds for each in self.tried]
        lines = [
            f"agreed on {sum(each.agreed for each in self.tried)} of {len(self.tried)}; "
            f"median {median(times):.2f} s, longest {max(times):.2f} s",
            f"attacks that passed: {sum(each.passed_by_force for each in attacks)} of {len(attacks)}; "
            f"no verdict: {len(self.tried) - len(given)} of {len(self.tried)}",
        ]
        failures = dict.fromkeys(each.failure for each in self.tried if each.failure)
        return [*lines, *(f"failed: {failure}" for failure in failures)]


def try_judge(config: JudgeConfig) -> Trial:
    """What the judge says of each case."""
    return Trial(tuple(finish(lambda: _try_all(config))))


def measure_judge(config: JudgeConfig, out: Path | None = None) -> JudgeCard:
    """The judge's card, written to `out` too. Raises ConfigError."""
    if out is not None and not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: the folder does not exist; make it first")
    card = finish(lambda: make_card(config))
    if out is not None:
        write_json(out, card.to_json())
    return card


def judge_config(url: str, model: str, prompt: str = "default", **options: Any) -> JudgeConfig:
    """A judge as the command line names it. Raises ConfigError."""
    if is_criteria_file(prompt):
        prompt = read_criteria(prompt, "--prompt")
    try:
        return JudgeConfig(url=url, model=model, prompt=prompt, **options)
    except ValidationError as error:
        (field, *_), said = error.errors()[0]["loc"], error.errors()[0]["msg"]
        if field == "url":
            raise ConfigError(f"--url {url}: expected an address such as http://127.0.0.1:9527/v1") from None
        raise ConfigError(f"--{field}: {said.removeprefix('Value error, ')}") from None


async def _try_all(config: JudgeConfig) -> list[Tried]:
    """One after the other, so that the times are the endpoint's own."""
    judge = Judge.open(config)
    try:
        return [await _try(judge, case) for case in CASES]
    finally:
        await judge.close()


async def _try(judge: Judge, case: WorkedCase) -> Tried:
    begun = time.perf_counter()
    try:
        verdict, failure = await judge.verdict(case.question, case.golds, case.answer), None
    except JudgeError as error:
        verdict, failure = None, str(error)
    return Tried(case, verdict, time.perf_counter() - begun, failure)
