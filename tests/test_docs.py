"""The documentation against the code: links, commands, configuration keys, sample rows, snippets, named tests.

Tables that are generated from the code are written by scripts/docs_tables.py.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import palimpsest
from docs_tables import GENERATED, between, page, write_tables
from palimpsest.app.python_calls import Table
from palimpsest.cli.main import app
from palimpsest.config.load import load_recipe, parse_config, recipe_names, split_override
from palimpsest.config.schema import PolicyConfig
from palimpsest.data.files.rows import read_rows
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.policy_check import ScriptedModel, check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.runs.resume_rules import _RULES
from palimpsest.text.codec import Codec
from palimpsest.types import Problem
from support.small_run import small_run

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BASE_MODEL = ROOT / "src" / "palimpsest" / "assets" / "base-model"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


def blocks(text: str, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(text) if name == language]


# ---- generated tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "marker"), GENERATED)
def test_generated_tables_are_current(name: str, marker: str) -> None:
    _, inside, _ = between(page(name), marker)
    assert inside == GENERATED[name, marker]() + "\n", "run: make docs-tables"


# ---- links, commands, keys, tests ----------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    for picture, target in LINK.findall(FENCE.sub("", path.read_text("utf-8"))):
        if picture or target.startswith("https://"):
            continue
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        assert file.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(file.read_text("utf-8")), f"{path.name} links to {target}"


def test_pictures_exist() -> None:
    if not (ROOT / "docs" / "images").is_dir():
        pytest.skip("docs/images is not there yet")
    for path in PAGES:
        for picture, target in LINK.findall(path.read_text("utf-8")):
            assert not picture or (path.parent / target).is_file(), f"{path.name} shows {target}"


def test_every_page_is_reached_from_the_index_and_the_index_from_the_readme() -> None:
    linked = {target for _, target in LINK.findall(page("docs/README.md"))}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= linked
    assert "docs/README.md" in {target for _, target in LINK.findall(page("README.md"))}


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len(page("README.md").split()) <= 900


def commands() -> list[tuple[str, str]]:
    """(page, command line) of every `palimpsest ...` line in a shell block."""
    found = []
    for path in PAGES:
        for block in blocks(path.read_text("utf-8"), "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                _, called, rest = line.partition("palimpsest ")
                if called and not line.lstrip().startswith("#"):
                    found.append((path.name, rest.partition("  #")[0]))
    return found


@pytest.mark.parametrize(("name", "line"), commands())
def test_commands_in_the_docs_parse_with_known_options_and_keys(name: str, line: str) -> None:
    command: Any = typer.main.get_command(app)
    words = shlex.split(line.partition(" > ")[0])
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"{name}: no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    parsed = command.make_context("palimpsest", words)  # refuses unknown options and wrong types; runs nothing
    given = [word for word in (parsed.params.get("overrides") or parsed.params.get("settings") or ()) if "=" in word]
    overrides = [setting for setting in given if "." in split_override(setting)[0]]
    recipe = parsed.params.get("recipe")
    if recipe is not None and recipe not in recipe_names():
        recipe = None  # the reader's own file
    if "method" in parsed.params:
        resumed = parsed.params["resume"]  # the method's place then names a run
        recipe = None if resumed else f"{parsed.params['method'] or 'memagent'}-quickstart"
    if (address := parsed.params.get("base_url")) is not None:
        overrides = ["engine.name=endpoint", f"engine.url={address}", *overrides]
    load_recipe(recipe or "memagent-7b", overrides, read_files=False)  # the reader's own


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_recipes_in_the_docs_are_valid(path: Path) -> None:
    for block in blocks(path.read_text("utf-8"), "yaml"):
        if block.startswith(("task:", "model_list:")):
            continue  # lm-eval's and LiteLLM's, which test_harnesses.py and test_clients.py in tests/serve/agent run
        config = parse_config(block, name=path.name)
        if ":" not in config.policy.name:
            build_policy(config.policy)


def test_tests_and_files_named_in_the_docs_exist() -> None:
    defined = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"def (test_\w+)", path.read_text("utf-8")))
        defined.add(path.stem)
    for path in PAGES:
        text = path.read_text("utf-8")
        assert set(re.findall(r"`(test_\w+)`", text)) <= defined, path.name
        for file in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text):
            assert any((ROOT / top / file).is_file() for top in ("", "src/palimpsest")), f"{path.name}: {file}"


def test_targets_of_make_named_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), re.MULTILINE))
    for path in PAGES:
        named = re.findall(r"(?:^|`)make ([a-z][a-z-]*)", path.read_text("utf-8"), re.MULTILINE)
        assert set(named) <= targets, path.name


def test_the_citation_names_the_three_papers() -> None:
    citation = yaml.safe_load(page("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    papers = {reference["url"].rpartition("/")[2] for reference in citation["references"]}
    assert papers == set(re.findall(r"arXiv (\d{4}\.\d{5})", page("README.md")))


def test_the_hooks_before_a_commit_are_those_of_make_lint() -> None:
    (local,) = yaml.safe_load(page(".pre-commit-config.yaml"))["repos"]
    lint = page("Makefile").partition("\nlint:")[2].partition("\n\n")[0].replace("$(BIN)", ".venv/bin")
    assert all(hook["entry"] in lint for hook in local["hooks"])
    assert len(local["hooks"]) == len(lint.strip().splitlines()) - 1


def test_what_may_change_on_resume_is_told_key_by_key() -> None:
    text = page("docs/run-folder.md")
    for key, verdict in _RULES.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {verdict}")]
        assert f"`{key}`" in line, key


# ---- sample rows, snippets, the example ------------------------------------------------------------------------


def sample_rows() -> list[tuple[str, str]]:
    """(format, JSON) of the sections of own-data.md that are called after a format."""
    sections = re.split(r"^### ", page("docs/own-data.md"), flags=re.MULTILINE)[1:]
    return [(section.split()[0], block) for section in sections for block in blocks(section, "json")]


@pytest.mark.parametrize(("format", "text"), sample_rows())
def test_sample_rows_are_read_as_the_format_they_stand_under(format: str, text: str, tmp_path: Path) -> None:
    from palimpsest.data.formats.format_registry import COLUMNS, recognise

    assert json.loads(text).keys() <= COLUMNS.keys()  # so that data.columns may name any of them
    file = tmp_path / "rows.json"
    file.write_text(f"[{text}]", "utf-8")
    (tmp_path / "frankenstein.txt").write_text("A novel by Mary Shelley.", "utf-8")
    assert recognise(next(read_rows(file))).name == format
    (problem,) = read_problems(file)
    asked = problem.by_question[0]
    assert "Who wrote it?" in asked.question.splitlines()[0 if format == "longbench_v2" else -1]
    golds = {"question": (), "longbench_v2": ("A",)}.get(format)  # the second's gold is a letter
    assert "Mary Shelley" in asked.answers if golds is None else asked.answers == golds
    searched_for = format in ("memact", "flashrag", "bamboogle", "frames")
    assert problem.context is None if searched_for else "rankenstein" in (problem.context or "")


def test_every_format_has_a_sample_row() -> None:
    from palimpsest.data.formats.format_registry import FORMATS

    assert {name for name, _ in sample_rows()} == set(FORMATS)


def snippets() -> list[str]:
    return blocks(page("README.md"), "python")


def test_the_snippet_is_short_and_has_one_import() -> None:
    (snippet,) = snippets()
    lines = [line for line in snippet.splitlines() if line]
    assert len(lines) <= 8
    assert [line for line in lines if line.startswith(("import", "from"))] == ["import palimpsest"]


@pytest.mark.readme
@pytest.mark.slow
def test_the_snippet_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (BASE_MODEL / "config.json").is_file():
        pytest.skip("the embedded base model is not in src/palimpsest/assets/base-model yet")
    monkeypatch.chdir(tmp_path)
    (snippet,) = snippets()
    exec(compile(snippet, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("64 chunks") for line in lines)
    assert lines[-1].startswith("reward ")


def test_the_snippet_runs_with_any_model(
    tiny_model_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = snippets()
    small = {'{"train.max_steps": 60}': repr(small_run(tiny_model_folder)), "[4, 64], limit=64": "[1, 2], limit=2"}
    for given, less in {**small, "chunks=16": "chunks=2"}.items():
        assert given in snippet
        snippet = snippet.replace(given, less)
    exec(compile(snippet, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "Evaluation of overwrite on synthetic" in out
    assert out.splitlines()[-1].startswith("reward ")


def test_the_example_with_objects_runs(
    tiny_model_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = [block for block in blocks(page("docs/python-api.md"), "python") if "data=problems" in block]
    known = {"model.path", "policy.options", "train", "logging.report_to"}
    small = {key: value for key, value in small_run(tiny_model_folder).items() if key in known}
    for given, less in {
        '{"train.max_steps": 20}': repr(small),
        '{"train.max_steps": 40}': '{"train.max_steps": 3}',
    }.items():
        assert given in example
        example = example.replace(given, less)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(example, "python-api.md", "exec"), names)
    assert names["more"].metrics.column("reward/mean") == names["rewards"]
    (figures,) = [block for block in blocks(page("docs/python-api.md"), "python") if "plot(" in block]
    exec(compile(figures.replace("runs/first", "runs/mine"), "python-api.md", "exec"), {})
    assert Path("first.png").read_bytes().startswith(b"\x89PNG")
    assert len(names["rewards"]) == 3
    assert "Evaluation of overwrite on problems" in capsys.readouterr().out


def calls_of(block: str) -> Iterator[ast.Call]:
    """Calls of what `palimpsest` exports."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("palimpsest."):
            yield node


def test_calls_in_the_docs_take_the_arguments_they_are_given() -> None:
    pages = [page("README.md"), page("docs/python-api.md")]
    shown = [call for text in pages for block in blocks(text, "python") for call in calls_of(block)]
    assert {ast.unparse(call.func) for call in shown} >= {
        f"palimpsest.{name}" for name in ("train", "evaluate", "play", "quickstart", "evaluate_async")
    }
    for call in shown:
        target = getattr(palimpsest, ast.unparse(call.func).removeprefix("palimpsest."))
        keywords = {keyword.arg or "": None for keyword in call.keywords}
        inspect.signature(target).bind(*([None] * len(call.args)), **keywords)


def test_what_the_page_on_python_promises_is_there() -> None:
    promised = re.findall(r"`(run|evaluation|episode|table)\.(\w+)", page("docs/python-api.md"))
    classes = {
        "run": palimpsest.Run,
        "evaluation": palimpsest.Evaluation,
        "episode": palimpsest.Episode,
        "table": Table,
    }
    for name, attribute in promised:
        known = {*dir(classes[name]), *classes[name].__annotations__}
        assert attribute in known | {"config"}, f"{name}.{attribute}"


def test_the_example_policy_keeps_the_contract(tiny_codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    question = len(tiny_codec.encode("Which word comes last?"))  # the checker's
    tight = {"chunk_size": 8, "quotes": 2, "quote_tokens": 4, "answer_tokens": 4, "question_tokens": question}
    for options in ({}, tight):
        policy: Any = build_policy(PolicyConfig(name="examples.quotes:QuotesPolicy", options=options))
        window = policy.required_context(tiny_codec)  # without a token to spare
        assert [f.message for f in check_policy(policy, tiny_codec, window) if not f.passed] == []


@pytest.mark.parametrize(("name", "lines"), [("quotes", 80), ("bigrams", 90)])
def test_the_examples_are_short(name: str, lines: int) -> None:
    assert len(page(f"examples/{name}.py").splitlines()) < lines


def test_the_answer_turn_has_a_budget_of_its_own(tiny_codec: Codec) -> None:
    """A claim of memagent-differences.md: the original's final turn takes the memory's budget."""
    asked = []

    def reply(prompt: Any, limit: int) -> list[int]:
        asked.append(limit)
        return [tiny_codec.stop_ids[0]]

    policy = OverwritePolicy(chunk_size=8, question_tokens=16, memory_tokens=12, answer_tokens=5)
    asyncio.run(ScriptedModel(tiny_codec, reply, 512).play(policy, Problem("p", "Who?", ("x",), "one two three")))
    assert (set(asked[:-1]), asked[-1]) == ({12}, 5)


if __name__ == "__main__":
    write_tables()
