"""Statements of paragraphs about films and people, read word by word, without the patterns of `data wiki`."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable

PARTICLES = {"de", "von", "van", "der", "di", "la", "le", "el", "al"}
MONTHS = "|".join(calendar.month_name[1:])
FORMS = {
    "Who directed {}?": "directed by",
    "Who stars in {}?": "starring",
    "Which professions does the text name for {}?": "professions",
    "When was {} born?": "born",
    "When did {} die?": "died",
}


def stated(document: str, question: str) -> list[list[str]]:
    """The values of each statement about the subject of a question, in the order of the document.

    >>> stated("Document 1:\\nDusk\\nDusk is a film directed by Ann Lee and Bo Ek.", "Who directed Dusk?")
    [['Ann Lee', 'Bo Ek']]
    """
    form, subject = next((form, found) for form in FORMS if (found := _between(question, *form.split("{}"))))
    if film := _between(subject, "the director of ", ""):
        directors = stated(document, f"Who directed {film}?")
        subject = "".join(name for names in directors for name in names)
    read = [_values(text, FORMS[form]) for text in _statements(document, subject)]
    return [values for values in read if values]


def _between(text: str, before: str, after: str) -> str:
    return text[len(before) : len(text) - len(after)] if text.startswith(before) and text.endswith(after) else ""


def _statements(document: str, subject: str) -> list[str]:
    """From each line with a sentence that starts with the subject, the text from there on; no titles."""
    found = []
    for line in document.split("\n"):
        places = [match.start() for match in re.finditer(re.escape(subject), line)]
        begins = [at for at in places if at == 0 or line[:at].endswith((". ", '" '))]
        found += [line[at:] for at in begins[:1] if line != subject]
    return found


def _values(text: str, cue: str) -> list[str]:
    if cue in ("born", "died"):
        inside = text.partition("(")[2].partition(")")[0]
        dates = re.findall(rf"\d+ (?:{MONTHS}) \d+|(?:{MONTHS}) \d+, \d+", inside)
        years = re.findall(r"\d{4}", inside)
        if len(dates) == 2:
            return [dates[cue == "died"]]
        return dates if cue == ("died" if years[1:] and dates[0].endswith(years[-1]) else "born") else []
    if cue == "professions":
        rest = re.split(r"\) (?:is|was) ", text, maxsplit=1)[-1]
        nouns = re.sub(r"^an? ((?:[^\Wa-z][\w-]* ?)*)", "", rest)
        return _listed(nouns, lambda word: word.islower() and word not in ("from", "best", "known"))
    return _listed(text.partition(f"{cue} ")[2], lambda word: word[0].isupper() or word in PARTICLES)


def _listed(text: str, belongs: Callable[[str], bool]) -> list[str]:
    """The names or nouns at the start of a text, separated by commas and "and"."""
    values: list[list[str]] = [[]]
    for word in re.findall(r"[\w.'’-]+|,|;", text):
        if word in (",", "and"):
            values.append([])
        elif not belongs(word):
            break
        elif word.endswith(".") and len(word) > 2:  # the sentence's end, no initial
            values[-1].append(word.removesuffix("."))
            break
        else:
            values[-1].append(word)
    return [" ".join(words) for words in values if words]
