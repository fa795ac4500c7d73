"""`palimpsest data build` and `data combine`: long contexts and problems of several questions."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.dataset_builder import Contexts, build_contexts, make_objectives
from palimpsest.app.datasets.question_splits import Filters, read_splits
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.data.set_manifest import MANIFEST
from palimpsest.errors import ConfigError, DataError, RunError
from support.command import Run
from support.endpoint_server import Server, endpoint_server
from support.evaluations import sample, write_evaluation


def answer_of(number: int) -> str:
    return "yes" if number % 10 == 0 else f"answer {number}"


def questions(path: Path, count: int = 60, *, name: str = "q", shared: int = 0) -> Path:
    """HotpotQA rows; `shared` consecutive questions have one gold paragraph in common."""
    rows = []
    for i in range(count):
        common = f"{name} common {i // shared}" if shared else f"{name}{i} 1"
        rows.append(
            {
                "_id": f"{name}{i}",
                "question": f"Who is {name} {i}?",
                "answer": answer_of(i),
                "type": "comparison" if i % 4 == 0 else "bridge",
                "level": "hard",
                "supporting_facts": [[f"{name}{i} 3", 0], [common, 0]],
                "context": [
                    *([f"{name}{i} {j}", [f"Text {j} of {name} {i}."]] for j in range(10) if j != 1),
                    [common, ["Common."]],
                ],
            }
        )
    path.write_text(json.dumps(rows))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def gold(path: Path) -> dict[str, set[str]]:
    """Gold paragraphs of each row of an official file, from the published description."""
    golds = {}
    for row in json.loads(path.read_text()):
        titles = {title for title, _ in row["supporting_facts"]}
        golds[row["_id"]] = {f"{title}\n{''.join(text)}" for title, text in row["context"] if title in titles}
    return golds


def documents(context: str) -> list[str]:
    return re.split(r"(?:^|\n\n)Document \d+:\n", context)[1:]


def test_every_context_contains_its_gold_paragraphs(tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json")
    built = build_contexts([source], Contexts((12, 100), seed=1), out=tmp_path / "set")
    assert built.problems == {"eval_12.jsonl": 60, "eval_100.jsonl": 60}
    golds = gold(source)
    for size in (12, 100):
        for problem in read_problems(tmp_path / "set" / f"eval_{size}.jsonl"):
            texts = documents(problem.context or "")
            assert len(texts) == len(set(texts)) == size == problem.metadata["num_docs"]
            assert {texts[at - 1] for at in problem.metadata["evidence_positions"]} == golds[problem.id]
            assert set(problem.metadata["evidence"]) == golds[problem.id]


def chi_square(counts: Counter[int], cells: int) -> float:
    expected = counts.total() / cells
    return sum((counts[cell] - expected) ** 2 / expected for cell in range(cells))


def test_evidence_positions_are_uniform_over_2000_contexts(tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json", 2000)
    build_contexts([source], Contexts((50,), seed=5), out=tmp_path / "set")
    positions = [row["metadata"]["evidence_positions"] for row in rows(tmp_path / "set" / "eval_50.jsonl")]
    assert len(positions) == 2000
    for piece in (0, 1):
        assert chi_square(Counter((at[piece] - 1) // 5 for at in positions), 10) < 33.7  # once in 10,000
    gaps = Counter((a[0] - b[1]) % 50 // 5 for a, b in zip(positions[::2], positions[1::2], strict=True))
    assert chi_square(gaps, 10) < 33.7


@pytest.mark.parametrize("disjoint", [False, True])
def test_splits_share_no_question_and_optionally_no_gold_document(disjoint: bool, tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json", 90, shared=3)
    contexts = Contexts((12,), splits=read_splits("train=rest,dev=0.1,test=10"), disjoint_gold=disjoint)
    built = build_contexts([source], contexts, out=tmp_path / "set")
    assert (built.problems["test_12.jsonl"], built.problems["dev_12.jsonl"]) == (10, 9)
    ids = {
        name: {row["id"] for row in rows(tmp_path / "set" / f"{name}_12.jsonl")} for name in ("train", "dev", "test")
    }
    assert len(set.union(*ids.values())) == sum(map(len, ids.values())) == 90 - sum(built.left_out.values())
    golds = gold(source)
    used = {name: {text for id in ids[name] for text in golds[id]} for name in ids}
    shared = (used["train"] & used["dev"]) | (used["train"] & used["test"]) | (used["dev"] & used["test"])
    assert (bool(built.left_out), bool(shared)) == (disjoint, not disjoint)


@pytest.mark.parametrize("disjoint", [False, True])
def test_contexts_omit_gold_documents_of_other_splits(tmp_path: Path, disjoint: bool) -> None:
    """Without the option, every document may be a distractor."""
    source, test = questions(tmp_path / "a.json", shared=3), questions(tmp_path / "t.json", 6, name="t")
    contexts = Contexts((60,), splits=read_splits("train=rest,dev=20"), disjoint_documents=disjoint)
    build_contexts([source], contexts, corpora=[test], exclude=[test], out=tmp_path / "set")
    golds, excluded = gold(source), set[str]().union(*gold(test).values())
    read = {name: list(read_problems(tmp_path / "set" / f"{name}_60.jsonl")) for name in ("train", "dev")}
    used = {name: set[str]().union(*(golds[problem.id] for problem in read[name])) for name in read}
    for name, other in (("train", "dev"), ("dev", "train")):
        texts = [documents(problem.context or "") for problem in read[name]]
        assert {len(context) for context in texts} == {60}
        assert bool(set[str]().union(*texts) & (used[other] | excluded)) is not disjoint


def test_questions_of_an_excluded_file_are_omitted_in_any_case(tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json", 20)
    excluded = [{"question": f"  who IS q {i}", "answers": ["x"], "context": "c"} for i in range(8)]
    exclude = tmp_path / "dev.jsonl"
    exclude.write_text("\n".join(json.dumps(row) for row in excluded))
    built = build_contexts([source, source], Contexts((12,)), exclude=[exclude], out=tmp_path / "set")
    assert {row["id"] for row in rows(tmp_path / "set" / "eval_12.jsonl")} == {f"q{i}" for i in range(8, 20)}
    assert built.left_out == {"excluded": 16, "asked before": 12}


def test_filters_leave_out_and_count(tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json", 40)
    filters = Filters({"type": frozenset({"bridge"})}, without_yes_no=True)
    built = build_contexts([source], Contexts((12,)), filters=filters, out=tmp_path / "set")
    assert built.left_out == {"another type": 10, "answered by yes or no": 2}
    with pytest.raises(DataError, match=r"no question remains \(another typ: 40\)"):
        build_contexts([source], Contexts((12,)), filters=Filters({"typ": frozenset({"b"})}), out=tmp_path / "none")


def test_gold_documents_have_the_requested_positions(tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json")
    build_contexts([source], Contexts((11, 101), positions=(0.9, 0.1)), out=tmp_path / "at")
    for size in (11, 101):
        at = {tuple(row["metadata"]["evidence_positions"]) for row in rows(tmp_path / "at" / f"eval_{size}.jsonl")}
        assert at == {(1 + round(0.9 * (size - 1)), 1 + round(0.1 * (size - 1)))}
    build_contexts([source], Contexts((12, 100), min_distance=0.5), out=tmp_path / "far")
    for size in (12, 100):
        pairs = [row["metadata"]["evidence_positions"] for row in rows(tmp_path / "far" / f"eval_{size}.jsonl")]
        assert all(abs(a - b) >= size // 2 for a, b in pairs)
    with pytest.raises(DataError, match=r"no question remains \(not 3 gold documents: 60\)"):
        build_contexts([source], Contexts((12,), positions=(0, 0.5, 1)), out=tmp_path / "none")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "up"}, "--order up"),
        ({"positions": (0.1, 1.5)}, "--positions"),
        ({"positions": (0.1, 0.2), "order": "reverse"}, "omit --order"),
        ({"min_distance": 2.5}, "--min-distance 2.5"),
        ({"min_distance": math.nan}, "--min-distance nan"),
        ({"documents": (), "order": "reverse"}, "need assembled contexts: set --documents too"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"documents": (10,)} | settings
    with pytest.raises(ConfigError, match=message):
        Contexts(**options)


def test_rows_without_a_number_of_documents_are_unchanged(tmp_path: Path) -> None:
    several = [{"question": "Who ran?", "answers": ["Ann"]}, {"question": "Where?", "answers": ["Rome", "Roma"]}]
    original: list[dict[str, Any]] = [
        {"id": "a", "question": "Who is it?", "answers": ["Bob"], "context": "It is Bob.", "metadata": {"kind": "x"}},
        {"id": "b", "questions": several, "context": "Ann ran in Rome.", "metadata": {"kind": "x"}, "memory": "Ann."},
    ]
    path, source = tmp_path / "mine.jsonl", questions(tmp_path / "a.json", 3)
    path.write_text(
        "\n".join(json.dumps(row) for row in [*original, original[0] | {"question": "No?", "metadata": {}}])
    )
    filters = Filters({"kind": frozenset({"x"})})
    built = build_contexts([path], Contexts(), filters=filters, out=tmp_path / "set")
    assert (built.problems, built.left_out) == ({"eval.jsonl": 2}, {"another kind": 1})
    added = {"metadata": {"kind": "x", "source": "mine.jsonl"}}
    assert sorted(rows(tmp_path / "set" / "eval.jsonl"), key=lambda row: row["id"]) == [row | added for row in original]
    build_contexts([source, path], Contexts(splits=read_splits("dev=2,test=rest")), out=tmp_path / "two")
    read = [p for name in ("dev", "test") for p in read_problems(tmp_path / "two" / f"{name}.jsonl")]
    assert {p.id: p.context for p in read if p.id[0] == "q"} == {p.id: p.context for p in read_problems(source)}
    assert len(read) == 6
    with pytest.raises(DataError, match=r"no question remains \(excluded: 3\)"):
        build_contexts([path], Contexts(), exclude=[tmp_path / "two" / "test.jsonl", path], out=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"--corpus .*: set --documents too"):
        build_contexts([path], Contexts(), corpora=[source], out=tmp_path / "none")


@pytest.mark.slow
def test_the_same_files_and_seed_give_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json", 30)
    other = questions(tmp_path / "b.json", 30, name="r")
    for hash_seed in ("0", "12345"):
        command = ["data", "build", str(source), str(other), "--documents", "20,60"]
        command += ["--split", "train=rest,test=10", "--disjoint-gold", "--seed", "7", "--out", f"set-{hash_seed}"]
        subprocess.run(
            [sys.executable, "-m", "palimpsest", *command],
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
        )
    first, second = (sorted((tmp_path / f"set-{seed}").iterdir()) for seed in ("0", "12345"))
    assert [path.name for path in first] == [path.name for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_manifest_names_files_by_their_hashes_licences_and_counts(tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json")
    built = build_contexts([source], Contexts((20,), seed=2), out=tmp_path / "set")
    manifest = json.loads((tmp_path / "set" / MANIFEST).read_text())
    sums = subprocess.run(
        ["sha256sum", *sorted(manifest["files"])], cwd=tmp_path / "set", check=True, capture_output=True, text=True
    ).stdout
    assert {line.split()[1]: line.split()[0] for line in sums.splitlines()} == {
        name: file["sha256"] for name, file in manifest["files"].items()
    }
    piped = subprocess.run(["sha256sum"], input=sums, check=True, capture_output=True, text=True).stdout
    assert manifest["edition"] == built.edition == piped.split()[0]
    assert manifest["files"]["eval_20.jsonl"]["problems"] == 60
    (row,) = manifest["sources"]
    assert (row["file"], row["format"], row["questions"]) == ("a.json", "hotpotqa", 60)
    assert "CC BY-SA 4.0" in row["licences"][0]
    assert str(tmp_path) not in (tmp_path / "set" / MANIFEST).read_text()


def test_a_nonempty_folder_is_refused_or_renamed(tmp_path: Path, palimpsest: Any, refused: Any) -> None:
    source, done = questions(tmp_path / "a.json", 12), tmp_path / "done.jsonl"
    command = ["data", "build", str(source), "--documents", "12", "--out", str(tmp_path / "set")]
    assert palimpsest(*command).returncode == 0
    assert "is not empty: use another --out, or --force" in refused(*command)
    assert "edition " in palimpsest(*command, "--force").stdout
    assert (tmp_path / "set.old-1" / MANIFEST).exists()
    with pytest.raises(DataError, match="needs 4990 distractors"):
        build_contexts([source], Contexts((5000,)), out=tmp_path / "none")
    with pytest.raises(RunError, match="is a file"):
        build_contexts([source], Contexts((12,)), out=source)
    done.write_text(json.dumps({"question": "Who?", "answers": ["x"], "context": "c"}))
    with pytest.raises(DataError, match="has no paragraphs"):
        build_contexts([done], Contexts((12,)), out=tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "done.jsonl", "set", "set.old-1"]


def test_contexts_are_built_from_the_published_files(real_data: Path, tmp_path: Path) -> None:
    sources = [real_data / "hotpotqa_train_100.json", real_data / "hotpotqa_dev_50.json"]
    contexts = Contexts((50, 200), seed=1, splits=read_splits("train=rest,test=30"), disjoint_gold=True)
    built = build_contexts(sources, contexts, corpora=[real_data / "2wiki_corpus_6119.json"], out=tmp_path / "set")
    assert sum(built.problems.values()) / 2 + sum(built.left_out.values()) == 150
    for problem in read_problems(tmp_path / "set" / "test_200.jsonl"):
        texts = set(documents(problem.context or ""))
        assert len(texts) == 200
        assert set(problem.metadata["evidence"]) <= texts


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_contexts_of_6400_documents_need_no_additional_memory(tmp_path: Path) -> None:
    """100 contexts of 6,400 documents of 600 characters are 357 MB of text."""
    text = "word " * 120
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(json.dumps({"title": f"t{i}", "text": f"{i} {text}"}) for i in range(7000)))
    source = questions(tmp_path / "a.json", 100)
    script = f"""
import re, sys
from pathlib import Path
from palimpsest.app.datasets.dataset_builder import Contexts, build_contexts
from palimpsest.data.formats.problem_files import read_problems
peak = lambda: int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
before = peak()
build_contexts([{str(source)!r}], Contexts((6400,)), corpora=[{str(corpus)!r}], out=Path(sys.argv[1]))
count = sum(len(p.context) > 3_000_000 for p in read_problems(sys.argv[1] + "/eval_6400.jsonl"))
print(count, peak() - before)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "set")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    count, grown = map(int, done.stdout.split())
    assert count == 100
    assert grown < 100
    assert (tmp_path / "set" / "eval_6400.jsonl").stat().st_size > 350_000_000


CLOSED: dict[str, Any] = {"policies": {"closed_book": {"name": "closed_book"}}}


def where_questions(path: Path, count: int = 6) -> Path:
    rows = [
        {
            "_id": f"q{i}",
            "question": f"Where is q{i}?",
            "answer": "Rome",
            "supporting_facts": [["T", 0]],
            "context": [["T", [f"Text of {i}."]], ["U", ["Other."]]],
        }
        for i in range(count)
    ]
    path.write_text(json.dumps(rows))
    return path


def test_answered_questions_are_omitted_and_counted(tmp_path: Path) -> None:
    """One right reply of several is enough; ungraded and unplayed where_questions stay."""
    source = where_questions(tmp_path / "a.json")
    samples = [
        sample("q0", 1.0),
        sample("q1", 0.0),
        sample("q1", 1.0, draw=1),
        sample("q2", 0.5),
        sample("q3", None),
        sample("other", 1.0, question="where is Q4"),
    ]
    folder = write_evaluation(tmp_path / "closed", samples, CLOSED)
    built = build_contexts([source], Contexts((2,)), answered=[folder], out=tmp_path / "set")
    assert built.left_out == {"answered without the document": 3}
    assert {problem.id for problem in read_problems(tmp_path / "set" / "eval_2.jsonl")} == {"q2", "q3", "q5"}
    manifest = json.loads((tmp_path / "set" / MANIFEST).read_text())
    assert [(row["file"], row["role"]) for row in manifest["sources"]] == [
        ("samples.jsonl", "answered"),
        ("a.json", "source"),
    ]


def test_the_closed_book_baseline_of_an_evaluation_counts(tmp_path: Path) -> None:
    baselines = [("q1", "closed book"), ("q2", "retrieval")]
    samples = [sample("q0", 1.0), *(sample(name, 1.0, player=player, baseline=True) for name, player in baselines)]
    folder = write_evaluation(tmp_path / "eval", samples, {"policies": {"overwrite": {"name": "overwrite"}}})
    build_contexts([where_questions(tmp_path / "a.json", 3)], Contexts(), answered=[folder], out=tmp_path / "set")
    assert {problem.id for problem in read_problems(tmp_path / "set" / "eval.jsonl")} == {"q0", "q2"}


def test_a_folder_without_closed_book_episodes_is_refused(tmp_path: Path) -> None:
    source = where_questions(tmp_path / "a.json")
    agent = write_evaluation(tmp_path / "agent", [sample("q0", 1.0)], {"policies": {"o": {"name": "overwrite"}}})
    for folder, message in ((tmp_path, "no finished evaluation"), (agent, "has no closed-book episodes")):
        with pytest.raises(DataError, match=rf"--drop-answered .*: {message}.*palimpsest eval --policy closed_book"):
            build_contexts([source], Contexts((2,)), answered=[folder], out=tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_the_commands_filter_a_file(palimpsest: Run, tiny_model_folder: Path, tmp_path: Path) -> None:
    source, out = where_questions(tmp_path / "a.json", 4), tmp_path / "closed"

    def knows_q1(request: dict[str, Any]) -> str:
        return "\\boxed{Rome}" if "Where is q1?" in json.dumps(request) else "\\boxed{nowhere}"

    with endpoint_server(Server(takes="chat", speak=knows_q1)) as server:
        endpoint = ("--base-url", server.url, "served", "--tokenizer", str(tiny_model_folder))
        done = palimpsest("eval", "--policy", "closed_book", *endpoint, "--data", str(source), "--out", str(out))
    assert done.returncode == 0, done.stderr
    options = (str(source), "--documents", "2", "--drop-answered", str(out))
    done = palimpsest("data", "build", *options, "--out", str(tmp_path / "set"))
    assert done.returncode == 0, done.stderr
    assert "omitted, answered without the document: 1" in done.stdout
    assert "eval_2.jsonl: 3 problems" in done.stdout


def test_problems_to_search_for_repeat_no_question(tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json", 12)
    made = make_objectives([source, source], (1, 2, 5), out=tmp_path / "set", seed=1)
    assert made.problems == {"objectives_1.jsonl": 12, "objectives_2.jsonl": 6, "objectives_5.jsonl": 2}
    for size in (2, 5):
        problems = list(read_problems(tmp_path / "set" / f"objectives_{size}.jsonl"))
        texts = [row["question"] for problem in problems for row in problem.metadata["objectives"]]
        assert len(texts) == len(set(texts)) == size * len(problems)
        for problem in problems:
            assert problem.context is None
            golds = json.loads(problem.answers[0])
            for row in problem.metadata["objectives"]:
                number = re.findall(r"\d+", row["question"])[0]
                assert golds[row["name"]] == answer_of(int(number))
                assert f"{row['name']}: Who is q {number}?" in problem.question


def test_one_document_contains_the_gold_of_every_question(tmp_path: Path, palimpsest: Any) -> None:
    source = questions(tmp_path / "a.json", 12)
    command = ["data", "combine", str(source), "--objectives", "3", "--documents", "30", "--problems", "4"]
    done = palimpsest(*command, "--out", str(tmp_path / "set"))
    assert done.returncode == 0, done.stderr
    problems = list(read_problems(tmp_path / "set" / "objectives_3.jsonl"))
    assert len(problems) == 4
    for problem in problems:
        texts = re.split(r"(?:^|\n\n)Document \d+:\n", problem.context or "")[1:]
        assert len(set(texts)) == 30
        assert len(problem.questions) == 3
        for question in problem.questions:
            number = re.findall(r"\d+", question.text)[0]
            assert question.answers == (answer_of(int(number)),)
            assert {f"q{number} 3\nText 3 of q {number}.", f"q{number} 1\nCommon."} <= set(texts)
        assert len(problem.metadata["evidence"]) == 6


def test_too_few_questions_are_refused(tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json", 12)
    with pytest.raises(DataError, match=r"12 questions make 4 problems of 3, not 5"):
        make_objectives([source], (3,), out=tmp_path / "set", count=5)
    with pytest.raises(DataError, match="12 questions make 0 problems of 13, not 1"):
        make_objectives([source], (13,), out=tmp_path / "set")
    made = tmp_path / "made"
    make_objectives([source], (2,), out=made)
    with pytest.raises(DataError, match="has several questions"):
        make_objectives([made / "objectives_2.jsonl"], (2,), out=tmp_path / "set")
    assert not (tmp_path / "set").exists()
