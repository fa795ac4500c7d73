"""Grades from string comparison: exact match, F1 and containment, for one answer or several questions.

Training and evaluation share one extraction and one set of metrics. A search agent answers after `FINAL_ANSWER:`
(MemAct, arXiv 2510.12635). If `metadata["objectives"]` names several questions, the answer is a JSON object, and the
breakdown has both values, with em, f1 and sub_em as means over the questions:

    all    the worst question's value: 1 only if every answer is right (the paper's reward in training)
    each   the mean over the questions (its evaluation)

45 of the 2,048 published training problems, and some single questions of the validation file, have the gold "the
question is invalid.", an annotators' note. The grader skips such a question; a problem with no other question is
ungraded. `invalid_golds: gold` takes the note as the gold, as the published code does.

Guaranteed: a blank answer is never right; words are compared whole ("no" is not in "Norway"), in scripts without spaces
approximately (text/answer_normalization.py); every graded trajectory has all metrics of `measure` in its breakdown; the
best gold counts (`fraction`: the share of golds the answer contains), or the mean if each is wanted (the points of a
rubric); a problem with `every_gold` needs all of them in a list. A missing answer to an episode or a question is worth
0.0 without a call to the judge. A lost episode (`not outcome.gradable`) or a failed judge leaves the episode ungraded,
with the reason, never at zero. The judge sees the answer, never the text around it.
Not covered: paraphrases and translations; an object's names in other spellings. `contains` accepts an answer that lists
every option: use it for evaluation, and a rule of equality to train. `published_sub_em` accepts any gold when the
answer is only an article or punctuation, and "no" for "Norway": use it to reproduce a published number, not to train.
"""

from __future__ import annotations

import asyncio
import re
import string
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, Protocol, TypeVar, cast

from palimpsest.config.reward import FinalAnswerConfig, RewardConfig
from palimpsest.errors import JudgeError
from palimpsest.text.answer_normalization import HANGUL, fold, hendrycks, normalize, plain, squad, tokens
from palimpsest.text.answers import NamedAnswers, extract, final_answer, named_answers, published_box
from palimpsest.text.word_forms import UNSPACED
from palimpsest.types import Grade, Outcome, Problem, Trajectory

_CONTROL = re.compile(r"[\x00-\x1f]")
_UNSPACED = f"[{UNSPACED}{HANGUL}]"
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_HANGUL, _IN_HANGUL = re.compile(f"[{HANGUL}]"), re.compile(f"(?<=[{HANGUL}])(?=[{HANGUL}])")
_WHOLE = frozenset({"yes", "no", "noanswer"})
_AND = frozenset({"and", "und", "et", "y", "e", "i", "и", "та", "en", "og", "och", "ve", "dan", *"和及与與と및"})
_AND |= {"và", "і", "και", "و", "और", "এবং", "மற்றும்", "และ", "եվ", "და", "እና"}  # normalized
_LETTERS = frozenset(string.ascii_lowercase)
_ITEMS = re.compile(rf"\n|;|,(?=\s)|\s(?:{'|'.join(sorted(_AND - _LETTERS))})\s", re.IGNORECASE)
_BULLET = re.compile(r"^\s*[-*•]\s+")


def comparable(answer: str, gold: str) -> tuple[str, str]:
    """Both texts in the same form. Golds that consist of articles or punctuation stay unchanged ("The The", "!!!").

    >>> comparable("The Hague.", "hague"), comparable("The The", "the the"), comparable("an", "The The")
    (('hague', 'hague'), ('the the', 'the the'), ('an', 'the the'))
    """
    gold_form = normalize(gold)
    if gold_form:
        return normalize(answer), gold_form
    return fold(answer), fold(gold)


def exact(answer: str, gold: str) -> float:
    """1.0 if the normalized texts have the same words: spaces don't count in Korean and next to an unspaced script."""
    a, g = comparable(answer, gold)
    return float(a == g != "" or tokens(a) == tokens(g) != [])


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of word precision and recall; yes, no and noanswer count whole or not at all.

    >>> round(f1("Barack Hussein Obama", "Barack Obama"), 2), f1("yes", "yes it is")
    (0.8, 0.0)
    """
    a, g = comparable(answer, gold)
    if a != g and (a in _WHOLE or g in _WHOLE):
        return 0.0
    a_tokens, g_tokens = tokens(a), tokens(g)
    common = (Counter(a_tokens) & Counter(g_tokens)).total()
    return 2 * common / (len(a_tokens) + len(g_tokens)) if common else 0.0


def gold_in_answer(answer: str, gold: str) -> float:
    """1.0 if the answer contains the gold, word for word.

    >>> gold_in_answer("Paris, France", "Paris"), gold_in_answer("Norway", "no")
    (1.0, 0.0)
    """
    a, g = comparable(answer, gold)
    return float(_stands_in(g, a))


def answer_in_gold(answer: str, gold: str) -> float:
    """1.0 if the answer is part of the gold, word for word.

    >>> answer_in_gold("Paris", "Paris, France"), answer_in_gold(".", "Paris, France")
    (1.0, 0.0)
    """
    a, g = comparable(answer, gold)
    return float(_stands_in(a, g))


def lists_all(answer: str, golds: Sequence[str]) -> float:
    """1.0 if the answer has each gold once, in any order, and nothing else but separators and "and" (`_AND`).

    >>> lists_all("tea, New York and beer", ["beer", "tea", "New York"]), lists_all("tea, tea", ["tea"])
    (1.0, 0.0)
    >>> lists_all("tea, beer, rum", ["beer", "tea"]), lists_all("tea", ["beer", "tea"]), lists_all("A, E", ["A"])
    (0.0, 0.0, 0.0)
    """
    words, wanted = (_listed(texts, golds) for texts in ([answer], golds))
    same = words == wanted and all(gold_in_answer(answer, gold) for gold in golds)
    return float(same or _are_items(answer, golds))


def list_f1(answer: str, golds: Sequence[str]) -> float:
    """Harmonic mean of word precision and recall over all golds, without "and".

    >>> round(list_f1("tea, beer, rum", ["beer", "tea"]), 2)
    0.8
    """
    if _are_items(answer, golds):
        return 1.0
    words, wanted = (_listed(texts, golds) for texts in ([answer], golds))
    return 2 * (words & wanted).total() / ((words + wanted).total() or 1)


def _listed(texts: Iterable[str], golds: Sequence[str]) -> Counter[str]:
    """Words but "and"; e, i and y count as letters if a gold is a letter."""
    left_out = _AND - _LETTERS if any(gold.strip(" .").lower() in _LETTERS for gold in golds) else _AND
    return Counter(word for text in texts for word in tokens(normalize(text)) if word not in left_out)


def _are_items(answer: str, golds: Sequence[str]) -> bool:
    """True if the items of a list are the golds, in any order; each is compared alone, where "A" is a letter.

    >>> _are_items("A and B", ["B", "A"]), _are_items("- 3\\n- 5", ["3", "5"]), _are_items("A, A", ["A", "B"])
    (True, True, False)
    """
    items = [item for part in _ITEMS.split(answer) if (item := _BULLET.sub("", part).strip(" ."))]
    left = list(golds)
    for item in items:
        if (found := next((gold for gold in left if exact(item, gold)), None)) is None:
            return False
        left.remove(found)
    return not left and bool(items)


def _stands_in(part: str, text: str) -> bool:
    """True if `text` has the words of `part` in a row. In Korean they start a spaced word; particles follow a noun.

    >>> _stands_in("서울", "서울은"), _stands_in("물", "동물")
    (True, False)
    """
    words = tokens(part)
    if not words or f"\0{chr(0).join(words)}\0" not in f"\0{chr(0).join(tokens(text))}\0":
        return False
    if not _HANGUL.match(part):
        return True
    glued = f"\0{chr(0).join(tokens(_IN_HANGUL.sub(chr(1), text)))}\0".replace("\0\1\0", "\1")
    return re.search("\0" + "[\0\1]".join(map(re.escape, words)) + "[\0\1]", glued) is not None


def published_boxed(text: str, gold: str) -> float:
    r"""MemAgent's training reward for one gold, over the whole response.

    >>> published_boxed(r"\boxed{New York}", "new york"), published_boxed(r"\boxed{New York.}", "New York")
    (1.0, 0.0)
    """
    answer = published_box(text)
    return float(answer is not None and hendrycks(answer) == hendrycks(gold.lower()))


def published_sub_em(answer: str, gold: str) -> float:
    """MemAgent's headline metric: one text a substring of the other, after SQuAD's normalization.

    >>> published_sub_em("no", "Norway"), published_sub_em("the", "Paris"), published_sub_em("", "Paris")
    (1.0, 1.0, 0.0)
    """
    a, g = squad(answer), squad(gold)
    return float(answer != "" and (g in a or a in g))


def string_match_all(reply: str, golds: Sequence[str]) -> float:
    """Share of the golds in the reply, ignoring case: RULER's rule (arXiv 2404.06654), over one reply.

    >>> string_match_all("Values: 12 and 7.", ["12", "99"]), string_match_all("Norway", ["NO"])
    (0.5, 1.0)
    """
    text = _CONTROL.sub("\n", reply.strip()).strip().lower()
    return sum(gold.lower() in text for gold in golds) / len(golds)


def string_match_part(reply: str, golds: Sequence[str]) -> float:
    """1.0 if any gold is in the reply, ignoring case: RULER's rule for questions with several spellings."""
    return float(string_match_all(reply, golds) > 0)


# ---- Grades from string comparison ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MatchGrader:
    """Comparison of the final answer with the golds; `metric` names the reward."""

    metric: str

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        """Grade an episode: 0.0 to 1.0, or None if its end was not the agent's fault."""
        if not trajectory.outcome.gradable:
            return Grade(None, reason=f"episode ended as {trajectory.outcome}")
        breakdown = measure(trajectory.answer or "", problem.answers, problem.grading)
        return Grade(breakdown[self.metric], breakdown=breakdown)


def letter_of(answer: str, letters: str) -> str:
    r"""The choice letter with which an answer starts, or the answer if it has none or another one too.

    >>> [letter_of(said, "ABCD") for said in ("（B）拜伦", r"\text{B. Byron}", "B or (C)", "A dog", "b")]
    ['B', 'B', 'B or (C)', 'A dog', 'b']
    """
    one = f"[{re.escape(letters)}]" if letters else "(?!)"
    choice = rf"(?:\({one}\)|(?:\b|(?<={_UNSPACED})){one}[).:、](?=\W|{_UNSPACED}))"
    other = rf"(?!(?:or|and|[/&,])\W{{0,3}}{one}(?:\W|$))(?!.*{choice})"
    ended = rf"[\W_]*$|(?:[\W_]{{0,4}}[)\].:*、][,;]?|\s[-–—])(?:\s|(?={_UNSPACED})){other}"
    found = re.match(rf"[\W_]*((?i:{one}))(?:{ended})", plain(answer.translate(_FULL_WIDTH)), re.DOTALL)
    return found[1] if found else answer


def measure(text: str, golds: Sequence[str], grading: Mapping[str, Any] | None = None) -> dict[str, float]:
    r"""All metrics of one final text; `grading`: the problem's (types.GRADING).

    >>> m = measure(r"Born there, so \\boxed{Paris, France}.", ["Paris", "Lutetia"])
    >>> m["boxed"], m["sub_em"], m["fraction"], round(m["f1"], 2)
    (0.0, 1.0, 0.5, 0.67)
    """
    extracted, rules = extract(text), grading or {}
    answer = letter_of(extracted.text, rules.get("choice_letters", "")) if extracted else ""
    boxed = answer if extracted and extracted.rule == "boxed" else ""

    def best(rule: Callable[[str, str], float], candidate: str) -> float:
        return max(rule(candidate, gold) for gold in golds)

    listed = {"boxed": lists_all(boxed, golds), **_of_lists(answer, golds)} if "every_gold" in rules else {}
    return {
        "boxed": best(exact, boxed),
        "boxed_strict": best(published_boxed, text),
        "em": best(exact, answer),
        "f1": best(f1, answer),
        "sub_em": best(gold_in_answer, answer),
        "sub_em_reverse": best(answer_in_gold, answer),
        "sub_em_either": best(published_sub_em, answer),
        "fraction": sum(gold_in_answer(answer, gold) for gold in golds) / len(golds),
        "string_match_all": string_match_all(text, golds),
        "string_match_part": string_match_part(text, golds),
        "answered": float(answer.strip() != ""),
        **listed,
    }


def _of_lists(answer: str, golds: Sequence[str]) -> dict[str, float]:
    """The values of `_RULES` for an answer that has to list all golds."""
    return {
        "em": lists_all(answer, golds),
        "f1": list_f1(answer, golds),
        "sub_em": min(gold_in_answer(answer, gold) for gold in golds),
    }


def grading_rules(config: RewardConfig, declared: Collection[str]) -> dict[str, str]:
    """How a shipped reward grades data that declare the rules `declared` (types.GRADING), for reports and docs."""
    name, final = config.name, config.final_answer
    literal, judged = name.startswith("string_match"), name == "final_answer" and final.match == "judge"
    reads = {"boxed": "last box", "boxed_strict": "last box", "final_answer": "`FINAL_ANSWER:`"}
    also = ", last box or answer phrase" if name == "final_answer" and final.where == "found" else ""
    raw = literal or name in ("boxed_strict", "sub_em_either")
    parts = f"{final.match}, {final.golds} gold, {final.objectives} questions"
    return {
        "metric": (parts if name == "final_answer" else name)
        + (", lists of all golds" if "every_gold" in declared else ""),
        "answer": "whole reply" if literal else reads.get(name, "last box or answer phrase") + also,
        "digits and scripts": "by the judge" if judged else "as written" if raw else "of any script",
        "choice letters": "a letter with its text counts" if "choice_letters" in declared else "none",
        "abstention": "none" if "abstention" not in declared else "own criteria" if judged else "as its gold says",
    }


# ---- Grades of search agents ---------------------------------------------------------------------------------


T = TypeVar("T")

INVALID_GOLD = "the question is invalid"
_RULES = {"em": exact, "f1": f1, "sub_em": gold_in_answer}
CONSTRAINTS = frozenset({Outcome.OUT_OF_TURNS, Outcome.OUT_OF_CONTEXT})


class AnswerJudge(Protocol):
    """The judge interface that grading uses."""

    async def value(self, question: str, golds: Sequence[str], answer: str, absent: bool = False) -> tuple[float, bool]:
        """The value of an answer, 0.0 to 1.0, and True for the verdict "partial". Raises JudgeError."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GradedObjective:
    """One question of a problem; a single question has no name."""

    name: str
    question: str
    golds: tuple[str, ...]
    absent: bool = False  # the right answer is an abstention
    every_gold: bool = False

    @property
    def invalid(self) -> bool:
        """True if its gold marks the question as invalid."""
        return any(gold.strip().rstrip(".").lower() == INVALID_GOLD for gold in self.golds)


def objectives(problem: Problem) -> tuple[GradedObjective, ...]:
    """The questions of a problem, in order.

    >>> objectives(Problem("p", "Where?", ("Oslo",)))
    (GradedObjective(name='', question='Where?', golds=('Oslo',), absent=False, every_gold=False),)
    """
    named, rules = problem.metadata.get("objectives"), problem.grading
    if not named:
        special = "abstention" in rules, "every_gold" in rules
        return (GradedObjective("", problem.question, problem.answers, *special),)
    return tuple(GradedObjective(one["name"], one["question"], tuple(one["answers"])) for one in named)


@dataclass(frozen=True, slots=True)
class Marked:
    """Values of an answer to one question, by every applied rule."""

    answered: bool
    values: dict[str, float]
    partial: bool = False


def compared(answer: str, golds: Sequence[str], wanted: Literal["any", "each", "all"] = "any") -> Marked:
    """Values by string rules: of the best gold, as means over the golds, or of a list of all golds.

    >>> compared("Oslo, Norway", ["Oslo"]).values
    {'em': 0.0, 'f1': 0.6666666666666666, 'sub_em': 1.0}
    >>> compared("Oslo, Norway", ["Oslo", "Bergen"], "each").values["sub_em"]
    0.5
    """
    answered = any(comparable(answer, gold)[0] for gold in golds)
    if wanted == "all":
        return Marked(answered, _of_lists(answer, golds))
    together = max if wanted == "any" else fmean
    return Marked(answered, {name: together([rule(answer, gold) for gold in golds]) for name, rule in _RULES.items()})


@dataclass(frozen=True, slots=True)
class FinalAnswerGrader:
    """Comparison of each question's answer with its golds, by strings or by a judge."""

    config: FinalAnswerConfig
    judge: AnswerJudge | None = None

    async def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        """Grade an episode: 0.0 to 1.0, or None if machinery, data or judge failed."""
        if not trajectory.outcome.gradable:
            return Grade(None, reason=f"episode ended as {trajectory.outcome}")
        questions = objectives(problem)
        counted = [one for one in questions if self.config.invalid_golds == "gold" or not one.invalid]
        if not counted:
            return Grade(None, reason="the data has no gold, only the note that the question is invalid")
        named = _answers(questions, trajectory.answer or "", self.config.where)
        letters = problem.grading.get("choice_letters", "")
        named = replace(named, answers={name: letter_of(text, letters) for name, text in named.answers.items()})
        try:
            marked = await self._marked(counted, named)
        except JudgeError as error:
            return Grade(None, reason=f"judge: {error}")
        breakdown = _breakdown(marked, named, self.config.match)
        return Grade(breakdown[self.config.objectives], breakdown=breakdown)

    async def close(self) -> None:
        """Close the connections to the judge."""
        if self.judge is not None:
            await self.judge.close()

    async def _marked(self, questions: Sequence[GradedObjective], named: NamedAnswers) -> list[Marked]:
        marked = [compared(named.answers.get(one.name, ""), one.golds, self._wanted(one)) for one in questions]
        if self.judge is None:
            return marked
        pairs = zip(questions, marked, strict=True)
        return await all_of(self._judged(one, named.answers.get(one.name, ""), mark) for one, mark in pairs)

    def _wanted(self, one: GradedObjective) -> Literal["any", "each", "all"]:
        return "all" if one.every_gold else self.config.golds

    async def _judged(self, one: GradedObjective, answer: str, mark: Marked) -> Marked:
        assert self.judge is not None
        if not answer.strip():
            return replace(mark, answered=False, values={**mark.values, "judge": 0.0})
        wanted = self._wanted(one)
        gold_sets = [one.golds] if wanted == "any" else [(gold,) for gold in one.golds]
        verdicts = await all_of(self.judge.value(one.question, golds, answer, one.absent) for golds in gold_sets)
        values, partial = [value for value, _ in verdicts], any(partial for _, partial in verdicts)
        value = min(values) if wanted == "all" else fmean(values)
        return Marked(True, {**mark.values, "judge": value}, partial)


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """All results, awaited to the end: other verdicts reach the cache even if one fails."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    for failure in ended:
        if isinstance(failure, BaseException):
            raise failure
    return cast(list[T], ended)


def _answers(questions: Sequence[GradedObjective], text: str, where: str) -> NamedAnswers:
    reply = final_answer(text)
    if reply is None and where == "found" and (extracted := extract(text)) is not None and not questions[0].name:
        reply = extracted.text
    if len(questions) == 1 and not questions[0].name:
        return NamedAnswers({"": reply} if reply else {}, missing=() if reply else ("",))
    return named_answers(reply, [one.name for one in questions])


def _breakdown(marked: Sequence[Marked], named: NamedAnswers, rule: str) -> dict[str, float]:
    values = [mark.values[rule] for mark in marked]
    means = {name: fmean(mark.values[name] for mark in marked) for name in marked[0].values}
    partial = {"partial": fmean(mark.partial for mark in marked)} if "judge" in means else {}
    return {
        "all": min(values),
        "each": fmean(values),
        "objectives": float(len(values)),
        "objectives_right": float(sum(value == 1.0 for value in values)),
        **means,
        **partial,
        "answered": fmean(mark.answered for mark in marked),
        "malformed": float(named.fault is not None),
        "keys_missing": float(len(named.missing)),
        "keys_extra": float(len(named.extra)),
    }


@dataclass(frozen=True, slots=True)
class TruncatedLayer:
    """Penalty for an answer that exceeded its budget; for training only."""

    penalty: float

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        """A positive value times 1 - `penalty` if the answer exceeded its budget; `breakdown` has it as `outcome`."""
        if grade.value is None:
            return grade
        factor = 1.0 - self.penalty if trajectory.outcome is Outcome.ANSWER_TRUNCATED else 1.0
        value = min(grade.value, grade.value * factor)
        return replace(grade, value=value, breakdown={"outcome": grade.value, **grade.breakdown})


@dataclass(frozen=True, slots=True)
class ConstraintLayer:
    """Penalty for broken limits: minus `penalty` becomes the value. For training only; evaluation grades the answer."""

    penalty: float

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        """The grade, with the penalty as its value if a limit was broken.

        `breakdown` stores the answer's value as `outcome` for every episode, so that its mean covers all.
        """
        if grade.value is None:
            return grade
        value = -self.penalty if trajectory.outcome in CONSTRAINTS else grade.value
        return replace(grade, value=value, breakdown={"outcome": grade.value, **grade.breakdown})
