"""Sentences that `grounded=close` drops and retains: gold sentences paraphrased and corrupted by rule.

    python benchmarks/grounded_close.py ../shared/data/hotpotqa_train_100.json ../shared/data/hotpotqa_dev_50.json

Files: HotpotQA or 2WikiMultiHopQA (official JSON or hub layout), MuSiQue (JSON lines), or a JSON array of passages
({title, text}). The source of a sentence is its question's whole context; of a passage, it and the nine after it.
Paraphrases: reordered, inflected, abbreviated, shortened, merged with another gold sentence, pronoun resolved, several
together. Corruptions: another name or number from the same or another context, one of the sentence replaced by another,
two swapped, another relation, a negation; half of them after a paraphrase.

Of every sentence of the file's first 100 sources: a copy, the two parts of a number that is cut at a mark (1.5, 1,200,
10:30, 1914-1918), in both modes, another modal verb, and "the only one of the" for "one of the".

A dropped paraphrase is a false drop, a retained corruption a false keep. `--thresholds` prints both for the thresholds
of grounded.py on the first file: only hotpotqa_train_100.json served for choosing the current one.

Not covered: a model's paraphrases. The rules don't count a synonym as a paraphrase; the row "synonym" is outside of the
totals.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from palimpsest.memory.parts.grounded import THRESHOLD, GroundedRule, supported, unsupported
from palimpsest.text.word_forms import FUNCTION as WITHOUT_CONTENT
from palimpsest.text.word_forms import MONTHS, QUALIFIERS

PARAPHRASES = ("reordered", "inflected", "abbreviated", "shortened", "merged", "resolved", "several")
WITHIN = ("name_placed", "number_placed", "name_swapped", "number_swapped")
"""Values of the same sentence."""
CORRUPTIONS = ("name_near", "name_far", "number_near", "number_far", *WITHIN, "relation", "word", "negated")
EVERYWHERE = ("cut", "modal", "only")
"""Corruptions of every sentence, not only of gold sentences."""
FUNCTION = WITHOUT_CONTENT | QUALIFIERS
MODALS = str.split("may must can could should will would might")
NAME = re.compile(r"[A-Z][a-zà-ÿ]+(?: [A-Z][a-zà-ÿ]+)*")
NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?![\w])")
RELATIONS = """
    father mother; son daughter; brother sister; husband wife; born died; director producer; directed
    produced; written composed; won lost; before after; north south; east west; northern southern; eastern
    western; first last; largest smallest; uncle cousin; actor singer; actress dancer; author editor; founded
    dissolved; city county; album film; novel poem; capital port; owned sold; American British; older younger;
    king bishop; professional amateur; released cancelled; published rejected; located unseen; television
    radio; football cricket; president secretary; river mountain
"""
SYNONYMS = {
    "film": "movie", "founded": "established", "located": "situated", "best known": "famous", "company": "firm",
    "town": "settlement", "began": "started", "won": "received", "released": "issued", "large": "big",
    "created": "made",
    "features": "stars", "author": "writer", "received": "got", "also": "additionally", "physician": "doctor",
    "footballer": "football player", "children": "kids", "moved": "relocated", "near": "close to",
}  # fmt: skip
UNITED = {"United States": "U.S.", "United Kingdom": "UK", "New York City": "NYC", "Los Angeles": "L.A."}
SHORTER = {
    "kilometres": "km",
    "kilometers": "km",
    "miles": "mi",
    "television": "TV",
    "metres": "meters",
    "Saint": "St.",
}
DIGITS = str.split("zero one two three four five six seven eight nine ten eleven twelve")
NO_VERBS = {"united", "red", "hundred", "naked", "sacred"}
RELATION = {a: b for pair in map(str.split, RELATIONS.split(";")) for a, b in (pair, pair[::-1])}


@dataclass(frozen=True)
class Item:
    """A question: its gold sentences and where they are."""

    source: str
    gold: list[tuple[str, str]]
    """(title, sentence)"""


def items(path: Path) -> list[Item]:
    """The questions or passages of a file."""
    text = path.read_text("utf-8")
    rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    if "text" in rows[0]:
        return [_passages(rows[i : i + 10]) for i in range(0, min(len(rows), 3000), 10)]
    return [_musique(row) if "paragraphs" in row else _hotpot(row) for row in rows]


def sentences(text: str) -> list[str]:
    """Roughly."""
    return [
        s.strip()
        for s in re.split(r"(?<=[a-z)\d]{2}[.!?])\s+(?=[A-Z\"])", text)
        if len(s.split()) > 4 and "refer to" not in s
    ]


def _passages(rows: Sequence[dict[str, str]]) -> Item:
    source = "\n\n".join(f"{row['title']}\n{row['text']}" for row in rows)
    return Item(source, [(row["title"], sentences(row["text"])[0]) for row in rows[:2] if sentences(row["text"])])


def _musique(row: dict[str, Any]) -> Item:
    source = "\n\n".join(f"{p['title']}\n{p['paragraph_text']}" for p in row["paragraphs"])
    gold = []
    for step in row["question_decomposition"]:
        paragraph = row["paragraphs"][step["paragraph_support_idx"]]
        having = [s for s in sentences(paragraph["paragraph_text"]) if step["answer"] in s]
        gold += [(paragraph["title"], s) for s in having[:1]]
    return Item(source, gold)


def _hotpot(row: dict[str, Any]) -> Item:
    context, facts = row["context"], row["supporting_facts"]
    if isinstance(context, dict):
        context = list(zip(context["title"], context["sentences"], strict=True))
        facts = list(zip(facts["title"], facts["sent_id"], strict=True))
    texts = dict(context)
    source = "\n\n".join(f"{title}\n{''.join(said).strip()}" for title, said in context)
    gold = [(title, texts[title][n].strip()) for title, n in facts if n < len(texts[title])]
    return Item(source, [(title, s) for title, s in gold if len(s.split()) > 4])


def reordered(text: str, rng: random.Random) -> str:
    """The last clause or the time and place first."""
    body = text.rstrip(".")
    tail = re.search(r" ((?:in|on|at|during|from|since|near) (?:the )?(?:[A-Z0-9][\w']*)(?: [A-Z0-9][\w']*)*)$", body)
    clauses = body.split(", ")
    if tail:
        first = tail[1][0].upper() + tail[1][1:]
        return f"{first}, {_lower(body[: tail.start()])}."
    passive = re.match(
        r"(.*?) (?:is|was) (an? .*?) (written|directed|developed|published|created|founded|recorded) by (.+)$", body
    )
    if passive and "," not in body:
        return f"{passive[4]} {passive[3].replace('written', 'wrote')} {passive[1]}, {passive[2]}."
    copula = re.match(r"([^,]+?) (is|was) (the [^,]+ of [^,]+)$", body)
    if copula:
        return f"{copula[3][0].upper()}{copula[3][1:]} {copula[2]} {copula[1]}."
    if len(clauses) > 2 and not re.match(r"(?:and|or) ", clauses[-1]) and text.count("(") == 0:
        return f"{clauses[-1][0].upper()}{clauses[-1][1:]}, {_lower(', '.join(clauses[:-1]))}."
    return text


def _lower(text: str) -> str:
    first = text.split(" ", 1)[0]
    return text[0].lower() + text[1:] if first.lower() in FUNCTION else text


def inflected(text: str, rng: random.Random) -> str:
    """Other forms of verbs and nouns."""

    def other(found: re.Match[str]) -> str:
        word = found[0]
        if word in ("is", "was", "are", "were", "has", "had"):
            return {"is": "was", "was": "is", "are": "were", "were": "are", "has": "had", "had": "has"}[word]
        if re.fullmatch(r"[a-z]{2,}[^ei]ed", word) and word not in NO_VERBS | {"founded"}:
            base = _base(word)
            return rng.choice((base, base + "s", base.removesuffix("e") + "ing"))
        if re.fullmatch(r"[a-z]{3,}[^aeious]s", word):
            return word[:-1]
        if re.fullmatch(r"[a-z]{4,}[^eaiou]ing", word):
            return word[:-3] + "ed"
        return {
            "founded": "founding",
            "wrote": "writes",
            "written": "wrote",
            "won": "wins",
            "began": "begins",
            "became": "becomes",
        }.get(word, word)

    parts = re.split(r'("[^"]*")', text)
    return "".join(part if part[:1] == '"' else re.sub(r"(?<![\w.])[a-z]+\b(?!['-])", other, part) for part in parts)


def _base(word: str) -> str:
    """A regular verb without its -ed."""
    base = word[:-2]
    if base[-1] == base[-2] and base[-1] not in "sl":
        return base[:-1]
    silent = r".*(?:[vcgzu]|[^s]s|[aeiou]t|[aeiou]d|[iu]b|ur|ir|[^aeiou][aeiou][mnkp]|pl|bl|tl)"
    return (
        base + "e"
        if re.fullmatch(silent, base) and not re.fullmatch(r".*(?:it|et|en|on|op|ain|eat|oin)", base)
        else base
    )


def abbreviated(text: str, rng: random.Random) -> str:
    """Months, countries, units, number words and thousands in another form."""
    for month in MONTHS:
        if month != "may":
            text = re.sub(rf"\b{month.title()}\b(?=[ ,]+\d|,)", month[:3].title() + ".", text)
    for long, short in (UNITED | SHORTER).items():
        text = re.sub(rf"\b{long}\b", short, text)
    text = re.sub(r"\b(\d+),(\d{3})\b", r"\1\2", text)
    text = re.sub(rf"\b({'|'.join(DIGITS[2:])})\b", lambda found: str(DIGITS.index(found[1])), text)
    return re.sub(r"\b(\d{1,2}) ([A-Z][a-z]+\.?) (\d{4})\b", r"\2 \1, \3", text)


def shortened(text: str, rng: random.Random) -> str:
    """Without brackets and the last clause."""
    text = re.sub(r"\s*\([^()]*\)", "", text)
    body = text.rstrip(".").split(", ")
    return ", ".join(body[:-1]) + "." if len(body) > 1 and len(", ".join(body[:-1]).split()) > 4 else text


def resolved(text: str, rng: random.Random, title: str = "") -> str:
    """Its title instead of a pronoun."""
    title = re.sub(r"\s*\([^()]*\)", "", title)
    if text.startswith(title):  # "They Flew Alone"
        return text
    text = re.sub(r"^(?:He|She|It|They)\b", title, text)
    return re.sub(r"^(?:His|Her|Its|Their)\b", f"{title}'s", text)


def paraphrases(item: Item, rng: random.Random) -> Iterator[tuple[str, str]]:
    """(kind, text) of each gold sentence that the rule changes."""
    made: tuple[Callable[[str, random.Random], str], ...] = (reordered, inflected, abbreviated, shortened)
    for title, text in item.gold:
        for change in made:
            if (other := change(text, rng)) != text:
                yield change.__name__, other
        several = inflected(reordered(abbreviated(resolved(text, rng, title), rng), rng), rng)
        if several != text:
            yield "several", several
        if (other := resolved(text, rng, title)) != text:
            yield "resolved", other
    for (title, one), (other_title, two) in pairwise(item.gold):
        joint = rng.choice(("; ", ", and ", ", while "))
        yield "merged", f"{resolved(one, rng, title).rstrip('.')}{joint}{_lower(resolved(two, rng, other_title))}"


def corrupted(kind: str, text: str, item: Item, far: Item, rng: random.Random) -> str | None:
    """A sentence with another meaning; None if the rule finds nothing to change."""
    if kind.startswith(("name", "number")):
        pattern = NAME if kind.startswith("name") else NUMBER
        if kind in WITHIN:
            return _within(text, pattern, rng, swapped=kind.endswith("swapped"))
        return _replaced(text, pattern, (item if kind.endswith("near") else far).source, rng)
    if kind == "negated":
        return (
            re.sub(r"\b(is|was|are|were)\b", r"\1 not", text, count=1)
            if re.search(r"\b(is|was|are|were)\b", text)
            else None
        )
    words = [w for w in re.findall(r"\b\w+\b", text) if (w in RELATION if kind == "relation" else _ordinary(w))]
    if not words:
        return None
    word = rng.choice(words)
    if kind == "relation":
        return re.sub(rf"\b{word}\b", RELATION[word], text, count=1) if RELATION[word] not in text else None
    others = [
        w for w in re.findall(r"\b\w+\b", far.source) if _ordinary(w) and w[-2:] == word[-2:] and w[:4] != word[:4]
    ]
    return re.sub(rf"\b{word}\b", rng.choice(others), text, count=1) if others else None


def _ordinary(word: str) -> bool:
    return word.islower() and len(word) > 3 and word not in FUNCTION and word.isalpha()


def _replaced(text: str, pattern: re.Pattern[str], source: str, rng: random.Random) -> str | None:
    spans = [found for found in pattern.finditer(text) if found[0].lower() not in FUNCTION and len(found[0]) > 1]
    own = {word for found in pattern.finditer(text) for word in found[0].replace(",", "").split()}
    others = sorted(
        {
            other
            for other in pattern.findall(source)
            if len(other) > 1
            and other.lower() not in FUNCTION
            and other.title().lower() not in {"the", "he", "she", "it"}
            and not own & set(other.replace(",", "").split())
            and other.split()[0].lower() not in FUNCTION
        }
    )
    if not spans or not others:
        return None
    span = rng.choice(spans)
    other: str = rng.choice(others)
    return text[: span.start()] + other + text[span.end() :]


def _within(text: str, pattern: re.Pattern[str], rng: random.Random, *, swapped: bool) -> str | None:
    """Replace a name or number by another one of the same sentence, or swap the two."""
    spans = [
        found
        for found in pattern.finditer(text)
        if len(found[0]) > 1 and {*found[0].lower().split()}.isdisjoint({*FUNCTION, *MONTHS})
    ]
    pairs = [
        (a, b)
        for a, b in combinations(spans, 2)
        if {*a[0].split()}.isdisjoint(b[0].split())
        and (pattern is NUMBER or any(_ordinary(word) for word in re.findall(r"\w+", text[a.end() : b.start()])))
        and (pattern is NAME or len(a[0]) == len(b[0]))
    ]
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    first, second = (b[0], a[0]) if swapped else rng.choice([(a[0], a[0]), (b[0], b[0])])
    return text[: a.start()] + first + text[a.end() : b.start()] + second + text[b.end() :]


def corruptions(item: Item, far: Item, rng: random.Random) -> Iterator[tuple[str, str]]:
    """(kind, text): every kind of each gold sentence, half of them paraphrased before."""
    for title, text in item.gold:
        for kind in CORRUPTIONS:
            before = rng.choice((text, reordered(abbreviated(resolved(text, rng, title), rng), rng)))
            if (other := corrupted(kind, before, item, far, rng)) and other != before:
                yield kind, other


def everywhere(item: Item, rng: random.Random) -> Iterator[tuple[str, str]]:
    """(kind, text) for each sentence of the source: copies, cut numbers, other modal verbs, other quantifiers."""
    for text in (text for line in item.source.splitlines() for text in sentences(line)):
        yield "copied", text
        for mark in re.finditer(r"(?<=\d)[.,:/–-](?=\d)", text):
            parts = text[: mark.start()] + ".", text[mark.end() :]
            yield from (("cut", part) for part in parts if len(part.split()) > 3)
        for word in re.findall(rf"\b(?:{'|'.join(MODALS)})\b", text):
            yield "modal", re.sub(rf"\b{word}\b", rng.choice([m for m in MODALS if m != word]), text, count=1)
        if "one of the" in text:
            yield "only", text.replace("one of the", "the only one of the", 1)


def synonyms(item: Item) -> Iterator[str]:
    """Gold sentences with one word in other words."""
    for _, text in item.gold:
        for word, other in SYNONYMS.items():
            if re.search(rf"\b{word}\b", text):
                yield re.sub(rf"\b{word}\b", other, text, count=1)
                break


def measure(
    path: Path, threshold: float = THRESHOLD, seed: int = 0, show: int = 0
) -> tuple[Counter[str], Counter[str]]:
    """Counts per kind: all, and those the rule gets wrong."""
    rng = random.Random(seed)
    every = items(path)
    count, wrong = Counter[str](), Counter[str]()
    for number, item in enumerate(every):
        far = every[(number + 7) % len(every)]
        said = [(kind, text, True) for kind, text in paraphrases(item, rng)]
        said += [(kind, text, False) for kind, text in corruptions(item, far, rng)]
        said += [("synonym", text, True) for text in synonyms(item)]
        for kind, text, holds in said:
            why = supported(text, [item.source], threshold)
            count[kind] += 1
            wrong[kind] += (why is None) != holds
            if (why is None) != holds and wrong[kind] <= show:
                print(f"{kind}: {text}\n    {why}")
        for kind, text in everywhere(item, random.Random(number)) if number < 100 else ():
            verbatim, close = (
                unsupported([text], [item.source], GroundedRule(how))[0] for how in ("verbatim", "close")
            )
            for how, why in {f"{kind}, verbatim": verbatim, f"{kind}, close": close}.items():
                count[how] += 1
                wrong[how] += (why is None) != (kind == "copied")
                if (why is None) != (kind == "copied") and wrong[how] <= show:
                    print(f"{how}: {text}\n    {why}")
    return count, wrong


def table(results: dict[str, tuple[Counter[str], Counter[str]]]) -> list[str]:
    """Lines of Markdown."""
    lines = ["| | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    groups = {"**false drops**": PARAPHRASES, "**false keeps**": CORRUPTIONS, "outside: synonym": ("synonym",)}
    groups |= {name: (name,) for kind in ("copied", *EVERYWHERE) for name in (f"{kind}, verbatim", f"{kind}, close")}
    for head, kinds in groups.items():
        for name, of in ((head, kinds), *((kind, (kind,)) for kind in kinds if len(kinds) > 1)):
            cells = []
            for count, wrong in results.values():
                n, bad = sum(count[kind] for kind in of), sum(wrong[kind] for kind in of)
                cells.append(f"{100 * bad / n:.1f} % of {n:,}" if n else "")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--thresholds", action="store_true", help="false drops and keeps by threshold, of the first file"
    )
    parser.add_argument("--show", type=int, default=0, help="how many wrong ones of each kind to print")
    arguments = parser.parse_args()
    if arguments.thresholds:
        grid = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
        of = {f"{t:.2f}": measure(arguments.files[0], t, arguments.seed) for t in grid}
    else:
        of = {path.stem: measure(path, THRESHOLD, arguments.seed, arguments.show) for path in arguments.files}
    print("\n".join(table(of)))


if __name__ == "__main__":
    main()
