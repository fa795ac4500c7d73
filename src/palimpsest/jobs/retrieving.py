"""Search over a corpus as a service."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.engines.open import open_encoder
from palimpsest.errors import ConfigError, nearest
from palimpsest.progress.progress import Progress, Tick
from palimpsest.retrieval.bm25 import Bm25Index
from palimpsest.retrieval.dense import DenseIndex
from palimpsest.retrieval.search import check_token
from palimpsest.serve.http import bound, check_host
from palimpsest.serve.retrieval_server import RetrievalService, serve

BACKENDS = ("bm25", "dense")


@dataclass(frozen=True, slots=True)
class Dense:
    """What the command line says of the dense backend."""

    encoder: str | None
    preset: str
    device: str
    changes: dict[str, Any]
    """Fields of `engines.embedded.encoder.Reading`; None keeps the preset's."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the service answers, and to whom."""

    host: str
    port: int
    token: str | None


def serve_corpus(
    corpus: Path,
    folder: Path | None,
    backend: str,
    dense: Dense,
    address: Address,
    *,
    progress: Progress,
    on_ready: Callable[[str], None],
) -> None:
    """Take the address, build or open the index, then serve; `on_ready` is told how many passages are where."""
    check_host(address.host, address.token)
    check_token(address.token, "--token")
    _check(backend, dense)
    with ExitStack() as stack:
        taken = stack.enter_context(bound(address.host, address.port))
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palimpsest-"))) / "index"
        index = Bm25Index.of_corpus(corpus, folder) if backend == "bm25" else _dense(corpus, folder, dense, progress)

        def ready(url: str) -> None:
            on_ready(f"{len(index)} passages at {url}/retrieve")

        serve(RetrievalService(index, token=address.token), taken, ready)


def _check(backend: str, dense: Dense) -> None:
    if backend not in BACKENDS:
        raise ConfigError(f"--backend {backend}: choose {' or '.join(BACKENDS)}{nearest(backend, BACKENDS)}")
    if backend == "dense" and not dense.encoder:
        raise ConfigError("--backend dense: name the encoder with --encoder FOLDER or a hub id")
    if backend == "bm25" and dense.encoder:
        raise ConfigError(f"--encoder {dense.encoder}: used with --backend dense only")
    if dense.changes["pooling"] not in (None, "mean", "first"):
        raise ConfigError(f"--pooling {dense.changes['pooling']}: choose mean or first")


def _dense(corpus: Path, folder: Path, dense: Dense, progress: Progress) -> DenseIndex:
    assert dense.encoder
    encoder = open_encoder(dense.encoder, dense.preset, dense.changes, device=dense.device)
    with ExitStack() as stack:
        ticks: list[Tick] = []
        before = 0

        def on_progress(done: int, total: int) -> None:
            nonlocal before
            if not ticks:
                ticks.append(stack.enter_context(progress.count("passages encoded", total)))
            ticks[0](done - before)
            before = done

        return DenseIndex.of_corpus(corpus, folder, encoder, on_progress=on_progress)
