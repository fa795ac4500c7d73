"""How far a judge can be believed: its verdicts on answers whose worth is known, and on worked cases.

    false accepts    shipped answers that are wrong and were called correct
    false rejects    right answers in other words that were not called correct

each with Wilson's interval, beside the prompt's SHA-256 and the model that the endpoint says it is.

Guaranteed: a missing verdict is neither: it is counted, and a card that lacks one is not kept, so that it is asked for
again. Verdicts are cached as those of an evaluation.
Not covered: whether the set is like your data. Its questions are plain facts; a judge does worse on longer answers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from palimpsest.app.python_calls import finish
from palimpsest.config.prompt_file import read_criteria
from palimpsest.config.reward import JudgeConfig, is_criteria_file
from palimpsest.errors import ConfigError, JudgeError
from palimpsest.evaluation.sample_log import write_json
from palimpsest.evaluation.statistics import wilson
from palimpsest.reward.judge.judge_probes import CASES, KnownAnswer, WorkedCase, known_answers, set_sha256
from palimpsest.reward.judge.model_judge import Judge, Verdict, prompt_name, prompt_sha256

CARD = "judge-card.json"
PROMPTS = ("lenient", "strict")
"""Measured beside the one that judges."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So many of so many, with Wilson's 95% interval; no share where none had a verdict."""

    count: int
    of: int
    share: float | None
    low: float | None
    high: float | None

    @classmethod
    def of_all(cls, count: int, of: int) -> Rate:
        """
        >>> Rate.of_all(0, 10).share, Rate.of_all(0, 0).share
        (0.0, None)
        """
        if not of:
            return cls(count, of, None, None, None)
        low, high = wilson(count, of)
        return cls(count, of, count / of, round(low, 4), round(high, 4))

    def __str__(self) -> str:
        if self.share is None or self.low is None or self.high is None:
            return "no verdict"
        return f"{self.count} of {self.of} ({100 * self.low:.0f}–{100 * self.high:.0f} %)"


@dataclass(frozen=True, slots=True)
class PromptCard:
    """What a judge does under one prompt."""

    prompt: str
    """default, lenient, strict or own."""
    prompt_sha256: str
    false_accepts: Rate
    false_rejects: Rate
    partial_accepts: int
    """Wrong answers called partly right, which counts where `reward.judge.partial` is above 0."""
    accepted: dict[str, list[str]]
    """Kind of wrong answer to those that were called correct."""
    rejected: list[str]
    """Paraphrases that were not."""
    without_verdict: int
    failure: str | None
    """Why the first of them has none."""


@dataclass(frozen=True, slots=True)
class JudgeCard:
    """A judge, measured."""

    model: str
    """As it was asked for."""
    reported: list[str]
    """As its endpoint calls itself; empty: all verdicts came from the cache, or it doesn't say."""
    settings: dict[str, Any]
    """What else decides verdicts: temperature, max_tokens, passes."""
    set_sha256: str
    """Of the shipped answers."""
    prompts: tuple[PromptCard, ...]
    """The one that judges first."""

    @property
    def whole(self) -> bool:
        """Whether every verdict was had."""
        return not any(each.without_verdict for each in self.prompts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def told(self) -> list[str]:
        """In words, a line a prompt."""
        said = f" (it says {', '.join(self.reported)})" if self.reported not in ([], [self.model]) else ""
        lines = [f"judge {self.model}{said}"]
        for each in self.prompts:
            missing = f", {each.without_verdict} without a verdict: {each.failure}" if each.without_verdict else ""
            lines.append(
                f"  prompt {each.prompt} {each.prompt_sha256[:12]}: false accepts {each.false_accepts}, "
                f"false rejects {each.false_rejects}{missing}"
            )
        return lines


async def make_card(config: JudgeConfig, folder: Path | None = None) -> JudgeCard:
    """Measure the judge under its own prompt, a lenient and a strict one; verdicts are kept as `Judge.open` says."""
    prompts = list(dict.fromkeys((config.prompt, *PROMPTS)))
    reported: set[str] = set()
    cards = []
    for prompt in prompts:
        judge = Judge.open(config.model_copy(update={"prompt": prompt}), folder)
        try:
            cards.append(await _measured(judge, prompt))
        finally:
            await judge.close()
        reported |= judge.reported
    return JudgeCard(config.model, sorted(reported), _settings(config), set_sha256(), tuple(cards))


async def card_of(config: JudgeConfig, folder: Path | None) -> JudgeCard:
    """The card in `folder` if it is of this judge, else a new one, which is kept there if it is whole."""
    path = folder / CARD if folder is not None else None
    if path is not None and (known := read_card(path)) is not None and _is_of(known, config):
        return known
    card = await make_card(config, folder)
    if path is not None and card.whole:
        write_json(path, card.to_json())
    return card


def read_card(path: Path) -> JudgeCard | None:
    """A card that was written; None if there is none, or none that can be read."""
    try:
        return parsed_card(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, RecursionError):
        return None


def parsed_card(values: Any) -> JudgeCard | None:
    """A card from what `to_json` gave; None for anything else."""
    try:
        prompts = tuple(
            PromptCard(**{**each, **{name: Rate(**each[name]) for name in ("false_accepts", "false_rejects")}})
            for each in values["prompts"]
        )
        return JudgeCard(**{**values, "prompts": prompts})
    except (TypeError, KeyError):
        return None


def _is_of(card: JudgeCard, config: JudgeConfig) -> bool:
    wanted = [prompt_sha256(prompt) for prompt in dict.fromkeys((config.prompt, *PROMPTS))]
    own = (card.model, card.settings, card.set_sha256, [each.prompt_sha256 for each in card.prompts])
    return own == (config.model, _settings(config), set_sha256(), wanted)


def _settings(config: JudgeConfig) -> dict[str, Any]:
    return {"temperature": config.temperature, "max_tokens": config.max_tokens, "passes": config.passes}


async def _measured(judge: Judge, prompt: str) -> PromptCard:
    answers = list(known_answers())
    verdicts = await asyncio.gather(*(_verdict(judge, each) for each in answers))
    pairs = list(zip(answers, verdicts, strict=True))
    failures = [verdict for verdict in verdicts if isinstance(verdict, str) and not isinstance(verdict, Verdict)]
    wrong = [(each, said) for each, said in pairs if not each.right and isinstance(said, Verdict)]
    right = [(each, said) for each, said in pairs if each.right and isinstance(said, Verdict)]
    accepted = [each for each, said in wrong if said is Verdict.CORRECT]
    rejected = [each.answer for each, said in right if said is not Verdict.CORRECT]
    return PromptCard(
        prompt=prompt_name(prompt),
        prompt_sha256=prompt_sha256(prompt),
        false_accepts=Rate.of_all(len(accepted), len(wrong)),
        false_rejects=Rate.of_all(len(rejected), len(right)),
        partial_accepts=Counter(said for _, said in wrong)[Verdict.PARTIAL],
        accepted=_by_kind(accepted),
        rejected=rejected,
        without_verdict=len(failures),
        failure=failures[0] if failures else None,
    )


async def _verdict(judge: Judge, each: KnownAnswer) -> Verdict | str:
    """What the judge says, or why it says nothing."""
    try:
        return await judge.verdict(each.question, each.golds, each.answer)
    except JudgeError as error:
        return str(error)


def _by_kind(answers: Sequence[KnownAnswer]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for each in answers:
        kinds.setdefault(each.kind, []).append(each.answer)
    return kinds


# ---- A judge tried on worked cases ---------------------------------------------------------------------------


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
