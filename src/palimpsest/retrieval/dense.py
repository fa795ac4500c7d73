"""Dense retrieval over a static corpus: exact search by inner product, one vector per passage.

Vectors have length one, so a score is a cosine. numpy or, if installed (extra `dense`), faiss.IndexFlatIP proposes
passages. Their scores are then recomputed in float64 from the stored vectors, so that both rank alike.

Vectors are the encoder's, or existing ones: a .npy file (memory-mapped) or a flat FAISS index, row i for passage i.
They are accepted if rows and dimensions fit, every row has length one, and a few passages agree with the encoder.

Guaranteed: hits are ranked by score, then by corpus order; each hit is the caller's own copy; an index opens only with
its encoder; the folder format is that of retrieval/index_folder.py. Several threads may search.
Not covered: adding passages (build again); approximate search; more than SPARE passages with equal vectors at the end
of a ranking, where faiss and numpy may differ.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from palimpsest.config.install_hints import install_line
from palimpsest.data.formats.corpus import read_corpus, searched_text
from palimpsest.errors import ConfigError, DataError, first_line
from palimpsest.retrieval import index_folder
from palimpsest.retrieval.index_folder import PassageStore, top, written
from palimpsest.retrieval.search import Hit

faiss: Any = importlib.import_module("faiss") if find_spec("faiss") else None

KIND = "dense/1"
SPARE = 16
"""Candidates beyond topk, for products that are nearly equal in float32."""
BATCH = 64
"""Passages per encoder call."""

_VECTORS = "vectors.npy"
_QUERIES = 8  # scored together: bounds the memory of a batch to 8 N floats
Progress = Callable[[int, int], None]
"""Called with (encoded passages, all passages)."""


class Encoder(Protocol):
    """Text to vectors of length one."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """JSON object that determines the vectors: another identity needs another index."""

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> np.ndarray:
        """[B, D] float32."""


class DenseIndex:
    """An index folder, open for search with the encoder it was built with."""

    def __init__(
        self,
        folder: Path,
        encoder: Encoder,
        *,
        use_faiss: bool | None = None,
        made_of: Mapping[str, Any] | None = None,
    ) -> None:
        """`use_faiss` None: if installed. `made_of`: corpus and encoder, if known. Raises DataError, ConfigError."""
        built = index_folder.checked(folder, KIND, made_of)["made_of"]
        if built.get("encoder") != dict(encoder.identity):
            raise DataError(f"{folder}: built with the encoder {built.get('encoder')}; open it with that encoder")
        if use_faiss and faiss is None:
            raise ConfigError(f"faiss is not installed: {install_line('dense')}")
        self.folder, self._encoder = folder, encoder
        self._passages = PassageStore(folder)
        self._vectors_N_D = np.load(folder / _VECTORS, mmap_mode="r")
        self._one_at_a_time = threading.Lock()  # a tokenizer must not be used by two threads
        self._flat: Any = None
        if use_faiss or (use_faiss is None and faiss is not None):
            self._flat = faiss.IndexFlatIP(self._vectors_N_D.shape[1])
            self._flat.add(self._vectors_N_D)

    def __len__(self) -> int:
        return len(self._passages)

    @classmethod
    def of_corpus(
        cls,
        corpus: Path,
        folder: Path,
        encoder: Encoder,
        *,
        on_progress: Progress | None = None,
        use_faiss: bool | None = None,
        vectors: Path | None = None,
    ) -> DenseIndex:
        """The index of a corpus file in `folder`, built if missing, of existing `vectors` or of the encoder's. Raises
        DataError, ConfigError."""
        made_of = {"sha256": index_folder.sha256(corpus), "encoder": dict(encoder.identity)}

        def write(aside: Path) -> None:
            _write(read_corpus(corpus), aside, corpus, encoder, on_progress, vectors)

        return cls(index_folder.ensure(folder, KIND, made_of, write), encoder, use_faiss=use_faiss, made_of=made_of)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first."""
        if not queries or topk < 1:
            return [[] for _ in queries]
        with self._one_at_a_time:
            vectors_B_D = self._encoder.encode(queries, "query")
        near = [
            row for at in range(0, len(queries), _QUERIES) for row in self._near(vectors_B_D[at : at + _QUERIES], topk)
        ]
        return [self._hits(vector, places, topk) for vector, places in zip(vectors_B_D, near, strict=True)]

    def _near(self, vectors_B_D: np.ndarray, topk: int) -> list[np.ndarray]:
        """Numbers of topk + SPARE passages per vector, unordered."""
        count = min(topk + SPARE, len(self))
        if self._flat is not None:
            return list(self._flat.search(np.ascontiguousarray(vectors_B_D), count)[1])
        return [top(scores_N, count) for scores_N in vectors_B_D @ self._vectors_N_D.T]

    def _hits(self, vector_D: np.ndarray, places: np.ndarray, topk: int) -> list[Hit]:
        places = np.sort(places)
        scores = self._vectors_N_D[places].astype(np.float64) @ vector_D.astype(np.float64)
        return [Hit(self._passages[int(places[i])], float(scores[i])) for i in top(scores, topk)]


def _write(
    passages: Iterable[dict[str, Any]],
    folder: Path,
    source: Path,
    encoder: Encoder,
    on_progress: Progress | None,
    vectors: Path | None,
) -> None:
    for _ in written(passages, folder):
        pass
    read = PassageStore(folder)
    if not len(read):
        raise DataError(f"{source}: no passages to search")
    if vectors is not None:
        _copy(vectors, read, folder, encoder, on_progress)
        return
    order_N = np.argsort(read.sizes_N, kind="stable")  # batches of similar lengths need little padding
    vectors_N_D: np.memmap[Any, Any] | None = None
    for at in range(0, len(read), BATCH):
        places = order_N[at : at + BATCH]
        encoded = encoder.encode([searched_text(read[int(index)]) for index in places], "passage")
        if vectors_N_D is None:
            vectors_N_D = np.lib.format.open_memmap(
                folder / _VECTORS, mode="w+", dtype=np.float32, shape=(len(read), encoded.shape[1])
            )
        vectors_N_D[places] = encoded
        if on_progress:
            on_progress(min(at + BATCH, len(read)), len(read))
    assert vectors_N_D is not None
    vectors_N_D.flush()


# ---- Existing vectors ----------------------------------------------------------------------------------------


_ROWS = 16_384  # copied together
_LENGTH_ERROR = 0.01  # of a vector, as rounding to float16 leaves
_ALIKE = 0.9
"""Least cosine with the encoder's vector: another number format or truncation is above it, another passage below."""


def _copy(path: Path, passages: PassageStore, folder: Path, encoder: Encoder, on_progress: Progress | None) -> None:
    """Check the vectors in `path` and write them to the index, each scaled to length one."""
    (rows, dims), rows_of = _given(path)
    if rows != len(passages):
        raise DataError(f"--vectors {path}: {rows:,} rows for {len(passages):,} passages; use the corpus they are of")
    places = sorted({0, rows // 2, rows - 1})
    expected = encoder.encode([searched_text(passages[place]) for place in places], "passage")
    if dims != expected.shape[1]:
        raise DataError(f"--vectors {path}: {dims} dimensions, the encoder has {expected.shape[1]}; use its encoder")
    copied = np.lib.format.open_memmap(folder / _VECTORS, mode="w+", dtype=np.float32, shape=(rows, dims))
    for at in range(0, rows, _ROWS):
        block = rows_of(at, min(at + _ROWS, rows))
        lengths = np.linalg.norm(block, axis=1, keepdims=True)
        if wrong := np.flatnonzero(~(np.abs(lengths - 1) <= _LENGTH_ERROR)).tolist():  # NaN too
            raise DataError(f"--vectors {path}: row {at + wrong[0]} does not have length one; normalize the vectors")
        copied[at : at + len(block)] = block / lengths
        if on_progress:
            on_progress(at + len(block), rows)
    copied.flush()
    cosines = (copied[places] * expected).sum(axis=1)
    if cosines[worst := int(np.argmin(cosines))] < _ALIKE:
        raise DataError(
            f"--vectors {path}: row {places[worst]} has a cosine of {cosines[worst]:.2f} with its passage's vector: "
            "another encoder, prefix or order of passages; use theirs, or omit --vectors"
        )


def _given(path: Path) -> tuple[tuple[int, int], Callable[[int, int], np.ndarray]]:
    """[N, D] shape of the vectors in a file, and rows from a place to another in float32. Raises DataError,
    ConfigError."""
    if path.suffix != ".npy" and faiss is None:
        raise ConfigError(
            f"--vectors {path}: faiss is not installed, which reads other files than .npy: {install_line('dense')}"
        )
    try:
        if path.suffix == ".npy":
            array = np.lib.format.open_memmap(path, mode="r")  # np.load would open archives
            if array.ndim != 2 or array.dtype.kind != "f":
                raise ValueError(f"{array.dtype} of shape {array.shape} instead of rows of numbers")
            return array.shape, lambda at, end: np.asarray(array[at:end], dtype=np.float32)
        flat = faiss.read_index(str(path))
        if not isinstance(flat, faiss.IndexFlat):
            raise ValueError(f"a {type(flat).__name__}; only flat indexes have their vectors")
        return (flat.ntotal, flat.d), lambda at, end: flat.reconstruct_n(at, end - at)
    except (OSError, EOFError, ValueError, RuntimeError, MemoryError) as error:
        raise DataError(f"--vectors {path}: {first_line(error):.200}") from None
