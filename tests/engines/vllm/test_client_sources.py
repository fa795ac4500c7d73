"""What the client uses of vLLM, looked up in the sources of a version that may not run here.

$PALIMPSEST_VLLM_WHEEL names a wheel of vLLM, or a folder that contains `vllm`. Nothing of it is imported. The client's
own requests are recorded, and its command line and environment taken, so that nothing is listed twice.
Not covered: behaviour; test_engine_vllm.py runs a version that is installed.
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
PARTS = {"GenerateLogProbsContent": {"top_logprobs"}, "GenerateLogProb": {"token_id", "logprob"}}
PARTS |= {"UsageInfo": {"prompt_tokens_details"}, "PromptTokenUsageInfo": {"cached_tokens"}}
PARTS |= {"WeightVersionSpan": {"version"}}
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
    """Those of the protocol, by name."""
    files = [*(sources / "entrypoints").rglob("protocol.py"), *map(sources.joinpath, ("logprobs.py", "outputs.py"))]
    found = [node for file in [*files, sources / "sampling_params.py"] for node in ast.walk(tree(file))]
    return {node.name: node for node in found if isinstance(node, ast.ClassDef)}


def fields(name: str, known: Mapping[str, ast.ClassDef]) -> set[str]:
    """Names of a class and its bases."""
    if name not in known:
        return set()
    own = {ast.unparse(line.target) for line in known[name].body if isinstance(line, ast.AnnAssign)}
    return own.union(*(fields(base.id, known) for base in known[name].bases if isinstance(base, ast.Name)))


def constants(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def routes(sources: Path) -> dict[tuple[str, str], Any]:
    """Functions by method and path."""
    found = {}
    for file in (sources / "entrypoints").rglob("*.py"):
        for node in ast.walk(tree(file)):
            for call in getattr(node, "decorator_list", []):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
                    for path in constants(call.args[0]):
                        found[call.func.attr.upper(), path] = node
    return found


class Recorder(Connections):
    """Answers what a healthy server does to all but completions."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str, Any]] = []

    async def ask(self, method: str, url: str, body: Any = None, **_: Any) -> HttpReply:
        self.asked.append((method, url, body))
        data = [{"max_model_len": 9, "root": ""}]
        answer = {"status": "awake", "success": True, "weight_version": "v", "results": [None], "data": data}
        return HttpReply(200, {}, orjson.dumps(answer))


@pytest.fixture
async def asked() -> list[tuple[str, str, Any]]:
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
    return recorder.asked


def test_every_request_has_a_route_that_takes_its_parameters_and_body(
    sources: Path, asked: list[tuple[str, str, Any]]
) -> None:
    there, known = routes(sources), classes(sources)
    assert len({url for _, url, _ in asked}) >= 12
    for method, url, body in asked:
        path, query = urlsplit(url).path, dict(parse_qsl(urlsplit(url).query))
        assert (method, path) in there, url
        route = there[method, path]
        taken = {each.arg for each in route.args.args} | constants(route)
        assert query.keys() <= taken, url
        if path == GENERATE:
            assert body.keys() <= fields("GenerateRequest", known)
            assert body["sampling_params"].keys() <= fields("SamplingParams", known)
        else:
            assert set(body or ()) <= taken, url


def test_modes_of_pausing_and_the_call_that_loads_weights_are_known(
    sources: Path, asked: list[tuple[str, str, Any]]
) -> None:
    modes = {mode for _, url, _ in asked for key, mode in parse_qsl(urlsplit(url).query) if key == "mode"}
    assigned = [node for node in tree(sources / "v1" / "engine" / "__init__.py").body if isinstance(node, ast.Assign)]
    (literal,) = [node.value for node in assigned if ast.unparse(node.targets[0]) == "PauseMode"]
    assert modes <= constants(literal)
    (call,) = {(body["method"], *body["kwargs"]) for _, url, body in asked if url.endswith("/collective_rpc")}
    for file in ("v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py"):
        (loads,) = [n for n in ast.walk(tree(sources / file)) if isinstance(n, ast.FunctionDef) and n.name == call[0]]
        assert set(call[1:]) <= {each.arg for each in (*loads.args.args, *loads.args.kwonlyargs)}


def test_every_field_that_is_read_is_in_the_reply(sources: Path) -> None:
    known = classes(sources)
    for struct, name in REPLIES.items():
        assert {field.name for field in msgspec.structs.fields(struct)} <= fields(name, known), name
    for name, read in PARTS.items():
        assert read <= fields(name, known), name


def test_answers_that_are_checked_are_given(sources: Path) -> None:
    there = routes(sources)
    for method, path, given in (
        ("POST", "/reset_prefix_cache", "success"),
        ("POST", "/wake_up", "awake"),
        ("GET", "/weight_info", "weight_version"),
        ("POST", "/collective_rpc", "results"),
    ):
        assert given in constants(there[method, path]), path


def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, cpu: bool) -> ServerProcess:
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        monkeypatch.delenv(name)
    settings = SamplerConfig(name="vllm")
    made = ServerProcess(settings, 0, mode="raw_logprobs", dtype="float32", window=64, folder=tmp_path, sleeps=True)
    made._cpu = cpu
    return made


def options(sources: Path) -> set[str]:
    """Of the command line, without dashes in front."""
    files = (sources / "entrypoints").rglob("cli_args.py")
    (frontend,) = [tree(file) for file in files if "class FrontendArgs" in file.read_text("utf-8")]
    texts = constants(tree(sources / "engine" / "arg_utils.py")) | constants(frontend)
    named = {text[2:] for text in texts if text.startswith("--")}
    found = (node for node in ast.walk(frontend) if isinstance(node, ast.ClassDef))
    lines = (line for node in found for line in node.body if isinstance(line, ast.AnnAssign))
    return named | {ast.unparse(line.target).replace("_", "-") for line in lines}


@pytest.mark.parametrize("cpu", [True, False])
def test_every_option_and_variable_is_known(
    sources: Path, cpu: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, known = process(monkeypatch, tmp_path, cpu=cpu), options(sources)
    given = {word[2:] for word in made._command(tmp_path, tmp_path) if word.startswith("--")}
    assert {name.removeprefix("no-") for name in given} <= known
    variables = {name for name in made._environment() if name.startswith("VLLM_")}
    assert len(variables) > 5
    assert variables <= constants(tree(sources / "envs.py"))


def test_every_option_that_is_rejected_exists(sources: Path) -> None:
    known = options(sources)
    names = {*BREAKING, *RESERVED_ARGS} - {"help", "version"}
    assert not [name for name in names if not any(option.startswith(name) for option in known)]
