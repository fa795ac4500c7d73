"""Errors where both the work and the closing after it fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from palimpsest.engines.open import using
from palimpsest.errors import EngineError, RunError, deciding, raised_at
from palimpsest.reward.grading import closing


class Opened:
    """An engine, or a grader, that closes with `error` if it has one."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.closed = error, 0

    async def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


async def work(error: Exception | None) -> str:
    if error is not None:
        raise error
    return "done"


Ways = Callable[[Opened, Awaitable[str]], Awaitable[str]]


@pytest.mark.parametrize("way", [using, closing])
def test_the_error_of_the_work_is_raised_and_that_of_closing_is_a_note_of_it(way: Ways) -> None:
    opened = Opened(RuntimeError("the connection is gone"))
    with pytest.raises(EngineError, match=r"^a rank was lost") as caught:
        asyncio.run(way(opened, work(EngineError("a rank was lost"))))  # type: ignore[arg-type]
    assert str(caught.value) == "a rank was lost"
    (note,) = caught.value.__notes__
    assert note.endswith("failed, too: RuntimeError: the connection is gone")
    assert opened.closed == 1


@pytest.mark.parametrize("way", [using, closing])
def test_an_error_of_closing_is_raised_after_successful_work(way: Ways) -> None:
    with pytest.raises(RunError, match="disk"):
        asyncio.run(way(Opened(RunError("disk")), work(None)))  # type: ignore[arg-type]
    assert asyncio.run(way(Opened(None), work(None))) == "done"  # type: ignore[arg-type]


def test_an_error_that_was_never_raised_has_the_place_of_its_group() -> None:
    with pytest.raises(ExceptionGroup) as several:
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    assert raised_at(deciding(several.value)).startswith(f"{__file__}:")
