"""The rule `grounded=close`: units that a source states in other words."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.memory.parts import grounded
from palimpsest.memory.parts.grounded import GroundedRule, sift, supported
from palimpsest.memory.parts.sentence_match import Match, UnitWords, read_source
from palimpsest.text.word_forms import LONGEST, worded
from support.agents import base_codec

SOURCE = """Ada Lorne
Ada Mary Lorne (30 July 1970 – 2 May 2011) was a Chilean film director and screenwriter. She directed "The Long Winter"
in 1998 for $5 million. She never married Tom Abel.

Northgate Bridge
Northgate Bridge crosses the river Orr in the United States. It is 1,200 metres long and was built by Omar Vance
between 1941–45. Rick Roe defeated Sam Poe there on the third day. Anna Hill is the mother of Lea Hill."""


LONG = " of the old stone bridge over the river near the town that was sold by the king to the bishop for ten coins."


@pytest.mark.parametrize(
    "unit",
    [
        "Ada Mary Lorne was a Chilean film director and screenwriter.",
        "- Ada Lorne was a Chilean director of films.",
        "Ada Lorne: July 30, 1970 – May 2, 2011.",
        "Ada M. Lorne (1970-07-30) was a screenwriter.",
        "Ada Lorne (Jul. 30, 1970) was a Chilean film director.",
        "In 1998, Ada Lorne directed The Long Winter.",  # the pronoun's name
        'She directs "The Long Winter" in 1998.',
        "She directed it for $5,000,000.",
        "Lorne never married Tom Abel.",
        "Northgate Bridge crosses the Orr river in the U.S.",
        "Northgate Bridge is 1200 metres long.",
        "It is 1200 meters long.",
        "Omar Vance built it between 1941 and 1945.",
        "On the 3rd day, Rick Roe defeated Sam Poe.",
        "Sam Poe was defeated by Rick Roe.",
        "Lea Hill's mother is Anna Hill.",
        "Anna Hill is the mother of Lea Hill and Rick Roe defeated Sam Poe.",  # two sentences in one
        "Ada Lorne was a Chilean screenwriter; Northgate Bridge crosses the river Orr.",
        "Ada Lorne was a Chilean screenwriter. Northgate Bridge crosses the river Orr.",
    ],
)
def test_a_unit_in_other_words_is_supported(unit: str) -> None:
    assert supported(unit, [SOURCE]) is None


@pytest.mark.parametrize(
    ("unit", "reason"),
    [
        ("Ada Lorne was a Peruvian film director.", "'peruvian'"),  # a name
        ("Omar Lorne was a Chilean film director.", "'omar'"),
        ("Ada Lorne directed The Long Winter in 1989.", "'1989'"),  # a number
        ("Northgate Bridge is 1,300 metres long.", "'1300'"),
        ("She directed it for $6 million.", "'6000000'"),
        ("Rick Roe defeated Sam Poe on the 4th day.", "'4'"),
        ("Ada Lorne was a Chilean film actor and screenwriter.", "actor"),  # a relation
        ("Anna Hill is the sister of Lea Hill.", "sister"),
        ('She directed "The Winter Long" in 1998.', "quotes"),  # a quotation
        ("Ada Lorne was not a Chilean film director.", "denies"),  # a negation
        ("Ada Lorne married Tom Abel.", "denies"),
        ("Sam Poe defeated Rick Roe.", "elsewhere"),  # roles
        ("Rick Roe was defeated by Sam Poe.", "elsewhere"),
        ("Lea Hill is the mother of Anna Hill.", "elsewhere"),
        ("Northgate Bridge was built by Sam Poe.", ""),  # a name from the same paragraph
        ("Ada Lorne directed Northgate Bridge.", ""),  # two paragraphs
        ("The section says nothing about it.", ""),
        ("It is so.", "no word"),
        ("...", "no word"),
    ],
)
def test_an_unsupported_unit_is_dropped_with_a_reason(unit: str, reason: str) -> None:
    assert reason in (supported(unit, [SOURCE]) or "supported")
    assert supported(unit, [SOURCE])


@pytest.mark.parametrize(
    ("source", "stated", "other"),
    [
        # a value replaced by another one of its sentence
        ("The school opened in 1894 and was closed in 1908.",
         "Closed in 1908, the school opened in 1894.", "The school opened in 1908 and was closed in 1908."),
        ("The school was opened by Anna and closed by Omar.",
         "The school was opened by Anna and was closed by Omar.", "The school was opened by Omar and closed by Omar."),
        # a name may replace a pronoun, a number may not
        ("In 1998, Anna Hill met Omar when she was in Rome.",
         "In 1998, Anna Hill met Omar when Anna Hill was in Rome.",
         "In 1998, Anna Hill met Omar when 1998 was in Rome."),
        # two exchanged
        ("Anna (1930-1999) sold figs in Rome.",
         "In Rome, Anna (1930-1999) sold figs.", "Anna (1999-1930) sold figs in Rome."),
        ("From December 2011 to August 2016, Anna was a chief.",
         "From Dec. 2011 to Aug. 2016, Anna was a chief.", "From December 2016 to August 2011, Anna was a chief."),
        ("They played at Hill Stadium in Port Roe, Maine.",
         "In Maine, they played at Hill Stadium in Port Roe.", "They played at Port Roe in Hill Stadium, Maine."),
        ("Only Tom T. Abel in 1864 and Rick R. Roe in 1936 won it.",
         "Only Tom Abel in 1864 and Rick Roe in 1936 won it.",
         "Only Tom T. Abel in 1936 and Rick R. Roe in 1936 won it."),
        ("It was -5 degrees there.", "There it was −5 degrees.", "It was 5 degrees there."),
        ("There, x = 3 < 4 holds.", "x = 3 < 4 holds there.", "There, x = 3 > 4 holds."),
        ("It sold 10⁶ units in Rome.", "In Rome, it sold 10^6 units.", "It sold 106 units in Rome."),
        # A number is one token in other words, too.
        ("The rate is 1.5 there.", "There, the rate is 1.50.", "There, the rate is 1."),
        ("Anna paid $5 in Rome.", "In Rome, Anna paid $5.", "In Rome, Anna paid €5."),
        ("The share is 5% there.", "There, the share is 5 percent.", "There, the share is 5."),
        ("It was built 1914–18 there.", "There, it was built between 1914 and 1918.", "There, it was built in 1914."),
        ("Anna left on 12 May 2010 for Rome.", "Anna left for Rome in May 2010.", "Anna left for Rome on 12."),
        ("Anna left for Rome on 2010-05-12.", "On 12 May 2010, Anna left for Rome.", "In 2010, Anna left for Rome."),
        ("There, 10⁶ units were sold.", "10^6 units were sold there.", "10 units were sold there."),
        # No share of words compensates for a modal verb or a quantifier.
        *((f"There, Anna {a} see a part{LONG}", f"Anna {a} see a part there{LONG}", f"There, Anna {b} see a part{LONG}")
          for a, b in [("may", "must"), ("must", "may"), ("can", "should"), ("will", "would"), ("could", "might")]),
        (f"It is one of the parts{LONG}", f"It was one of the parts{LONG}", f"It is the only one of the parts{LONG}"),
        (f"There, some parts{LONG}", f"Some parts there{LONG}", f"There, all parts{LONG}"),
        ("Anna could not see Rome.", "Anna couldn't see Rome.", "Anna could see Rome."),
        ("Anna can't see Rome.", "Anna cannot see Rome.", "Anna must not see Rome."),
        ("Then Will Roe ran to Rome in May.", "To Rome, Will Roe ran in May.", "To Rome, Roe must ran in May."),
        # Scripts without spaces or capitals.
        ("安娜住在罗马,她有3只猫。奥马尔在巴黎卖茶。", "安娜住在罗马。", "奥马尔住在罗马。"),
        ("安娜住在罗马,她有3只猫。", "安娜住在罗马,她有３只猫。", "安娜住在罗马,她有5只猫。"),
        ("王芳于1987年出生在上海。", "1987年,王芳出生在上海。", "1986年,王芳出生在上海。"),
        ("他是一名医生。", "他是一名医生", "他不是一名医生。"),
        ("アンナはローマに住んでいます。", "アンナはローマに住んでいます", "アンナはパリに住んでいます。"),
        ("안나는 로마에 산다. 오마르는 차를 판다.", "안나는 로마에 산다", "오마르는 로마에 산다."),
        ("อันนาอาศัยอยู่ในกรุงโรม มีแมว 3 ตัว", "อันนาอาศัยอยู่ในกรุงโรม", "อันนาไม่อาศัยอยู่ในกรุงโรม"),
        ("อันนาอยู่ในกรุงโรม มีแมว 3 ตัว", "มีแมว 3 ตัว อันนาอยู่ในกรุงโรม", "อันนาอยู่ในกรุงโรม มีแมว 5 ตัว"),
        ("ولدت آنا في روما عام ١٩٨٧.", "ولدت آنا عام 1987 في روما", "ولدت آنا عام 1986 في روما"),
        ("अन्ना रोम में रहती है।", "अन्ना रोम में रहती है", "उमर रोम में रहती है"),
        ("Anna lebt in Zürich und verkauft Äpfel.", "Anna verkauft Äpfel.", "Anna verkauft Birnen."),
    ],
)  # fmt: skip
def test_a_source_supports_its_statement_in_other_words_and_not_another_one(
    source: str, stated: str, other: str
) -> None:
    assert supported(stated, [source]) is None
    assert supported(other, [source])


@pytest.mark.parametrize(
    ("number", "same", "different"),
    [
        ("4:54 p.m.", "4:54 PM", ["4:54 a.m.", "4:54"]),
        ("4 pm", "4 p.m.", ["4 am", "4"]),
        ("5 m", "5 metres", ["5 g", "5 l", "5 km", "5"]),
        ("5 l", "5 L", ["5 h", "5"]),
        ("5 h", "5 hours", ["5 l", "5"]),
        ("9 m/s", "9 metre/s", ["9 m", "9 m/h", "9"]),
        ("5 km per hour", "5 kilometres per hour", ["5 km", "5"]),
        ("20 °C", "20 degrees Celsius", ["20 °F", "20°", "20"]),
        ("5%", "5 percent", ["5‰", "5"]),
        ("528 per cent", "528 per cent", ["528 per", "528"]),
        ("₹5", "5 rupees", ["€5", "₩5", "5"]),
        ("₩5", "5₩", ["₹5", "5"]),
        ("<5", "<5", [">5", "5"]),
        ("±5", "±5.0", ["+5", "-5", "5"]),
        ("~5", "~5", ["5"]),
        ("+5", "+5", ["-5", "5"]),
        ("–5", "−5", ["5"]),
        ("2½", "2 1/2", ["21/2", "2", "½"]),
        ("½", "1/2", ["1", "2"]),
        ("5", "5.0", ["5 m", "5 pm", "±5", "₹5", "5°"]),
    ],
)
def test_a_number_includes_its_sign_its_currency_and_its_unit(number: str, same: str, different: list[str]) -> None:
    source = f"Omar runs. In Rome, the value {number} was read by Anna{LONG}"
    assert supported(f"The value {same} was read by Anna in Rome{LONG}", [source]) is None
    for other in different:
        assert supported(f"The value {other} was read by Anna in Rome{LONG}", [source])


@pytest.mark.parametrize(
    "text", ["In Rome, I am 5.", "I ran a 5 in Rome.", "Since 1990 I am in Rome.", "In 1988 L.A. ran."]
)
def test_words_of_one_letter_are_units_only_after_a_number(text: str) -> None:
    words = {word for one in worded(text) for word, kind in zip(one.exact, one.kinds, strict=True) if kind}
    assert not {"metre", "gram", "litre", "am"} & words


@pytest.mark.parametrize(
    ("title", "other"),
    [
        ("Saint-Jules, Quebec", "Saint-Jules, Ontario"),
        ("653 Berenike", "654 Berenike"),
        ("Love Me like You Do", "Love Me until You Do"),
        ("I'll Be Here Awhile", "I'll Be There Awhile"),
        ("No. 2 Squadron", "No. 3 Squadron"),
        ("Lorne (singer)", "Roe"),
    ],
)
def test_a_title_may_replace_a_pronoun(title: str, other: str) -> None:
    source = f"{title}\n{title} is well known. Omar praised it. It was first seen by Tom Abel in 1998."
    name = title.removesuffix(" (singer)")
    assert supported(f"{name} was first seen by Tom Abel in 1998.", [source]) is None
    assert supported(f"{other} was first seen by Tom Abel in 1998.", [source])
    assert supported(f"{name} was first seen by Tom Abel in 1999.", [source])


@pytest.mark.parametrize(
    ("short", "stays"), [("T.", True), ("Th.", False), ("Theo.", True), ("Tho.", False), ("Te.", False)]
)
def test_one_letter_or_three_abbreviate_a_name_and_two_do_not(short: str, stays: bool) -> None:
    assert (supported(f"In Rome, Ada {short} Lorne ran.", ["Ada Theodore Lorne ran in Rome."]) is None) == stays


def test_one_source_must_support_all_of_a_unit() -> None:
    assert supported("Anna Hill sells figs.", ["Anna Hill sells tea.", "Omar sells figs."])
    assert supported("Anna Hill sells tea.", ["Omar sells figs.", "Tea is sold by Anna Hill."]) is None


def test_candidates_that_share_as_many_words_are_in_the_order_of_the_source() -> None:
    words = str.split("figs bread milk corn rice salt oats plums")
    source = read_source(" ".join(f"Anna {word}." for word in words))
    assert grounded._candidates(UnitWords.of(" ".join(reversed(words))), source) == [0, 1, 2, 3]


def test_the_supported_part_of_a_reply_is_sampled_ids() -> None:
    codec = base_codec()
    supported_, other = " In Rome, Anna sold figs.", " In Rome, Omar sold figs."
    ids = codec.encode(supported_ + other)
    sifted = sift(ids, [codec.encode("Anna sells figs in Rome. Omar sells tea.")], codec, GroundedRule("close"))
    assert codec.decode(sifted.ids) == supported_
    assert sifted.ids == ids[: len(sifted.ids)]
    assert [unit for unit, _ in sifted.dropped] == [other.strip()]


TEXT = st.text(st.sampled_from("aAbB .,!?\n\"'1290-–不罗马アは가ไม่éßU.S"), max_size=60)


@given(TEXT, TEXT, TEXT)
@settings(max_examples=50)
def test_a_quotation_of_a_source_is_supported_and_nothing_raises(before: str, unit: str, after: str) -> None:
    if any(letter.isalnum() for letter in unit):
        assert supported(unit, [f"{before} {unit} {after}"]) is None
    supported(unit, [before, after])


@pytest.mark.parametrize(
    "piece",
    ["a ", "A. ", "a", "罗", "No ", "1 ", "1,", "!", '"', "'s ", "and ", "A and ", "; ", "Anna "],
)  # fmt: skip
def test_a_hostile_text_costs_a_bounded_number_of_comparisons(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = piece * (12_000 // len(piece))
    sentences = worded(source)
    assert sum(map(len, sentences)) <= 2 * len(source)
    assert all(len(sentence) <= 3 * LONGEST for sentence in sentences)
    comparisons = 0

    class Counted(Match):
        def fault(self, threshold: float) -> object:  # type: ignore[override]
            nonlocal comparisons
            comparisons += 1
            return super().fault(threshold)

    monkeypatch.setattr(grounded, "Match", Counted)
    supported(f"{piece * 150} Zeno of Elea", [source])
    assert comparisons <= 6 * grounded.CANDIDATES * (1 + 2 * grounded.SPLITS)


def test_a_source_is_read_once() -> None:
    read_source.cache_clear()
    for unit in ("Ada Lorne runs.", "Omar Vance runs.", "Rick Roe runs."):
        supported(unit, [SOURCE])
    assert read_source.cache_info().misses == 1


def benchmark() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "benchmarks" / "grounded_close.py"
    spec = importlib.util.spec_from_file_location("grounded_close", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("file", ["hotpotqa_train_100.json", "hotpotqa_dev_50.json"])
def test_real_sentences_paraphrased_and_corrupted_by_rule(file: str, real_data: Path) -> None:
    module = benchmark()
    count, wrong = module.measure(real_data / file)
    assert count["cut, close"] >= 300
    assert count["copied, verbatim"] >= 2000
    for how in ("verbatim", "close"):
        assert wrong[f"cut, {how}"] == wrong[f"copied, {how}"] == 0
        assert all(wrong[f"{kind}, {how}"] < 0.10 * count[f"{kind}, {how}"] for kind in ("modal", "only"))
    for kinds, most in ((module.PARAPHRASES, 0.05), (module.CORRUPTIONS, 0.10)):
        total = sum(count[kind] for kind in kinds)
        assert total >= 400
        assert sum(wrong[kind] for kind in kinds) < most * total
    assert all(wrong[kind] < 0.10 * count[kind] for kind in module.WITHIN)
