"""Made-up facts in long texts: answers follow from the text alone, as a reader written here finds them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.generated_sets import Amount, make_babilong, make_updates
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.data.synthetic import fact_stories
from palimpsest.data.synthetic.fact_stories import update_story
from palimpsest.data.synthetic.world import PEOPLE
from palimpsest.errors import ConfigError, DataError
from palimpsest.seeding import keyed_random
from palimpsest.text.codec import Codec

TOKENIZER = str(Path(__file__).parents[2] / "src" / "palimpsest" / "assets" / "base-model")


def read_world(sentences: list[str]) -> tuple[dict[str, str], dict[str, list[str]], list[tuple[str, str, str]]]:
    """Places of people, places of things in order, gifts: by the verbs of the sentences alone."""
    people: dict[str, str] = {}
    held: dict[str, str] = {}
    stays: dict[str, list[str]] = {}
    gifts: list[tuple[str, str, str]] = []
    for sentence in sentences:
        words = sentence.rstrip(".").split()
        who, verb, last = words[0], words[1], words[-1]
        if verb in ("went", "moved", "travelled", "journeyed"):
            people[who] = last
            for thing, holder in held.items():
                if holder == who:
                    stays[thing].append(last)
        elif verb in ("picked", "grabbed", "took", "got"):
            held[last] = who
            if last not in stays:
                stays[last] = [people[who]]
            assert stays[last][-1] == people[who], "nobody takes what is elsewhere"
        elif verb in ("gave", "handed", "passed"):
            thing = words[3]
            assert held[thing] == who, "nobody gives what another has"
            held[thing] = last
            gifts.append((who, thing, last))
        else:
            assert held.pop(last) == who, "nobody drops what another has"
    return people, stays, gifts


def answers(task: str, sentences: list[str], question: str) -> set[str]:
    """All answers that the sentences admit."""
    asked = question.rstrip("?").split()
    if task == "qa4":
        pairs = [re.fullmatch(r"The (\w+) is (\w+) of the (\w+)\.", text) for text in sentences]
        facts = {match.groups() for match in pairs if match}
        if asked[-1] == "of":  # What is the X north of?
            return {b for a, way, b in facts if (a, way) == (asked[3], asked[4])}
        return {a for a, way, b in facts if (way, b) == (asked[2], asked[-1])}
    people, stays, gifts = read_world(sentences)
    if task == "qa1":
        return {people[asked[2]]}
    if task == "qa2":
        return {stays[asked[3]][-1]}
    if task == "qa3":
        seen = stays[asked[3]]
        return {seen[i - 1] for i, place in enumerate(seen) if i and place == asked[-1]}
    if asked[:2] == ["Who", "gave"]:
        return {giver for giver, thing, to in gifts if (thing, to) == (asked[3], asked[-1])}
    if asked[0] == "What":
        return {thing for giver, thing, to in gifts if (giver, to) == (asked[2], asked[-1])}
    if asked[1] == "received":
        return {to for _, thing, to in gifts if thing == asked[-1]}
    return {to for giver, thing, to in gifts if (giver, thing) == (asked[2], asked[5])}


@pytest.mark.parametrize("task", fact_stories.TASKS)
def test_answers_follow_from_the_sentences_and_only_one_does(task: str) -> None:
    given: Counter[str] = Counter()
    for index in range(300):
        facts, asked = fact_stories.story(task, keyed_random(3, task, index))
        assert answers(task, facts, asked.question) == {asked.answer}, (facts, asked)
        least, most = fact_stories.FACTS[task]
        assert least <= len(facts) <= most + 2
        assert list(asked.support) == sorted(set(asked.support))
        assert asked.answer in " ".join(facts[number] for number in asked.support)
        given[asked.answer] += 1
    assert given.most_common(1)[0][1] < 120, "no constant answer is right often"


def test_two_and_three_facts_are_needed_where_the_task_says_so() -> None:
    for task, fewest in (("qa1", 1), ("qa2", 2), ("qa3", 3), ("qa4", 1), ("qa5", 1)):
        counts = {len(fact_stories.story(task, keyed_random(4, task, i))[1].support) for i in range(100)}
        assert min(counts) == fewest
        assert max(counts) <= 4


@pytest.mark.parametrize("haystack", [False, True])
def test_facts_stand_in_their_order_in_a_text_of_the_length(tmp_path: Path, haystack: bool) -> None:
    book = tmp_path / "book.txt"
    book.write_text("It was a dark night. The wind blew over the moor. Nobody came. " * 20)
    amount = Amount((1000, 3000), 5, seed=2)
    made = make_babilong(
        ["all"], amount, tokenizer=TOKENIZER, out=tmp_path / "set", haystack=book if haystack else None
    )
    codec = Codec.load(TOKENIZER)
    for name in made.problems:
        task, _, length = name.removesuffix(".jsonl").rpartition("_")
        for problem in read_problems(tmp_path / "set" / name):
            context = problem.context or ""
            tokens = len(codec.encode(context))
            assert 0.98 * int(length) <= tokens <= int(length)
            assert tokens == problem.metadata["length"]
            assert ("moor" in context) == haystack
            people = "|".join(fact_stories.STORY_PEOPLE)
            told = [
                s
                for s in re.split(r"(?<=\.) ", context)
                if re.match(rf"({people}) |The \w+ is (north|south|east|west) of", s)
            ]
            assert len(told) == problem.metadata["facts"]
            assert answers(task, told, problem.question) == set(problem.answers)
            assert all(text in told for text in problem.metadata["evidence"])


CHANGES = {
    "city": " moved ",
    "drink": " switched ",
    "instrument": " gave it up ",
    "goods": " began ",
    "sport": " changed ",
}


def read_updates(context: str, subject: str) -> list[tuple[int, str, bool]]:
    """(day, value, whether it is a change) of what is said of one person."""
    lines = [re.fullmatch(r"On day (\d+), (\w+)(.*?)(\w+)( instead)?\.", line) for line in context.split("\n")]
    days = [int(match[1]) for match in lines if match]
    assert days == sorted(days)
    assert len(days) == len(lines)
    return [
        (int(match[1]), match[4], any(verb in match[3] for verb in CHANGES.values()))
        for match in lines
        if match and match[2] == subject
    ]


@pytest.mark.parametrize("kind", fact_stories.KINDS)
def test_what_is_so_and_what_was_follow_from_the_lines(kind: str) -> None:
    for index in range(100):
        changes = 1 + index % 5
        story = update_story(kind, changes, (9, kind, index), f"s{index}")
        for size in (0, 40):
            context = story.context(size)
            assert (len(context.split("\n")) == changes + 1) == (size == 0)
            subject = next(word for word in story.question.split() if word in PEOPLE)
            told = read_updates(context, subject)
            assert [change for *_, change in told] == [False] + [True] * changes
            if kind == "now":
                answer = told[-1][1]
            elif kind == "count":
                answer = str(sum(change for *_, change in told))
            else:
                day = int(re.findall(r"day (\d+)", story.question)[0])
                answer = [value for at, value, _ in told if at <= day][-1]
                assert answer != told[-1][1]
            assert story.answers == (answer,)
            assert all(text in context for text in story.evidence)


def test_places_of_the_asked_facts_are_uniform() -> None:
    places = []
    for index in range(600):
        story = update_story("now", 1, (5, "now", index), "s")
        lines = story.context(120).split("\n")
        subject = story.evidence[0].split()[0]
        (first, last) = (i for i, line in enumerate(lines) if f", {subject} " in line)
        places += [first / len(lines), last / len(lines)]
    counts = Counter(int(4 * place) for place in places)
    assert sum((counts[i] - 300) ** 2 / 300 for i in range(4)) < 25  # 3 degrees of freedom, quarters of unequal lines


def test_sets_of_updates_are_read_again_and_have_the_length(tmp_path: Path, palimpsest: Any) -> None:
    command = ["data", "updates", "--tokenizer", TOKENIZER, "--lengths", "800,2000", "--n", "6", "--changes", "1,3"]
    done = palimpsest(*command, "--out", str(tmp_path / "set"))
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "set").glob("*.jsonl"))
    assert [path.name for path in files] == sorted(
        f"{kind}_{n}.jsonl" for kind in fact_stories.KINDS for n in (800, 2000)
    )
    codec = Codec.load(TOKENIZER)
    for path in files:
        length = int(path.stem.split("_")[1])
        problems = list(read_problems(path))
        assert [problem.metadata["changes"] for problem in problems] == [1, 3, 1, 3, 1, 3]
        for problem in problems:
            assert 0.98 * length <= len(codec.encode(problem.context or "")) <= length


def test_the_same_seed_gives_the_same_edition(tmp_path: Path) -> None:
    for make in (make_babilong, make_updates):
        editions = [
            make(["all"], Amount((700,), 2, seed), tokenizer=TOKENIZER, out=tmp_path / f"{make.__name__}-{i}").edition
            for i, seed in enumerate((1, 1, 2))
        ]
        assert editions[0] == editions[1] != editions[2]
        manifest = json.loads((tmp_path / f"{make.__name__}-0" / "manifest.json").read_text())
        assert manifest["seed"] == 1


def test_what_cannot_be_made_is_refused_by_name(tmp_path: Path, refused: Any) -> None:
    out = tmp_path / "set"
    with pytest.raises(ConfigError, match=r"--tasks qa9: choose of all, qa1.*did you mean qa"):
        make_babilong(["qa9"], Amount((700,), 1), tokenizer=TOKENIZER, out=out)
    with pytest.raises(DataError, match="qa1-10-0: no context is within 2% of 10 tokens"):
        make_babilong(["qa1"], Amount((10,), 1), tokenizer=TOKENIZER, out=out)
    line = refused(
        "data", "updates", "--tokenizer", TOKENIZER, "--lengths", "700", "--changes", "16", "--out", str(out)
    )
    assert "--changes 16: numbers of 1 to 15" in line
    assert not out.exists()
