"""GRU-Mem in one file: a gate that skips writing, a gate that stops reading, and a reward for both decisions.

    palimpsest check examples.gated:GatedPolicy
    palimpsest eval Qwen/Qwen3-4B --policy examples.gated:GatedPolicy --data hotpot_dev.json --documents 50
    palimpsest train memagent-quickstart policy.name=examples.gated:GatedPolicy policy.options.prompts=standard \
        policy.options.reply_tokens=64 credit.adv_estimator=state_mix 'reward.layers=[examples.gated:GateReward]'

Source: GRU-Mem, "When to Memorize and When to Stop" (arXiv 2602.10560). At step t the agent returns

    U_t, M^_t, E_t = model(question, C_t, M_{t-1})
    M_t = M^_t if U_t else M_{t-1};   E_t ends the reading, and the answer comes from M_t

The reply is <check>yes</check><update>the new memory</update><next>continue</next>, or without the update if the check
is no. A malformed reply leaves the memory unchanged. Form and reward are our reading of the paper. The bundled model
does not know these prompts, so it gets no reward: set model.path to an instruction model for a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar

from palimpsest.events import MemoryWritten, ReadingEnded, ReplyMalformed
from palimpsest.memory import overwrite
from palimpsest.memory.overwrite import Document, OverwritePolicy, ReadingPrompts
from palimpsest.memory.policy import Answered, Model
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import Cutter, Fault, find_tags, the_one
from palimpsest.text.sentences import flat
from palimpsest.types import Grade, Problem, Trajectory

GATES = {"check": ("no", "yes"), "next": ("continue", "end")}  # tag: (closed, open)

_TASK = """You are answering a problem about an article that is too long to read at once. You get the problem, one \
section of the article and the memory you have kept of the earlier sections. Reply in this form:

<check>yes or no</check><update>...</update><next>continue or end</next>

Check says whether the memory has to change. If yes, put the new memory between the update tags: what still matters \
of the old one and what the section adds. If no, leave the update out. Next says whether to read on, or to end \
because the memory holds all that the problem needs."""
_SECTION, _REST = "\n\nSection:\n{section}", "\n\nProblem: {question}\n\nMemory: {memory}"

STANDARD = replace(overwrite.STANDARD, read=_TASK + _REST + _SECTION, read_section_first=_TASK + _SECTION + _REST)


@dataclass(frozen=True, slots=True)
class Decision:
    memory: list[int] | None
    """None: closed update gate."""
    exit: bool


@dataclass(frozen=True, slots=True)
class GatedPolicy(OverwritePolicy):
    """Options of `overwrite`, and the budget of a reply; all lengths in tokens."""

    prompt_sets: ClassVar[Mapping[str, ReadingPrompts]] = {"standard": STANDARD}
    reply_tokens: int = 1088
    """Tokens of a whole reply, including tags."""

    @property
    def written_tokens(self) -> int:
        return self.reply_tokens

    @property
    def may_keep(self) -> bool:
        return True

    def required_context(self, codec: Codec) -> int:
        return OverwritePolicy.required_context(self, codec) + max(0, self.reply_tokens - self.memory_tokens)

    def reply(self, codec: Codec, memory: Sequence[int], query: Sequence[int] | None = None) -> list[int]:
        """Ids of a reply that writes `memory`, or skips if it is empty: an example for a cold start."""
        if not memory:
            return codec.encode("<check>no</check><next>continue</next>")
        return [*codec.encode("<check>yes</check><update>"), *memory, *codec.encode("</update><next>continue</next>")]

    async def read_document(self, problem: Problem, document: Document, model: Model) -> Answered:
        """Read until the exit gate opens or the document ends, then answer."""
        codec = model.codec
        read, _ = self.templates(codec)
        question, memory = codec.encode(problem.question), self.first_memory(problem, codec)
        chunks = self.document_chunks(document, model)
        for index, chunk in enumerate(chunks):
            completion = await self.read(index, chunks, {"question": question, "memory": memory}, read, model)
            decision = read_gates(completion.token_ids, codec, read.pieces[-1])
            if isinstance(decision, Fault):
                model.event(ReplyMalformed(decision.reason))
                decision = Decision(None, exit=False)
            else:
                model.event("gates", update=decision.memory is not None, exit=decision.exit)
            memory = self._kept(memory, decision.memory, chunk, model)
            if decision.exit:
                model.event(ReadingEnded(index, unread=len(chunks) - index - 1))
                break
        return await self.answer(problem, {"memory": memory}, model)

    def _kept(self, memory: list[int], written: list[int] | None, chunk: Sequence[int], model: Model) -> list[int]:
        """The memory after a turn; an event reports it to metrics and viewer."""
        kept = memory
        if written is not None:
            cut = len(written) > self.memory_tokens
            kept = self.sifted(memory, written[: self.memory_tokens], (chunk, memory), model, cut)
        model.event(MemoryWritten(tuple(kept), model.codec.decode(kept), changed=kept is not memory))
        return kept


def read_gates(ids: Sequence[int], codec: Codec, before: Sequence[int] = ()) -> Decision | Fault:
    """Both gates of a reply, and the memory it writes where the first is open."""
    cutter = Cutter.of(ids, codec, before)
    parts = find_tags(cutter.text, ("check", "update", "next"))
    if isinstance(parts, Fault):
        return parts
    opened = []
    for name, words in GATES.items():
        part = the_one(parts, name)
        if isinstance(part, Fault):
            return part
        if (said := part.text.strip().casefold()) not in words:
            return Fault(f"<{name}> says {said!r:.40}, not {' or '.join(words)}")
        opened.append(said == words[1])
    writes, ends = opened
    update = the_one(parts, "update") if writes else None
    if isinstance(update, Fault):
        return update
    return Decision(None if update is None else cutter.cut(*update.inner), ends)


@dataclass(frozen=True, slots=True)
class GateReward:
    """A layer: a point for writing exactly when the section contains evidence, one for ending after all evidence."""

    codec: Codec

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        evidence = {flat(str(text)) for text in problem.metadata.get("evidence", ())}
        if not evidence or not trajectory.turns:
            return grade
        decided = {event.before_turn - 1: event.detail for event in trajectory.events if event.kind == "gates"}
        missing, rewards = set(evidence), list[float]()
        for turn in trajectory.turns:
            section = flat(self.codec.decode(turn.piece("section") or ()))
            held = {text for text in evidence if text in section}
            missing -= held
            gates = decided.get(turn.step)
            rewards.append(float((gates["update"] == bool(held)) + (gates["exit"] == (not missing))) if gates else 0.0)
        return replace(grade, per_turn=tuple(rewards), breakdown={**grade.breakdown, "gates": fmean(rewards)})
