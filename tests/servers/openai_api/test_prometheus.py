"""/metrics, read by the rules of Prometheus' text format."""

from __future__ import annotations

import math
import re
from collections import defaultdict
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
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)


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
                assert said in ("counter", "gauge", "histogram")
                found[name].kind = said
            current = name
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        family = found[current]
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        assert match[1] in [current + suffix for suffix in suffixes], line
        key = (match[1].removeprefix(current), tuple(sorted(LABEL.findall(match[2] or ""))))
        assert key not in family.samples
        family.samples[key] = float(match[3])
    return found


def check_histogram(family: Read) -> int:
    """Its buckets grow and end with the count; how many values it has."""
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    for (suffix, labels), value in family.samples.items():
        if suffix == "_bucket":
            bound = next(each for name, each in labels if name == "le")
            series[tuple(pair for pair in labels if pair[0] != "le")].append((float(bound), value))
    total = 0
    for labels, buckets in series.items():
        assert buckets == sorted(buckets)
        assert [value for _, value in buckets] == sorted(value for _, value in buckets)
        assert buckets[-1] == (math.inf, family.samples["_count", labels])
        assert family.samples["_sum", labels] >= 0
        total += int(buckets[-1][1])
    return total


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
    for name, family in found.items():
        if family.kind == "histogram":
            assert check_histogram(family) > 0, name


async def test_histograms_count_requests_by_route_and_tokens_by_episode() -> None:
    client, _, _ = scripted(None)
    answers = [await client.post(PATH, json=body(f"<document>Tea.</document> Who {n}?")) for n in range(3)]
    for path in ("/v1/models/x", "/v1/models/y", "/nowhere", "/elsewhere"):
        await client.get(path)
    found = read((await client.get("/metrics")).text)
    seconds = found["palimpsest_request_duration_seconds"].samples
    assert seconds["_count", (("route", PATH),)] == 3
    assert seconds["_count", (("route", "/v1/models/{model:path}"),)] == 2
    assert seconds["_count", (("route", "none"),)] == 2
    assert found["palimpsest_request_first_byte_seconds"].samples["_count", (("route", PATH),)] == 3
    for name, key in (("prompt", "tokens_in"), ("sampled", "tokens_sampled")):
        tokens = found[f"palimpsest_episode_{name}_tokens"].samples
        assert tokens["_count", ()] == 3
        assert tokens["_sum", ()] == sum(each.json()["palimpsest"][key] for each in answers)
    assert found["palimpsest_episodes_total"].samples["", (("outcome", "answered"),)] == 3
