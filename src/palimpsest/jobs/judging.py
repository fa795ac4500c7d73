"""A judge tried on worked cases."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

from pydantic import ValidationError

from palimpsest.config.reward import JudgeConfig
from palimpsest.errors import ConfigError, JudgeError
from palimpsest.jobs.blocking import finish
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


def try_judge(url: str, model: str, api_key_env: str | None, max_tokens: int, timeout: float, attempts: int) -> Trial:
    """What the judge says of each case."""
    try:
        config = JudgeConfig(
            url=url,
            model=model,
            api_key_env=api_key_env,
            max_tokens=max_tokens,
            timeout_s=timeout,
            attempts=attempts,
        )
    except ValidationError:
        raise ConfigError(f"--url {url}: expected an address such as http://127.0.0.1:9527/v1") from None
    return Trial(tuple(finish(lambda: _try_all(config))))


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
