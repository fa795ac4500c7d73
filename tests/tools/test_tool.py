"""How tools are built, and search over the passages or the document of a problem."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import ConfigError, DataError
from palimpsest.retrieval.search import Bm25Index, Hit
from palimpsest.seeding import keyed_random
from palimpsest.tools.tool import PassageIndex, SearchTool, ToolError, build_tools
from palimpsest.types import Problem
from support.agents import FACTS, PASSAGES, world
from support.records import one_line_error

MODULE = """
from palimpsest.tools.tool import ToolSpec
class Adder:
    def __init__(self, base=0):
        self.base = base
        self.spec = ToolSpec("add", "adds", {"type": "object", "properties": {"x": {"type": "integer"}}})
    async def call(self, arguments, problem):
        return str(self.base + arguments["x"])
class Search(Adder):
    def __init__(self):
        self.spec = ToolSpec("search", "another", {"type": "object"})
class Strange(Adder):
    def __init__(self):
        self.spec = ToolSpec("a b", "", {})
class Deep(Adder):
    def __init__(self):
        self.spec = ToolSpec("deep", "", {"pattern": "x"})
class NoTool:
    pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "custom_tools.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "custom_tools"


def ask(tool: Any, problem: Problem, **arguments: Any) -> str:
    return str(asyncio.run(tool.call(arguments, problem)))


def test_a_custom_tool_is_named_by_module_and_class(module: str) -> None:
    tools = build_tools({"search": {}, f"{module}:Adder": {"base": 40}})
    assert [tool.spec.name for tool in tools] == ["search", "add"]
    assert ask(tools[1], world(), x=2) == "42"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"serch": {}}, "tools='serch': no such tool; did you mean search?; choose one of search, or my_module:MyTool"),
        ({"search": {"topk": 0}}, "topk=0: must be from 1 to max_topk=20"),
        ({"search": {"source": "http://localhost:notaport"}}, "source='http://localhost:notaport': invalid port; use"),
        ({"search": {"source": "http://h:1", "token": "x"}}, "search.token is unknown to search; did you mean token_"),
        ({"search": {"source": "http://h:1", "token_env": "NOT_SET"}}, "token_env=NOT_SET: the environment has no"),
        ({"search": {"source": "http://u:pw@h:1"}}, "search.source: the address contains a user or a password; use"),
        ({"search": {"tpok": 3}}, "policy.options.tools.search.tpok is unknown to search; did you mean topk"),
        ({"search": {"topk": "3"}}, "policy.options.tools.search.topk='3': must be a whole number"),
        ({"search": {"titles": 1}}, "policy.options.tools.search.titles=1: must be true or false"),
        ({"search": {"source": "document", "passage_chars": 0}}, "tools.search.passage_chars=0: must be at least 1"),
        ({"search": {"source": "http://h:1", "attempts": 0}}, "tools.search.attempts=0: must be at least 1"),
        ({"search": {"source": "http://h:1", "timeout_s": -1.0}}, "tools.search.timeout_s=-1.0: must be above 0"),
        ({"nowhere:Tool": {}}, "no module 'nowhere'"),
        ({"{}:Addr": {}}, "has no 'Addr'; did you mean Adder?"),
        ({"{}:NoTool": {}}, "needs a method call"),
        ({"{}:Strange": {}}, "tool name 'a b'"),
        ({"{}:Deep": {}}, "tool schema deep.pattern: not supported"),
        ({"search": {}, "{}:Search": {}}, "two tools with the name search"),
    ],
)
def test_a_wrong_tool_is_rejected_before_any_episode(module: str, config: dict[str, Any], message: str) -> None:
    named = {name.format(module): options for name, options in config.items()}
    assert message in one_line_error(ConfigError, build_tools, named)


def test_passages_in_memory_are_ranked_as_on_disk(tmp_path: Path) -> None:
    draw = keyed_random("passages")
    words = ["alice", "bob", "rome", "tea", "chess", "cat", "rain", "drinks", "lives", "likes"]
    passages = [
        {"id": str(at), "title": draw.choice(words), "text": " ".join(draw.choices(words, k=draw.randrange(1, 12)))}
        for at in range(60)
    ] + [{"id": "60", "title": "Grieg", "text": "born in Bergen"}]
    disk, memory = Bm25Index.build(passages, tmp_path / "index"), PassageIndex(passages)
    queries = [" ".join(draw.choices([*words, "unknown"], k=3)) for _ in range(40)] + ["", "unknown", "Bergen"]
    result = memory.search(queries, 7)
    assert result == disk.search(queries, 7)
    assert [hit.document["id"] for hit in result[-1]] == ["60"]  # and no passage without a match


def test_every_problem_is_searched_in_its_passages() -> None:
    tool = SearchTool(topk=1)
    other = world(name="q", passages=[{"id": "0", "title": "", "text": "Alice drinks milk."}])
    assert ask(tool, world(), query="Alice drinks") == "Alice drinks tea."
    assert ask(tool, other, query="Alice drinks") == "Alice drinks milk."
    changed = world(passages=[{"id": "0", "title": "A", "text": "Alice drinks rum."}])  # the same id, other passages
    assert ask(tool, changed, query="Alice drinks") == "A: Alice drinks rum."
    assert ask(SearchTool(topk=1, titles=False), changed, query="Alice") == "Alice drinks rum."


def test_passages_of_a_problem_are_searched_without_waiting() -> None:
    call = SearchTool(topk=1).call({"query": "Alice drinks"}, world())
    with pytest.raises(StopIteration) as returned:
        call.send(None)  # a call that waits would yield here
    assert returned.value.value == "Alice drinks tea."


def test_topk_of_a_call_overrides_the_default() -> None:
    tool = SearchTool(topk=1, max_topk=3)
    text = "drinks lives plays has likes"
    assert len(ask(tool, world(), query=text).splitlines()) == 1
    three = ask(tool, world(), query=text, topk=3).splitlines()
    assert len(three) == len(set(three)) == 3
    with pytest.raises(ToolError, match="topk=4 is out of range: give 1 to 3"):
        ask(tool, world(), query=text, topk=4)
    with pytest.raises(ToolError, match="is empty"):
        ask(tool, world(), query=" ")
    assert ask(tool, world(), query="zebra") == "No results."


def test_a_source_may_be_a_folder_or_a_server(tmp_path: Path) -> None:
    Bm25Index.build([dict(passage) for passage in PASSAGES], tmp_path / "index")
    assert ask(SearchTool(source=str(tmp_path / "index"), topk=1), Problem("p", "q", ("a",)), query="chess") == FACTS[2]
    down = SearchTool(source="http://127.0.0.1:9", attempts=1)
    for _ in range(2):  # in two event loops
        with pytest.raises(ToolError, match="the search service failed"):
            ask(down, world(), query="chess")
    with pytest.raises(DataError, match="no index there"):
        SearchTool(source=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("source", "problem", "message"),
    [
        ("problem", Problem("p", "q", ("a",)), "problem p: no passages to search"),
        ("document", Problem("p", "q", ("a",), None), "problem p: no document for policy.options.tools.search.source"),
        ("document", Problem("p", "q", ("a",), " \n"), "problem p: no document for policy.options.tools.search.source"),
    ],
)
def test_a_problem_without_text_to_search_is_rejected_at_load(source: str, problem: Problem, message: str) -> None:
    with pytest.raises(DataError, match=message):
        SearchTool(source=source).admit(problem)
    SearchTool(source="http://127.0.0.1:9").admit(problem)


def test_the_document_of_a_problem_is_searched_paragraph_by_paragraph() -> None:
    tool = SearchTool(source="document", topk=1)
    problem = Problem("p", "q", ("a",), "Alice\nlives in Rome.\n\nBob sells maps.\n\nIt rained.")
    tool.admit(problem)
    assert ask(tool, problem, query="Rome") == "Alice\nlives in Rome."
    chronicle = Problem("p", "q", ("a",), "Alice moved to Rome.\nBob sells maps.")  # the same id, another document
    assert ask(tool, chronicle, query="Rome") == "Alice moved to Rome."
    short = SearchTool(source="document", topk=1, passage_chars=12)
    assert ask(short, chronicle, query="Rome") == "to Rome."


@pytest.mark.parametrize(
    ("passage", "reason"),
    [
        ("A city.", "must be an object with 'text'"),
        ({"title": "Rome", "body": "A city."}, "text under 'text' (there: title, body)"),
        ({"text": None}, "text under 'text' (there: text)"),
    ],
)
def test_a_passage_of_another_shape_is_rejected_at_load_and_in_a_call(passage: Any, reason: str) -> None:
    problem = Problem("p", "q", ("a",), metadata={"passages": [{"text": "A town."}, passage]})
    message = one_line_error(DataError, SearchTool().admit, problem)
    assert message.startswith("problem p: metadata.passages[1]: ")
    assert reason in message
    assert reason in one_line_error(ToolError, ask, SearchTool(), problem, query="town")


def test_a_passage_whose_text_is_null_is_searched_by_its_contents() -> None:
    passages = [{"text": None, "contents": "A town in Norway."}, {"text": "A city."}]
    problem = Problem("p", "q", ("a",), metadata={"passages": passages})
    SearchTool().admit(problem)
    assert ask(SearchTool(), problem, query="norway") == "A town in Norway."


async def test_documents_of_a_server_without_a_text_are_a_tool_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Foreign:
        async def __call__(self, problem: Problem) -> Foreign:
            return self

        async def search(self, queries: Any, topk: int) -> list[list[Hit]]:
            return [[Hit({"content": "A city."}, 1.0)]]

    tool = SearchTool(source="http://127.0.0.1:9")
    monkeypatch.setattr(tool, "_search", Foreign())
    with pytest.raises(ToolError, match=r"needs its text under 'text' \(there: content\)"):
        await tool.call({"query": "city"}, Problem("p", "q", ("a",)))


def test_an_event_loop_closes_and_releases_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Connected:
        """Keeps its event loop, as a connected client does."""

        def __init__(self, source: str, **options: Any) -> None:
            self.loop = asyncio.get_running_loop()

        async def __aenter__(self) -> Connected:
            return self

        async def __aexit__(self, *_: object) -> None:
            closed.append(self.loop.is_running())

        async def search(self, queries: list[str], topk: int) -> list[list[Any]]:
            return [[] for _ in queries]

    monkeypatch.setattr("palimpsest.retrieval.search_client.RemoteSearch", Connected)
    tool = SearchTool(source="http://127.0.0.1:9")

    async def searched() -> weakref.ref[asyncio.AbstractEventLoop]:
        await tool.call({"query": "a"}, Problem("p", "q", ("a",)))
        return weakref.ref(asyncio.get_running_loop())

    first = asyncio.run(searched())
    assert closed == [True]
    asyncio.run(searched())
    assert closed == [True, True]
    gc.collect()
    assert first() is None
