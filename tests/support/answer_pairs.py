"""Pairs of answers that are equal or different to the default scorer: see docs/reference/metrics.md."""

from __future__ import annotations

Pairs = dict[str, list[tuple[str, str]]]

SAME: Pairs = {
    "case, unicode form, width": [("PARIS", "Paris"), ("Malmo\u0308", "Malmö"), ("Ｐａｒｉｓ", "Paris")],
    "articles before a word": [("The Beatles", "Beatles"), ("a **Beatle**", "Beatle")],
    "sentence marks": [("Paris.", "Paris"), ("Yes!", "yes"), ("in 1989, he", "in 1989 he"), ("¿Sí?", "sí")],
    "marks part words": [("Paris,France", "Paris, France"), ("Paris (France)", "Paris, France"),
        ("東京、日本", "東京日本")],
    "quotes, apostrophes": [("“1984”", "1984"), ('"in 1984"', "in 1984"), ("don’t", "don't"),
        ("the 'Mona Lisa'", "Mona Lisa")],
    "hyphens in words, dashes": [("Wi-Fi", "WiFi"), ("COVID-19", "COVID19"), ("Paris–Dakar", "Paris-Dakar")],
    "periods of abbreviations": [("U.S.A.", "USA"), ("Ph.D.", "PhD"), ("J.R.R. Tolkien", "JRR Tolkien"),
        ("No.5", "No. 5")],
    "brackets": [("(Paris)", "Paris"), ("[5]", "5"), ("(1, 2)", "1, 2")],
    "emphasis, bullets": [("**Paris**", "Paris"), ("_Paris_", "Paris"), ("- Paris", "Paris"), ("# Paris", "Paris")],
    "dress of TeX": [(r"\textsf{Paris}", "Paris"), (r"\underline{\text{Paris}}", "Paris"), (r"{\bf Paris}", "Paris"),
        (r"\textcolor{red}{Paris}", "Paris"), (r"\text{Paris", "Paris"), ("$5$", "5"), (r"\(x\)", "x"),
        (r"\text{H}_2\text{O}", "H₂O")],
    "dress of HTML": [("<b>Paris</b>", "Paris"), ('<span class="a">Paris</span>', "Paris"),
        ("New<br>York", "New York")],
    "fractions": [(r"\frac{1}{2}", "1/2"), (r"\dfrac12", "½"), ("1 / 2", "1/2"), ("1½", "1 1/2")],
    "powers": [("x²", "x^2"), ("x^{2}", "x^2"), ("x<sup>2</sup>", "x^2"), ("10⁻⁵", "10^{-5}")],
    "ways to write a sign": [("−3", "-3"), ("1986–2013", "1986 - 2013"), ("< 5", "&lt;5"), (r"\leq 5", "<= 5"),
        (r"3 \times 4", "3*4"), (r"90^\circ", "90 °"), ("5 %", r"$5\%$"), (r"\$5", "$ 5"), ("x + 1", "x+1"),
        ("Simon & Garfunkel", "Simon and Garfunkel")],
    "marks missing in capitals or in common writing": [("ΑΘΗΝΑ", "Αθήνα"), ("DİYARBAKIR", "Diyarbakır"),
        ("שָׁלוֹם", "שלום"), ("أَحمد", "احمد"), ("Королев", "Королёв")],
    "spaces and hyphens of other scripts": [("2008 年", "2008年"), ("세종 대왕", "세종대왕"),
        ("माता-पिता", "माता पिता"), ("תל־אביב", "תל אביב")],
    "ways to write a number": [("1,000", "1000"), ("1{,}000,000", "1000000"), (".5", "0.5"), ("+3", "3")],
}  # fmt: skip

DIFFERENT: Pairs = {
    "decimal point, versions, addresses": [("3.5", "35"), ("2.1.0", "2.10"), ("192.168.1.1", "19216811"),
        ("12.05.1990", "12051990"), ("3.x", "3x")],
    "minus, ranges": [("-3", "3"), ("-$5", "$5"), ("1986-2013", "19862013"), ("2020-01-05", "20200105"),
        ("1e-5", "1e5"), ("x-y", "xy")],
    "comparison, approximation": [("<5", ">5"), ("<5", "5"), ("≤5", "<5"), ("x = 5", "x ≠ 5"), ("~5", "5"),
        ("±5", "5")],
    "fractions, ratios, times": [("1/2", "12"), ("½", "12"), ("1½", "11/2"), (r"\frac{1}{2}", "12"), ("3:2", "32"),
        ("10:30", "1030")],
    "units": [("5%", "5"), ("5%", "5‰"), ("$5", "5"), ("$5", "€5"), ("5°", "5"), ("6'", '6"'), ("5'10\"", "510")],
    "operators": [("2^10", "210"), ("x²", "x2"), ("3×4", "34"), ("5!", "5"), ("√2", "2"), ("|x|", "x"),
        (r"\sqrt{2+x}", r"\sqrt{2}+x")],
    "lists, intervals": [("1,2", "12"), ("[1, 2)", "(1, 2]"), ("3,5", "35")],
    "names": [("C++", "C"), ("C#", "C"), ("A+", "A"), ("A+", "A-"), ("Na+", "Na"), ("A*", "A"), ("#1", "1"),
        ("AT&T", "ATT"), ("@user", "user"), ("snake_case", "snakecase"), ("vitamin A", "vitamin")],
    "a letter before an answer": [("A: Paris", "Paris"), ("A. Paris", "Paris")],
    "an object of JSON": [('{"a": "Paris"}', "Paris"), ("{'a': 'Paris'}", "Paris"), ('[{"a": "Paris"}]', "Paris")],
    "accents, vowel signs, tones": [("pêcheur", "pécheur"), ("мой", "мои"), ("दिन", "दीन"),
        ("ไก่", "ไข่"), ("ビル", "ビール")],
    "letters of another script": [("P\u0430ris", "Paris")],
}  # fmt: skip


def table() -> str:
    lines = ["| answer and gold | are | because of |", "|---|---|---|"]
    for verdict, pairs in (("the same", SAME), ("different", DIFFERENT)):
        for reason, examples in pairs.items():
            shown = ", ".join(f"{_code(a)} {_code(b)}" for a, b in examples)
            lines.append(f"| {shown} | {verdict} | {reason} |")
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")
