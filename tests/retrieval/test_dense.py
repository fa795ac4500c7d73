"""Dense retrieval: ranking compared with all products, faiss with numpy, existing vectors with encoded ones."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from palimpsest.engines.embedded.encoder import TextEncoder, reading_of
from palimpsest.errors import ConfigError, DataError
from palimpsest.retrieval import dense
from palimpsest.retrieval.dense import DenseIndex
from support.command import Run
from support.models import bert_vector, save_bert
from support.records import save
from support.retrieval import process

WORDS = ("the", "capital", "of", "italy", "france", "is", "rome", "paris", "query", "passage", ":", "river")
TEXTS = ["rome is the capital of italy", "paris", "the river of france is the river of paris"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"), WORDS)


class Table:
    """Vectors of random text, the same for the same text; the last passages are all alike."""

    def __init__(self, name: str = "table") -> None:
        self.identity = {"name": name}

    def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        rows = [np.random.default_rng(sum(map(ord, text)) % 990).normal(size=8) for text in texts]
        return np.array([row / np.linalg.norm(row) for row in rows], dtype=np.float32)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return save(tmp_path / "c.jsonl", *({"id": i, "text": f"text {i * i}" * (i % 5 + 1)} for i in range(700)))


@pytest.mark.parametrize("use_faiss", [False, True])
def test_ranking_is_that_of_all_products_with_ties_in_order(corpus: Path, tmp_path: Path, use_faiss: bool) -> None:
    if use_faiss:
        pytest.importorskip("faiss")
    index = DenseIndex.of_corpus(corpus, tmp_path / "index", Table(), use_faiss=use_faiss)
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    passages = Table().encode(texts, "passage").astype(np.float64)
    queries = [f"question {i}" for i in range(20)]
    for topk in (1, 7):
        for query, hits in zip(queries, index.search(queries, topk), strict=True):
            products = passages @ Table().encode([query], "query")[0].astype(np.float64)
            expected = sorted(range(700), key=lambda i: (-round(products[i], 12), i))[:topk]
            assert [hit.document["id"] for hit in hits] == expected
            assert [hit.score for hit in hits] == pytest.approx([products[i] for i in expected], abs=1e-12)
    assert index.search([], 3) == []
    assert index.search(["x"], 0) == [[]]
    assert len(index.search(["x"], 9999)[0]) == 700


def test_the_index_is_built_once_for_an_encoder_and_rejected_with_another(corpus: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    folder = tmp_path / "index"
    for _ in range(2):
        DenseIndex.of_corpus(corpus, folder, Table(), on_progress=lambda *step: steps.append(step))
    assert steps[-1] == (700, 700)
    assert len(steps) == 11  # batches of 64, once
    with pytest.raises(DataError, match=r"built with the encoder .*'table'"):
        DenseIndex(folder, Table("other"))
    assert len(DenseIndex.of_corpus(corpus, folder, Table("other"))) == 700  # built again
    data = (folder / "vectors.npy").read_bytes()
    (folder / "vectors.npy").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DataError, match=r"vectors\.npy: missing or changed"):
        DenseIndex(folder, Table("other"))


def test_an_encoder_that_fails_midway_leaves_nothing(corpus: Path, tmp_path: Path) -> None:
    class Failing(Table):
        calls = 0

        def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
            self.calls += 1
            if self.calls == 4:
                raise RuntimeError("out of memory")
            return super().encode(texts, kind)

    with pytest.raises(RuntimeError, match="out of memory"):
        DenseIndex.of_corpus(corpus, tmp_path / "index", Failing())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".index.lock", "c.jsonl"]


def test_a_missing_faiss_is_rejected(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "faiss", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[dense\]'"):
        DenseIndex.of_corpus(corpus, tmp_path / "index", Table(), use_faiss=True)


# ---- existing vectors ----------------------------------------------------------------------------------------


def vectors_of(corpus: Path) -> np.ndarray:
    return Table().encode([json.loads(line)["text"] for line in corpus.read_text().splitlines()], "passage")


class Queries(Table):
    """Encodes queries, and only three of the passages."""

    def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        assert kind == "query" or len(texts) == 3
        return super().encode(texts, kind)


def hits_of(index: DenseIndex) -> list[list[tuple[int, float]]]:
    queries = [f"question {number}" for number in range(5)]
    return [[(hit.document["id"], hit.score) for hit in hits] for hits in index.search(queries, 7)]


@pytest.mark.parametrize("kind", ["float32", "float16", "faiss"])
def test_existing_vectors_rank_as_encoded_ones(corpus: Path, tmp_path: Path, kind: str) -> None:
    expected = hits_of(DenseIndex.of_corpus(corpus, tmp_path / "encoded", Table(), use_faiss=False))
    file = tmp_path / ("flat.index" if kind == "faiss" else "vectors.npy")
    if kind == "faiss":
        pytest.importorskip("faiss").write_index(flat_index(corpus), str(file))
    else:
        np.save(file, vectors_of(corpus).astype(kind))
    index = DenseIndex.of_corpus(corpus, tmp_path / "index", Queries(), vectors=file, use_faiss=False)
    outcome = hits_of(index)
    if kind == "float16":
        assert [[score for _, score in hits] for hits in outcome] == [
            pytest.approx([score for _, score in hits], abs=2e-3) for hits in expected
        ]
    else:
        assert [[position for position, _ in hits] for hits in outcome] == [
            [position for position, _ in hits] for hits in expected
        ]
    lengths = np.linalg.norm(np.load(tmp_path / "index" / "vectors.npy").astype(np.float64), axis=1)
    np.testing.assert_allclose(lengths, 1.0, atol=1e-6)
    DenseIndex.of_corpus(corpus, tmp_path / "index", Queries())  # opened, not built


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows[:-1], "699 rows for 700 passages"),
        (lambda rows: rows[:, :4], "4 dimensions, the encoder has 8"),
        (lambda rows: rows * 2, "row 0 does not have length one"),
        (lambda rows: np.where(np.arange(700)[:, None] == 690, np.nan, rows), "row 690 does not have length one"),
        (lambda rows: rows[::-1], "another encoder, prefix or order of passages"),
        (lambda rows: rows.ravel(), r"float32 of shape \(5600,\)"),
        (lambda rows: (rows * 100).astype(np.int32), "int32 of shape"),
        (lambda rows: np.array([{}], dtype=object), "Python objects in dtype"),
    ],
)
def test_wrong_vectors_are_rejected_and_leave_nothing(
    corpus: Path, tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    np.save(tmp_path / "vectors.npy", change(vectors_of(corpus)))
    with pytest.raises(DataError, match=reason):
        DenseIndex.of_corpus(corpus, tmp_path / "index", Queries(), vectors=tmp_path / "vectors.npy")
    assert not (tmp_path / "index").exists()


def rejected(corpus: Path, file: Path, data: bytes) -> bool:
    """True if these vectors are rejected in one line."""
    file.write_bytes(data)
    try:
        DenseIndex.of_corpus(corpus, file.parent / "index", Queries(), vectors=file)
    except DataError as error:
        return re.fullmatch(rf"--vectors {re.escape(str(file))}: .+", str(error)) is not None
    shutil.rmtree(file.parent / "index")
    return False


def flat_index(corpus: Path) -> Any:
    flat = pytest.importorskip("faiss").IndexFlatIP(8)
    flat.add(vectors_of(corpus))
    return flat


def test_damaged_files_of_vectors_are_rejected(corpus: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "archive.npz", vectors_of(corpus))
    archive = (tmp_path / "archive.npz").read_bytes()
    for data in (archive, archive[:100], b"PK\x03\x04" + bytes(50), b"\x93NUMPY", b""):
        assert rejected(corpus, tmp_path / "vectors.npy", data)


def test_damaged_indices_of_faiss_are_rejected(corpus: Path, tmp_path: Path) -> None:
    save(corpus, *({"id": i, "text": f"text {i}"} for i in range(40)))
    full = pytest.importorskip("faiss").serialize_index(flat_index(corpus)).tobytes()
    written = (b"\x7f", b"\x7f" * 7, (1 << 36).to_bytes(8, "little"))  # the last: a size beyond the memory
    damaged = [full[:at] + part + full[at + len(part) :] for at in range(0, 48, 3) for part in written]
    assert sum(rejected(corpus, tmp_path / "vectors.index", data) for data in damaged) > 16


def test_vector_files_need_faiss_and_a_flat_index(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faiss = pytest.importorskip("faiss")
    flat = faiss.IndexHNSWFlat(8, 4)
    flat.add(vectors_of(corpus))
    faiss.write_index(flat, str(tmp_path / "graph.index"))
    (tmp_path / "text.index").write_text("no index")
    reasons = {"graph": "IndexHNSWFlat; only flat", "text": "text.index: ", "missing": "missing.index: "}
    for name, reason in reasons.items():
        with pytest.raises(DataError, match=reason):
            DenseIndex.of_corpus(corpus, tmp_path / "index", Queries(), vectors=tmp_path / f"{name}.index")
    monkeypatch.setattr(dense, "faiss", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[dense\]'"):
        DenseIndex.of_corpus(corpus, tmp_path / "index", Queries(), vectors=tmp_path / "graph.index")


def test_the_command_builds_an_index_from_vectors(bert: Path, tmp_path: Path, palimpsest: Run) -> None:
    path = save(tmp_path / "c.jsonl", *({"id": str(i), "text": text} for i, text in enumerate(TEXTS)))
    vectors = [bert_vector(bert, WORDS, text, "mean") for text in TEXTS]
    np.save(tmp_path / "v.npy", np.array(vectors, dtype=np.float32))
    encoder = ("--backend", "dense", "--encoder", str(bert), "--max-tokens", "32", "--device", "cpu")
    words = ("retrieval", "index", str(path), "--vectors", str(tmp_path / "v.npy"), "--out", str(tmp_path / "index"))
    done = palimpsest(*words, *encoder)
    assert done.returncode == 0, done.stderr
    reading = reading_of(str(bert), max_tokens=32)
    index = DenseIndex(tmp_path / "index", TextEncoder(str(bert), reading, device="cpu"))
    assert [hits[0].document["id"] for hits in index.search(TEXTS, 1)] == ["0", "1", "2"]
    rejected = palimpsest(*words, "--backend", "bm25")
    assert rejected.returncode == 2
    assert "--vectors" in rejected.stderr


@pytest.mark.slow
def test_the_server_answers_from_a_dense_index(bert: Path, tmp_path: Path) -> None:
    path = save(tmp_path / "c.jsonl", *({"id": str(i), "text": text} for i, text in enumerate(TEXTS)))
    options = ("--backend", "dense", "--encoder", str(bert), "--max-tokens", "32", "--device", "cpu")
    with process(path, *options) as (url, _):
        body: dict[str, Any] = {"queries": TEXTS, "topk": 1, "return_scores": True}
        result = httpx2.post(f"{url}/retrieve", json=body, timeout=60).json()["result"]
    assert [hits[0]["document"]["id"] for hits in result] == ["0", "1", "2"]
    assert [hits[0]["score"] for hits in result] == pytest.approx([1.0] * 3, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--backend", "dense"), "name the encoder with --encoder"),
        (("--backend", "dens"), "did you mean dense"),
        (("--encoder", "x"), "used with --backend dense only"),
        (("--backend", "dense", "--encoder", "x", "--pooling", "max"), "--pooling max: choose mean or first"),
    ],
)
def test_conflicting_options_are_rejected(
    refused: Callable[..., str], corpus: Path, options: tuple[str, ...], reason: str
) -> None:
    assert reason in refused("retrieval", "serve", str(corpus), *options)
