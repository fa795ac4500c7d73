"""Sections of a configuration: what an episode and its turns are worth."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from palimpsest.config.section import MAX_WAIT_S, MIN_REPLY_S, Strict
from palimpsest.plugin_kinds import KINDS, check_name

REWARDS = tuple(KINDS["reward"].shipped)
"""The shipped ones."""
LAYERS = ("state", "unsupported_penalty", "final_answer.constraint_penalty", "layers")
"""Keys that training alone reads: what it puts on top of the answer's grade, in this order."""


class StateRewardConfig(Strict):
    """Rewards of single turns: gain of the update, gain of the recall, format (ReMemR1, arXiv 2509.23040)."""

    update: float = 1.0
    """Weight of the gain in gold words from the memory before to the memory after."""
    callback: float = 1.0
    """Weight of what the recalled memory adds to memory and section."""
    format: float = 1.0
    """Weight of a reply that can be read."""
    variant: Literal["paper", "code"] = "paper"
    """paper: of several golds the best; whole words; an update compared with the memory before, a recalled memory with
    memory and section. code, as the authors' code computes it: the mean over golds; a word anywhere in the text, with
    case; an update compared with nothing, a recalled memory with the whole prompt."""
    action_reweight: bool = False
    """Multiply a reading turn's advantage by 0.5 + the share of gold words it had in sight."""


class FinalAnswerConfig(Strict):
    """The answer after `FINAL_ANSWER:`, to one question or to several (MemAct, arXiv 2510.12635)."""

    where: Literal["marked", "found"] = "marked"
    """Where an answer to one question stands: marked, after the last `FINAL_ANSWER:` alone; found, else in the last
    box, or after "the answer is", as other rewards have it: so a judge can grade any policy."""
    match: Literal["em", "f1", "sub_em", "judge"] = "em"
    """How an answer is compared with its golds; judge: by the model under reward.judge."""
    objectives: Literal["all", "each"] = "all"
    """Of several questions: all takes the worst answer's value, so that 1 is all right (the paper's training); each
    takes the mean (its evaluation)."""
    golds: Literal["any", "each"] = "any"
    """Of several golds: any, the best counts; each, the answer is worth the mean over them, as over the points of a
    rubric."""
    constraint_penalty: float = Field(0.0, ge=0)
    """Training only: an episode that ran out of turns or of context is worth minus this; the paper says 0.1, its code
    has 0."""
    invalid_golds: Literal["leave_out", "gold"] = "leave_out"
    """Questions whose published gold says that they are invalid: not counted, or compared with that text."""


def is_criteria_file(prompt: str) -> bool:
    """Whether a judge's prompt names a file.

    >>> is_criteria_file("my.txt"), is_criteria_file("strict"), is_criteria_file("correct: it says so. partial: a part")
    (True, False, False)
    """
    return prompt.endswith((".txt", ".md")) and "\n" not in prompt


class JudgeConfig(Strict):
    """A model behind an OpenAI-compatible endpoint that says whether an answer means the same as a gold."""

    url: str = Field(pattern=r"^https?://[^\s]+$")
    """What stands before /chat/completions, such as http://127.0.0.1:9527/v1."""
    model: str = Field(min_length=1)
    """Its name at the endpoint."""
    api_key_env: str | None = None
    """Environment variable that holds the key; the key itself has no place in a configuration."""
    prompt: str = Field("default", min_length=1)
    """What counts as right: default, lenient, strict, rubric (a gold is a point that an answer has to make), or a .txt
    or .md file of your own criteria, whose text a run keeps in its place."""
    partial: float = Field(0.0, ge=0, le=1)
    """What a partly correct answer is worth; the published reward knows none."""
    passes: int = Field(1, ge=1, le=16)
    """Verdicts asked for; the worst one counts (the paper's evaluation: 3)."""
    temperature: float | None = Field(0.0, ge=0)
    """null sends none, for models that refuse it."""
    max_tokens: int | None = Field(1024, ge=1)
    """Of a verdict, thinking included; null sends none."""
    answer_chars: int = Field(2000, ge=16)
    """Characters of an answer that the judge is shown, from its start."""
    timeout_s: float = Field(60.0, ge=MIN_REPLY_S, le=MAX_WAIT_S)
    """Of one attempt; four are made where the endpoint is down, busy or slow, with a pause between that doubles."""
    concurrency: int = Field(16, ge=1)
    """Requests under way at once."""

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: str) -> str:
        if prompt not in JUDGE_PROMPTS and not is_criteria_file(prompt) and len(prompt.split()) < 3:
            raise ValueError(f"no prompt; choose {', '.join(JUDGE_PROMPTS)} or a .txt or .md file of criteria")
        return prompt


JUDGE_PROMPTS = ("default", "lenient", "strict", "rubric")
"""Shipped criteria."""

JUDGE_OPERATION = frozenset({"url", "api_key_env", "timeout_s", "concurrency"})
"""Keys of JudgeConfig that say where and how a judge is reached; the others decide what its verdicts are."""


class LayerConfig(Strict):
    """A layer of the user's own; its name alone stands for it where it takes no options."""

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
    300-character window included; em, f1, sub_em: normalised, over the extracted answer; sub_em_reverse, the answer in
    the gold; sub_em_either, the published evaluation's symmetric rule; fraction: share of golds contained (multi-value
    tasks); string_match_all, string_match_part: RULER's, over the whole reply; final_answer: what follows
    `FINAL_ANSWER:`; my_module:my_reward: a function or class of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Those of a reward of your own."""
    layers: tuple[LayerConfig, ...] = ()
    """Training only: layers of your own over the shipped ones, in order: my_module:my_layer, or, with options,
    {name: my_module:MyLayer, options: {...}}."""
    unsupported_penalty: float = Field(0.0, ge=0)
    """Training only: a reward is multiplied by 1 less this many times (0 at the least) the share of sentences written
    into the memory that stand neither in the section nor in the memory before, so that it doesn't invent."""
    timeout_s: float | None = Field(600.0, gt=0)
    """Of a call of your own reward or layer: an episode that takes it longer is ungraded. null: no limit."""
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
    def rewards_turns(self) -> bool:
        """Whether single turns may get rewards of their own."""
        return self.state is not None or self.name not in REWARDS or bool(self.layers)

    @model_validator(mode="after")
    def _check_judge(self) -> RewardConfig:
        judged = self.name == "final_answer" and self.final_answer.match == "judge"
        if judged and self.judge is None:
            raise ValueError(
                "reward.final_answer.match=judge needs a judge: set reward.judge.url and reward.judge.model"
            )
        if self.judge is not None and not judged:
            raise ValueError(
                "reward.judge is read by reward.name=final_answer with reward.final_answer.match=judge alone: "
                "set these, or drop reward.judge"
            )
        if self.name != "final_answer" and self.final_answer != FinalAnswerConfig():
            raise ValueError(f"reward.final_answer has no meaning with reward.name={self.name}: set final_answer")
        return self
