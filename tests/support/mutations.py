"""Replies that are cut, doubled and mixed with text that is hard to parse."""

from __future__ import annotations

import random

PIECES = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "</think>", "<think>"),
    *('"name"', '"arguments"', '"parameters"', *'{}[]":,;\\ \n\0\ud800\U0001f600', "NaN", "Infinity", "1e999", "null"),
    *("true", "-0", '"delete_ids": ["a2"]', "9" * 5000, '{"a":' * 30, "[" * 5000, "]" * 5000, "\\u0000", "\\ud800"),
    '"a": 1, "a": 2',
]


def mutated(draw: random.Random, text: str) -> str:
    for _ in range(draw.choice([1, 1, 1, 2, 4, 12])):
        at = draw.randrange(len(text) + 1)
        to = min(len(text), at + draw.choice([0, 1, 1, 5, 40]))
        match draw.randrange(6):
            case 0:
                text = text[:at] + draw.choice(PIECES) + text[to:]
            case 1:
                text = text[:at] + chr(draw.randrange(0x300)) + text[to:]
            case 2:
                text = text[:at] + text[to:]
            case 3:
                text = text[:at]
            case 4:
                text = text[:to] + text[at:to] * draw.choice([1, 3]) + text[to:]
            case 5:
                other = draw.randrange(len(text) + 1)
                text = text[:at] + text[other : other + 60] + text[at:]
    return text
