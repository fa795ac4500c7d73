"""Which samples of an evaluation belong together: those that read one document, or answer one question.

Guaranteed: belonging is transitive; samples of a log that doesn't say what was read belong together by
their question alone.
Not covered: documents that overlap without being equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from palimpsest.evaluation.samples import Sample


def question_hash(sample: Sample) -> str:
    """Of what is asked and what counts as right: two evaluations may be paired where it is the same."""
    asked = [[each["question"], each["answers"]] for each in sample.questions]
    told = json.dumps([sample.question, list(sample.answers), asked]).encode()
    return hashlib.blake2b(told, digest_size=8).hexdigest()


def clusters_of(samples: Sequence[Sample]) -> list[int]:
    """[samples] the cluster of each, numbered as they come.

    A question is the same one at another length, and in another sample of it, where id, text and golds are.
    """
    parents = list(range(len(samples)))

    def root(place: int) -> int:
        while parents[place] != place:
            parents[place] = parents[parents[place]]
            place = parents[place]
        return place

    first: dict[tuple[str, str], int] = {}
    for place, sample in enumerate(samples):
        keys = [("question", f"{sample.id}\0{question_hash(sample)}")]
        keys += [("document", sample.document)] if sample.document else []
        for key in keys:
            parents[root(place)] = root(first.setdefault(key, place))
    names: dict[int, int] = {}
    return [names.setdefault(root(place), len(names)) for place in range(len(samples))]
