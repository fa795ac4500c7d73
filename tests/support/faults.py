"""File operations that fail at a chosen number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from palimpsest import files

OPERATIONS = ("write_file", "write_plain", "sync", "rename", "remove_tree")


class Crash(BaseException):
    """The process dies here."""


@contextmanager
def failing_at(operation: int, error: BaseException, *, part: float = 0.0) -> Iterator[list[str]]:
    """Raise `error` at the n-th file operation, a write after `part` of its bytes; yields the operations."""
    done: list[str] = []

    def shim(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if len(done) == operation:
                done.append(f"{name} failed")
                if name == "write_plain":
                    args[0].write_bytes(args[1][: int(len(args[1]) * part)])
                if name == "remove_tree" and part:
                    next(path for path in sorted(args[0].rglob("*")) if path.is_file()).unlink()
                raise error
            done.append(name)
            return real(*args)

        return call

    with ExitStack() as stack:
        for name in OPERATIONS:
            stack.enter_context(mock.patch.object(files, name, shim(name, getattr(files, name))))
        yield done
