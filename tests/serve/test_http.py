"""What the servers share: every error has the form of the server that tells it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.requests import Request

from palimpsest.errors import DataError
from palimpsest.serve.agent.requests import openai_error
from palimpsest.serve.http import ErrorForm, Guard, Refused, plain_error


@pytest.mark.parametrize("form", [plain_error, openai_error])
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (Refused(418, "no tea"), 418, "no tea"),
        (DataError("p: broken"), 400, "p: broken"),
        (OSError(28, "No space left on device"), 500, "the server failed (OSError); its log says why"),
    ],
)
async def test_whatever_goes_wrong_is_told_in_the_form_of_the_server(
    form: ErrorForm, error: Exception, status: int, said: str
) -> None:
    def fails(_: Request) -> Any:
        raise error

    app = Guard(None, form=form).app([("/a", "GET", fails)])
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.get("/a")
    assert answer.status_code == status
    assert answer.json() == form(Refused(status, said))
