"""Grades: hand-worked cases, the published rules, and a list of attacks with what each rule falsely accepts."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.config.reward import RewardConfig
from palimpsest.reward.answer_match import METRICS, grading_rules, letter_of, measure
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


VARIANTS = {
    "same text": lambda gold: f"\\boxed{{{gold}}}",
    "NFD": lambda gold: f"\\boxed{{{unicodedata.normalize('NFD', gold)}}}",
    "no-break space": lambda gold: f"\\boxed{{{gold.replace(' ', chr(0xA0))}}}",
    "trailing period": lambda gold: f"\\boxed{{{gold}.}}",
    "leading the": lambda gold: f"\\boxed{{the {gold}}}",
    "TeX text": lambda gold: f"\\boxed{{\\text{{{gold}}}}}",
    "long talk after": lambda gold: f"\\boxed{{{gold}}} {'because so it is written. ' * 20}",
}


@pytest.mark.parametrize(
    ("variant", "published"),
    [
        ("same text", 8),
        ("NFD", 5),  # three golds have an accent
        ("no-break space", 4),  # four have a space
        ("trailing period", 0),
        ("leading the", 0),
        ("TeX text", 0),
        ("long talk after", 0),
    ],
)
def test_correct_answers_are_right_by_default_and_as_published_when_strict(variant: str, published: int) -> None:
    texts = [(VARIANTS[variant](gold), gold) for gold in GOLDS]
    assert sum(graded(text, gold).value or 0 for text, gold in texts) == 8
    assert sum(graded(text, gold, name="boxed_strict").value or 0 for text, gold in texts) == published


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
        ("東京都", ("東京",), {"em": 0, "f1": 0.8, "sub_em": 1}),
    ],
)
def test_metrics_by_hand(answer: str, golds: tuple[str, ...], expected: dict[str, float]) -> None:
    measured = measure(f"So \\boxed{{{answer}}}", golds)
    assert {name: measured[name] for name in expected} == pytest.approx(expected)


def test_a_stated_answer_counts_for_every_metric_but_boxed() -> None:
    measured = measure("The answer is Paris.", ["Paris"])
    assert (measured["em"], measured["sub_em"], measured["answered"]) == (1, 1, 1)
    assert (measured["boxed"], measured["boxed_strict"]) == (0, 0)


@pytest.mark.parametrize(
    ("config", "metric"),
    [
        ({}, "boxed"),
        ({"name": "boxed_strict"}, "boxed_strict"),
        ({"name": "em"}, "em"),
        ({"name": "f1"}, "f1"),
        ({"name": "fraction"}, "fraction"),
        ({"name": "sub_em"}, "sub_em"),
        ({"name": "sub_em_reverse"}, "sub_em_reverse"),
        ({"name": "sub_em_either"}, "sub_em_either"),
    ],
)
def test_the_named_reward_is_one_of_the_metrics(config: dict[str, Any], metric: str) -> None:
    for text in (r"\boxed{Paris, France}", r"\boxed{Paris}", r"\boxed{Par}", "The answer is Paris", ""):
        grade = graded(text, "Paris", "Paris, Texas", **config)
        assert set(grade.breakdown) == set(METRICS)
        assert grade.value == grade.breakdown[metric]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_episode_without_an_answer_is_zero_if_the_agent_ended_it_and_ungraded_if_not(outcome: Outcome) -> None:
    grade = graded(None, "Paris", outcome=outcome)
    if outcome in (Outcome.SAMPLER_FAILED, Outcome.TIMED_OUT, Outcome.POLICY_FAILED):
        assert grade.value is None
        assert grade.reason is not None
        assert outcome.value in grade.reason
        assert not grade.breakdown
    else:
        assert grade.value == 0.0
        assert grade.breakdown["answered"] == 0.0


def test_a_lost_episode_is_ungraded_even_if_its_text_is_right() -> None:
    assert graded(r"\boxed{Paris}", "Paris", outcome=Outcome.TIMED_OUT).value is None


ATTACKS = {
    "flood, last wrong": r"\boxed{Paris} " * 500 + r"\boxed{Rome}",
    "flood of others": "".join(f"\\boxed{{city {i}}} " for i in range(500)),
    "gold boxed, then an empty box": r"\boxed{Paris} \boxed{}",
    "list of options": r"\boxed{Rome, Paris, London, Berlin}",
    "options joined by or": r"\boxed{Paris or Rome}",
    "not the gold": r"\boxed{not Paris}",
    "echo of the question": "Which is older, Paris or Rome?",
    "echo of the question, boxed": r"\boxed{Which is older, Paris or Rome?}",
    "echo of the prompt": r"Put the final answer in \boxed{}.",
    "document quoted": "Document 7:\nParis is the capital of France.",
    "document quoted in the box": r"\boxed{Document 7: Paris is the capital of France.}",
    "gold outside the box": r"Paris! \boxed{Rome}",
    "gold in thinking only": r"<think>\boxed{Paris}</think>",
    "gold in unfinished thinking": r"<think>\boxed{Paris}",
    "empty": "",
    "white space": " \n\t",
    "empty box": r"\boxed{}",
    "blank box": r"\boxed{ }",
    "article": r"\boxed{the}",
    "punctuation": r"\boxed{.}",
    "one letter": r"\boxed{p}",
    "prefix": r"\boxed{Par}",
    "braces only": r"\boxed{{{{{",
    "unbalanced, wrong": r"\boxed{Rome {",
    "box name only": r"\boxed",
    "null": "\\boxed{\x00}",
    "zero width": "\\boxed{\u200b\u200d}",
    "homoglyph": r"\boxed{Pаris}",
    "accent added": r"\boxed{París}",
    "None": "None",
}
"""Responses that don't commit to the gold answer, Paris."""

CONTAINING = {
    "list of options",
    "options joined by or",
    "not the gold",
    "echo of the question, boxed",
    "document quoted in the box",
}
WHOLE_REPLY = {name for name, text in ATTACKS.items() if "paris" in text.lower()}
"""RULER's matchers look everywhere."""
FALSE_ACCEPTS = {
    "boxed": set(),
    "boxed_strict": {"gold in thinking only", "gold in unfinished thinking"},
    "em": set(),
    "sub_em": CONTAINING,
    "fraction": CONTAINING,
    "sub_em_reverse": set(),
    "string_match_all": WHOLE_REPLY,
    "string_match_part": WHOLE_REPLY,
    "sub_em_either": CONTAINING | {"article", "punctuation", "one letter", "prefix", "braces only"},
}


@pytest.mark.parametrize("metric", FALSE_ACCEPTS)
def test_attacks_are_accepted_only_where_the_rule_says_so(metric: str) -> None:
    accepted = {name for name, text in ATTACKS.items() if measure(text, ["Paris"])[metric] == 1.0}
    assert accepted == FALSE_ACCEPTS[metric]


@pytest.mark.parametrize("metric", ["boxed", "em", "f1", "sub_em", "sub_em_reverse", "fraction"])
def test_no_constant_answer_is_right_for_unrelated_golds(metric: str) -> None:
    constants = ("", ".", "the", "a", "e", "no", "1", "and", "{}", "\\", "\u200b")
    golds = ("Paris", "Norway", "1986", "Barack Obama", "!!!")
    scores = {said: [measure(f"\\boxed{{{said}}}", [gold])[metric] for gold in golds] for said in constants}
    assert {said: sum(values) for said, values in scores.items() if any(values)} == {}


def test_a_run_out_of_budget_inside_the_box_is_read_to_its_line_end() -> None:
    assert graded("It is \\boxed{Paris", "Paris", outcome=Outcome.ANSWER_TRUNCATED).value == 1.0
    assert graded("It is \\boxed{Par", "Paris", outcome=Outcome.ANSWER_TRUNCATED).value == 0.0


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [  # (em, f1, sub_em)
        ("٢٠١٠", "2010", (1, 1, 1)),
        ("२०१०", "2010", (1, 1, 1)),
        ("２０１０", "2010", (1, 1, 1)),
        ("१२", "13", (0, 0, 0)),
        ("١٬٢٠٠", "1,200", (1, 1, 1)),
        ("٩٫٥", "9.5", (1, 1, 1)),
        ("محـــمد", "محمد", (1, 1, 1)),
        ("เมืองหลวงคือกรุงเทพมหานคร", "กรุงเทพมหานคร", (0, 2 * 12 / (22 + 12), 1)),
        ("ແມ່ນວຽງຈັນ", "ວຽງຈັນ", (0, 2 * 5 / (8 + 5), 1)),
        ("រាជធានីភ្នំពេញ", "ភ្នំពេញ", (0, 2 * 5 / (10 + 5), 1)),
        ("မြန်မာနေပြည်တော်", "နေပြည်တော်", (0, None, 1)),
        ("𠮷野家は", "𠮷野家", (0, 2 * 3 / (4 + 3), 1)),
        ("서울은", "서울", (0, 2 * 2 / (3 + 2), 1)),
        ("부산", "서울", (0, 0, 0)),
        ("ก่า", "กา", (0, None, 0)),  # a mark is a part of its character
        ("café au lait", "café", (0, 0.5, 1)),
    ],
)
def test_digits_and_characters_of_other_scripts(answer: str, gold: str, expected: tuple[float, ...]) -> None:
    found = measure(f"\\boxed{{{answer}}}", [gold])
    for name, value in zip(("em", "f1", "sub_em"), expected, strict=True):
        assert value is None or found[name] == pytest.approx(value), name
    assert measure(f"\\boxed{{{gold}}}", [gold])["em"] == 1


def squad_scores(answer: str, gold: str) -> tuple[float, float]:
    """(EM, F1) of SQuAD's evaluation script, written from its description."""

    def words(text: str) -> list[str]:
        kept = "".join(" " if c == " " else c for c in text.lower() if c.isalnum() or c == " ")
        return [word for word in kept.split() if word not in ("a", "an", "the")]

    mine, theirs = words(answer), words(gold)
    same = sum(min(mine.count(word), theirs.count(word)) for word in {*mine})
    return float(mine == theirs), 2 * same / (len(mine) + len(theirs)) if same else 0.0


ENGLISH = st.lists(st.sampled_from(str.split("Paris the river runs of 1986 New York! (old) and, town. A")), min_size=1)


@given(ENGLISH, ENGLISH)
def test_english_answers_have_the_values_of_squads_script(answer: list[str], gold: list[str]) -> None:
    said, right = " ".join(["Anna", *answer, "ran"]), " ".join(["Anna", *gold, "ran"])
    found = measure(f"\\boxed{{{said}}}", [right])
    assert (found["em"], found["f1"]) == pytest.approx(squad_scores(said, right))


CHOICES = {"choice_letters": "ABCD"}


@pytest.mark.parametrize(
    ("said", "right"),
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
        (r"\boxed{B or C}", False),
        (r"\boxed{Byron}", False),
        (r"\boxed{A B movie}", False),
    ],
)
def test_a_leading_letter_counts_where_the_data_set_declares_choices(said: str, right: bool) -> None:
    trajectory = Trajectory("p", "g", 0, (), Outcome.ANSWERED, said)
    for name in ("em", "boxed") if "boxed" in said else ("em",):
        grader = build_reward(RewardConfig(name=name), CODEC).answer
        for metadata in (CHOICES, {}, {"choice_letters": 4}):
            grade = grader.grade(Problem("p", "Which?", ("B",), metadata=metadata), trajectory)
            assert isinstance(grade, Grade)
            assert grade.value == float(right and (metadata is CHOICES or said == r"\boxed{B}"))


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("(D) Both A and B", "D"),
        ("D. Both A and C", "D"),
        ("(D), since A and B hold", "D"),
        ("(D) Vitamins C and D", "D"),
        ("(D) A, B and C", "D"),
        ("C) Vitamin C.", "C"),
        ("A. A. Milne", None),
        ("B. C. Smith", None),
        ("B) is wrong. C) is right", None),
        ("(B) is wrong, (C) is right", None),
        ("(B), (C)", None),
        ("(B) and C", None),
        ("B) or C)", None),
        ("B / C", None),
    ],
)
def test_letters_in_the_text_of_a_choice_are_no_other_choices(said: str, letter: str | None) -> None:
    assert letter_of(said, "ABCD") == (letter or said)
    found = measure(f"\\boxed{{{said}}}", [letter or said.strip("(")[0]], "ABCD")
    assert found["boxed"] == float(letter is not None)


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
    named = (
        rules["answer"],
        rules["digits and scripts"],
        rules["choice letters"] != "none",
        rules["abstention"] != "none",
    )
    assert named == expected
    assert set(declared) <= set(GRADING)
    sign = "٢٠١٠"  # digits count as the rule says
    found = measure(f"FINAL_ANSWER: \\boxed{{{sign}}}", ["2010"]).get(config["name"])
    assert found is None or found == float(rules["digits and scripts"] == "of any script")
