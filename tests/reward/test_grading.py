"""Metrics and rewards against cases worked by hand and the published rules."""

import asyncio
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.config.reward import RewardConfig
from palimpsest.reward import grading
from palimpsest.reward.answer_match import grading_rules, letter_of, measure
from palimpsest.reward.grading import build_reward
from palimpsest.types import GRADING, Grade, Outcome, Problem, Trajectory
from support.fakes import LetterCodec

CODEC: Any = LetterCodec()

GOLDS = ("Gabriel García Márquez", "São Paulo", "Malmö", "New York City", "Barack Obama", "1986", "yes", "Einstein")
"""Three with an accent, four with a space."""


def graded(text: str | None, *golds: str, outcome: Outcome = Outcome.ANSWERED, **config: object) -> Grade:
    problem = Problem("p", "Which city?", golds)
    trajectory = Trajectory("p", "g", 0, (), outcome, text)
    grade = build_reward(RewardConfig.model_validate(config), CODEC).answer.grade(problem, trajectory)
    assert isinstance(grade, Grade)
    return grade


@pytest.mark.parametrize(
    ("form", "published"),
    [
        ("\\boxed{%s}", 8),
        ("NFD", 5),  # three golds have an accent
        ("no-break space", 4),  # four have a space
        ("\\boxed{%s.}", 0),
        ("\\boxed{the %s}", 0),
        ("\\boxed{\\text{%s}}", 0),
        ("\\boxed{%s} " + "because so it is written. " * 20, 0),
    ],
)
def test_correct_answers_in_other_forms_are_right_except_when_strict(form: str, published: int) -> None:
    def answer(gold: str) -> str:
        spelled = {"NFD": unicodedata.normalize("NFD", gold), "no-break space": gold.replace(" ", chr(0xA0))}
        return f"\\boxed{{{spelled[form]}}}" if form in spelled else form % gold

    assert sum(graded(answer(gold), gold).value or 0 for gold in GOLDS) == 8
    assert sum(graded(answer(gold), gold, name="boxed_strict").value or 0 for gold in GOLDS) == published


@pytest.mark.parametrize("text", [r"<think>\boxed{Paris}</think>", r"<think>\boxed{Paris}"])
def test_only_the_strict_rule_reads_boxes_in_thinking(text: str) -> None:
    metrics = measure(text, ["Paris"])
    assert {name for name, value in metrics.items() if value == 1} == {
        "boxed_strict",
        "string_match_all",
        "string_match_part",
    }


@pytest.mark.parametrize(
    ("answer", "golds", "expected"),
    [
        ("Paris", ("Paris",), {"boxed": 1, "em": 1, "f1": 1, "sub_em": 1, "sub_em_reverse": 1, "sub_em_either": 1}),
        ("Rome", ("Paris",), {"boxed": 0, "em": 0, "f1": 0, "sub_em": 0, "sub_em_reverse": 0, "sub_em_either": 0}),
        ("no", ("Norway",), {"em": 0, "f1": 0, "sub_em": 0, "sub_em_reverse": 0, "sub_em_either": 1}),
        ("Paris, France", ("Paris",), {"em": 0, "f1": 2 / 3, "sub_em": 1, "sub_em_reverse": 0}),
        ("Paris", ("Paris, France",), {"em": 0, "f1": 2 / 3, "sub_em": 0, "sub_em_reverse": 1}),
        ("yes, they were", ("yes",), {"em": 0, "f1": 0, "sub_em": 1}),  # yes counts whole or not at all in F1
        ("Lutetia", ("Paris", "Lutetia"), {"boxed": 1, "em": 1, "fraction": 0.5}),
        ("12, 15 and 7", ("7", "12", "9", "15"), {"fraction": 0.75, "em": 0}),
        ("the cat sat on the mat", ("cat on mat",), {"f1": 6 / 7, "em": 0, "sub_em": 0}),  # 4 and 3 words, 3 shared
        ("The The", ("The The",), {"boxed": 1, "em": 1, "f1": 1, "sub_em": 1}),
        ("the", ("The The",), {"boxed": 0, "em": 0, "sub_em": 0}),
        *((name, (f"The {name}",), {"boxed": 1, "em": 1}) for name in ("A.V. Club", "A. A. Milne", "A-Team", "A&E")),
        *(('"' + name + '"', (name,), {"boxed": 1, "em": 1}) for name in ("Guns N' Roses", "Tam o' Shanter")),
        ("f'", ("f",), {"em": 0}),
        ("東京都", ("東京",), {"em": 0, "f1": 0.8, "sub_em": 1}),
    ],
)
def test_metrics_by_hand(answer: str, golds: tuple[str, ...], expected: dict[str, float]) -> None:
    measured = measure(f"So \\boxed{{{answer}}}", golds)
    assert {name: measured[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(measure("", ["x"]).keys() - {"answered"}))
def test_the_named_reward_is_one_of_the_metrics(name: str) -> None:
    for text in (r"\boxed{Paris, France}", r"\boxed{Paris}", r"\boxed{Par}", "The answer is Paris", ""):
        grade = graded(text, "Paris", "Paris, Texas", name=name)
        assert set(grade.breakdown) == measure("", ["x"]).keys()
        assert grade.value == grade.breakdown[name]
    stated = measure("The answer is Paris.", ["Paris"])
    assert stated["answered"] == 1
    assert stated[name] == float(not name.startswith("boxed"))
    assert graded("\\boxed{Paris", "Paris").value == 1.0  # the default, on a box that never closes


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_episode_without_an_answer_is_zero_if_the_agent_ended_it_and_ungraded_if_not(outcome: Outcome) -> None:
    grade = graded(None, "Paris", outcome=outcome)
    if not outcome.gradable:
        assert (grade.value, grade.breakdown) == (None, {})
        assert outcome.value in (grade.reason or "")
        assert graded(r"\boxed{Paris}", "Paris", outcome=outcome).value is None
    else:
        assert (grade.value, grade.breakdown["answered"]) == (0.0, 0.0)


@pytest.mark.parametrize("metric", ["boxed", "em", "f1", "sub_em", "sub_em_reverse", "fraction"])
def test_no_constant_answer_is_right_for_unrelated_golds(metric: str) -> None:
    constants = ("", ".", "the", "a", "e", "no", "1", "and", "{}", "\\", "\u200b")
    golds = ("Paris", "Norway", "1986", "Barack Obama", "!!!")
    scores = {(text, gold): measure(f"\\boxed{{{text}}}", [gold])[metric] for text in constants for gold in golds}
    assert {case: value for case, value in scores.items() if value} == {}
    assert measure(r"\boxed{the}", ["Norway"])["sub_em_either"] == 1  # as published: an article is always right


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [  # (em, f1, sub_em)
        ("٢٠١٠", "2010", (1, 1, 1)),
        ("２０１０", "2010", (1, 1, 1)),
        ("१२", "13", (0, 0, 0)),
        ("١٬٢٠٠", "1,200", (1, 1, 1)),
        ("٩٫٥", "9.5", (1, 1, 1)),
        ("محـــمد", "محمد", (1, 1, 1)),
        ("เมืองหลวงคือกรุงเทพมหานคร", "กรุงเทพมหานคร", (0, 2 * 10 / (19 + 10), 1)),
        ("ແມ່ນວຽງຈັນ", "ວຽງຈັນ", (0, 2 * 5 / (7 + 5), 1)),
        ("မြန်မာနေပြည်တော်", "နေပြည်တော်", (0, None, 1)),
        ("𠮷野家は", "𠮷野家", (0, 2 * 3 / (4 + 3), 1)),
        ("서울은", "서울", (0, 2 * 2 / (3 + 2), 1)),
        ("ก่า", "กา", (0, None, 0)),  # a mark is a part of its character
        ("café au lait", "café", (0, 0.5, 1)),
    ],
)
def test_digits_and_characters_of_other_scripts(answer: str, gold: str, expected: tuple[float, ...]) -> None:
    metrics = measure(f"\\boxed{{{answer}}}", [gold])
    for name, value in zip(("em", "f1", "sub_em"), expected, strict=True):
        assert value is None or metrics[name] == pytest.approx(value), name
    assert measure(f"\\boxed{{{gold}}}", [gold])["em"] == 1


def squad_scores(answer: str, gold: str) -> tuple[float, float]:
    """Return EM and F1 as described for SQuAD's evaluation script."""

    def words(text: str) -> list[str]:
        letters = "".join(" " if c == " " else c for c in text.lower() if c.isalnum() or c == " ")
        return [word for word in letters.split() if word not in ("a", "an", "the")]

    mine, theirs = words(answer), words(gold)
    same = sum(min(mine.count(word), theirs.count(word)) for word in {*mine})
    return float(mine == theirs), 2 * same / (len(mine) + len(theirs)) if same else 0.0


ENGLISH = st.lists(st.sampled_from(str.split("Paris the river runs of 1986 New York! (old) and, town. A")), min_size=1)


@given(ENGLISH, ENGLISH)
def test_english_answers_have_the_values_of_squads_script(answer: list[str], gold: list[str]) -> None:
    text, right = " ".join(["Anna", *answer, "ran"]), " ".join(["Anna", *gold, "ran"])
    metrics = measure(f"\\boxed{{{text}}}", [right])
    assert (metrics["em"], metrics["f1"]) == pytest.approx(squad_scores(text, right))


CHOICES = {"choice_letters": "ABCD"}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (r"\boxed{B}", True),
        (r"\boxed{(B) Lord Byron}", True),
        (r"\boxed{\text{(B) Lord Byron}}", True),
        (r"\boxed{B. A cat and a dog}", True),
        (r"\boxed{**B:** Byron}", True),
        ("The correct answer is (B) Lord Byron.", True),
        (r"\boxed{(C) Lord Byron}", False),
        (r"\boxed{(B) or (C)}", False),
        (r"\boxed{B, C}", False),
        (r"\boxed{Byron}", False),
        (r"\boxed{A B movie}", False),
    ],
)
def test_a_leading_letter_counts_where_the_data_set_declares_choices(text: str, right: bool) -> None:
    trajectory = Trajectory("p", "g", 0, (), Outcome.ANSWERED, text)
    for name in ("em", "boxed") if "boxed" in text else ("em",):
        grader = build_reward(RewardConfig(name=name), CODEC).answer
        for metadata in (CHOICES, {}, {"choice_letters": 4}):
            grade = grader.grade(Problem("p", "Which?", ("B",), metadata=metadata), trajectory)
            assert isinstance(grade, Grade)
            assert grade.value == float(right and (metadata is CHOICES or text == r"\boxed{B}"))


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("(D) Both A and B", "D"),
        ("(D), since A and B hold", "D"),
        ("(D) Vitamins C and D", "D"),
        ("C) Vitamin C.", "C"),
        ("A. A. Milne", None),
        ("B) is wrong. C) is right", None),
        ("(B) is wrong, (C) is right", None),
        ("(B) and C", None),
        ("B) or C)", None),
        ("B / C", None),
    ],
)
def test_letters_in_the_text_of_a_choice_name_no_other_choice(text: str, letter: str | None) -> None:
    assert letter_of(text, "ABCD") == (letter or text)
    metrics = measure(f"\\boxed{{{text}}}", [letter or text.strip("(")[0]], CHOICES)
    assert metrics["boxed"] == float(letter is not None)


@pytest.mark.parametrize(
    ("golds", "said", "right", "f1"),
    [
        (("tea", "New York"), "New York, tea", 1.0, 1.0),
        (("tea", "New York"), "tea and the New York.", 1.0, 1.0),
        (("tea", "New York"), "York tea, New", 0.0, 1.0),
        (("tea", "New York"), "tea", 0.0, 0.5),
        (("tea", "New York"), "tea, tea, New York", 0.0, 6 / 7),
        (("tea", "New York"), "tea, New York, rum", 0.0, 6 / 7),
        (("Paris, France", "Rome"), "Rome; Paris, France", 1.0, 1.0),
        (("東京", "大阪"), "大阪と東京", 1.0, 1.0),
        (("чай", "сок"), "сок и чай", 1.0, 1.0),
        (("tea",), "", 0.0, 0.0),
    ],
)
def test_a_list_has_to_be_complete_and_nothing_else(golds: tuple[str, ...], said: str, right: float, f1: float) -> None:
    problem = Problem("p", "Which?", golds, metadata={"every_gold": True})
    for name, text in (
        ("boxed", f"\\boxed{{{said}}}"),
        ("em", f"\\boxed{{{said}}}"),
        ("final_answer", f"FINAL_ANSWER: {said}"),
    ):
        grader = build_reward(RewardConfig(name=name), CODEC).answer
        grade = asyncio.run(grading.graded(grader, problem, Trajectory("p", "g", 0, (), Outcome.ANSWERED, text)))
        assert (grade.value, grade.breakdown["em"]) == (right, right)
        assert grade.breakdown["f1"] == pytest.approx(f1)


@pytest.mark.parametrize(
    ("config", "declared", "expected"),
    [
        ({"name": "em"}, {"choice_letters"}, ("last box or answer phrase", "of any script", True, False)),
        ({"name": "boxed"}, {}, ("last box", "of any script", False, False)),
        ({"name": "string_match_all"}, {}, ("whole reply", "as written", False, False)),
        ({"name": "final_answer"}, {"abstention"}, ("`FINAL_ANSWER:`", "of any script", False, True)),
    ],
)
def test_the_rules_of_a_data_set_are_named(config: dict[str, Any], declared: Any, expected: tuple[Any, ...]) -> None:
    rules = grading_rules(RewardConfig.model_validate(config), declared)
    optional = [rules[name] != "none" for name in ("choice letters", "abstention")]
    assert (rules["answer"], rules["digits and scripts"], *optional) == expected
    assert set(declared) <= set(GRADING)
    value = measure("FINAL_ANSWER: \\boxed{٢٠١٠}", ["2010"]).get(config["name"])
    assert value is None or value == float(rules["digits and scripts"] == "of any script")
