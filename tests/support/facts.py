"""Facts of synthetic documents, parsed by their templates, and answers from them."""

from __future__ import annotations

from collections.abc import Callable

from palimpsest.data.synthetic.world import PEOPLE, RELATIONS, TIES


def read_facts(context: str) -> list[tuple[str, str, str]]:
    """(subject, relation, value) of every sentence."""
    facts = []
    for line in context.split("\n"):
        for sentence in line.removeprefix("- ").replace(".", ".|").split("|"):
            for relation in RELATIONS:
                for template in relation.statements:
                    before, rest = template.split("{s}")
                    between, after = rest.split("{v}")
                    text = sentence.strip()
                    if not (text.startswith(before) and text.endswith(after)):
                        continue
                    subject, separator, value = text[len(before) : len(text) - len(after)].partition(between)
                    if separator and subject in PEOPLE and value in relation.values:
                        facts.append((subject, relation.name, value))
    return facts


def answer_by_reading(question: str, values: dict[tuple[str, str], set[str]]) -> str:
    for relation in RELATIONS:
        before, after = relation.question.split("{s}")
        if not (question.startswith(before) and question.endswith(after)):
            continue
        subject = question[len(before) : len(question) - len(after)]
        for tie in TIES:
            assert tie.of is not None
            head, tail = tie.of.split("{s}")
            if subject.startswith(head) and subject.endswith(tail):
                (subject,) = values[(subject[len(head) : len(subject) - len(tail)], tie.name)]
        if (subject, relation.name) in values:
            (value,) = values[(subject, relation.name)]
            return value
    raise AssertionError(f"no relation asks {question!r}")


def values_of(text: str, question: str) -> list[str]:
    """The values that a text states for a question about one fact, in their order."""
    facts = [(relation, *fact) for fact in read_facts(text) for relation in RELATIONS]
    return [v for relation, s, name, v in facts if (relation.name, relation.question.format(s=s)) == (name, question)]


GOLDS: dict[str, Callable[[list[str]], list[str]]] = {
    "updates": lambda values: values[-1:],
    "list": sorted,
    "count": lambda values: [str(len(values))],
    "contradiction": lambda values: ["yes" if len(set(values)) == 1 else "no"],
}
"""Golds by family, from all values of a text."""
