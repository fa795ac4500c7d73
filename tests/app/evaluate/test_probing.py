"""`palimpsest probe`, on the model inside the package."""

from __future__ import annotations

import json

import pytest

import palimpsest
from palimpsest.errors import ConfigError


def test_a_probe_counts_every_read_and_has_an_interval_for_every_length() -> None:
    probe = palimpsest.probe("embedded", recipe="memagent-quickstart", chunks=4, lengths=[4, 64], limit=6, quiet=True)
    assert sum(row["reads"] for row in probe.table) == 24
    assert [length for length, _ in probe.expected] == [4, 64]
    assert all(share is None or 0 <= share <= 1 for _, share in probe.expected)
    assert json.loads(json.dumps(probe.to_json()))["episodes"] == 6
    assert "expected accuracy" in repr(probe)
    assert all(0 <= each.low <= each.high <= 1 for each in probe.predictions)


def test_lengths_that_a_probe_does_not_predict_have_a_line_with_the_reads_they_need() -> None:
    probe = palimpsest.probe("embedded", recipe="memagent-quickstart", chunks=4, lengths=[4, 1024], limit=6, quiet=True)
    saved, lines = probe.to_json(), probe.told
    unsupported = [length for length, share in probe.expected if share is None]
    assert 1024 in unsupported
    assert [line.split(" chunks")[0].replace(",", "") for line in lines] == [str(length) for length in unsupported]
    assert saved["expected"]["1024"] is None
    assert 0 <= saved["expected_low"]["1024"] < saved["expected_high"]["1024"] <= 1
    assert all("24 reads give" in line and line in repr(probe) for line in lines)


@pytest.mark.parametrize("policy", ["full_context", "prune", "closed_book"])
def test_what_writes_no_memory_is_refused_with_what_to_probe_instead(policy: str) -> None:
    with pytest.raises(ConfigError, match=rf"{policy}.*overwrite or recall"):
        palimpsest.probe("embedded", policy=policy, chunks=2, limit=2, quiet=True)


@pytest.mark.parametrize(
    "wrong",
    [{"chunks": 0}, {"limit": 0}, {"lengths": []}, {"lengths": [4, -1]}, {"chunks": 10**9}, {"lengths": [4, 10**9]}],
)
def test_sizes_that_no_document_has_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        palimpsest.probe("embedded", quiet=True, **wrong)
