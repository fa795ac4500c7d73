"""Families of questions on real paragraphs: golds, evidence and splits, checked by reading the produced documents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from palimpsest.app.datasets.dataset_builder import Contexts, build_contexts, make_objectives
from palimpsest.app.datasets.wiki_questions import make_wiki_questions, read_tasks
from palimpsest.config.data import Task
from palimpsest.data.assemble import Placing
from palimpsest.data.formats.problem_files import format_of
from palimpsest.data.sources.file_source import FileSource
from palimpsest.data.synthetic.families import ASKS
from palimpsest.errors import ConfigError, DataError
from palimpsest.reward.answer_match import measure
from palimpsest.types import Problem
from support.command import Run
from support.facts import GOLDS
from support.statements import stated

TASKS: tuple[Task, ...] = get_args(Task)
FIRST, LAST = ("Ann", "Bo", "Cy", "Dora", "Eva"), ("Berg", "Dahl", "Ek", "Falk", "Holm", "Lind", "Moe", "Ness")
NAMES = [f"{first} {last}" for first in FIRST for last in LAST]
TRADES, STARS = ("singer", "painter", "novelist", "sculptor", "dancer"), ("Ada", "Ivo", "Uma")


def corpus(path: Path) -> Path:
    """40 people, three in four with a page that names films, and 40 films, each by one of the people."""
    rows = []
    for at, name in enumerate(NAMES):
        dates = f"{at % 28 + 1} May {1890 + at} – {at % 27 + 1} July {1960 + at}"
        trades = [*TRADES[at % 4 : at % 4 + at % 3], "film director" if at % 4 else "violinist"]
        rows.append({"title": name, "text": f"{name} ({dates}) was a Dutch {listed(trades)}."})
        film, stars = f"Harbour {at:02}", [f"{star} {FIRST[at % 5]}s{at // 5 * 'x'}on" for star in STARS[: 1 + at % 3]]
        text = f"{film} is a 1990 drama film directed by {name} and starring {listed(stars)}."
        rows.append({"title": f"{film} (film)", "text": f"{text} It was shot in the north of Norway."})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl")


@pytest.fixture(scope="module")
def families(source: Path) -> Path:
    out = source.parent / "families"
    make_wiki_questions([source], out=out, tasks=TASKS, held_out=12)
    return out


def problems(folder: Path, name: str, *, documents: int | None = None, order: Any = "any") -> list[Problem]:
    placing = Placing(order) if documents else Placing()
    return list(FileSource.open(folder / name, split="eval", documents=documents, placing=placing))


def check_golds(made: Sequence[Problem]) -> Counter[str]:
    """Compare all golds with those of a reader of the document. Returns the number of questions by family."""
    read = Counter[str]()
    for problem in made:
        task = problem.metadata["task"]
        for question in problem.by_question:
            text = question.question
            assert text.endswith(ASKS.get(task, "?"))
            statements = stated(problem.context or "", text.removesuffix(f" {ASKS.get(task, '')}"))
            assert len(statements) == (2 if task in ("updates", "contradiction") else 1), (text, statements)
            values = [value for values in statements for value in values]
            golds = GOLDS[task](values) if task in GOLDS else values
            assert (sorted(question.answers) if task == "list" else list(question.answers)) == golds, text
            read[task] += 1
    return read


@pytest.mark.parametrize(("documents", "order"), [(None, "any"), (4, "any"), (4, "reverse"), (16, "reverse")])
def test_golds_of_all_families_agree_with_a_reader(families: Path, documents: int | None, order: str) -> None:
    for name in ("train.jsonl", "dev.jsonl"):
        read = check_golds(problems(families, name, documents=documents, order=order))
        assert read.keys() == set(TASKS)
        assert read["contradiction"] > 3


def test_real_paragraphs_give_golds_that_a_reader_confirms(real_data: Path, tmp_path: Path) -> None:
    for files, tasks in (
        (["2wiki_corpus_6119.json"], TASKS[1:]),
        (["hotpotqa_train_100.json", "hotpotqa_dev_50.json"], [task for task in TASKS[1:] if task != "two_hops"]),
    ):
        sources = [real_data / file for file in files]
        make_wiki_questions(sources, out=tmp_path / files[0], tasks=tasks, held_out=40)
        read = sum(
            (check_golds(problems(tmp_path / files[0], f"{name}.jsonl")) for name in ("train", "dev")), Counter()
        )
        assert read.keys() == set(tasks)
        assert min(read.values()) > 10


def test_evidence_is_in_the_document_and_named_as_in_hotpotqa(families: Path) -> None:
    for one in problems(families, "train.jsonl", documents=8):
        task, context = one.metadata["task"], one.context or ""
        sentences = one.metadata["supporting_sentences"]
        assert all(sentence in context for sentence in sentences)
        pieces = {"two_hops": 2, "updates": 2, "contradiction": 2, "several": len(one.questions)}.get(task, 1)
        assert len(sentences) == pieces
        assert len(one.metadata["evidence"]) == (1 if task == "updates" else pieces)  # the outdated one is none
        assert one.metadata["num_docs"] == 8
        assert one.metadata.get("every_gold", False) == (task == "list")
        if task == "updates":
            assert one.answers[0] in sentences[-1]
            assert sentences[-1] in one.metadata["evidence"][0]


def test_a_list_is_graded_as_a_whole(families: Path) -> None:
    one = next(one for one in problems(families, "train.jsonl") if one.metadata["task"] == "list")
    whole, part = (
        measure(f"\\boxed{{{', '.join(said)}}}", one.answers, one.grading) for said in (one.answers, one.answers[1:])
    )
    assert (whole["em"], part["em"]) == (1.0, 0.0)


def test_the_second_statement_is_declared_as_altered_or_as_a_copy(families: Path) -> None:
    seen = Counter[tuple[str, bool]]()
    for one in problems(families, "train.jsonl"):
        task, metadata = one.metadata["task"], one.metadata
        if task not in ("updates", "contradiction"):
            assert "added_sentence" not in metadata
            continue
        first, last = metadata["supporting_sentences"]
        assert metadata["added_sentence"] in (first, last)
        assert metadata["altered"] == (first != last) == (task == "updates" or one.answers == ("no",))
        seen[task, metadata["altered"]] += 1
    assert len(seen) == 3


def test_altered_paragraphs_are_no_distractors_of_other_problems(source: Path, families: Path, tmp_path: Path) -> None:
    make_wiki_questions([source], out=tmp_path / "wiki", tasks=("needle", "updates"), held_out=12)
    build_contexts([tmp_path / "wiki/train.jsonl"], Contexts((40,)), out=tmp_path / "built")
    made = [*problems(families, "train.jsonl", documents=40), *problems(tmp_path / "built", "eval_40.jsonl")]
    added = {one.metadata["added_sentence"] for one in made if one.metadata.get("altered")}
    for one in made:
        assert {text for text in added if text in (one.context or "")} <= {one.metadata.get("added_sentence")}


def test_no_page_is_asked_about_in_both_splits(families: Path) -> None:
    def subjects(name: str) -> set[str]:
        """Titles of the evidence, without the paragraphs that gained a sentence."""
        made = problems(families, name)
        pairs = [(one, title) for one in made for title in one.metadata["supporting_titles"]]
        return {title for one, title in pairs if title in one.metadata.get("added_sentence", title)}

    train, dev = subjects("train.jsonl"), subjects("dev.jsonl")
    assert train & dev == set()
    by = {f"Harbour {at:02}": name for at, name in enumerate(NAMES) if at % 4}  # "violinist": no page of a director
    assert all((film in dev) == (name in dev) for film, name in by.items())


def test_needles_alone_are_those_of_former_versions(source: Path, tmp_path: Path) -> None:
    made = make_wiki_questions([source], out=tmp_path / "needles", held_out=12, seed=3)
    assert made.edition == "986b67fcff7354e073fbbee8053ebd11a385efc806191fc67dbc72674c74e917"
    assert all("task" not in one.metadata for one in problems(tmp_path / "needles", "dev.jsonl"))


def test_one_seed_gives_the_same_bytes(source: Path, families: Path, tmp_path: Path) -> None:
    again = make_wiki_questions([source], out=tmp_path / "again", tasks=TASKS, held_out=12)
    assert json.loads((families / "manifest.json").read_text())["edition"] == again.edition
    counts = json.loads((families / "manifest.json").read_text())["files"]["dev.jsonl"]["tasks"]
    assert counts == Counter(one.metadata["task"] for one in problems(families, "dev.jsonl"))


def test_problems_of_several_questions_may_come_first(source: Path, tmp_path: Path) -> None:
    make_wiki_questions([source], out=tmp_path / "several", tasks=("several",), held_out=12)
    assert format_of(tmp_path / "several/train.jsonl").name == "hotpotqa"
    for one in problems(tmp_path / "several", "train.jsonl", documents=6):
        assert len(one.questions) in (2, 3)
        assert len(one.metadata["supporting_titles"]) == len(one.metadata["evidence"]) == len(one.questions)


def test_a_family_without_questions_is_named_with_the_fix(tmp_path: Path, source: Path) -> None:
    rows = source.read_text().splitlines()
    with pytest.raises(DataError, match=r"two_hops: 30 titles .* 90 are for evaluation; lower --held-out"):
        make_wiki_questions([source], out=tmp_path / "all", tasks=("two_hops",), held_out=90)
    (tmp_path / "films.jsonl").write_text("\n".join(row for row in rows if "Harbour" in row))
    message = r"family two_hops: the corpus gives 0 questions for training and 0 for evaluation.* omit two_hops"
    tasks: tuple[Task, ...] = ("needle", "two_hops")
    with pytest.raises(DataError, match=message):
        make_wiki_questions([tmp_path / "films.jsonl"], out=tmp_path / "films", tasks=tasks, held_out=9)
    (tmp_path / "few.jsonl").write_text("\n".join(row for row in rows if "violinist" in row))
    with pytest.raises(DataError, match=r"family count: too few paragraphs without .*violinist; add paragraphs"):
        make_wiki_questions([tmp_path / "few.jsonl"], out=tmp_path / "few", tasks=("count",), held_out=1)


def test_names_of_families_are_checked(palimpsest: Run, source: Path, tmp_path: Path) -> None:
    assert read_tasks("list,needle") == ("list", "needle")
    for text in ("lists", "list,list", ""):
        with pytest.raises(ConfigError, match=r"needle, two_hops, .*each once"):
            read_tasks(text)
    done = palimpsest(
        "data", "wiki", str(source), "--task", "list,count", "--held-out", "12", "--out", str(tmp_path / "set")
    )
    assert done.returncode == 0, done.stderr
    assert {one.metadata["task"] for one in problems(tmp_path / "set", "dev.jsonl")} == {"list", "count"}


def test_lists_and_updates_are_not_combined(source: Path, tmp_path: Path) -> None:
    make_wiki_questions([source], out=tmp_path / "lists", tasks=("updates",), held_out=12)
    with pytest.raises(DataError, match="can't be combined"):
        make_objectives([tmp_path / "lists/dev.jsonl"], [2], out=tmp_path / "combined", documents=20)
