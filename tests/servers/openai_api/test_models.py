"""A model at an endpoint."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

import palimpsest
from support.endpoint_server import MODEL, endpoint_server
from support.serving import body, server

BASE_MODEL = Path(palimpsest.__file__).parent / "assets" / "base-model"
ASK = body("<document>Anna sells tea. Bob sells honey.</document> What does Bob sell?")
PATH = "/v1/chat/completions"


@pytest.mark.slow
def test_the_model_may_be_at_an_endpoint(tmp_path: Path) -> None:
    with endpoint_server() as endpoint:
        more = ("--base-url", endpoint.url, "--tokenizer", str(BASE_MODEL))
        with server(tmp_path, *more, model=MODEL) as (url, _):
            answer = httpx2.post(url + PATH, json=ASK, timeout=120).json()
            card = httpx2.get(f"{url}/v1/models").json()["data"][0]
    assert answer["palimpsest"]["outcome"] in ("answered", "answer_truncated")
    assert card["palimpsest"]["fingerprint"] == f"{MODEL} at {endpoint.url}"
