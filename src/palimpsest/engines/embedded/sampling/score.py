"""Log-probabilities of given tokens, by one forward of the model's own class.

Axes: T scored tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from palimpsest.engines.embedded.architecture import head_of
from palimpsest.engines.embedded.sampling.draw import log_probabilities

CHUNK = 512  # tokens whose [V] log-probabilities are in memory at once


@torch.inference_mode()
def score(model: Any, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
    """[T] nats of each of `ids` after the prompt and those before it, at temperature 1."""
    head, device = head_of(model), model.get_output_embeddings().weight.device
    sequence = torch.tensor([[*prompt_ids, *ids[:-1]]], device=device)
    hidden = model.get_decoder()(input_ids=sequence, use_cache=False).last_hidden_state[0, len(prompt_ids) - 1 :]
    targets = torch.tensor(ids, device=device)
    parts = [
        log_probabilities(head(states), 1.0).gather(1, wanted[:, None])[:, 0]
        for states, wanted in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True)
    ]
    return tuple(torch.cat(parts).tolist())
