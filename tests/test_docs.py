"""The documentation against the code: links, commands, configuration keys, sample rows, snippets, named tests.

Tables that are generated from the code are written by scripts/docs_tables.py.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import palimpsest
from docs_tables import GENERATED, between, navigation, page, write_llms, write_tables
from palimpsest.cli.main import app
from palimpsest.config.league import load_league
from palimpsest.config.load import load_recipe, parse_config, quickstarts, recipe_names, split_override
from palimpsest.config.other_names import OTHER_NAMES
from palimpsest.config.schema import PolicyConfig
from palimpsest.data.files.rows import read_rows
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.policy_check import ScriptedModel, check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.runs.resume_rules import _RULES
from palimpsest.text.codec import Codec
from palimpsest.text.display_text import Table
from palimpsest.types import Problem
from support.small_run import small_run

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
SOURCE = "https://github.com/palimpsest-rl/palimpsest/blob/main/"
WORDS = {
    "index.md": 456, "install.md": 400, "glossary.md": 500,
    "tutorials/first-agent.md": 1100, "tutorials/your-questions.md": 1200, "tutorials/why-it-failed.md": 1200,
    "tutorials/write-a-policy.md": 1300, "tutorials/reward-in-python.md": 1000, "tutorials/eight-gpus.md": 1200,
    "tutorials/real-model.md": 1170, "tutorials/text-games.md": 800,
    "how-to/train.md": 1560, "how-to/choose-a-model.md": 720, "how-to/warm-start.md": 950,
    "how-to/multi-gpu.md": 900, "how-to/vllm.md": 1190, "how-to/slurm.md": 350, "how-to/publish-a-model.md": 350,
    "how-to/coming-from.md": 1000,
    "how-to/evaluate.md": 950, "how-to/evaluate-an-endpoint.md": 700, "how-to/compare.md": 600,
    "how-to/compare-methods.md": 760,
    "how-to/published-agents.md": 560,
    "how-to/benchmarks.md": 600, "how-to/llm-judge.md": 800, "how-to/inspect-episodes.md": 950,
    "how-to/prepare-data.md": 990, "how-to/generate-data.md": 1030, "how-to/retrieval.md": 700, "how-to/ask.md": 500,
    "how-to/serve.md": 1400, "how-to/docker.md": 350, "how-to/ollama.md": 350, "how-to/python.md": 820,
    "how-to/custom-policy.md": 1460, "how-to/side-by-side.md": 480, "how-to/custom-reward.md": 830,
    "how-to/custom-engine.md": 500, "how-to/environments.md": 900,
    "reference/cli.md": 150, "reference/configuration.md": 400, "reference/python.md": 200,
    "reference/recipes.md": 580, "reference/policies.md": 1600, "reference/data-formats.md": 1100,
    "reference/metrics.md": 1620, "reference/files.md": 1720, "reference/server-api.md": 1100,
    "reference/models.md": 1000,
    "explanation/concepts.md": 900, "explanation/methods.md": 1530, "explanation/length-and-accuracy.md": 1200,
    "explanation/credit-and-loss.md": 1490, "explanation/prefix-forest.md": 700,
    "explanation/speculative-reading.md": 615, "explanation/many-servers.md": 300,
    "explanation/reproducibility.md": 700, "explanation/statistics.md": 780,
    "explanation/security.md": 600,
    "project/status.md": 450, "project/benchmarks.md": 1200, "project/league.md": 460, "project/differences.md": 1430,
    "project/architecture.md": 1000,
}  # fmt: skip
"""Most words of a page, without its generated tables."""
BASE_MODEL = ROOT / "src" / "palimpsest" / "assets" / "base-model"
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


def blocks(text: str, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(text) if name == language]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---- generated tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "marker"), GENERATED)
def test_generated_tables_are_current(name: str, marker: str) -> None:
    _, inside, _ = between(page(name), marker)
    assert inside == GENERATED[name, marker]() + "\n", "run: make docs-tables"


# ---- links, commands, keys, tests ----------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings; GitHub and the site agree on them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\- ]", "", heading.lower())) for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    for picture, target in LINK.findall(FENCE.sub("", path.read_text("utf-8"))):
        outside = target.startswith("https://") and not target.startswith(SOURCE)
        if picture or outside:
            continue
        page_path, _, anchor = target.removeprefix(SOURCE).partition("#")
        file = ((ROOT if target.startswith(SOURCE) else path.parent) / page_path).resolve() if page_path else path
        assert file.exists(), f"{path.name} links to {target}"
        if path.is_relative_to(DOCS) and not target.startswith(SOURCE):
            assert file.is_relative_to(DOCS), f"{path.name} links to {target}, which is not on the site"
        if anchor:
            assert anchor in anchors(file.read_text("utf-8")), f"{path.name} links to {target}"


def test_pictures_exist() -> None:
    if not (ROOT / "docs" / "images").is_dir():
        pytest.skip("docs/images is not there yet")
    for path in PAGES:
        for picture, target in LINK.findall(path.read_text("utf-8")):
            assert not picture or (path.parent / target).is_file(), f"{path.name} shows {target}"


def test_the_navigation_has_every_page_once_and_the_readme_leads_to_it() -> None:
    pages = [name for _, name in navigation()]
    assert sorted(pages) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    assert sorted(pages) == sorted(WORDS)
    assert "docs/index.md" in {target for _, target in LINK.findall(page("README.md"))}


def words_of(name: str) -> int:
    return len(re.sub(r"<!-- ([\w:-]+) -->\n.*?<!-- /\1 -->", "", page(f"docs/{name}"), flags=re.DOTALL).split())


@pytest.mark.parametrize("name", WORDS)
def test_a_page_has_at_most_its_words(name: str) -> None:
    assert words_of(name) <= WORDS[name]


def test_the_documentation_has_at_most_54_800_words() -> None:
    assert sum(words_of(name) for name in WORDS) <= 54_800


def test_the_index_for_language_models_names_every_page(tmp_path: Path) -> None:
    write_llms(tmp_path)
    index, text = ((tmp_path / name).read_text("utf-8") for name in ("llms.txt", "llms-full.txt"))
    for _, name in navigation():
        assert f"({name.removesuffix('.md')}.html)" in index
        assert page(f"docs/{name}") in text


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "src").symlink_to(ROOT / "src")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=tmp_path, check=True, timeout=300)
    built = tmp_path / "build" / "site"
    assert {str(path.relative_to(built)) for path in built.rglob("*.html")} >= {
        name.replace(".md", ".html") for _, name in navigation()
    }
    for path in built.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)\b[^>]*?(?:src|href)=\"?(https?://[^\" >]+)", path.read_text("utf-8"))
        assert not [address for address in loaded if "canonical" not in address], path
    assert "segments" in (built / "search.js").read_text("utf-8")


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len(page("README.md").split()) <= 900


def commands() -> list[tuple[str, str]]:
    """(page, command line) of every `palimpsest ...` line in a shell block."""
    commands_of_pages = []
    for path in PAGES:
        for block in blocks(path.read_text("utf-8"), "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                _, called, rest = line.partition("palimpsest ")
                if called and not line.lstrip().startswith("#"):
                    commands_of_pages.append((name_of(path), rest.partition("  #")[0]))
    return commands_of_pages


@pytest.fixture(scope="module")
def command_line() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize(("name", "line"), commands())
def test_commands_in_the_docs_parse(name: str, line: str, command_line: Any) -> None:
    command = command_line
    words = shlex.split(line.partition(" > ")[0])
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"{name}: no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    parsed = command.make_context("palimpsest", words)  # rejects unknown options and wrong types; runs nothing
    settings = [word for word in (parsed.params.get("overrides") or parsed.params.get("settings") or ()) if "=" in word]
    overrides = [setting for setting in settings if "." in split_override(setting)[0]]
    recipe = parsed.params.get("recipe")
    if recipe is not None and recipe not in recipe_names():
        recipe = None  # the reader's own file
    if "method" in parsed.params:
        resumed = parsed.params["resume"]  # the method's place then names a run
        method = parsed.params["method"] or "memagent"
        overrides += [method] if "=" in method else []
        recipe = None if resumed else quickstarts()["memagent" if "=" in method else method]
    if (address := parsed.params.get("base_url")) is not None:
        overrides = ["engine.name=endpoint", f"engine.url={address}", *overrides]
    if parsed.params.get("gpus") is not None and any(word.startswith("cluster.") for word in overrides):
        overrides = ["engine.name=ray", *overrides]  # the planner's
    own = "memact-quickstart" if any("synthetic_search" in one for one in overrides) else "memagent-7b"
    load_recipe(recipe or own, overrides, read_files=False)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_recipes_in_the_docs_are_valid(path: Path, tmp_path: Path) -> None:
    for block in blocks(path.read_text("utf-8"), "yaml"):
        if block.startswith(("task:", "model_list:")):
            continue  # lm-eval's and LiteLLM's, which test_harnesses.py and test_clients.py in tests/serve/agent run
        if "methods:" in block:
            (tmp_path / "league.yaml").write_text(block)
            assert load_league(tmp_path / "league.yaml").methods
            continue
        config = parse_config(block, name=path.name)
        if ":" not in config.policy.name:
            build_policy(config.policy)


def test_the_table_of_recipes_has_their_sizes() -> None:
    table = (ROOT / "docs" / "reference" / "recipes.md").read_text("utf-8")
    sizes = re.findall(r"^\| `(\w[\w-]*)` \|[^|]*\| (\d+x\d+x\d+) \|", table, re.MULTILINE)
    assert len(sizes) >= 15
    for name, size in sizes:
        steps = load_recipe(name).train
        assert f"{steps.max_steps}x{steps.batch_size}x{steps.group_size}" == size, name


def test_tests_and_files_named_in_the_docs_exist() -> None:
    defined = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"def (test_\w+)", path.read_text("utf-8")))
        defined.add(path.stem)
    for path in PAGES:
        text = path.read_text("utf-8")
        named = set(re.findall(r"\b(test_\w+)\b", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)))
        assert named - OTHER_NAMES.keys() <= defined, path.name
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


def test_each_key_that_may_change_on_resume_is_documented() -> None:
    text = page("docs/reference/files.md")
    for key, verdict in _RULES.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {verdict}")]
        assert f"`{key}`" in line, key


# ---- sample rows, snippets, the example ------------------------------------------------------------------------


def sample_rows() -> list[tuple[str, str]]:
    """(format, JSON) of the sections of data-formats.md that are called after a format."""
    sections = re.split(r"^### ", page("docs/reference/data-formats.md"), flags=re.MULTILINE)[1:]
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
    question = problem.by_question[0]
    assert "Who wrote it?" in question.question.splitlines()[0 if format == "longbench_v2" else -1]
    golds = {"question": (), "longbench_v2": ("A",)}.get(format)  # the second's gold is a letter
    assert "Mary Shelley" in question.answers if golds is None else question.answers == golds
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
    for text, smaller in {**small, "chunks=16": "chunks=2"}.items():
        assert text in snippet
        snippet = snippet.replace(text, smaller)
    exec(compile(snippet, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "Evaluation of overwrite on synthetic" in out
    assert out.splitlines()[-1].startswith("reward ")


def test_the_example_with_objects_runs(
    tiny_model_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = [block for block in blocks(page("docs/how-to/python.md"), "python") if "data=problems" in block]
    keys = {"model.path", "policy.options", "train", "logging.report_to"}
    small = {key: value for key, value in small_run(tiny_model_folder).items() if key in keys}
    for text, smaller in {
        '{"train.max_steps": 20}': repr(small),
        '{"train.max_steps": 40}': '{"train.max_steps": 3}',
    }.items():
        assert text in example
        example = example.replace(text, smaller)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(example, "python.md", "exec"), names)
    assert names["more"].metrics.column("reward/mean") == names["rewards"]
    (figures,) = [block for block in blocks(page("docs/how-to/python.md"), "python") if "plot(" in block]
    exec(compile(figures.replace("runs/first", "runs/mine"), "python.md", "exec"), {})
    assert Path("first.png").read_bytes().startswith(b"\x89PNG")
    assert len(names["rewards"]) == 3
    assert "Evaluation of overwrite on problems" in capsys.readouterr().out


def calls_of(block: str) -> Iterator[ast.Call]:
    """Calls of names that `palimpsest` exports."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("palimpsest."):
            yield node


def test_calls_in_the_docs_have_valid_arguments() -> None:
    pages = [page("README.md"), page("docs/how-to/python.md")]
    shown = [call for text in pages for block in blocks(text, "python") for call in calls_of(block)]
    assert {ast.unparse(call.func) for call in shown} >= {
        f"palimpsest.{name}" for name in ("train", "evaluate", "play", "quickstart", "evaluate_async")
    }
    for call in shown:
        target = getattr(palimpsest, ast.unparse(call.func).removeprefix("palimpsest."))
        keywords = {keyword.arg or "": None for keyword in call.keywords}
        inspect.signature(target).bind(*([None] * len(call.args)), **keywords)


def test_modules_that_plugins_import_are_listed_as_stable() -> None:
    listed = set(re.findall(r"`([\w.]+)`", page("docs/reference/python.md").partition("## Modules of plugins")[2]))
    pages = [path.read_text("utf-8") for path in (DOCS / "how-to").glob("*.md")]
    shown = [block for text in pages for block in blocks(text, "python")]
    new = [path.read_text("utf-8") for path in (ROOT / "src" / "palimpsest" / "assets" / "new").glob("*.txt")]
    imported = {
        name for text in (*shown, *new) for name in re.findall(r"^from palimpsest\.([\w.]+) import", text, re.M)
    }
    assert imported <= listed
    assert all(importlib.util.find_spec(f"palimpsest.{name}") for name in listed - {"palimpsest"})


def test_what_the_page_on_python_promises_is_there() -> None:
    promised = re.findall(r"`(run|evaluation|episode|table)\.(\w+)", page("docs/how-to/python.md"))
    classes = {
        "run": palimpsest.Run,
        "evaluation": palimpsest.Evaluation,
        "episode": palimpsest.Episode,
        "table": Table,
    }
    for name, attribute in promised:
        keys = {*dir(classes[name]), *classes[name].__annotations__}
        assert attribute in keys | {"config"}, f"{name}.{attribute}"


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


def test_the_answer_turn_has_a_separate_budget(tiny_codec: Codec) -> None:
    """A claim of differences.md: the original's final turn takes the memory's budget."""
    limits = []

    def reply(prompt: Any, limit: int) -> list[int]:
        limits.append(limit)
        return [tiny_codec.stop_ids[0]]

    policy = OverwritePolicy(chunk_size=8, question_tokens=16, memory_tokens=12, answer_tokens=5)
    asyncio.run(ScriptedModel(tiny_codec, reply, 512).play(policy, Problem("p", "Who?", ("x",), "one two three")))
    assert (set(limits[:-1]), limits[-1]) == ({12}, 5)


if __name__ == "__main__":
    write_tables()
