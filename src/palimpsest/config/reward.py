"""Configuration sections for rewards of episodes and turns."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from palimpsest.config.section import MAX_WAIT_S, MIN_REPLY_S, Strict, check_name
from palimpsest.plugin_kinds import KINDS

REWARDS = tuple(KINDS["reward"].shipped)
"""The shipped rewards."""
LAYERS = (
    *("state", "unsupported_penalty", "truncated_penalty", "pass_bonus"),
    *("final_answer.constraint_penalty", "layers"),
)
"""Keys that only training reads: changes to the answer's grade, in this order."""


class StateRewardConfig(Strict):
    """Rewards of single turns: gain of the update, gain of the recall, format (ReMemR1, arXiv 2509.23040)."""

    update: float = 1.0
    """Weight of the gain in gold words from the memory before to the memory after."""
    callback: float = 1.0
    """Weight of the recalled memory's contribution beyond memory and section."""
    format: float = 1.0
    """Weight of a parseable reply."""
    variant: Literal["paper", "code"] = "paper"
    """paper: of several golds the best; whole words; an update compared with the memory before, a recalled memory with
    memory and section. code, as the authors' code computes it: the mean over golds; a word anywhere in the text, with
    case; an update compared with nothing, a recalled memory with the whole prompt."""
    action_reweight: bool = False
    """Multiply a reading turn's advantage by 0.5 + the share of gold words in its prompt."""


class FinalAnswerConfig(Strict):
    """The answer after `FINAL_ANSWER:`, to one question or to several (MemAct, arXiv 2510.12635)."""

    where: Literal["marked", "found"] = "marked"
    """Location of the answer to one question: marked, only after the last `FINAL_ANSWER:`; found, also in the last box
    or after "the answer is", as other rewards do, so that a judge can grade any policy."""
    match: Literal["em", "f1", "sub_em", "judge"] = "em"
    """How to compare an answer with its golds; judge: by the model under reward.judge."""
    objectives: Literal["all", "each"] = "all"
    """Grade of several questions: all uses the worst answer's value, so that 1 means all right (the paper's training);
    each uses the mean (its evaluation)."""
    golds: Literal["any", "each"] = "any"
    """Grade over several golds: any uses the best match; each uses the mean, as over the points of a rubric."""
    constraint_penalty: float = Field(0.0, ge=0)
    """Training only: penalty for an episode that ran out of turns or context; 0.1 in the paper, 0 in its code."""
    invalid_golds: Literal["leave_out", "gold"] = "leave_out"
    """Questions whose published gold calls them invalid: leave them out, or compare with that text."""


def is_criteria_file(prompt: str) -> bool:
    """Return whether a judge's prompt names a file.

    >>> is_criteria_file("my.txt"), is_criteria_file("strict"), is_criteria_file("correct: it says so. partial: a part")
    (True, False, False)
    """
    return prompt.endswith((".txt", ".md")) and "\n" not in prompt


class JudgeConfig(Strict):
    """A model behind an OpenAI-compatible endpoint that decides whether an answer means the same as a gold."""

    url: str = Field(pattern=r"^https?://[^\s]+$")
    """Base URL before /chat/completions, such as http://127.0.0.1:9527/v1."""
    model: str = Field(min_length=1)
    """Its name at the endpoint."""
    api_key_env: str | None = None
    """Environment variable that contains the key; a configuration must not contain the key."""
    prompt: str = Field("default", min_length=1)
    """Criteria for a right answer: default, lenient, strict, rubric (a gold is a point that an answer must make), or a
    .txt or .md file with your criteria, whose text the run stores."""
    partial: float = Field(0.0, ge=0, le=1)
    """Value of a partly correct answer; the published reward has no such grade."""
    passes: int = Field(1, ge=1, le=16)
    """Verdicts per answer; the worst one counts (the paper's evaluation: 3)."""
    temperature: float | None = Field(0.0, ge=0)
    """null sends none, for models that reject it."""
    max_tokens: int | None = Field(1024, ge=1)
    """Tokens of a verdict, thinking included; null sends none."""
    answer_chars: int = Field(2000, ge=16)
    """Characters from the answer's start that the judge reads."""
    timeout_s: float = Field(60.0, ge=MIN_REPLY_S, le=MAX_WAIT_S)
    """Seconds per attempt. A down, busy or slow endpoint gets four attempts with doubling pauses."""
    concurrency: int = Field(16, ge=1)
    """Concurrent requests."""

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: str) -> str:
        if prompt not in JUDGE_PROMPTS and not is_criteria_file(prompt) and len(prompt.split()) < 3:
            raise ValueError(f"unknown prompt; choose {', '.join(JUDGE_PROMPTS)} or a .txt or .md file of criteria")
        return prompt


JUDGE_PROMPTS = ("default", "lenient", "strict", "rubric")
"""Shipped criteria."""

JUDGE_OPERATION = frozenset({"url", "api_key_env", "timeout_s", "concurrency"})
"""Keys of JudgeConfig for reaching a judge; the others decide its verdicts."""


class LayerConfig(Strict):
    """A custom layer; without options its name is enough."""

    name: str
    """my_module:my_layer."""
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _check_plugin(cls, name: str) -> str:
        return check_name("layer", name)


class RewardConfig(Strict):
    name: str = "boxed"
    """boxed: last \\boxed{} of the answer compared with each gold; boxed_strict: exactly the original's comparison, its
    300-character window included; em, f1, sub_em: normalized, over the extracted answer; sub_em_reverse, the answer in
    the gold; sub_em_either, the published evaluation's symmetric rule; fraction: share of golds in the answer
    (multi-value tasks); string_match_all, string_match_part: RULER's, over the whole reply; final_answer: the text
    after `FINAL_ANSWER:`; my_module:my_reward: a custom function or class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a custom reward."""
    layers: tuple[LayerConfig, ...] = ()
    """Training only: custom layers over the shipped ones, in order: my_module:my_layer, or, with options, {name:
    my_module:MyLayer, options: {...}}."""
    unsupported_penalty: float = Field(0.0, ge=0)
    """Training only: penalty against hallucination. Multiplies a positive reward by max(0, 1 - this value x the share
    of new memory sentences found neither in the section nor in the previous memory)."""
    truncated_penalty: float = Field(0.0, ge=0, le=1)
    """Training only: multiplies a positive reward by 1 - this value if the answer exceeded its budget. 0 as published:
    a right box within a reply that never ends earns the full reward; 1: none."""
    pass_bonus: float = Field(0.0, ge=0)
    """Training only, for policy.name=parallel: a positive reward after k of at most K passes increases by this value x
    (K - k) / (K - 1) (PI-Mem: 0.2)."""
    timeout_s: float | None = Field(600.0, gt=0)
    """Seconds per call of a custom reward or layer; a slower episode is ungraded. null: no limit."""
    state: StateRewardConfig | None = None
    final_answer: FinalAnswerConfig = FinalAnswerConfig()
    judge: JudgeConfig | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return check_name("reward", name)

    @field_validator("layers", mode="before")
    @classmethod
    def _names_alone(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple({"name": layer} if isinstance(layer, str) else layer for layer in value)

    @property
    def needs_gold(self) -> bool:
        """Return whether it compares with golds; a custom reward says so itself, when it is built."""
        return self.name in REWARDS and self.name != "environment"

    @property
    def rewards_turns(self) -> bool:
        """Return whether single turns may get separate rewards."""
        return self.state is not None or self.name not in REWARDS or self.name == "environment" or bool(self.layers)

    @model_validator(mode="after")
    def _check_judge(self) -> RewardConfig:
        judged = self.name == "final_answer" and self.final_answer.match == "judge"
        if judged and self.judge is None:
            raise ValueError(
                "reward.final_answer.match=judge needs a judge: set reward.judge.url and reward.judge.model"
            )
        if self.judge is not None and not judged:
            raise ValueError(
                "reward.judge needs reward.name=final_answer with reward.final_answer.match=judge: set these, or drop "
                "reward.judge"
            )
        if self.name != "final_answer" and self.final_answer != FinalAnswerConfig():
            raise ValueError(f"reward.final_answer has no meaning with reward.name={self.name}: set final_answer")
        return self
