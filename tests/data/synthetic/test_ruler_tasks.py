"""RULER's tasks as published, at the requested length, with matchers that agree with a second implementation."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.ruler_sets import TaskTexts, make_ruler
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.data.set_manifest import MANIFEST
from palimpsest.data.synthetic.ruler_definitions import NOISE, TASKS
from palimpsest.errors import ConfigError, DataError
from palimpsest.reward.answer_match import measure
from palimpsest.text.codec import Codec
from support.records import save

ASSETS = Path(__file__).parents[3] / "src" / "palimpsest" / "assets"
BASE = str(ASSETS / "base-model")
PUBLISHED = {
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
    "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2",
}  # fmt: skip
"""arXiv 2404.06654, table 2 and appendix B; NVIDIA/RULER scripts/synthetic.yaml."""
TOKENS_TO_GENERATE = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}
NEEDLE = re.compile(r"One of the special magic (words|numbers|uuids) for (\S+) is: (\S+)\.")
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TaskTexts:
    """A random essay, SQuAD and HotpotQA."""
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(0)
    words = ["we", "think", "that", "people", "who", "make", "good", "things", "like", "to", "work", "late"]
    essay = save(folder / "essay.txt", ". ".join(" ".join(rng.choices(words, k=12)) for _ in range(90)) + ".")
    paragraphs = [
        {
            "context": f"Paragraph {i} tells of number {i}. " + "It goes on and on. " * 8,
            "qas": [
                {"question": f"What does {i} tell?", "answers": [{"text": f"number {i}"}, {"text": f"{i}"}]},
                {"question": "Nothing?", "answers": [], "is_impossible": True},
            ],
        }
        for i in range(240)
    ]
    articles = [{"title": str(k), "paragraphs": paragraphs[6 * k : 6 * k + 6]} for k in range(40)]
    squad = save(folder / "squad.json", json.dumps({"version": "v2.0", "data": articles}))
    questions = [
        {
            **{"_id": f"h{i}", "question": f"Who is {i}?", "answer": f"name {i}"},
            "supporting_facts": [[f"T{i} 0", 0]],
            "context": [[f"T{i} {j}", [f"Text {j} of {i}. "] * 6] for j in range(4)],
        }
        for i in range(60)
    ]
    return TaskTexts(essay, squad, save(folder / "hotpot.json", *questions))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def full_prompt(row: dict[str, Any]) -> str:
    """The published template with the context of a row, by hand."""
    task, question = row["task"], row["input"]
    if task.startswith("qa"):
        start = "Answer the question based on the given documents. Only give me the answer and do not output any other"
        documents = f"The following are given documents.\n\n{row['context']}"
        return f"{start} words.\n\n{documents}\n\n{question}{row['answer_prefix']}"
    before, _, after = question.rpartition("\n")
    between = {"vt": "\n\n", "fwe": " "}.get(task, "\n")
    return f"{before}{between}{row['context']}\n{after}{row['answer_prefix']}"


def test_the_thirteen_tasks_have_the_published_numbers() -> None:
    assert set(TASKS) == PUBLISHED
    assert TASKS["vt"].numbers == {"chains": 1, "hops": 4}
    assert TASKS["cwe"].numbers == {"common": 10, "common_times": 30, "uncommon_times": 3}
    assert {name for name, task in TASKS.items() if task.matcher == "string_match_part"} == {"qa_1", "qa_2"}


@pytest.mark.parametrize("model", ["base-model", "tiny"])
def test_tasks_have_98_to_100_percent_of_the_length(
    model: str, texts: TaskTexts, tmp_path: Path, tiny_model_folder: Path
) -> None:
    folder = tiny_model_folder if model == "tiny" else ASSETS / model
    codec = Codec.load(folder)
    lengths = (4096, 6000) if model == "tiny" else (1500, 4096)
    tasks = sorted(PUBLISHED - ({"cwe"} if model == "tiny" else set()))  # the list of cwe has 4,000 tokens
    made = make_ruler(tasks, lengths, tokenizer=str(folder), count=2, out=tmp_path / "set", texts=texts)
    assert made.left_out == {}
    for name in made.problems:
        for row in rows(tmp_path / "set" / name):
            length = int(name.removesuffix(".jsonl").rpartition("_")[2])
            room = TOKENS_TO_GENERATE[next(kind for kind in TOKENS_TO_GENERATE if name.startswith(kind))]
            tokens = len(codec.encode(full_prompt(row))) + room
            assert tokens == row["length"]
            assert 0.98 * length <= tokens <= length, (name, tokens)


@pytest.fixture(scope="module")
def made(texts: TaskTexts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tasks at 4,096 tokens."""
    out = tmp_path_factory.mktemp("ruler") / "set"
    make_ruler(["all"], [4096], tokenizer=BASE, count=3, out=out, texts=texts, seed=1)
    return out


@pytest.mark.parametrize(
    ("task", "keys", "values", "key", "value"),
    [
        ("niah_single_1", 1, 1, r"[a-z]+-[a-z]+", r"\d{7}"),
        ("niah_single_2", 1, 1, r"[a-z]+-[a-z]+", r"\d{7}"),
        ("niah_single_3", 1, 1, r"[a-z]+-[a-z]+", UUID),
        ("niah_multikey_1", 4, 1, r"[a-z]+-[a-z]+", r"\d{7}"),
        ("niah_multivalue", 1, 4, r"[a-z]+-[a-z]+", r"\d{7}"),
        ("niah_multiquery", 4, 1, r"[a-z]+-[a-z]+", r"\d{7}"),
        ("niah_multikey_2", 0, 1, r"[a-z]+-[a-z]+", r"\d{7}"),
        ("niah_multikey_3", 0, 1, UUID, UUID),
    ],
)
def test_needles_are_as_published(made: Path, task: str, keys: int, values: int, key: str, value: str) -> None:
    for row in rows(made / f"{task}_4096.jsonl"):
        needles: dict[str, list[str]] = {}
        for _, name, number in NEEDLE.findall(row["context"]):
            needles.setdefault(name, []).append(number)
        if keys:
            assert (len(needles), {len(item) for item in needles.values()}) == (keys, {values})
        else:
            assert len(needles) > 20  # the haystack is of needles
        assert all(re.fullmatch(key, name) for name in needles)
        assert all(re.fullmatch(value, number) for item in needles.values() for number in item)
        queried = [name for name in needles if re.search(rf"\b{name}\b", row["input"])]
        assert len(queried) == (4 if task == "niah_multiquery" else 1)
        assert sorted(row["outputs"]) == sorted(number for name in queried for number in needles[name])
        assert (" are all " in row["input"]) == (len(row["outputs"]) > 1)
        assert all(text in row["context"] for text in row["evidence"])
        if task == "niah_single_1":
            rest = re.sub(r"\s+", " ", NEEDLE.sub("", row["context"])).strip()
            assert rest.startswith(" ".join(NOISE))
            assert set(re.split(r"(?<=\.) ", rest)) == set(NOISE)


def test_chains_of_variables_lead_to_one_value(made: Path) -> None:
    for row in rows(made / "vt_4096.jsonl"):
        first = re.findall(r"VAR ([A-Z]{5}) = (\d{5})", row["context"])
        links = re.findall(r"VAR ([A-Z]{5}) = VAR ([A-Z]{5})", row["context"])
        assert (len(first), len(links)) == (1, 4)
        chain = [first[0][0]]
        for name, previous in links:  # in the order of the text
            assert previous == chain[-1]
            chain.append(name)
        assert row["outputs"] == chain
        assert f"assigned the value {first[0][1]} in" in row["input"]


def test_common_words_occur_ten_times_as_often_as_the_others(made: Path) -> None:
    for row in rows(made / "cwe_4096.jsonl"):
        listed = re.findall(r"(\d+)\. (\S+)", row["context"])
        assert [int(number) for number, _ in listed] == list(range(1, len(listed) + 1))
        counts = Counter(word for _, word in listed)
        assert {word for word, times in counts.items() if times == 30} == set(row["outputs"])
        assert sorted(counts.values())[:-10] == [3] * (len(counts) - 10)


def test_coded_words_follow_the_zeta_distribution(made: Path) -> None:
    for row in rows(made / "fwe_4096.jsonl"):
        counts = Counter(row["context"].split()).most_common()
        assert counts[0][0] == "..."
        assert [word for word, _ in counts[1:4]] == row["outputs"]
        assert all(re.fullmatch("[a-z]{6}", word) for word, _ in counts[1:])
        size = counts[0][1]
        for rank, (_, times) in enumerate(counts[:6], 1):
            assert abs(times - size / rank**2) <= 1.5


@pytest.mark.parametrize(("task", "related"), [("qa_1", 1), ("qa_2", 4)])
def test_questions_have_their_documents_among_distractors(made: Path, task: str, related: int) -> None:
    for index, row in enumerate(rows(made / f"{task}_4096.jsonl")):
        documents = re.split(r"(?:^|\n\n)Document \d+:\n", row["context"])[1:]
        assert len(documents) == len(set(documents)) > related
        assert len(row["evidence"]) == related
        assert set(row["evidence"]) <= set(documents)
        assert row["outputs"] == ([f"number {index}", f"{index}"] if task == "qa_1" else [f"name {index}"])


def test_depths_of_needles_are_spread_over_the_text(tmp_path: Path) -> None:
    make_ruler(["niah_single_1"], [600], tokenizer=BASE, count=200, out=tmp_path / "set")
    contexts = [row["context"] for row in rows(tmp_path / "set" / "niah_single_1_600.jsonl")]
    counts = Counter(int(context.find("One of") / len(context) * 5) for context in contexts)
    assert sum((counts[i] - 40) ** 2 / 40 for i in range(5)) < 23.5  # 4 degrees of freedom, once in 10,000


def reference_score(reply: str, golds: list[str]) -> float:
    """The definition of RULER for one reply: a percentage with two digits."""
    clean = "".join("\n" if ord(c) < 32 else c for c in reply.strip()).strip().lower()
    return round(sum(clean.find(gold.lower()) != -1 for gold in golds) / len(golds) * 100, 2)


def test_matchers_agree_with_a_second_implementation_on_random_strings() -> None:
    rng = random.Random(7)
    alphabet = "abcdeABCDE012 \n\t.,-éÄß"
    for _ in range(1000):
        golds = ["".join(rng.choices(alphabet, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 5))]
        ends = rng.choice(["", *golds]) + rng.choice(["", *golds]).upper()
        reply = "".join(rng.choices(alphabet, k=rng.randint(0, 60))) + ends
        measured = measure(reply, golds)
        assert round(100 * measured["string_match_all"], 2) == reference_score(reply, golds)
        assert 100 * measured["string_match_part"] == max(reference_score(reply, [gold]) for gold in golds)


def test_the_files_are_read_and_graded_by_their_matcher(made: Path) -> None:
    for name, task in TASKS.items():
        for problem in read_problems(made / f"{name}_4096.jsonl"):
            assert problem.metadata["metric"] == task.matcher
            assert measure(" and ".join(problem.answers), problem.answers)[task.matcher] == 1.0
            assert measure("nothing", problem.answers)[task.matcher] == 0.0


def test_all_omits_tasks_without_a_file_and_lists_them(tmp_path: Path, palimpsest: Any, refused: Any) -> None:
    command = ["data", "ruler", "--tokenizer", BASE, "--lengths", "1200", "--problems", "1"]
    done = palimpsest(*command, "--out", str(tmp_path / "set"))
    assert done.returncode == 0, done.stderr
    left_out = {name for name, task in TASKS.items() if task.haystack in ("essay", "squad", "hotpotqa")}
    assert {line.split()[1] for line in done.stdout.splitlines() if line.startswith("omitted")} == left_out
    assert set(json.loads((tmp_path / "set" / MANIFEST).read_text())["left_out"]) == left_out
    line = refused(*command, "--tasks", "qa_1", "--out", str(tmp_path / "x"))
    assert "needs a file; set --squad" in line
    assert "did you mean niah_single_1" in refused(*command, "--tasks", "niah_singl_1", "--out", str(tmp_path / "x"))


def test_the_seed_determines_the_bytes(tmp_path: Path) -> None:
    def edition(name: str, seed: int) -> str:
        tasks = ["niah_multikey_2", "vt", "cwe", "fwe"]
        return make_ruler(tasks, [1600], tokenizer=BASE, count=2, out=tmp_path / name, seed=seed).edition

    assert edition("a", 1) == edition("b", 1) != edition("c", 2)


@pytest.mark.parametrize(
    ("task", "length", "count", "reason"),
    [
        ("niah_single_1", 100, 1, "niah_single_1: no context is within 2% of 100 tokens; use another length"),
        ("qa_2", 500_000, 1, r"qa_2: no context is within 2% of 500000 tokens.*a file with more documents"),
        ("qa_2", 4096, 61, "has 60 questions, --problems is 61"),
        ("qa_1", 4096, 1, "not SQuAD's file"),
        ("vvt", 4096, 1, "no such task"),
    ],
)
def test_impossible_sets_are_rejected(
    tmp_path: Path, texts: TaskTexts, task: str, length: int, count: int, reason: str
) -> None:
    files = TaskTexts(squad=texts.hotpot) if task == "qa_1" else texts
    with pytest.raises((DataError, ConfigError), match=reason):
        make_ruler([task], [length], tokenizer=BASE, count=count, out=tmp_path / "a", texts=files)
    assert not list(tmp_path.iterdir())
