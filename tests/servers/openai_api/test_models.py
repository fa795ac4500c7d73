"""Where the model is: at an endpoint, or in a run that goes on training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

import palimpsest
from support.endpoint_server import MODEL, endpoint_server
from support.serving import body, server
from support.small_run import small_run

BASE_MODEL = Path(palimpsest.__file__).parent / "assets" / "base-model"
ASK = body("<document>Anna sells tea. Bob sells honey.</document> What does Bob sell?")
PATH = "/v1/chat/completions"


@pytest.mark.slow
def test_the_model_may_be_at_an_endpoint(tmp_path: Path) -> None:
    with endpoint_server() as endpoint:
        more = ("--engine", endpoint.url, "--tokenizer", str(BASE_MODEL))
        with server(tmp_path, *more, model=MODEL) as (url, _):
            answer = httpx2.post(url + PATH, json=ASK, timeout=120).json()
            card = httpx2.get(f"{url}/v1/models").json()["data"][0]
    assert answer["palimpsest"]["outcome"] in ("answered", "answer_truncated")
    assert card["palimpsest"]["fingerprint"] == f"{MODEL} at {endpoint.url}"


@pytest.mark.slow
def test_new_checkpoints_of_a_run_are_taken_while_it_is_served(tmp_path: Path, tiny_model_folder: Path) -> None:
    run = tmp_path / "run"
    settings = small_run(tiny_model_folder, steps=1)
    palimpsest.train("memagent-quickstart", settings, out=run, quiet=True)
    with server(tmp_path / "store", "--follow", model=str(run)) as (url, child):
        assert httpx2.post(url + PATH, json=ASK, timeout=120).status_code == 200
        longer = settings | {"train": {**settings["train"], "steps": 2}}
        palimpsest.train("memagent-quickstart", longer, out=run, resume=True, quiet=True)
        assert child.stdout
        assert "step-000002: served from now on" in child.stdout.readline()
        other = body("<document>Anna sells tea. Bob sells honey.</document> What does Anna sell?")
        assert httpx2.post(url + PATH, json=other, timeout=120).status_code == 200


def test_only_a_run_can_be_followed(refused: Any) -> None:
    assert "--follow: embedded is no run" in refused("serve", "embedded", "--follow")
