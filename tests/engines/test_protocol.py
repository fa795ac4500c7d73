"""Prompts that every sampler rejects."""

from __future__ import annotations

import pytest

from palimpsest.engines.protocol import check_prompt
from palimpsest.errors import PalimpsestError, PromptTooLong, SamplerError


@pytest.mark.parametrize(
    ("prompt", "budget", "error", "message"),
    [
        ((), 1, SamplerError, "empty prompt"),
        ((5,), 0, SamplerError, "max_tokens=0: "),
        ((5,) * 60, 5, PromptTooLong, r"exceed the window of 64 \(of 128, so\): shorten"),
        ((5, 100), 1, SamplerError, "outside the vocabulary of 100"),
        ((-1, 5), 1, SamplerError, "outside the vocabulary of 100"),
    ],
)
def test_prompts_that_cannot_be_completed_are_rejected(
    prompt: tuple[int, ...], budget: int, error: type[PalimpsestError], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_prompt(prompt, budget, vocab=100, max_context=64, reason="of 128, so")


def test_a_request_may_fill_the_window() -> None:
    check_prompt((99, 0, *(5,) * 58), 4, vocab=100, max_context=64)
