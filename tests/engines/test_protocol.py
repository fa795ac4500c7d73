"""What every sampler refuses."""

from __future__ import annotations

import pytest

from palimpsest.engines.protocol import check_prompt
from palimpsest.errors import PalimpsestError, PromptTooLong, SamplerError


@pytest.mark.parametrize(
    ("prompt", "budget", "error", "told"),
    [
        ((), 1, SamplerError, "empty prompt"),
        ((5,), 0, SamplerError, "max_tokens=0: "),
        ((5,) * 60, 5, PromptTooLong, r"exceed the window of 64 \(of 128, so\): shorten"),
        ((5, 100), 1, SamplerError, "outside the vocabulary of 100"),
        ((-1, 5), 1, SamplerError, "outside the vocabulary of 100"),
    ],
)
def test_what_cannot_be_completed_is_refused(
    prompt: tuple[int, ...], budget: int, error: type[PalimpsestError], told: str
) -> None:
    with pytest.raises(error, match=told):
        check_prompt(prompt, budget, vocab=100, max_context=64, reason="of 128, so")


def test_what_fills_the_window_to_its_end_is_taken() -> None:
    check_prompt((99, 0, *(5,) * 58), 4, vocab=100, max_context=64)
