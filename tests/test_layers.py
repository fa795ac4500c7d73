"""The layer diagram as data, held over the imports of every module (imports inside functions count too)."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source import IMPORTS, MODULES, PACKAGE, Import

LEVELS: tuple[tuple[str, ...], ...] = (
    (
        "types",
        "events",
        "errors",
        "files",
        "seeding",
        "plugins",
        "plugin_kinds",
        "plugin_options",
        "http_services",
        "http_connections",
        "_version",
        "provenance",
        "notes",
        "config",
        "progress",
        "models",
        "engines.protocol",
        "engines.process_guard",
    ),
    ("text",),
    ("retrieval", "tools", "memory", "data"),
    ("metrics", "reward", "rollout"),
    ("credit", "planning"),
    ("engines.losses", "engines.embedded", "engines.ray", "engines.vllm", "engines.endpoint"),
    ("engines.preflight",),
    ("engines.open",),
    ("runs", "training", "training.supervised", "evaluation", "agents"),
    ("viewer",),
    ("servers", "report"),
    ("app",),
    ("cli",),
)
"""From the bottom up. A module imports from its own unit and from lower levels; units of the bottom may name each
other."""

SIDEWAYS = {
    ("retrieval", "data"),
    ("tools", "retrieval"),
    ("tools", "data"),
    ("memory", "tools"),
    ("reward", "metrics"),
    ("rollout", "reward"),
    ("training", "runs"),
    ("training.supervised", "runs"),
    ("training.supervised", "training"),
    ("engines.embedded", "engines.losses"),
    ("engines.ray", "engines.embedded"),
    ("engines.ray", "engines.vllm"),
}
"""(importer, imported) of one level. Never both ways, so the level could be split in two."""

INSIDE: tuple[tuple[str, ...], ...] = (
    ("app", "app.evaluate", "app.agent", "app.train", "app.quickstart", "app.league"),
    ("app", "app.datasets"),
    ("data", "data.files", "data.formats", "data.synthetic", "data.sources"),
    ("viewer.records", "viewer.analysis", "viewer.screens", "viewer.export"),
    ("servers", "servers.openai"),
    ("engines.embedded.forest",),
    ("engines.embedded.sampling",),
    ("memory.parts",),
)
"""Layers inside packages, from the bottom up; a package's name means its direct modules."""

AROUND = {
    ("engines.embedded", "engines.embedded.forest"),
    ("engines.embedded", "engines.embedded.sampling"),
    ("memory", "memory.parts"),
}
"""A package whose own modules are its contract, below, and its door, above: the two name each other."""

HEAVY = {
    "torch": ("engines.embedded", "engines.losses", "engines.ray", "text", "planning"),
    "transformers": ("engines.embedded", "engines.ray", "text", "planning"),  # planning: classes of no recipe's model
    "tokenizers": ("engines.embedded", "engines.ray", "text"),
    "ray": ("engines.ray",),
    "vllm": (),  # used over HTTP, or run in a separate interpreter
    "peft": ("engines.embedded", "engines.ray"),
    "matplotlib": ("report",),
    "pyarrow": ("data",),
}


def unit_of(module: str) -> str | None:
    """The unit of the diagram a module belongs to; None for the package itself."""
    rest = module.removeprefix("palimpsest").lstrip(".")
    units = [unit for level in LEVELS for unit in level if rest == unit or rest.startswith(unit + ".")]
    return max(units, key=len) if units else None


def level_of(unit: str) -> int:
    return next(index for index, level in enumerate(LEVELS) if unit in level)


USES_ENGINES = {
    "engines.open": "",  # the door
    "engines.preflight": "",  # looks before it opens
    "engines.embedded": "",
    "engines.ray": "",
    "engines.vllm": "",
    "engines.endpoint": "",
}
"""Modules that may import an engine, and the parts they use; others use engines.open and engines.protocol."""


def allowed(imported_name: Import) -> bool:
    importer, imported = unit_of(imported_name.importer), unit_of(imported_name.imported)
    if imported in ("engines.embedded", "engines.ray", "engines.vllm", "engines.endpoint"):
        part = USES_ENGINES.get(importer or "")
        if part is None or not imported_name.imported.startswith(part):
            return False
    if importer is None or imported is None or importer == imported:
        return True
    if level_of(importer) == level_of(imported):
        return level_of(importer) == 0 or (importer, imported) in SIDEWAYS
    return level_of(imported) < level_of(importer)


def test_the_picture_in_the_docs_is_the_diagram() -> None:
    page = (PACKAGE.parents[1] / "docs" / "project" / "architecture.md").read_text("utf-8")
    picture = page.partition("<!-- layers -->\n")[2].partition("<!-- /layers -->")[0]
    assert [tuple(line.split()) for line in picture.splitlines()] == list(reversed(LEVELS))


def names_in(tree: ast.Module) -> set[str]:
    """Names and texts of the code, without docstrings, which may name a rule's source."""
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documented}
    return names | {text for text in texts if isinstance(text, str)}


def test_training_and_engines_name_no_method() -> None:
    methods = re.compile(r"memagent|rememr1|memact", re.IGNORECASE)
    code = {name: tree for name, tree in MODULES.items() if unit_of(name) in ("training", "engines.embedded")}
    assert not [name for name, tree in code.items() if methods.search(" ".join(names_in(tree)))]


def test_every_module_is_in_the_diagram() -> None:
    without = {m for m in MODULES if unit_of(m) is None} - {
        "palimpsest",
        "palimpsest.engines",
        "palimpsest.__main__",
    }
    assert not without


def test_imports_point_only_downwards() -> None:
    upward = [f"{i.importer}:{i.line} imports {i.imported}" for i in IMPORTS if not allowed(i)]
    assert not upward, "\n".join(upward)


def folder_of(module: str) -> str:
    """The folder of a module, below the package; a package is its own folder."""
    name = module.removeprefix("palimpsest").lstrip(".")
    return name if module in PACKAGES else name.rpartition(".")[0]


PACKAGES = {name for name in MODULES if (PACKAGE.parent / Path(*name.split(".")) / "__init__.py").exists()}
FOLDERS = {(folder_of(i.importer), folder_of(i.imported)) for i in IMPORTS if i.imported in MODULES}


def test_folders_inside_a_package_import_downwards() -> None:
    upward = {
        (low, high)
        for chain in INSIDE
        for position, low in enumerate(chain)
        for high in chain[position + 1 :]
        if (low, high) in FOLDERS
    }
    assert not upward


def test_folders_of_a_package_do_not_import_each_other() -> None:
    inside = {(a, b) for a, b in FOLDERS if a.partition(".")[0] == b.partition(".")[0] != "engines"}
    embedded = {(a, b) for a, b in FOLDERS if a.startswith("engines.embedded") and b.startswith("engines.embedded")}
    assert {(a, b) for a, b in inside | embedded if a < b and (b, a) in inside | embedded} == AROUND


def test_every_folder_inside_a_package_has_a_layer() -> None:
    units = {unit for level in LEVELS for unit in level}
    placed = units | {folder for chain in INSIDE for folder in chain}
    inner = {name.removeprefix("palimpsest.") for name in PACKAGES if name.count(".") > 1}
    assert not inner - placed


def test_no_import_cycles() -> None:
    """Imports inside functions count: a cycle that is cut by one is a cycle still."""
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for imported_name in IMPORTS:
        if imported_name.imported in MODULES:
            graph[imported_name.importer].add(imported_name.imported)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for imported in graph[name]:
                visit(imported, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_stay_where_they_belong(package: str) -> None:
    places = HEAVY[package]
    strays = [
        f"{i.importer}:{i.line} imports {i.imported}"
        for i in IMPORTS
        if i.imported.split(".")[0] == package and not (unit_of(i.importer) or "").startswith(places)
    ]
    assert not strays, "\n".join(strays)


def test_the_training_loop_knows_no_torch() -> None:
    """Losses are the engines'. What computes them is behind a protocol."""
    assert not [module for module in HEAVY["torch"] if "training".startswith(module)]


def test_package_initialisers_import_nothing_heavy() -> None:
    """`import palimpsest.training` must not cost what torch costs."""
    heavy = [f"{i.importer}:{i.line}" for i in IMPORTS if i.importer in PACKAGES and i.imported.split(".")[0] in HEAVY]
    assert not heavy


def test_the_application_prints_nothing_and_knows_no_command_line() -> None:
    """`app/` is called from notebooks, servers and the command line alike; what watches it is a `Progress`."""
    displays = ("typer", "rich", "click", "palimpsest.cli")
    strays = [
        f"{i.importer}:{i.line} imports {i.imported}"
        for i in IMPORTS
        if unit_of(i.importer) == "app" and i.imported.startswith(displays)
    ]
    for name, tree in MODULES.items():
        if unit_of(name) == "app":
            calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
            strays += [f"{name}:{call.lineno} prints" for call in calls if ast.unparse(call.func) in PRINTING]
    assert not strays, "\n".join(strays)


PRINTING = {"print", "sys.stdout.write", "sys.stderr.write"}


def loaded(code: str) -> set[str]:
    """Packages that a process has loaded after `code`."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    script = f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True)
    return set(done.stderr.split())


def command(*words: str) -> str:
    """Code that runs a command line to its end."""
    start = f"import sys; sys.argv = {['palimpsest', *words]}; from palimpsest.cli.main import main"
    return f"{start}\ntry: main()\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    "module", ["training.loop", "engines.open", "training.supervised.supervised_loop", "runs.driver"]
)
def test_the_loop_and_the_door_load_without_torch(module: str) -> None:
    """Indirect imports count."""
    assert "torch" not in loaded(f"import palimpsest.{module}")


def test_help_loads_nothing_heavy() -> None:
    assert not loaded(command("--help")) & {*HEAVY, "aiohttp", "numpy"}


def test_check_loads_no_torch_and_no_client() -> None:
    packages = loaded(command("check", "overwrite"))
    assert not packages & {"torch", "aiohttp", "matplotlib"}
    assert "tokenizers" in packages


@pytest.mark.parametrize("words", [["memagent-7b", "--gpus", "8"], ["memagent-quickstart", "--here"]])
def test_a_plan_loads_neither_torch_nor_transformers(words: list[str]) -> None:
    assert not loaded(command("plan", *words)) & {"torch", "transformers", "ray"}


@pytest.mark.parametrize("job", ["train.training_run", "evaluate.evaluation_run", "agent.play"])
def test_runs_load_no_client_unless_they_ask_one_and_no_matplotlib_before_they_draw(job: str) -> None:
    assert not loaded(f"import palimpsest.app.{job}") & {"aiohttp", "matplotlib"}


FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def dangers(tree: ast.Module) -> Iterator[str]:
    """Calls that could run text as code, or load an object from untrusted bytes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                yield f"line {node.lineno}: {node.func.id}()"
            if ast.unparse(node.func) in {"torch.load", "torch.save", "yaml.unsafe_load", "os.system"}:
                yield f"line {node.lineno}: {ast.unparse(node.func)}()"
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
                if keyword.arg in {"trust_remote_code", "shell"} and not off:
                    yield f"line {node.lineno}: {keyword.arg}={ast.unparse(keyword.value)}"
        if isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} <= {"dumps"}:
            continue  # others read its files
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            yield from (f"line {node.lineno}: import {n}" for n in names if n.split(".")[0] in FORBIDDEN_MODULES)


def test_nothing_in_the_tree_runs_text_as_code_or_unpickles() -> None:
    imported_name = [f"{name} {danger}" for name, tree in MODULES.items() for danger in dangers(tree)]
    assert not imported_name, "\n".join(imported_name)


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "import pickle",
        "from pickle import loads",
        "from pickle import dumps, loads",
        "load(x, trust_remote_code=True)",
        "torch.load(f)",
    ],
)
def test_the_lint_sees_what_it_is_for(source: str) -> None:
    assert list(dangers(ast.parse(source)))


@pytest.mark.parametrize(
    ("importer", "imported", "verdict"),
    [
        ("palimpsest.memory.overwrite", "palimpsest.text.codec", True),
        ("palimpsest.text.codec", "palimpsest.memory.policy", False),
        ("palimpsest.training.loop", "palimpsest.engines.embedded.engine", False),
        ("palimpsest.app.evaluate.evaluator", "palimpsest.engines.embedded.engine", False),
        ("palimpsest.app.evaluate.evaluator", "palimpsest.engines.vllm.engine", False),
        ("palimpsest.engines.vllm.engine", "palimpsest.engines.embedded.engine", False),
        ("palimpsest.app.evaluate.evaluator", "palimpsest.engines.open", True),
        ("palimpsest.engines.embedded.learner", "palimpsest.engines.losses", True),
        ("palimpsest.engines.embedded.learner", "palimpsest.training.loop", False),
        ("palimpsest.evaluation.runner", "palimpsest.training.step_metrics", False),
        ("palimpsest.rollout.group", "palimpsest.engines.protocol", True),
    ],
)
def test_the_diagram_says_what_the_design_says(importer: str, imported: str, verdict: bool) -> None:
    assert allowed(Import(importer, imported, 1, False)) is verdict
