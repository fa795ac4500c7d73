"""Where kept sentences stand in a document, against a plain search of every run of words."""

from __future__ import annotations

import random
import re

from palimpsest.metrics.reading_trace import RUN, ReadingTurn, Text, origins
from palimpsest.types import Completion, StopReason, Turn

_WORD = re.compile(r"\w+(?:['’]\w+)*")


def longest_run(sentence: str, document: str) -> int:
    """Words of the longest run, by trying all of them."""
    words = [word.casefold() for word in _WORD.findall(sentence)]
    there = [word.casefold() for word in _WORD.findall(document)]
    least = min(RUN, len(words))
    for length in range(len(words), max(least, 2) - 1, -1):
        runs = {tuple(there[start : start + length]) for start in range(len(there) - length + 1)}
        if any(tuple(words[start : start + length]) in runs for start in range(len(words) - length + 1)):
            return length
    return 0


def test_the_longest_run_is_found_and_is_a_slice_of_the_document() -> None:
    rng = random.Random(5)
    vocabulary = ["Anna", "Bob", "eats", "sells", "tea", "honey", "in", "Rome", "the"]
    for _ in range(300):
        document = " ".join(rng.choices(vocabulary, k=rng.randrange(1, 60))) + "."
        kept = [" ".join(rng.choices(vocabulary, k=rng.randrange(1, 9))) for _ in range(3)]
        for sentence, span in zip(kept, origins(kept, document), strict=True):
            found = "" if span is None else document[slice(*span)]
            assert len(_WORD.findall(found)) == longest_run(sentence, document), (sentence, document, found)
            assert found.casefold() in sentence.casefold()


def known(text: str) -> Text:
    return Text((), lambda: text)


def reading(section: str, before: str, after: str) -> ReadingTurn:
    """A turn that read `section` and wrote `after` over `before`."""
    texts = {"section": known(section), "before": known(before), "after": known(after)}
    return ReadingTurn(
        turn=Turn((1,), Completion((2,), (0.0,), StopReason.STOP), 0, "read"),
        memory_before=texts["before"],
        memory_after=texts["after"],
        update=texts["after"],
        changed=before != after,
        section=texts["section"],
        recalled=known(""),
        sources=None,
        in_tags=False,
        asks=False,
        query=None,
        recall_result="",
        malformed=None,
    )


def test_of_equal_runs_the_one_in_the_section_that_brought_the_sentence_in_counts() -> None:
    fact = "Anna lives in Rome."
    sections = [f"{fact} One.\n", f"{fact} Two.\n", f"{fact} Three.\n"]
    document = "".join(sections)
    read = [reading(sections[0], "", ""), reading(sections[1], "", fact), reading(sections[2], fact, fact)]
    assert origins([fact], document, read) == [(len(sections[0]), len(sections[0]) + len(fact) - 1)]
    assert origins([fact], document) == [(0, len(fact) - 1)]


def test_what_was_not_read_is_not_looked_at_and_a_sentence_cut_by_two_sections_is_found_whole() -> None:
    document = "Anna lives in Rome by the sea. Bob drinks tea at noon every day."
    cut = document.index("by")
    read = [reading(document[:cut], "", "x"), reading(document[cut:31], "x", "Anna lives in Rome by the sea.")]
    kept = ["Anna lives in Rome by the sea.", "Bob drinks tea at noon."]
    assert origins(kept, document, read) == [(0, 29), None]


def test_a_section_whose_first_character_was_cut_in_two_is_found() -> None:
    document = "Ärger in Ölhausen. Anna lives in Rome today."
    read = [reading("�rger in Ölhausen. Anna lives in Rome today.", "", "Anna lives in Rome today.")]
    assert origins(["Anna lives in Rome today."], document, read) == [(19, 43)]
