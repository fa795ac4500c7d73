"""A script instead of a model: its recorded episodes teach a model the reply format of any policy.

    palimpsest eval embedded --policy examples.gated:GatedPolicy --chunks 2 --limit 300 --no-baselines ... \\
        engine.name=examples.scripted:Gates evaluation.record=all --out runs/script
    palimpsest sft memagent-quickstart --from runs/script --min-grade correct --out runs/warm

docs/how-to/warm-start.md has the whole commands. The script knows the form, not which fact about a person the question
needs, so it answers with one of them; `--min-grade correct` keeps the episodes in which that was right. For another
policy, derive from `ScriptedEngine` and write `reply`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from palimpsest import Codec, Completion, RunConfig, StopReason
from palimpsest.engines.protocol import CompletionDelta, Limits, Objective, SamplerStats
from palimpsest.types import SamplingParams

Ids = Sequence[int]
Deltas = AsyncIterator[CompletionDelta]


class ScriptedEngine:
    """An engine that only samples: the replies of `reply`."""

    version, max_context = 0, 32_768

    def __init__(self, config: RunConfig, *, objective: Objective | None = None) -> None:
        self.codec = Codec.load(config.model)
        self.limits = Limits(self.codec.vocab_size, self.max_context)
        self.sampler, self.learner = self, None

    def reply(self, prompt: str) -> str:
        """The reply to the text of a prompt."""
        raise NotImplementedError

    async def close(self) -> None: ...

    async def generate(self, prompt_ids: Ids, params: SamplingParams, *, session: str | None = None) -> Completion:
        text = self.reply(self.codec.decode(prompt_ids))
        ids = (*self.codec.encode_trusted(text), self.codec.stop_ids[0])[: params.max_tokens]
        stopped = ids[-1:] == self.codec.stop_ids[:1]
        return Completion(ids, (0.0,) * len(ids), StopReason.STOP if stopped else StopReason.LENGTH)

    async def stream(self, prompt_ids: Ids, params: SamplingParams, *, session: str | None = None) -> Deltas:
        done = await self.generate(prompt_ids, params, session=session)
        yield CompletionDelta(done.token_ids, done.logprobs)
        yield CompletionDelta(completion=done)

    async def score(self, prompt_ids: Ids, ids: Ids) -> tuple[float, ...]:
        return (0.0,) * len(ids)

    def stats(self) -> SamplerStats:
        return SamplerStats()


class Gates(ScriptedEngine):
    """`examples.gated` on synthetic documents: writes what a section says about the person in the question."""

    def reply(self, prompt: str) -> str:
        question, memory, section = (_after(prompt, *marks) for marks in MARKS)
        names = re.findall(r"\b[A-Z][a-z]+\b", question)[1:]  # without the first word
        if "Your answer:" in prompt:
            facts = re.findall(r"\w+(?=\.)", memory)
            return f"\\boxed{{{facts[-1] if facts else 'unknown'}}}"
        found = [fact for fact in re.findall(r"[A-Z]\w+[^.\n]*\.", section) if fact.split()[0] in names]
        new = [fact for fact in dict.fromkeys(found) if fact not in memory]
        kept = re.findall(r"[A-Z]\w+[^.\n]*\.", memory)
        update = f"yes</check><update> {' '.join([*kept, *new][-2:])}</update>" if new else "no</check>"
        return f"<check>{update}<next>continue</next>"


MARKS = (("Problem: ", "<problem>\n"), ("Memory: ", "<memory>\n"), ("Section:\n",))


def _after(prompt: str, *marks: str) -> str:
    at = max((prompt.rfind(mark) + len(mark) for mark in marks if mark in prompt), default=len(prompt))
    return prompt[at:].split("\n\n", 1)[0].split("\n</", 1)[0].split("<|im_end|>", 1)[0]
