"""/metrics, read by the rules of Prometheus' text format."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from support.serving import body, scripted

PATH = "/v1/chat/completions"
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\[\\"n])*)"')


@dataclass
class Read:
    """A family as a scraper reads it."""

    kind: str = ""
    help: str = ""
    samples: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)


def read(text: str) -> dict[str, Read]:
    """By the rules of the format: HELP and TYPE before the samples of a name, which come in one group, each once."""
    assert text.endswith("\n")
    found, current = dict[str, Read](), ""
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            _, what, name, said = line.split(" ", 3)
            if what == "HELP":
                assert name not in found
                found[name] = Read(help=said)
            else:
                assert (what, name, found[name].samples) == ("TYPE", current, {})
                assert said in ("counter", "gauge")
                found[name].kind = said
            current = name
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        family = found[current]
        assert match[1] == current, line
        key = tuple(sorted(LABEL.findall(match[2] or "")))
        assert key not in family.samples
        family.samples[key] = float(match[3])
    return found


async def test_every_family_has_help_type_and_samples_by_the_rules_of_the_format() -> None:
    client, _, _ = scripted(None)
    answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert all(each.help and each.kind for each in read(answer.text).values())
    for stream in (False, True):
        question = f"<document>Anna sells tea.</document> Who sells tea, {stream}?"
        whole = await client.post(PATH, json=body(question, stream=stream))
        assert whole.status_code == 200
    await client.get('/no"where\\')
    found = read((await client.get("/metrics")).text)
    assert all(each.help and each.kind for each in found.values())
    assert all(name.endswith("_total") == (each.kind == "counter") for name, each in found.items())


async def test_counters_count_requests_and_what_episodes_took() -> None:
    client, _, _ = scripted(None)
    answers = [await client.post(PATH, json=body(f"<document>Tea.</document> Who {n}?")) for n in range(3)]
    await client.get("/nowhere")
    found = read((await client.get("/metrics")).text)
    assert found["palimpsest_requests_total"].samples == {(("status", "200"),): 3, (("status", "404"),): 1}
    assert found["palimpsest_episodes_total"].samples == {(("outcome", "answered"),): 3}
    for name in ("turns", "tokens_in", "tokens_sampled"):
        expected = sum(each.json()["palimpsest"][name] for each in answers)
        assert found[f"palimpsest_{name}_total"].samples == {(): expected}
