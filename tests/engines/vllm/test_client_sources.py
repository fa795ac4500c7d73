"""The client's requests, options and fields, compared with the sources of a vLLM that may not run here.

$PALIMPSEST_VLLM_WHEEL names a wheel of vLLM, or a folder that contains `vllm`; nothing of it is imported.
"""

from __future__ import annotations

import ast
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import orjson
import pytest

from palimpsest.config.engine import BREAKING, RESERVED_ARGS, SamplerConfig
from palimpsest.engines.vllm import client
from palimpsest.engines.vllm.client import VllmClient
from palimpsest.engines.vllm.server_process import ServerProcess
from palimpsest.errors import SamplerError
from palimpsest.http_connections import Connections
from palimpsest.http_services import HttpReply
from palimpsest.types import SamplingParams

WHEEL = os.environ.get("PALIMPSEST_VLLM_WHEEL")
pytestmark = pytest.mark.skipif(WHEEL is None, reason="no $PALIMPSEST_VLLM_WHEEL, a wheel of vLLM")
GENERATE = "/inference/v1/generate"
REPLIES = {
    client.Answer: "GenerateTokensResponse",
    client._Choice: "GenerateTokensChoice",
    client._Logprobs: "GenerateLogProbs",
    client._Token: "GenerateLogProbsContent",
    client._Logprob: "Logprob",
}
FIELDS = {"GenerateLogProbsContent": {"top_logprobs"}, "GenerateLogProb": {"token_id", "logprob"}}
FIELDS |= {"UsageInfo": {"prompt_tokens_details"}, "PromptTokenUsageInfo": {"cached_tokens"}}
FIELDS |= {"WeightVersionSpan": {"version"}}
"""Fields that the client reads by name."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `vllm`."""
    assert WHEEL is not None
    if not WHEEL.endswith(".whl"):
        return Path(WHEEL) / "vllm"
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".py")])
    return folder / "vllm"


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def classes(sources: Path) -> dict[str, ast.ClassDef]:
    """Classes of the protocol, by name."""
    files = [*(sources / "entrypoints").rglob("protocol.py"), *map(sources.joinpath, ("logprobs.py", "outputs.py"))]
    collected = [node for file in [*files, sources / "sampling_params.py"] for node in ast.walk(tree(file))]
    return {node.name: node for node in collected if isinstance(node, ast.ClassDef)}


def fields(name: str, present: Mapping[str, ast.ClassDef]) -> set[str]:
    """Names of a class and its bases."""
    if name not in present:
        return set()
    names = {ast.unparse(line.target) for line in present[name].body if isinstance(line, ast.AnnAssign)}
    return names.union(*(fields(base.id, present) for base in present[name].bases if isinstance(base, ast.Name)))


def constants(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def routes(sources: Path) -> dict[tuple[str, str], Any]:
    """Functions by method and path."""
    collected = {}
    for file in (sources / "entrypoints").rglob("*.py"):
        for node in ast.walk(tree(file)):
            for call in getattr(node, "decorator_list", []):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
                    for path in constants(call.args[0]):
                        collected[call.func.attr.upper(), path] = node
    return collected


class Recorder(Connections):
    """Answers what a healthy server does to all but completions."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, str, Any]] = []

    async def ask(self, method: str, url: str, body: Any = None, **_: Any) -> HttpReply:
        self.requests.append((method, url, body))
        data = [{"max_model_len": 9, "root": ""}]
        answer = {"status": "awake", "success": True, "weight_version": "v", "results": [None], "data": data}
        return HttpReply(200, {}, orjson.dumps(answer))


@pytest.fixture
async def requests() -> list[tuple[str, str, Any]]:
    recorder = Recorder()
    server = VllmClient("server", "http://localhost", recorder)
    params = SamplingParams(max_tokens=4, temperature=0.7, top_p=0.9, stop_ids=(1,), seed=3)
    await server.check_health()
    await server.model()
    await server.sleep()
    for asleep in (False, True):
        await server.load(Path("/weights"), "v", asleep=asleep)
    for call in (
        server.generate([1], params, version="v"),
        server.score([1], [2], version="v"),
        server.check_mode("raw_logprobs"),
    ):
        with suppress(SamplerError):
            await call
    return recorder.requests


def test_every_request_has_a_route_that_takes_its_parameters_and_body(
    sources: Path, requests: list[tuple[str, str, Any]]
) -> None:
    there, present = routes(sources), classes(sources)
    assert len({url for _, url, _ in requests}) >= 12
    for method, url, body in requests:
        path, query = urlsplit(url).path, dict(parse_qsl(urlsplit(url).query))
        assert (method, path) in there, url
        route = there[method, path]
        taken = {each.arg for each in route.args.args} | constants(route)
        assert query.keys() <= taken, url
        if path == GENERATE:
            assert body.keys() <= fields("GenerateRequest", present)
            assert body["sampling_params"].keys() <= fields("SamplingParams", present)
        else:
            assert set(body or ()) <= taken, url


def test_modes_of_pausing_and_the_call_that_loads_weights_exist(
    sources: Path, requests: list[tuple[str, str, Any]]
) -> None:
    modes = {mode for _, url, _ in requests for key, mode in parse_qsl(urlsplit(url).query) if key == "mode"}
    assigned = [node for node in tree(sources / "v1" / "engine" / "__init__.py").body if isinstance(node, ast.Assign)]
    (literal,) = [node.value for node in assigned if ast.unparse(node.targets[0]) == "PauseMode"]
    assert modes <= constants(literal)
    (call,) = {(body["method"], *body["kwargs"]) for _, url, body in requests if url.endswith("/collective_rpc")}
    for file in ("v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py"):
        (loads,) = [n for n in ast.walk(tree(sources / file)) if isinstance(n, ast.FunctionDef) and n.name == call[0]]
        assert set(call[1:]) <= {each.arg for each in (*loads.args.args, *loads.args.kwonlyargs)}


def test_every_field_that_is_read_is_in_the_reply(sources: Path) -> None:
    present = classes(sources)
    for struct, name in REPLIES.items():
        assert {field.name for field in msgspec.structs.fields(struct)} <= fields(name, present), name
    for name, read in FIELDS.items():
        assert read <= fields(name, present), name


def test_checked_answers_exist(sources: Path) -> None:
    there = routes(sources)
    for method, path, value in (
        ("POST", "/reset_prefix_cache", "success"),
        ("POST", "/wake_up", "awake"),
        ("GET", "/weight_info", "weight_version"),
        ("POST", "/collective_rpc", "results"),
    ):
        assert value in constants(there[method, path]), path


def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, cpu: bool) -> ServerProcess:
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        monkeypatch.delenv(name)
    settings = SamplerConfig(name="vllm")
    made = ServerProcess(settings, 0, mode="raw_logprobs", dtype="float32", window=64, folder=tmp_path, sleeps=True)
    made._cpu = cpu
    return made


def options(sources: Path) -> set[str]:
    """Options of the command line, without leading dashes."""
    files = (sources / "entrypoints").rglob("cli_args.py")
    (frontend,) = [tree(file) for file in files if "class FrontendArgs" in file.read_text("utf-8")]
    texts = constants(tree(sources / "engine" / "arg_utils.py")) | constants(frontend)
    named = {text[2:] for text in texts if text.startswith("--")}
    collected = (node for node in ast.walk(frontend) if isinstance(node, ast.ClassDef))
    lines = (line for node in collected for line in node.body if isinstance(line, ast.AnnAssign))
    return named | {ast.unparse(line.target).replace("_", "-") for line in lines}


@pytest.mark.parametrize("cpu", [True, False])
def test_every_option_and_variable_exists(
    sources: Path, cpu: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, present = process(monkeypatch, tmp_path, cpu=cpu), options(sources)
    value = {word[2:] for word in made._command(tmp_path, tmp_path) if word.startswith("--")}
    assert {name.removeprefix("no-") for name in value} <= present
    variables = {name for name in made._environment() if name.startswith("VLLM_")}
    assert len(variables) > 5
    assert variables <= constants(tree(sources / "envs.py"))


def test_every_option_that_is_rejected_exists(sources: Path) -> None:
    present = options(sources)
    names = {*BREAKING, *RESERVED_ARGS} - {"help", "version"}
    assert not [name for name in names if not any(option.startswith(name) for option in present)]
