"""What stands beside the figures of an evaluation: how far its judge can be believed, and what errata change.

Guaranteed: nothing here touches the figures themselves; with another prompt, or other golds, the same answers are
graded again, so that the scores differ by that alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palimpsest.config.reward import RewardConfig
from palimpsest.config.schema import RunConfig
from palimpsest.evaluation.errata import Corrected, Errata, read_errata
from palimpsest.evaluation.samples import Sample
from palimpsest.evaluation.summary import EvalSummary, Score, accuracy_of
from palimpsest.jobs.judge_card import PROMPTS, JudgeCard, card_of
from palimpsest.jobs.regrading import Problems, check_regradable, regraded, summaries_by_set
from palimpsest.reward.judge_prompts import prompt_name


@dataclass(frozen=True, slots=True)
class Beside:
    """Each is None or empty where it wasn't asked for."""

    card: JudgeCard | None = None
    by_prompt: dict[str, Score] = field(default_factory=dict)
    """Prompt to the score of all episodes under it, the one that judges first."""
    ungraded_by_prompt: dict[str, int] = field(default_factory=dict)
    errata: Corrected | None = None
    corrected: tuple[EvalSummary, ...] = ()
    """Under the errata, a set each."""

    def to_json(self) -> dict[str, Any]:
        """Keys of summary.json."""
        told: dict[str, Any] = {}
        if self.card is not None:
            scores = {name: {"mean": s.mean, "low": s.low, "high": s.high} for name, s in self.by_prompt.items()}
            told["judge"] = {"card": self.card.to_json(), "scores": scores, "ungraded": self.ungraded_by_prompt}
        if self.errata is not None:
            told["errata"] = self.errata.to_json()
            told["corrected"] = [summary.to_json() for summary in self.corrected]
        return told

    @property
    def told(self) -> list[str]:
        """Footnotes of a table."""
        lines = list(self.card.told) if self.card is not None else []
        if self.by_prompt:
            scores = ", ".join(f"{name} {_percent(score)}{self._left(name)}" for name, score in self.by_prompt.items())
            lines.append(f"  score by prompt: {scores}")
        if self.errata is not None:
            lines += self.errata.told
            for each in self.corrected:
                of = self.errata.episodes(each.name)
                lines.append(f"  {each.name}: {_percent(each.accuracy)} corrected, over {each.graded} of {of}")
        return lines

    def _left(self, prompt: str) -> str:
        count = self.ungraded_by_prompt.get(prompt, 0)
        return f" ({count} ungraded)" if count else ""


async def beside(
    samples: Sequence[Sample],
    config: RewardConfig,
    folder: Path | None,
    *,
    problems: Problems | None = None,
    errata: Errata | None = None,
) -> Beside:
    """What is to be said beside `samples`, which `config` graded.

    `problems`: those that were played, where they are at hand; `folder`: where verdicts and the card are kept.
    """
    card, scores, ungraded = None, dict[str, Score](), dict[str, int]()
    if config.judge is not None and config.judge.card:
        card = await card_of(config.judge, folder)
        for prompt in dict.fromkeys((config.judge.prompt, *PROMPTS)):
            graded = list(samples)
            if prompt != config.judge.prompt:
                graded = await regraded(samples, _under(config, prompt), folder, problems)
            name = prompt_name(prompt)
            scores[name] = accuracy_of(graded)
            ungraded[name] = sum(sample.value is None for sample in graded)
    corrected: tuple[EvalSummary, ...] = ()
    fixed = None
    if errata is not None:
        fixed = errata.corrected(samples)
        anew = await regraded(fixed.stale, config, folder) if fixed.stale else []
        corrected = summaries_by_set([*fixed.kept, *anew])
    return Beside(card, scores, ungraded, fixed, corrected)


def errata_for(config: RunConfig) -> Errata | None:
    """The overlay that an evaluation names, before anything is played. Raises ConfigError or DataError."""
    path = config.evaluation.errata
    if path is None:
        return None
    check_regradable(config.reward)
    return read_errata(Path(path))


def _under(config: RewardConfig, prompt: str) -> RewardConfig:
    assert config.judge is not None
    return config.model_copy(update={"judge": config.judge.model_copy(update={"prompt": prompt})})


def _percent(score: Score) -> str:
    return "–" if score.mean is None else f"{100 * score.mean:.1f}"
