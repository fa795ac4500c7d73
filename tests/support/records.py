"""Records of questions and a corpus around them."""

from palimpsest.data.assemble import Corpus
from palimpsest.data.record import Record


def record(name: str = "q", own: int = 10, gold: tuple[int, ...] = (0, 7)) -> Record:
    paragraphs = tuple(f"{name} title {i}\nText {i} of {name}." for i in range(own))
    return Record(name, "Who?", ("A",), paragraphs=paragraphs, gold=tuple(paragraphs[i] for i in gold))


CORPUS = Corpus.of([record(f"other{i}").paragraphs or () for i in range(40)] + [record().paragraphs or ()])
