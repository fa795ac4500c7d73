"""Batches of the shapes that agents with a memory leave behind, and the ways of training they are measured against.

Every figure of a shape (reuse, tokens) follows from its numbers, so that a reader can check it by hand. Axes: T tokens
of a segment.

The ways that the forest is measured against, written plainly.

`padded_gradient` is how the originals train: every segment a row of equal width, logits for every position.
`plain_gradient` is one row after another of its own length, logits where they are needed: as fast as rows that share
nothing get, and the independent computation for the gradient.

Axes: B rows, T tokens of a row, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch

from palimpsest.config.schema import LossConfig
from palimpsest.engines.losses import policy_loss
from palimpsest.engines.protocol import StepBatch, TrainSegment
from palimpsest.types import Segment

Piece = tuple[list[int], bool]  # token ids, whether they were sampled


def segment(
    pieces: Sequence[Piece], advantage: float = 1.0, weight: float = 1.0, logprobs: Sequence[float] | None = None
) -> TrainSegment:
    """[T] the pieces end to end; `logprobs` are the sampler's, of all sampled tokens.

    >>> segment([([5, 6], False), ([7], True)]).segment.loss_mask
    (False, False, True)
    """
    ids = tuple(i for ids, _ in pieces for i in ids)
    mask = tuple(sampled for ids, sampled in pieces for _ in ids)
    given = iter(logprobs) if logprobs is not None else repeat(-7.0)
    turns = tuple(0 if sampled else -1 for sampled in mask)
    size = len(ids)
    found = tuple(next(given) if sampled else 0.0 for sampled in mask)
    return TrainSegment(Segment(ids, mask, found, turns), (advantage,) * size, (weight,) * size)


class Shapes:
    """Draws batches; the same calls in the same order give the same tokens."""

    def __init__(self, vocab: int, seed: int = 0) -> None:
        self._draw, self._vocab = random.Random(seed), vocab

    def ids(self, count: int) -> list[int]:
        return [self._draw.randrange(self._vocab) for _ in range(count)]

    def own(self, context: int, sampled: int, rounds: int = 2) -> list[Piece]:
        """Tool results and sampled tokens in turn."""
        parts = [(self.ids(n // rounds), s) for _ in range(rounds) for n, s in ((context, False), (sampled, True))]
        return [part for part in parts if part[0]]

    def batch(self, rows: Sequence[Sequence[Piece]]) -> StepBatch:
        weight = 1.0 / max(1, sum(len(ids) for row in rows for ids, sampled in row if sampled))
        return StepBatch(tuple(segment(row, self._draw.choice((-1.0, 1.0)), weight) for row in rows))

    def memact(self, trajectories: int, prompt: int, segments: int, own: int, sampled: int) -> StepBatch:
        """Trajectories over one prompt; after each prune a segment begins anew from the prompt."""
        root: Piece = (self.ids(prompt), False)
        return self.batch([[root, *self.own(own - sampled, sampled)] for _ in range(trajectories * segments)])

    def reading(
        self, group: int, section: int, memory: int, response: int, question: int
    ) -> tuple[StepBatch, StepBatch]:
        """One read turn of a MemAgent group: the same turns with the memory first, and with the section first."""
        text, asked = (self.ids(section), False), (self.ids(question), False)
        turns = [((self.ids(memory), False), (self.ids(response), True)) for _ in range(group)]
        memory_first = self.batch([[asked, before, text, after] for before, after in turns])
        section_first = self.batch([[text, asked, before, after] for before, after in turns])
        return memory_first, section_first

    def chain(self, levels: int, segments: int, physical: int, reuse: float) -> StepBatch:
        """A trunk that is left at `levels` places by equally many segments, with the tokens and reuse asked for.

        With trunk P and own tokens O of R segments: P + R O physical tokens and R P (levels + 1) / (2 levels) + R O
        logical ones.
        """
        trunk = round((reuse - 1) * physical / (segments * (levels + 1) / (2 * levels) - 1))
        own = (physical - trunk) // segments
        pieces = [self.ids(trunk * (i + 1) // levels - trunk * i // levels) for i in range(levels)]
        rows = []
        for level in range(levels):
            shared: Piece = ([i for piece in pieces[: level + 1] for i in piece], False)
            rows += [[shared, *self.own(own // 2, own // 2)] for _ in range(segments // levels)]
        return self.batch(rows)

    def star(self, segments: int, prefix: int, own: int) -> StepBatch:
        """Segments over one prefix."""
        return self.memact(segments, prefix, 1, own, own // 2)

    def rows(self, count: int, length: int, sampled: int) -> StepBatch:
        """Segments that share nothing."""
        return self.batch([self.own(length - sampled, sampled) for _ in range(count)])

    def turns(self, count: int, prompt: tuple[int, int], sampled: tuple[int, int]) -> StepBatch:
        """Single turns that share nothing, prompts and completions of lengths between the bounds; all weigh alike."""
        rows = []
        for _ in range(count):
            lengths = self._draw.randint(*prompt), self._draw.randint(*sampled)
            pieces = [(self.ids(lengths[0]), False), (self.ids(lengths[1]), True)]
            rows.append(segment(pieces, self._draw.choice((-1.0, 1.0)), 1.0 / count))
        return StepBatch(tuple(rows))

    def tree(self, depth: int, branches: int = 2, longest: int = 12) -> StepBatch:
        """Random trees of up to `depth` levels whose inner tokens may be sampled as well."""
        rows: list[list[Piece]] = []

        def grow(path: list[Piece], left: int) -> None:
            piece: Piece = (self.ids(self._draw.randint(1, longest)), bool(path) and self._draw.random() < 0.6)
            grown = [*path, piece]
            if left == 1 or self._draw.random() < 0.15:
                rows.append([*grown, (self.ids(2), True)])
                return
            for _ in range(self._draw.randint(1, branches)):
                grow(grown, left - 1)

        for _ in range(2):
            grow([], depth)
        return self.batch(rows)


# ---- The ways that the forest is measured against, written plainly -------------------------------------------


def padded_gradient(
    model: Any, segments: Sequence[TrainSegment], width: int, micro_batch_tokens: int, loss: LossConfig | None = None
) -> float:
    """Loss, its gradient accumulated, from rows of `width` tokens and full logits; as many rows at once as fit."""
    rows = max(1, micro_batch_tokens // width)
    parts = [segments[begin : begin + rows] for begin in range(0, len(segments), rows)]
    return sum(_padded(model, part, width, loss or LossConfig()) for part in parts)


def _padded(model: Any, part: Sequence[TrainSegment], width: int, config: LossConfig) -> float:
    def column(values: Any, fill: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*v, *[fill] * (width - len(v))] for v in map(values, part)], dtype=dtype)

    ids = column(lambda item: item.segment.token_ids, 0, torch.long)
    mask = column(lambda item: item.segment.loss_mask, False, torch.bool)[:, 1:]
    attention = column(lambda item: [1] * len(item.segment.token_ids), 0, torch.long)
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
    every = logits.float().log_softmax(-1)
    entropy = -(every.detach().exp() * every.detach()).sum(-1)
    logprobs = every.gather(-1, ids[:, 1:, None])[..., 0]
    sampler = column(lambda item: item.segment.logprobs, 0.0, torch.float32)[:, 1:][mask]
    loss, _ = policy_loss(
        logprobs=logprobs[mask],
        old_logprobs=sampler,
        sampler_logprobs=sampler,
        advantages=column(lambda item: item.advantages, 0.0, torch.float32)[:, 1:][mask],
        weights=column(lambda item: item.weights, 0.0, torch.float32)[:, 1:][mask],
        ref_logprobs=None,
        entropy=entropy[mask],
        config=config,
    )
    loss.backward()
    return float(loss.detach())


def plain_gradient(model: Any, batch: StepBatch, loss: LossConfig | None = None) -> float:
    """Loss, its gradient accumulated, one segment at a time."""
    total, device = 0.0, model.get_input_embeddings().weight.device
    for item in batch.segments:
        ids = torch.tensor([item.segment.token_ids], device=device)
        chosen = torch.tensor(item.segment.loss_mask[1:], device=device)
        states = model.get_decoder()(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[0]
        logits = model.get_output_embeddings()(states[chosen])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logprobs = logits.log_softmax(-1).gather(-1, ids[0, 1:][chosen][:, None])[:, 0]
        sampler, advantages, weights = (
            torch.tensor(values[1:], dtype=logprobs.dtype, device=device)[chosen]
            for values in (item.segment.logprobs, item.advantages, item.weights)
        )
        value, _ = policy_loss(
            logprobs=logprobs,
            old_logprobs=sampler,
            sampler_logprobs=sampler,
            advantages=advantages,
            weights=weights,
            ref_logprobs=None,
            entropy=None,
            config=loss or LossConfig(),
        )
        value.backward()
        total += float(value.detach())
    return total
