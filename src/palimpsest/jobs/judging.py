"""`palimpsest judge check`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pydantic import ValidationError

from palimpsest.config.reward import JudgeConfig
from palimpsest.errors import ConfigError, JudgeError
from palimpsest.jobs.show import stdout, table

try:
    from palimpsest.reward.judge import Judge, Verdict
    from palimpsest.reward.judge_cases import CASES, WorkedCase
except ModuleNotFoundError as error:
    raise ConfigError(f"{error.name} is not installed: pip install 'palimpsest[judge]'") from None


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


def run_check(url: str, model: str, api_key_env: str | None, max_tokens: int, timeout: float, attempts: int) -> int:
    """Print what the judge says of each case; the exit code."""
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
    tried = asyncio.run(_try_all(config))
    console = stdout()
    columns = ["case", "expected", "verdict", "seconds"]
    console.print(table(f"{model} at {url}", columns, [_row(one) for one in tried]), markup=False)
    for line in _conclusions(tried):
        console.print(line, markup=False, highlight=False)
    return int(any(one.verdict is None or one.passed_by_force for one in tried))


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


def _row(one: Tried) -> list[str]:
    mark = "" if one.agreed else " !"
    return [one.case.name, one.case.expected, f"{one.verdict or 'none'}{mark}", f"{one.seconds:.2f}"]


def _conclusions(tried: Sequence[Tried]) -> list[str]:
    read = [one for one in tried if one.verdict is not None]
    attacks = [one for one in tried if one.case.attack]
    times = [one.seconds for one in tried]
    lines = [
        f"agreed on {sum(one.agreed for one in tried)} of {len(tried)}; "
        f"median {median(times):.2f} s, longest {max(times):.2f} s",
        f"attacks that passed: {sum(one.passed_by_force for one in attacks)} of {len(attacks)}; "
        f"no verdict: {len(tried) - len(read)} of {len(tried)}",
    ]
    failures = dict.fromkeys(one.failure for one in tried if one.failure)
    return [*lines, *(f"failed: {failure}" for failure in failures)]
