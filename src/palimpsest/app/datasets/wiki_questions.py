"""Questions on real paragraphs, made by patterns from any corpus of titled paragraphs, such as HotpotQA's.

    needle           Who directed FILM?    When was PERSON born?    When did PERSON die?
    several          two or three of these, about different pages
    list, count      Who stars in FILM? Name all.    Which professions does the text name for PERSON? How many?
    two_hops         When was the director of FILM born?
    updates          a needle; another paragraph states another value, and the later statement holds
    contradiction    a needle; another paragraph repeats its sentence, half of them with another value

Endings and golds are those of synthetic documents (data/synthetic/families.py). Rows have HotpotQA's layout: the
evidence among other paragraphs, half of these with a fact of the same kind, none with a value in question.
`data.documents` makes contexts of any length of them. Metadata has the family (`task`) unless all are needles, the
sentence that a paragraph gained (`added_sentence`), and whether its value is another page's (`altered`).

Guaranteed: the same corpus and seed give the same bytes; no title of a held-out question is one of training. With
other families than `needle`, titles are unique, and no other paragraph of such a row contains one in question.
Not covered: a second paragraph with the same fact in other words; patterns for languages other than English.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from pathlib import Path
from typing import Any, cast, get_args

from palimpsest import files
from palimpsest.config.data import Task
from palimpsest.data.assemble import in_order
from palimpsest.data.formats.problem_files import read_corpus, write_rows
from palimpsest.data.set_manifest import write_manifest
from palimpsest.data.synthetic.families import EVERY_GOLD, NUMBERS, ask
from palimpsest.errors import ConfigError, DataError
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.runs.folder_guard import Made, new_folder
from palimpsest.seeding import keyed_random
from palimpsest.types import Question

OTHERS = 3
TRIES = 10_000  # draws of the other paragraphs of a row
WORDS = 45  # of a paragraph, whole sentences
CHARACTERS = 220  # of a supporting sentence: longer ones fit no short memory
LIFETIME = 15  # least years between the dates of a person; those of battles and seasons are closer
YEARS = 10  # most years between a date and the one that replaces it

_WORD = r"(?:[A-Z]\.|[A-Z][\w'’-]+|de|von|van|der|di|la|le|el|al)"
_NAME = rf"({_WORD}(?: {_WORD}){{1,3}})"
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = rf"(\d{{1,2}} {_MONTH} \d{{4}}|{_MONTH} \d{{1,2}}, \d{{4}})"
_SENTENCE = re.compile(r"(?<=[a-z0-9)\"”]\.) (?=[A-Z\"“])")
_FILM = r"(?:film|movie|series|drama|comedy|documentary|thriller)\b[^.]*?"
KINDS = {
    "director": (re.compile(rf"{_FILM} directed by {_NAME}"), "Who directed {}?"),
    "born": (re.compile(rf"\([^()–]*?(?:born )?{_DATE}(?: [–-]|\)|,| in)"), "When was {} born?"),
    "died": (re.compile(rf"[–-] ?{_DATE}\)"), "When did {} die?"),
}
"""Pattern of the first value in its sentence, and question, by kind."""
QUESTIONS = {kind: question for kind, (_, question) in KINDS.items()} | {
    "star": "Who stars in {}?",
    "profession": "Which professions does the text name for {}?",
}
DATES = ("born", "died")

_JOBS = "(?:singer|writer|author|act(?:or|ress)|director|producer|manager|editor|composer|player|coach)(?:e?s)?"
_TRADE = r"(?!noble|peer\b|feminist|born\b|former\b)(?:[a-z]+ )?[a-z]+(?:er|or|ist|ian|ect|man|ess|ete|ant)"
_LISTED = r"(?P<all>{0}(?:, {0})*(?:,? and {0})?)"
_NAMES = _LISTED.format(rf"(?:{_WORD} ){{1,3}}[A-Z][\w'’-]+")
_END = r"(?=\.(?: |$)|;|,? (?:and )?(?:starring|written|produced|based|released|scripted|about|which|that)\b)"
_OTHER_WORK = (
    r"\b(?:remake|sequel|prequel|based|adapt\w+|version|inspired|which|who|part|episode|born|known for)\b|\bco-"
)
_LISTS = {
    "director": (rf"{_FILM}\bdirected by {_NAMES}{_END}", rf"{_OTHER_WORK}|\bdirected.*\bdirect", r"\bdirect|\bco-"),
    "star": (
        rf"{_FILM}\bstarring {_NAMES}{_END}",
        rf"{_OTHER_WORK}|\bstar.*\bstar",
        r"\b(?:also|cast|features?|stars?|starred|support\w*|roles?|play(?:s|ed))\b",
    ),
    "profession": (
        rf"\) (?:is|was) an? (?:[A-Z][\w-]+(?:[ -][A-Z][\w-]+)* )?{_LISTED.format(_TRADE)}(?=[.;]| from| best| known)",
        r"\) .*\) ",
        rf"\b(?:also|as|became|worked|being|\w+(?:ist|ian)s?|{_JOBS}|an? (?:[\w-]+ )*?{_TRADE})\b",
    ),
}
"""By kind: pattern of all values in their sentence; words before them that hint at another subject; words after them,
or in another sentence, that hint at further values."""
_UNSURE = re.compile(r"\b(?:c\.|ca\.|circa|or|r\.|reign\w*|O\.S\.|N\.S\.|baptised)|\d{5}")


@dataclass(frozen=True, slots=True)
class _Paragraph:
    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


@dataclass(frozen=True, slots=True)
class _Item:
    """Values of one relation, stated by one sentence."""

    kind: str
    paragraph: _Paragraph
    number: int  # of the supporting sentence
    values: tuple[str, ...]

    @property
    def title(self) -> str:
        return self.paragraph.title

    def question(self, subject: str = "") -> str:
        """The question about `subject`, by default the title."""
        return QUESTIONS[self.kind].format(subject or self.title)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A question without its other paragraphs."""

    task: Task
    items: tuple[_Item, ...]  # the evidence, in reasoning order
    questions: tuple[Question, ...]
    other: str = ""  # the value that another paragraph states
    other_last: bool = True


def read_tasks(text: str) -> tuple[Task, ...]:
    """Families from a command line. Raises ConfigError."""
    names = text.split(",")
    if not set(names) <= set(get_args(Task)) or len(set(names)) < len(names):
        raise ConfigError(f"--task {text}: name one or several of {', '.join(get_args(Task))}, each once")
    return cast(tuple[Task, ...], tuple(names))


def make_wiki_questions(
    corpora: Sequence[str | Path],
    *,
    out: Path,
    tasks: Sequence[Task] = ("needle",),
    held_out: int = 300,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Write train.jsonl, and dev.jsonl with the questions of `held_out` titles.

    `corpora`: HotpotQA, 2WikiMultiHopQA or MuSiQue files, or rows {title, text}. Raises DataError for too few titles,
    and for a family without a question in one of the files.
    """
    named = tuple(tasks) != ("needle",)
    with new_folder(out, force=force, progress=progress or Silent()) as folder:
        texts = {text for path in corpora for text in read_corpus(path).paragraphs}
        paragraphs = [found for text in sorted(texts) if (found := _paragraph(text))]
        titles = Counter(paragraph.title for paragraph in paragraphs)
        paragraphs = [paragraph for paragraph in paragraphs if not named or titles[paragraph.title] == 1]
        items, directors = _items_by_task(paragraphs, tasks)
        once = dict.fromkeys(item for listed in items.values() for item in listed)
        alike = {kind: [item.paragraph for item in once if item.kind == kind] for kind in QUESTIONS}
        described: dict[str, dict[str, Any]] = {}
        for name, drafts in _split(items, directors, held_out, seed).items():
            rng = keyed_random(seed, "wiki rows", name)
            rng.shuffle(drafts)
            others = (_others(draft, alike[draft.items[-1].kind], paragraphs, rng) for draft in drafts)
            rows = (_row(f"{name}-{at}", *pair, rng, named) for at, pair in enumerate(zip(drafts, others, strict=True)))
            counts = {"tasks": Counter(draft.task for draft in drafts)} if named else {}
            described[f"{name}.jsonl"] = {"problems": write_rows(folder / f"{name}.jsonl", rows), **counts}
        sources = [{"file": path.name, "role": "corpus", "sha256": files.sha256(path)} for path in map(Path, corpora)]
        made_by, settings = "palimpsest data wiki", {"held_out": held_out, **({"task": list(tasks)} if named else {})}
        edition = write_manifest(
            folder, made_by=made_by, seed=seed, described=described, settings=settings, sources=sources
        )
    return Made(out, edition, {name: entry["problems"] for name, entry in described.items()})


def _items_by_task(
    paragraphs: Sequence[_Paragraph], tasks: Sequence[Task]
) -> tuple[dict[Task, list[_Item]], dict[str, str]]:
    """Items by family, and for `two_hops` the title of the director's page by that of the film."""
    exact = [item for paragraph in paragraphs for item in _exact_items(paragraph)]
    single = [item for item in exact if item.kind in KINDS and len(item.values) == 1]
    people = {item.title for item in single if item.kind in DATES and re.search("film|direct", item.paragraph.text)}
    directors = {item.title: item.values[0] for item in single if item.values[0] in people}
    once = set(single)
    chosen: dict[Task, list[_Item]] = {
        "needle": [item for paragraph in paragraphs for item in _items(paragraph)],
        "two_hops": [item for item in single if item.title in {*directors, *directors.values()}],
        "list": [item for item in exact if len(item.values) in NUMBERS["list"]],
        "count": [item for item in exact if len(item.values) in NUMBERS["count"] and item not in once],
    }
    return {task: chosen.get(task, single) for task in tasks}, directors if "two_hops" in tasks else {}


def _split(items: dict[Task, list[_Item]], films: dict[str, str], count: int, seed: int) -> dict[str, list[_Draft]]:
    """Questions by file; a film and its director's page, `films`, are in the same one."""
    root = {item.title: films.get(item.title, item.title) for listed in items.values() for item in listed}
    titles = sorted({*root.values()})
    if len(titles) <= count + 2 * OTHERS:
        raise DataError(
            f"{', '.join(items)}: {len(titles):,} titles of the corpus give questions, and {count:,} are for "
            "evaluation; lower --held-out, or add paragraphs"
        )
    keyed_random(seed, "wiki titles").shuffle(titles)
    held = set(titles[:count])
    splits: dict[str, list[_Draft]] = {"train": [], "dev": []}
    for task, listed in items.items():
        made = []
        for name in splits:
            rng = keyed_random(seed, "wiki questions", name, task)
            side = [item for item in listed if (root[item.title] in held) == (name == "dev")]
            made.append(list(_drafts(task, side, films, rng)))
            splits[name] += made[-1]
        if not all(made):
            raise DataError(
                f"family {task}: the corpus gives {len(made[0]):,} questions for training and {len(made[1]):,} for "
                f"evaluation, and both need one; add paragraphs, change --held-out, or omit {task} from --task"
            )
    return splits


# ---- Paragraphs and facts ------------------------------------------------------------------------------------


def _paragraph(text: str) -> _Paragraph | None:
    """The start of a paragraph "title\\nbody" of some sentences; None if it is too short or too long."""
    title, _, body = text.partition("\n")
    body = re.sub(r"(\w)\(", r"\1 (", re.sub(r"\( ", "(", re.sub(r"\s+", " ", body))).strip()
    kept: list[str] = []
    for sentence in _SENTENCE.split(body):
        if kept and len(" ".join([*kept, sentence]).split()) > WORDS:
            break
        kept.append(sentence)
    title = re.sub(r" \([^()]*\)$", "", title.strip())
    return _Paragraph(title, tuple(kept)) if title and 6 <= len(" ".join(kept).split()) <= WORDS + 15 else None


def _items(paragraph: _Paragraph, kinds: Sequence[str] = ()) -> Iterator[_Item]:
    """The first value of `kinds`, by default of directors for films and of dates for other pages."""
    of_film = re.search(r"\bfilm\b", paragraph.text) is not None
    for kind in kinds or (["director"] if of_film else DATES):
        for number, sentence in enumerate(paragraph.sentences):
            found = KINDS[kind][0].search(sentence)
            if found and len(sentence) <= CHARACTERS and paragraph.title in sentence:
                yield _Item(kind, paragraph, number, (found[1],))
                break


def _exact_items(paragraph: _Paragraph) -> Iterator[_Item]:
    """Items with all values that the paragraph states, from sentences that start with the title."""
    yield from filter(_of_a_life, _items(paragraph, DATES))
    for (number, sentence), (kind, (pattern, *hints)) in product(enumerate(paragraph.sentences), _LISTS.items()):
        found = re.search(pattern, sentence)
        if not found or not sentence.startswith(paragraph.title) or len(sentence) > CHARACTERS:
            continue
        rest = (sentence[found.end("all") :], *paragraph.sentences[:number], *paragraph.sentences[number + 1 :])
        places = sentence[len(paragraph.title) : found.start("all")], " ".join(rest)
        values = tuple(re.split(",? and |, ", found["all"]))
        clear = not any(re.search(hint, place) for hint, place in zip(hints, places, strict=True))
        if clear and not any(one in other for one, other in permutations(values, 2)):
            yield _Item(kind, paragraph, number, values)


def _of_a_life(item: _Item) -> bool:
    """True for a date in brackets after the title, with "born" or with the other date of a life."""
    head, _, rest = item.paragraph.sentences[item.number].partition("(")
    inside, closed, _ = rest.partition(")")
    years, own = [int(year) for year in re.findall(r"\b\d{4}\b", inside)], item.values[0]
    placed = head.startswith(item.title) and not re.search(r"\b(?:is|was|were)\b", head) and own in inside
    lived = (len(years) == 2 and years[1] - years[0] >= LIFETIME) or (len(years) == 1 and "born" in inside)
    right = lived and int(own[-4:]) == years[-1 if item.kind == "died" else 0] and not _UNSURE.search(inside)
    return closed != "" and placed and right and item.paragraph.text.count(own) == 1


# ---- Questions of a family -----------------------------------------------------------------------------------


def _drafts(task: Task, items: Sequence[_Item], films: Mapping[str, str], rng: random.Random) -> Iterator[_Draft]:
    if task == "several":
        yield from _several(items, rng)
    elif task == "two_hops":
        yield from _two_hops(items, films)
    elif task in ("updates", "contradiction"):
        values = {kind: sorted({item.values[0] for item in items if item.kind == kind}) for kind in KINDS}
        for item in items:
            yield from _stated_twice(task, item, values[item.kind], rng)
    else:
        yield from (_Draft(task, (item,), (ask(task, item.question(), item.values),)) for item in items)


def _two_hops(items: Sequence[_Item], films: Mapping[str, str]) -> Iterator[_Draft]:
    pages: dict[str, list[_Item]] = {}
    for item in items:
        pages.setdefault(item.title, []).append(item)
    for film in items:
        for item in pages.get(films.get(film.title, ""), ()):
            asked = ask("two_hops", item.question(f"the director of {film.title}"), item.values)
            yield _Draft("two_hops", (film, item), (asked,))


def _several(items: Sequence[_Item], rng: random.Random) -> Iterator[_Draft]:
    """Groups of items whose pages don't contain each other's title or value; most items are in one."""
    group, size = list[_Item](), rng.choice(NUMBERS["several"])
    for item in rng.sample(items, len(items)):
        pairs = [pair for other in group for pair in ((item, other), (other, item))]
        if not any(text in one.paragraph.text for one, other in pairs for text in (other.title, *other.values)):
            group.append(item)
        if len(group) == size:
            yield _Draft("several", tuple(group), tuple(ask("several", one.question(), one.values) for one in group))
            group, size = [], rng.choice(NUMBERS["several"])


def _stated_twice(task: Task, item: _Item, values: Sequence[str], rng: random.Random) -> Iterator[_Draft]:
    own, text = item.values[0], item.paragraph.text
    if item.kind in DATES:
        alike = [one for one in values if one[0].isdigit() == own[0].isdigit()]
        values = [one for one in alike if abs(int(one[-4:]) - int(own[-4:])) <= YEARS]
    others = [one for one in values if one not in text]
    if others and text.count(own) == 1:
        agree = task == "contradiction" and rng.choice(NUMBERS[task]) == 1
        other, last = own if agree else rng.choice(others), rng.random() < 0.5
        yield _Draft(task, (item,), (ask(task, item.question(), (own, other) if last else (other, own)),), other, last)


# ---- Rows ----------------------------------------------------------------------------------------------------


def _others(
    draft: _Draft, alike: Sequence[_Paragraph], paragraphs: Sequence[_Paragraph], rng: random.Random
) -> list[_Paragraph]:
    """Paragraphs around the evidence, half of them of `alike`."""
    others, titles = list[_Paragraph](), {item.title for item in draft.items}
    absent = {value for item in draft.items for value in item.values} | ({draft.other} - {""})
    absent |= titles if draft.task != "needle" else set()
    for _ in range(TRIES):
        other = rng.choice(alike if rng.random() < 0.5 else paragraphs)
        fits = other.title not in titles and (other.text.endswith(".") or not draft.other)  # one gains a sentence
        if fits and other not in others and not any(text in other.text for text in absent):
            others.append(other)
        if len(others) == OTHERS + 1 - len(draft.items):
            return others
    raise DataError(f"family {draft.task}: too few paragraphs without {' or '.join(sorted(absent))}; add paragraphs")


def _row(id: str, draft: _Draft, others: list[_Paragraph], rng: random.Random, named: bool) -> dict[str, Any]:
    """`named`: with the family as metadata."""
    evidence = [(item.paragraph, item.number) for item in draft.items]
    metadata: dict[str, Any] = {"task": draft.task, **({"every_gold": True} if draft.task in EVERY_GOLD else {})}
    if draft.other:
        (item,), host = draft.items, others.pop()
        added = item.paragraph.sentences[item.number].replace(item.values[0], draft.other)
        metadata |= {"added_sentence": added, "altered": draft.other != item.values[0]}
        metadata |= {"outdated": 1} if draft.task == "updates" else {}
        evidence.insert(int(draft.other_last), (replace(host, sentences=(*host.sentences, added)), len(host.sentences)))
    for paragraph, _ in evidence:
        others.insert(rng.randrange(len(others) + 1), paragraph)
    shown = in_order([paragraph for paragraph, _ in evidence], others) if draft.other else others
    asked = [{"question": one.text, "answers": list(one.answers)} for one in draft.questions]
    text, answers = draft.questions[0].text, draft.questions[0].answers
    return {
        "_id": id,
        **({"questions": asked} if asked[1:] else {"question": text, "answer": answers if answers[1:] else answers[0]}),
        "type": ", ".join(dict.fromkeys(item.kind for item in draft.items)),
        "context": [
            [each.title, [f" {one}" if at else one for at, one in enumerate(each.sentences)]] for each in shown
        ],
        "supporting_facts": [[paragraph.title, number] for paragraph, number in evidence],
        **({"metadata": metadata} if named else {}),
    }
