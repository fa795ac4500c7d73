"""Which optimiser steps are taken, and what becomes of a run whose gradients are not finite.

Guaranteed: a step whose policy gradient is 0 for certain is not taken; a gradient that is not finite is told of the
first time, and `optim.max_skipped` of them in a row end the run with the reason.
Not covered: dropping such a gradient, which is the learner's own (`engines/protocol.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress

from palimpsest.config.schema import LossConfig
from palimpsest.engines.protocol import StepBatch, UpdateStats
from palimpsest.errors import RunError

_SHOWN = 3  # quantities that a message names


def moves(batch: StepBatch, loss: LossConfig) -> bool:
    """Whether an optimiser step on `batch` can have a gradient other than 0.

    The clipped policy gradient is 0 where every advantage is. Adam would move the weights all the same, by its momentum
    and by weight decay, so such a step is not taken. A KL or entropy term has a gradient of its own.
    """
    if loss.kl_coef > 0 or loss.entropy_coef != 0:
        return bool(batch.segments)
    return any(any(compress(row.advantages, row.segment.loss_mask)) for row in batch.segments)


@dataclass
class SkipWatch:
    """Counts optimiser steps in a row whose gradient was not finite, over rollout batches and resumes."""

    most: int
    """So many in a row end the run: `optim.max_skipped`."""
    warn: Callable[[str], None]
    in_a_row: int = 0
    """Kept in checkpoints."""
    _told: bool = field(default=False, init=False)

    def see(self, step: int, updates: Sequence[UpdateStats]) -> None:
        """Take in the optimiser steps of one rollout batch. Raises RunError, as it was before, after too many."""
        in_a_row = self.in_a_row
        for update in updates:
            in_a_row = in_a_row + 1 if update.skipped else 0
            if in_a_row >= self.most:
                raise RunError(
                    f"step {step}: {in_a_row} optimiser steps in a row had a gradient that is not finite "
                    f"(optim.max_skipped={self.most}; {reason(update)}), so nothing is learnt: lower "
                    "optim.learning_rate or set optim.max_grad_norm and begin anew, or raise optim.max_skipped"
                )
        self.in_a_row = in_a_row
        skipped = [update for update in updates if update.skipped]
        if skipped and not self._told:
            self._told = True
            self.warn(
                f"step {step}: the gradient of {len(skipped)} of {len(updates)} optimiser steps is not finite "
                f"({reason(skipped[0])}); they are left out, the weights stay as they were (said once; "
                f"optim/grad_skipped counts them, {self.most} in a row end the run)"
            )


def reason(update: UpdateStats) -> str:
    """Which of the numbers of a skipped step are not finite.

    >>> reason(UpdateStats(loss=math.nan, token_sums={"kl": math.inf, "ratio": 1.0}))
    'loss nan, kl inf'
    >>> reason(UpdateStats(loss=0.5))
    'the loss is 0.5, its gradient overflows'
    """
    numbers = {"loss": update.loss, **update.token_sums, **update.maxima}
    wrong = [f"{name.removesuffix('_sum')} {value}" for name, value in numbers.items() if not math.isfinite(value)]
    return ", ".join(wrong[:_SHOWN]) or f"the loss is {update.loss:.3g}, its gradient overflows"
