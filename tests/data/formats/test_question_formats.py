"""Layouts of questions with a text, with documents, with dated sessions or with nothing to read, by hand."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.data.assemble import Placing
from palimpsest.data.files.rows import Row
from palimpsest.data.formats.format_registry import recognise
from palimpsest.data.formats.problem_files import ReadOptions, read_problems, read_records
from palimpsest.data.formats.question_formats import LINE, pieces
from palimpsest.data.sources.file_source import FileSource
from palimpsest.errors import DataError
from palimpsest.report.dataset_summary import inspect_source
from palimpsest.types import Problem
from support.records import save

PARAGRAPHS: list[Any] = [
    ["Oslo", ["Oslo lies on a fjord.", " It is the capital of Norway."]],
    ["Bergen", ["Bergen is rainy."]],
    ["Norway", ["Norway has a king."]],
]
TEXTS = [title + "\n" + "".join(sentences) for title, sentences in PARAGRAPHS]
OFFICIAL: dict[str, Any] = {
    "_id": "q1",
    "question": "Who rules the country whose capital lies on a fjord?",
    "answer": "a king",
    "type": "bridge",
    "level": "hard",
    "context": PARAGRAPHS,
    "supporting_facts": [["Norway", 0], ["Oslo", 0], ["Oslo", 1]],
}
HUB = {("id" if key == "_id" else key): value for key, value in OFFICIAL.items()} | {
    "context": {"title": [t for t, _ in PARAGRAPHS], "sentences": [s for _, s in PARAGRAPHS]},
    "supporting_facts": {"title": ["Norway", "Oslo", "Oslo"], "sent_id": [0, 0, 1]},
}
STRUCTS = HUB | {"context": [{"title": t, "sentences": s} for t, s in PARAGRAPHS]}


@pytest.mark.parametrize("row", [OFFICIAL, HUB, STRUCTS], ids=["official", "hub", "structs"])
@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_hotpotqa_layouts_give_one_problem(read: Any, row: dict[str, Any], suffix: str) -> None:
    if row is OFFICIAL and suffix == ".parquet":
        pytest.skip("parquet has no lists of mixed types")
    (problem,) = read(row, name=f"a{suffix}")
    assert problem == Problem(
        id="q1",
        question="Who rules the country whose capital lies on a fjord?",
        answers=("a king",),
        context="Document 1:\n" + TEXTS[0] + "\n\nDocument 2:\n" + TEXTS[1] + "\n\nDocument 3:\n" + TEXTS[2],
        metadata={
            "type": "bridge",
            "level": "hard",
            "supporting_titles": ("Norway", "Oslo"),
            "supporting_sentences": ("Norway has a king.", "Oslo lies on a fjord.", "It is the capital of Norway."),
            "num_docs": 3,
            "evidence": (TEXTS[2], TEXTS[0]),
            "evidence_positions": (3, 1),
        },
    )


@pytest.mark.parametrize("as_text", [False, True], ids=["lists", "JSON texts"])
def test_2wiki_rows_read_as_hotpotqa(read: Any, as_text: bool) -> None:
    """Their sentences have no space before them; the hub's parquet has the lists as texts."""
    row = OFFICIAL | {"evidences": [["Norway", "capital", "Oslo"]], "answer_id": "Q1"}
    row["context"] = [[title, [sentence.strip() for sentence in sentences]] for title, sentences in PARAGRAPHS]
    del row["level"]
    if as_text:
        row = {key: json.dumps(value) if isinstance(value, list) else value for key, value in row.items()}
    (problem,) = read(row, name="a.parquet" if as_text else "a.json")
    assert (problem.answers, problem.metadata["evidence"]) == (("a king",), (TEXTS[2], TEXTS[0]))


def test_a_title_that_occurs_twice_makes_both_paragraphs_gold(tmp_path: Path) -> None:
    row = OFFICIAL | {"context": [*PARAGRAPHS, ["Oslo", ["A ship."]]]}
    (record,) = read_records(save(tmp_path / "a.json", row))
    assert record.gold == (TEXTS[2], TEXTS[0], "Oslo\nA ship.")


QA = {"id": "a", "question": "Who?", "answer": "Ann", "context": "Ann ran.", "metadata": {"page": 3}}
SQUAD = {
    "id": "s",
    "title": "Runs",
    "context": "Ann ran.",
    "question": "Who?",
    "answers": {"text": ["Ann", "Ann ran", "Ann"], "answer_start": [0, 0, 0]},
}
SQUAD_LISTED = SQUAD | {"answers": [{"text": text, "answer_start": 0} for text in ("Ann", "Ann ran", "Ann")]}
SQUAD_QUESTIONS = [
    {"id": "s", "question": "Who?", "is_impossible": False, "answers": SQUAD_LISTED["answers"]},
    {"id": "n", "question": "Where?", "is_impossible": True, "answers": []},
]
FLASHRAG = {"id": "test_0", "question": "Who?", "golden_answers": ["Ann", "Anna"], "metadata": {"hops": 2, "type": "x"}}
LINKS = ["https://en.wikipedia.org/wiki/Ann", "https://en.wikipedia.org/wiki/Schindler's_List"]
FRAMES = {"Prompt": "Who?", "Answer": "Ann", "reasoning_types": "Multiple constraints", "wiki_links": str(LINKS)}
LINKED = {"wiki_links": LINKS, "reasoning_types": "Multiple constraints"}
BROWSED = {
    "query_id": "769",
    "query": "Who ran?",
    "answer": "Ann",
    "gold_docs": [{"docid": "2", "text": "Ann ran."}],
    "evidence_docs": [{"docid": "1", "text": "Somebody ran."}, {"docid": "2", "text": "Ann ran."}],
    "negative_docs": [{"docid": "3", "text": "Bob sat."}],
}
DOCUMENTS = "Document 1:\nSomebody ran.\n\nDocument 2:\nAnn ran.\n\nDocument 3:\nBob sat."
EVIDENCE = {"num_docs": 3, "evidence": ("Somebody ran.", "Ann ran."), "evidence_positions": (1, 2)}
QUESTION = {"id": "q", "question": "Who?"}


@pytest.mark.parametrize(
    ("format", "row", "problem"),
    [
        ("qa", QA, Problem("a", "Who?", ("Ann",), "Ann ran.", {"page": 3})),
        ("squad", SQUAD, Problem("s", "Who?", ("Ann", "Ann ran"), "Ann ran.", {"title": "Runs"})),
        ("squad", SQUAD_LISTED, Problem("s", "Who?", ("Ann", "Ann ran"), "Ann ran.", {"title": "Runs"})),
        ("flashrag", FLASHRAG, Problem("test_0", "Who?", ("Ann", "Anna"), None, {"hops": 2, "type": "x"})),
        ("frames", FRAMES, Problem("f-0", "Who?", ("Ann",), None, LINKED)),
        ("bamboogle", {"Question": "Who?", "Answer": "Ann"}, Problem("f-0", "Who?", ("Ann",))),
        ("browsecomp_plus", BROWSED, Problem("769", "Who ran?", ("Ann",), DOCUMENTS, EVIDENCE)),
        ("question", QUESTION, Problem("q", "Who?", ())),
    ],
)
def test_a_row_of_each_layout_by_hand(read: Any, format: str, row: dict[str, Any], problem: Problem) -> None:
    assert recognise(Row(row, "f")).name == format
    assert read(row) == [problem]


def test_the_published_table_of_frames(read: Any) -> None:
    """An unnamed first column, links as the text of a list, empty cells for absent links."""
    content = (
        "\tPrompt\tAnswer\twikipedia_link_1\twikipedia_link_2\treasoning_types\twiki_links\n"
        "0\tWho ran?\tAnn\thttps://x/Ann\t\tTabular reasoning\t['https://x/Ann']\n"
    )
    metadata = {"wiki_links": ["https://x/Ann"], "reasoning_types": "Tabular reasoning"}
    assert read(content, name="test.tsv") == [Problem("test-0", "Who ran?", ("Ann",), None, metadata)]


def test_the_squad_file_of_articles_is_read_as_its_rows(read: Any, rejection: Any) -> None:
    articles = [{"title": "Runs", "paragraphs": [{"context": "Ann ran.", "qas": SQUAD_QUESTIONS}]}]
    answered, unanswerable = read(json.dumps({"version": "v2.0", "data": articles}), name="dev-v2.0.json")
    metadata = {"title": "Runs", "is_impossible": False}
    assert answered == Problem("s", "Who?", ("Ann", "Ann ran"), "Ann ran.", metadata)
    assert (unanswerable.id, unanswerable.answers, unanswerable.context) == ("n", (), "Ann ran.")
    broken = {"data": [{"paragraphs": [{"context": "Ann ran.", "qas": [3]}]}]}
    assert "data[0].paragraphs[0].qas[0]: expected an object" in rejection(json.dumps(broken), name="dev-v2.0.json")


def test_a_title_of_another_form_is_rejected_with_its_row(rejection: Any) -> None:
    row = {"_id": "q", "question": "Who?", "answer": "Ann", "supporting_facts": [["t", 0]], "type": "bridge"}
    assert "context title must be a string" in rejection(row | {"context": [[["t"], ["Ann ran."]]]})


def test_an_encrypted_copy_is_rejected_with_its_row_and_the_fix(rejection: Any) -> None:
    message = rejection(BROWSED | {"query": "kJ2v9gQ3uM0Zt1yxqA=="})
    assert re.search(r"f\.jsonl line 1: query=.* is encrypted; decrypt the file with the script", message)


@pytest.mark.parametrize(
    "row",
    [
        QA | {"answer": None},
        QA | {"answer": ""},
        SQUAD | {"answers": {"text": [], "answer_start": []}},
        FLASHRAG | {"golden_answers": []},
        {"question": "Who?", "answers": None},
        {"question": "Who?", "answers": []},
        QUESTION | {"context": "Ann ran."},
    ],
)
def test_a_question_without_a_gold_has_no_answers(read: Any, row: dict[str, Any]) -> None:
    (problem,) = read(row)
    assert (problem.question, problem.answers) == ("Who?", ())


# ---- hops and missing gold -----------------------------------------------------------------------------------


def hotpot(name: str) -> dict[str, Any]:
    return {
        **{"_id": name, "question": f"Who is {name}?", "answer": "Ann", "type": "bridge", "level": "hard"},
        "supporting_facts": [[f"{name} 3", 0], [f"{name} 1", 0]],
        "context": [[f"{name} {i}", [f"Text {i} of {name}."]] for i in range(10)],
    }


def musique(name: str) -> dict[str, Any]:
    paragraphs = [
        {"idx": i, "title": f"{name} {i}", "paragraph_text": f"Text {i}.", "is_supporting": i in (1, 3)}
        for i in range(10)
    ]
    hops = [{"id": 1, "question": "a", "answer": "b", "paragraph_support_idx": 3}]
    return {
        **{"id": name, "question": f"Who is {name}?", "answer": "Ann", "answer_aliases": ["Anna"], "answerable": True},
        "paragraphs": paragraphs,
        "question_decomposition": [*hops, {"id": 2, "question": "c", "answer": "d", "paragraph_support_idx": 1}],
    }


@pytest.mark.parametrize("row", [hotpot, musique])
def test_hops_are_in_reasoning_order_in_every_format(tmp_path: Path, row: Callable[[str], dict[str, Any]]) -> None:
    path = save(tmp_path / "questions.json", *(row(f"q{i}") for i in range(6)))
    first = next(read_records(path))
    assert [text.split("\n")[0] for text in first.gold] == ["q0 3", "q0 1"]
    for problem in FileSource.open(path, split="eval", documents=40, placing=Placing("reverse", 15)):
        late, early = problem.metadata["evidence_positions"]
        assert late - early >= 15


def test_musique_answers_include_the_aliases_and_unanswerable_rows_are_rejected(read: Any, rejection: Any) -> None:
    (problem,) = read(musique("a"))
    assert (problem.answers, problem.metadata["hops"]) == (("Ann", "Anna"), 2)
    assert "answerable is false" in rejection(musique("a") | {"answerable": False})


HOTPOT = {"question": "Who?", "answer": "Ann", "context": [["A", ["Ann ran."]]], "supporting_facts": [["A", 0]]}
STRAY = HOTPOT | {"supporting_facts": [["B", 0]]}
HOPS = {
    **{"question": "Who?", "answer": "Ann", "question_decomposition": [{"paragraph_support_idx": 0}]},
    "paragraphs": [{"title": "A", "paragraph_text": "Ann ran.", "is_supporting": True}],
}
STRAY_HOP = HOPS | {"question_decomposition": [{"paragraph_support_idx": 7}]}


@pytest.mark.parametrize(("good", "stray"), [(HOTPOT, STRAY), (HOPS, STRAY_HOP)])
def test_a_row_without_its_gold_is_rejected_or_skipped(
    tmp_path: Path, good: dict[str, Any], stray: dict[str, Any]
) -> None:
    path = save(tmp_path / "f.jsonl", stray, good, stray)
    with pytest.raises(DataError, match=r"line 1: .*data\.on_missing_gold=skip"):
        list(read_records(path))
    skipped: list[str] = []
    (record,) = read_records(path, ReadOptions(skip_missing_gold=True), skipped=skipped)
    assert (record.id, record.answers) == ("f-1", ("Ann",))
    assert [note.split(":")[0] for note in skipped] == [f"{path} line 1", f"{path} line 3"]


def test_a_file_whose_rows_are_all_skipped_is_rejected(rejection: Any) -> None:
    message = rejection(STRAY, STRAY, skip_missing_gold=True)
    assert re.search(r"data\.on_missing_gold=skip skips every row, the first because: .*'B'", message)


# ---- dated sessions ------------------------------------------------------------------------------------------

DATES = ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 09:00"]
SESSIONS: dict[str, Any] = {
    "question_id": "e47becba",
    "question_type": "single-session-user",
    "question": "What did I buy?",
    "answer": 3,
    "question_date": "2023/05/30 (Tue) 23:40",
    "haystack_dates": DATES,
    "haystack_session_ids": ["s1", "s2"],
    "haystack_sessions": [
        [{"role": "user", "content": "I bought a car."}, {"role": "assistant", "content": "Which one?"}],
        [{"role": "user", "content": "It rains."}],
    ],
    "answer_session_ids": ["s1"],
}
FIRST = f"[{DATES[0]}] user: I bought a car.\n[{DATES[0]}] assistant: Which one?"
DATED = f"Document 1:\n{FIRST}\n\nDocument 2:\n[{DATES[1]}] user: It rains."


def test_a_row_of_longmemeval_by_hand(read: Any) -> None:
    (problem,) = read(SESSIONS)
    assert (problem.id, problem.question) == ("e47becba", "[2023/05/30 (Tue) 23:40] What did I buy?")
    assert (problem.answers, problem.context) == (("3",), DATED)
    assert problem.metadata == {
        "question_type": "single-session-user",
        "question_date": "2023/05/30 (Tue) 23:40",
        "sessions": [{"id": "s1", "date": DATES[0]}, {"id": "s2", "date": DATES[1]}],
        "num_docs": 2,
        "evidence": [FIRST],
        "evidence_positions": [1],
    }


@pytest.mark.parametrize(("name", "grading"), [("e47becba_abs", {"abstention": True}), ("abs_e47becba", {})])
def test_the_id_of_a_longmemeval_row_declares_an_abstention(read: Any, name: str, grading: dict[str, bool]) -> None:
    (problem,) = read(SESSIONS | {"question_id": name})
    assert problem.grading == grading


def test_several_questions_share_the_sessions_of_a_row(read: Any) -> None:
    turns = SESSIONS["haystack_sessions"]
    sessions = [{"date": DATES[0], "turns": turns[0]}, {"date": DATES[1], "turns": turns[1]}]
    questions = [{"question": "What?", "answers": ["a car"]}, {"question": "When?", "answers": ["20 May"]}]
    (problem,) = read({"questions": questions, "sessions": sessions, "metadata": {"evidence_sessions": [1]}})
    assert [one.text for one in problem.questions] == ["What?", "When?"]
    assert (problem.metadata["evidence"], problem.context) == ([FIRST], DATED)


@settings(max_examples=50)
@given(st.lists(st.text(alphabet="ab \n", max_size=4 * LINE), min_size=1, max_size=4))
def test_long_sessions_repeat_their_date(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    turns = [{"role": "user", "content": text} for text in texts]
    path = save(tmp_path_factory.getbasetemp() / "dated.jsonl", SESSIONS | {"haystack_sessions": [turns, []]})
    (problem,) = read_problems(path)
    context = (problem.context or "").removeprefix("Document 1:\n").partition("\n\nDocument 2:")[0]
    start_of_line = f"[{DATES[0]}] user: "
    reach = LINE + 2 * len(start_of_line)
    for start in range(0, max(1, len(context) - reach), 97):
        assert start_of_line in context[start : start + reach]


@settings(max_examples=50)
@given(st.text(alphabet="ab \n", max_size=300), st.integers(2, 50))
def test_pieces_contain_the_words_in_their_order(text: str, size: int) -> None:
    cut = list(pieces(text, size))
    assert all(len(piece) <= size for piece in cut)
    assert "".join("".join(cut).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"haystack_dates": DATES[:1]}, " must be lists of equal length"),
        ({"haystack_sessions": "x"}, "haystack_sessions.* must be lists of equal length"),
        *(
            (
                {"haystack_sessions": [[turn], []]},
                r"haystack_sessions\[0\]\[0\] must be an object with role and content",
            )
            for turn in ("x", {"content": "x"})
        ),
        ({"haystack_sessions": ["x", []]}, r"haystack_sessions\[0\] must be a list of turns"),
        ({"answer_session_ids": ["s9"]}, "answer_session_ids: no session has the id 's9'; .*on_missing_gold=skip"),
    ],
)
def test_malformed_sessions_are_rejected(rejection: Any, changes: dict[str, Any], reason: str) -> None:
    assert re.search(rf"f\.jsonl line 1: .*{reason}", rejection(SESSIONS | changes))


def test_contexts_of_sessions_are_fixed(tmp_path: Path) -> None:
    path = save(tmp_path / "l.json", SESSIONS, SESSIONS | {"answer_session_ids": ["s9"]})
    inspection = inspect_source(path, ReadOptions(skip_missing_gold=True))
    assert inspection.sessions is not None
    assert (inspection.sessions.most, inspection.evidence_lost, len(inspection.skipped)) == (2, 0, 1)
    with pytest.raises(DataError, match=r"data\.documents=5, but its file has fixed contexts"):
        inspect_source(path, ReadOptions(skip_missing_gold=True), documents=5)
