"""BM25 over a corpus: readers, ranking against the formula, what a killed build leaves."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from palimpsest.data.formats.corpus import read_corpus
from palimpsest.errors import DataError
from palimpsest.retrieval import index_folder
from palimpsest.retrieval.search import Bm25Index, LocalSearch

SOURCE = Path(__file__).parents[2] / "src"
PASSAGES = [
    {"title": "Rome", "text": "Rome is the capital of Italy."},
    {"title": "Paris", "text": "Paris is the capital of France, the country."},
    {"title": "Tiber", "text": "The Tiber flows through Rome, Rome and again Rome."},
    {"title": "", "text": ""},
    {"title": "Twin", "text": "same words"},
    {"title": "Twin", "text": "same words"},
]


def write(path: Path, rows: list[dict[str, Any]], lines: bool = True) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(rows))
    return path


def by_the_formula(texts: list[str], query: str, k1: float = 1.5, b: float = 0.75) -> list[tuple[int, float]]:
    """(place, score) of every passage with a word of the query, from the definition of BM25 alone."""
    documents = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
    mean = sum(sum(d.values()) for d in documents) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            n = sum(word in d for d in documents)
            idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            tf = document[word]
            score += idf * tf / (tf + k1 * (1 - b + b * sum(document.values()) / mean))
        scores.append(score)
    return sorted(((i, s) for i, s in enumerate(scores) if s > 0), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("query", ["Rome", "the capital of Rome", "rome rome italy", "same", "country unknownword"])
def test_ranking_and_scores_are_those_of_the_formula(tmp_path: Path, query: str) -> None:
    index = Bm25Index.build([{"id": str(i), **p} for i, p in enumerate(PASSAGES)], tmp_path / "index")
    expected = by_the_formula([f"{p['title']}\n{p['text']}" for p in PASSAGES], query)
    for topk in (1, 2, 10):
        (hits,) = index.search([query], topk)
        assert [int(hit.document["id"]) for hit in hits] == [place for place, _ in expected[:topk]]
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected[:topk]], rel=1e-5)


@pytest.mark.parametrize("query", ["", "   ", "?!", "zebra", "\x00"])
def test_a_query_without_a_known_word_has_no_hits(tmp_path: Path, query: str) -> None:
    index = Bm25Index.build(PASSAGES, tmp_path / "index")
    assert index.search([query, "Rome"], 3)[0] == []
    assert len(index.search([query, "Rome"], 3)[1]) == 2


def test_equal_scores_stand_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    index = Bm25Index.build([{"id": i, "text": "alpha"} for i in range(50)], tmp_path / "index")
    assert [hit.document["id"] for hit in index.search(["alpha"], 20)[0]] == list(range(20))


def test_a_caller_can_do_what_it_likes_with_a_hit(tmp_path: Path) -> None:
    index = Bm25Index.build(PASSAGES, tmp_path / "index")
    index.search(["Tiber"], 1)[0][0].document.clear()
    assert index.search(["Tiber"], 1)[0][0].document["title"] == "Tiber"


async def test_search_in_this_process_needs_no_server(tmp_path: Path) -> None:
    search = LocalSearch(Bm25Index.build(PASSAGES, tmp_path / "index"))
    assert (await search.search(["Paris"], 1))[0][0].document["text"].startswith("Paris")


# ---- corpora -------------------------------------------------------------------------------------------------

QUESTION = {"question": "q?", "answer": "a"}
LAYOUTS: dict[str, Any] = {
    "passages": [{"id": 5, "title": "A", "text": "b", "url": "u"}, {"title": "C", "contents": "d"}],
    "hotpotqa": [
        QUESTION | {"context": [["A", ["b.", " c."]], ["D", ["e"]]]},
        QUESTION | {"context": {"title": ["D", "F"], "sentences": [["e"], ["g"]]}},
    ],
    "musique": [QUESTION | {"paragraphs": [{"title": "A", "paragraph_text": "b"}]}],
}
READ = {
    "passages": [{"id": 5, "title": "A", "text": "b", "url": "u"}, {"id": "1", "title": "C", "contents": "d"}],
    "hotpotqa": [
        {"id": "0", "title": "A", "text": "b. c."},
        {"id": "1", "title": "D", "text": "e"},
        {"id": "2", "title": "F", "text": "g"},
    ],
    "musique": [{"id": "0", "title": "A", "text": "b"}],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lines", [True, False])
def test_every_layout_is_read(tmp_path: Path, layout: str, lines: bool) -> None:
    assert list(read_corpus(write(tmp_path / "corpus", LAYOUTS[layout], lines))) == READ[layout]


def test_parquet_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "text": ["a", "b"], "title": ["t", None]}), tmp_path / "c.parquet")
    assert list(read_corpus(tmp_path / "c.parquet")) == [{"id": 1, "text": "a", "title": "t"}, {"id": 2, "text": "b"}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"title": "A", "txt": "b"}', r"line 1.*no 'text' or 'contents' \(there: title, txt\); rename"),
        ('{"text": 3}', "text must be a string, is int"),
        ('{"text": "a", "title": ["x"]}', "title must be a string, is list"),
        ('{"text": "a"}\n{"text": "b"', "line 2"),
        ("", "the file is empty"),
        ('{"text": "!!"}', "no passage has a word"),
        (None, "can't be read"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_named_in_one_line(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "corpus.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=said) as caught:
        Bm25Index.of_corpus(path, tmp_path / "index")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "index").exists()


# ---- the folder ----------------------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_index_is_built_once_and_anew_when_the_corpus_changes(tmp_path: Path) -> None:
    corpus, folder = write(tmp_path / "c.jsonl", PASSAGES), tmp_path / "index"
    first = Bm25Index.of_corpus(corpus, folder)
    inode = (folder / "manifest.json").stat().st_ino
    assert len(Bm25Index.of_corpus(corpus, folder)) == len(first) == len(PASSAGES)
    assert (folder / "manifest.json").stat().st_ino == inode
    write(corpus, PASSAGES[:2])
    assert len(Bm25Index.of_corpus(corpus, folder)) == 2
    assert first.search(["Tiber"], 1)[0][0].document["title"] == "Tiber"  # whoever has it open keeps it


def test_an_index_that_another_process_replaced_in_between_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, other = write(tmp_path / "c.jsonl", PASSAGES), write(tmp_path / "d.jsonl", PASSAGES[:2])
    ensure = index_folder.ensure

    def replaced(folder: Path, *rest: Any) -> Path:
        built = ensure(folder, *rest)
        monkeypatch.undo()
        Bm25Index.of_corpus(other, folder)
        return built

    monkeypatch.setattr(index_folder, "ensure", replaced)
    with pytest.raises(DataError, match="of another corpus there"):
        Bm25Index.of_corpus(corpus, tmp_path / "index")


def test_an_index_behind_a_symbolic_link_is_built_anew_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "index"
    link.symlink_to(tmp_path / "disk", target_is_directory=True)
    for count in (2, 3, 3):
        index = Bm25Index.of_corpus(write(tmp_path / "c.jsonl", PASSAGES[:count]), link)
        assert (len(index), len(Bm25Index.open(link))) == (count, count)
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".disk.lock", "c.jsonl", "disk", "index"]


def test_an_index_is_built_in_the_current_folder_if_that_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(tmp_path / "c.jsonl", PASSAGES)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert len(Bm25Index.of_corpus(corpus, Path())) == len(PASSAGES)
    assert len(Bm25Index.open(tmp_path / "here")) == len(PASSAGES)


def test_a_link_that_an_older_removal_left_behind_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / ".palimpsest-trash-index").symlink_to(tmp_path / "kept", target_is_directory=True)
    Bm25Index.of_corpus(write(tmp_path / "c.jsonl", PASSAGES), tmp_path / "index")
    assert (tmp_path / "kept" / "file").exists()
    assert not (tmp_path / ".palimpsest-trash-index").is_symlink()


def test_the_same_corpus_gives_the_same_bytes(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", PASSAGES)
    for name in ("a", "b"):
        Bm25Index.of_corpus(corpus, tmp_path / name)
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_a_folder_that_is_no_index_is_left_alone(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", PASSAGES)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    ways: tuple[Callable[[], Bm25Index], ...] = (
        lambda: Bm25Index.of_corpus(corpus, mine),
        lambda: Bm25Index.build(PASSAGES, mine),
    )
    for make in ways:
        with pytest.raises(DataError, match=r"not an index .*choose another folder"):
            make()
    assert snapshot(mine) == {"thesis.txt": b"years of work"}


@pytest.mark.parametrize(
    "changes",
    [{"files": []}, {"files": {}}, {"files": {"../a": "0"}}, {"files": {"a": 1}}, {"made_of": "x"}, {"kind": ["bm25"]}],
)
def test_a_manifest_of_another_shape_is_told_in_a_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    corpus = write(tmp_path / "c.jsonl", PASSAGES)
    Bm25Index.of_corpus(corpus, tmp_path / "index")
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))
    ways: tuple[Callable[[], Bm25Index], ...] = (
        lambda: Bm25Index.open(tmp_path / "index"),
        lambda: Bm25Index.of_corpus(corpus, tmp_path / "index"),
    )
    for way in ways:
        with pytest.raises(DataError, match=r"manifest\.json: damaged; delete the folder and build it again$"):
            way()


def test_a_changed_byte_is_found_in_any_file(tmp_path: Path) -> None:
    index = Bm25Index.build(PASSAGES, tmp_path / "index")
    for path in sorted(index.folder.iterdir()):
        if path.name == "manifest.json":
            continue
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(DataError, match=f"{path.name}: missing or changed"):
            Bm25Index.open(index.folder)
        path.write_bytes(good)
    Bm25Index.open(index.folder)


@pytest.mark.parametrize("older", [False, True])
def test_a_build_killed_anywhere_leaves_a_whole_index_or_none_and_starts_clean(tmp_path: Path, older: bool) -> None:
    """A process kills itself before its n-th file operation, for every n until the build comes through."""
    corpus, folder = write(tmp_path / "c.jsonl", PASSAGES[:2]), tmp_path / "index"
    code = (
        "import os, sys, signal\n"
        "from pathlib import Path\n"
        "from palimpsest import files\n"
        "from palimpsest.retrieval import search as bm25, index_folder as passages\n"
        "for n in range(100):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        left = [n]\n"
        "        def mortal(function):\n"
        "            def run(*a, **k):\n"
        "                if left[0] == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "                left[0] -= 1\n"
        "                return function(*a, **k)\n"
        "            return run\n"
        "        passages.np.save = mortal(passages.np.save)\n"
        "        files.sha256 = mortal(files.sha256)\n"
        "        files.sync = mortal(files.sync)\n"
        "        files.os.replace = mortal(os.replace)\n"
        "        files.shutil.rmtree = mortal(files.shutil.rmtree)\n"
        "        found = bm25.Bm25Index.of_corpus(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "        os._exit(0 if left[0] else 1)\n"
        "    _, status = os.waitpid(pid, 0)\n"
        "    if os.path.exists(sys.argv[2]):\n"
        "        bm25.Bm25Index.open(Path(sys.argv[2]))\n"
        "    if os.WIFEXITED(status):\n"
        "        assert os.WEXITSTATUS(status) in (0, 1), status\n"
        "        break\n"
        "print(n)\n"
    )
    if older:
        Bm25Index.of_corpus(corpus, folder)
        write(corpus, PASSAGES)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, str(corpus), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10  # it did die at several places
    assert len(Bm25Index.of_corpus(corpus, folder)) == (len(PASSAGES) if older else 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".index.lock", "c.jsonl", "index"]


def test_a_build_killed_while_it_reads_the_corpus_starts_clean(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    with corpus.open("w") as file:
        for i in range(60_000):
            file.write(json.dumps({"id": i, "text": f"word{i % 997} common number{i}"}) + "\n")
    code = (
        "import sys; from pathlib import Path; from palimpsest.retrieval.search import Bm25Index\n"
        "Bm25Index.of_corpus(*map(Path, sys.argv[1:]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", code, str(corpus), str(tmp_path / "index")], env=environment)
    aside = tmp_path / ".index.palimpsest-partial" / "passages.jsonl"
    deadline = time.monotonic() + 30
    while not (aside.exists() and aside.stat().st_size > 100_000):
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert aside.exists()
    assert not (tmp_path / "index").exists()
    index = Bm25Index.of_corpus(corpus, tmp_path / "index")
    assert index.search(["number4711"], 5)[0][0].document["id"] == 4711
    assert not aside.exists()


# ---- real passages -------------------------------------------------------------------------------------------


def test_the_titles_of_2wiki_find_their_passages(real_data: Path, tmp_path: Path) -> None:
    index = Bm25Index.of_corpus(real_data / "2wiki_corpus_6119.json", tmp_path / "index")
    titles = [p["title"] for p in json.loads((real_data / "2wiki_corpus_6119.json").read_text("utf-8"))]
    assert len(index) == len(titles) == 6119
    found = [
        title in {hit.document["title"] for hit in hits}
        for title, hits in zip(titles, index.search(titles, 10), strict=True)
    ]
    assert sum(found) / len(found) > 0.99  # some consist of words that many passages hold


@pytest.mark.parametrize("name", ["hotpotqa_train_100.json", "hotpotqa_dev_50.json"])
def test_the_paragraphs_of_hotpotqa_are_a_corpus(real_data: Path, name: str) -> None:
    rows = json.loads((real_data / name).read_text("utf-8"))
    wanted = set()
    for row in rows:
        context = row["context"]
        pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
        wanted |= {(title, "".join(sentences)) for title, sentences in pairs}
    found = [(p["title"], p["text"]) for p in read_corpus(real_data / name)]
    assert len(found) == len(wanted)
    assert set(found) == wanted
