"""/openapi.json: it names every route, and its bodies are those that the server takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Route

from support.serving import body, scripted

ASKED = {
    "/v1/chat/completions": body("Who?", stream=True, stream_options={"include_usage": True}, seed=1, stop=["x"]),
    "/v1/completions": {"model": "palimpsest", "prompt": "Who?", "max_tokens": 3, "temperature": 0.5},
    "/v1/responses": {"model": "palimpsest", "input": "Who?", "metadata": {"a": "b"}, "background": False},
    "/tokenize": {"prompt": "Who?"},
}


async def described(**options: Any) -> tuple[Any, dict[str, Any]]:
    client, service, _ = scripted(None, **options)
    headers = {"Authorization": f"Bearer {options['token']}"} if "token" in options else {}
    answer = await client.get("/openapi.json", headers=headers)
    assert answer.status_code == 200
    return service.app(), answer.json()


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(inner)


async def test_the_document_names_the_routes_and_no_others() -> None:
    app, found = await described()
    routes = [route for route in app.routes if isinstance(route, Route)]
    served = {
        (re.sub(r":path\}", "}", route.path), method.lower())
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served == {(path, method) for path, methods in found["paths"].items() for method in methods}


async def test_the_document_keeps_the_rules_of_openapi() -> None:
    draft = pytest.importorskip("jsonschema").Draft202012Validator
    _, found = await described()
    assert (found["openapi"], found["info"]["title"], found["info"]["version"]) == ("3.1.0", "palimpsest", "0")
    operations = [(path, each) for path, methods in found["paths"].items() for each in methods.values()]
    assert len({each["operationId"] for _, each in operations}) == len(operations)
    for path, each in operations:
        names = [given["name"] for given in each["parameters"] if given["in"] == "path"]
        assert names == re.findall(r"\{(\w+)\}", path)
        assert all(given["required"] for given in each["parameters"] if given["in"] == "path")
        assert all(answer["description"] for answer in each["responses"].values())
    schemas = found["components"]["schemas"]
    for schema in schemas.values():
        draft.check_schema(schema)
    references = [each["$ref"] for each in nodes(found) if "$ref" in each]
    assert references
    assert all(each.removeprefix("#/components/schemas/") in schemas for each in references)


@pytest.mark.parametrize("path", ASKED)
async def test_bodies_that_the_server_takes_fit_the_document_and_others_do_not(path: str) -> None:
    draft = pytest.importorskip("jsonschema").Draft202012Validator
    _, found = await described()
    client, _, _ = scripted(None)
    schema = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = draft({**schema, "components": found["components"]})
    for more, fits in (({}, True), ({"temprature": 1}, False), ({"prompt": 1, "input": 1, "messages": 1}, False)):
        given = {**ASKED[path], **more}
        assert validator.is_valid(given) == fits
        assert ((await client.post(path, json=given)).status_code == 200) == fits


async def test_errors_are_as_the_document_says() -> None:
    _, found = await described()
    client, _, _ = scripted(None)
    for answer in (await client.get("/nowhere"), await client.post("/tokenize", json={})):
        pytest.importorskip("jsonschema").validate(answer.json(), found["components"]["schemas"]["Error"])


async def test_only_a_server_with_a_key_describes_one() -> None:
    _, found = await described()
    assert "security" not in found
    _, found = await described(token="secret")
    assert found["security"] == [{"key": []}]
    assert found["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}
    assert [path for path, each in found["paths"].items() if each.get("get", {}).get("security") == []] == [
        "/health",
        "/ready",
    ]
    client, _, _ = scripted(None, token="secret")
    assert (await client.get("/openapi.json")).status_code == 401
