"""The built package: name, version, requirements, py.typed."""

from __future__ import annotations

import re
import sys
import tomllib
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import palimpsest
from palimpsest.config.install_hints import DISTRIBUTION, line_for
from palimpsest.viewer.export.inline_page import page_files
from support.source import IMPORTS

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
IMPORTED_AS = {"typing-extensions": "typing_extensions", "pyyaml": "yaml", "faiss-cpu": "faiss"}
ELSEWHERE = {
    "IPython": "is there in a notebook's kernel, and asked for there alone",
    "pydantic_core": "comes with pydantic",
    "huggingface_hub": "comes with transformers",
    "packaging": "comes with transformers",
}


def distributions(lines: list[str]) -> set[str]:
    """Names that requirements are imported under."""
    names = [re.split(r"[ <>=!~\[;]", line)[0] for line in lines]
    return {IMPORTED_AS.get(name, name) for name in names}


NEEDED = distributions(PROJECT["dependencies"])
EXTRAS = {name: distributions(lines) for name, lines in PROJECT["optional-dependencies"].items() if name != "dev"}


def test_the_version_stands_in_the_package_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    source = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{palimpsest._version.__version__}"' in source.read_text("utf-8").splitlines()


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(palimpsest.__file__).parent / "py.typed").is_file()


def test_the_viewers_page_is_a_part_of_the_package() -> None:
    """The wheel holds everything under the package, so nothing may be left out of it by a pattern."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/palimpsest"]}
    ignored = [line for line in (ROOT / ".gitignore").read_text("utf-8").splitlines() if line and line[0] != "/"]
    files = page_files()
    assert {"index.html", "page.css", "main.js"} <= files.keys()
    assert not [name for name in files for pattern in ignored if fnmatch(name, f"*{pattern.rstrip('/')}*")]


def test_the_distribution_has_another_name_than_its_command() -> None:
    """`palimpsest` on the package index is another project."""
    assert PROJECT["name"] == DISTRIBUTION == "palimpsest-rl"
    assert list(PROJECT["scripts"]) == ["palimpsest"]
    try:
        assert version(DISTRIBUTION) == palimpsest._version.__version__
    except PackageNotFoundError:
        pytest.skip("this checkout isn't installed under its name; make install-dev")


def test_what_is_imported_is_a_dependency_or_an_extra() -> None:
    """Features that run on a CPU work after a plain install: servers, their clients and judges need no extras."""
    imported = {requirement.imported.partition(".")[0] for requirement in IMPORTS}
    foreign = imported - set(sys.stdlib_module_names) - {"palimpsest", "__future__"}
    optional = set().union(*EXTRAS.values())
    assert foreign <= NEEDED | optional | set(ELSEWHERE)
    assert {"aiohttp", "certifi", "starlette", "uvicorn", "httptools"} <= NEEDED
    assert not NEEDED & optional


def test_no_page_and_no_message_installs_somebody_elses_package() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    for path in pages:
        text = path.read_text("utf-8")
        assert not re.search(r"(?<!\.)palimpsest\[|pip install '?palimpsest['\s`]", text), path.name
        for extra in re.findall(r"palimpsest-rl\[(\w+)\]|'\.\[(\w+)\]'", text):
            assert "".join(extra) in PROJECT["optional-dependencies"], path.name


@pytest.mark.parametrize(
    ("origin", "checkout", "line"),
    [
        ({}, None, "pip install 'palimpsest-rl[lora]'"),
        ({}, Path("/src/p"), "pip install -e '/src/p[lora]'"),
        ({"url": "file:///a%20b", "dir_info": {}}, None, "pip install -e '/a b[lora]'"),
        (
            {"url": "https://h/p", "vcs_info": {"vcs": "git"}},
            None,
            "pip install 'palimpsest-rl[lora] @ git+https://h/p'",
        ),
        ({"url": "file:///p.whl", "archive_info": {}}, None, "pip install 'palimpsest-rl[lora] @ file:///p.whl'"),
    ],
)
def test_an_error_tells_the_line_for_the_copy_that_is_there(
    origin: dict[str, Any], checkout: Path | None, line: str
) -> None:
    assert line_for("lora", origin, checkout) == line


def test_versions_with_vulnerabilities_are_excluded() -> None:
    """The lowest versions without a published advisory (osv.dev, November 2026)."""
    floors = {
        "jinja2": (3, 1, 6),
        "starlette": (1, 5, 1),
        "orjson": (3, 11, 6),
        "aiohttp": (3, 14, 3),
        "pypdf": (6, 15),
    }
    extras = PROJECT["optional-dependencies"]
    for line in (*PROJECT["dependencies"], *extras["pdf"], *extras["dev"]):
        name, _, floor = line.partition(">=")
        if name in floors:
            assert tuple(map(int, re.findall(r"\d+", floor))) >= floors[name], line
    assert "httpx" not in NEEDED  # unmaintained since December 2024


def test_the_lock_file_holds_every_requirement_with_hashes() -> None:
    lock = (ROOT / "requirements-dev.txt").read_text("utf-8")
    entries = re.findall(
        r"^([A-Za-z0-9._-]+)==(\S+)[^\\\n]*\\\n((?: +--hash=sha256:[0-9a-f]{64}[ \\]*\n)+)", lock, re.M
    )
    assert len(entries) == len(re.findall(r"^[A-Za-z0-9]", lock, re.M))
    locked = {canonicalize_name(name): release for name, release, _ in entries}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    extras = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *extras["docs"], *extras["dev"], *build]:
        needed = Requirement(line)
        if needed.name not in ("torch", PROJECT["name"]):
            assert locked[canonicalize_name(needed.name)] in needed.specifier, (
                f"{line}: run scripts/lock_requirements.py"
            )
    assert not {name for name in locked if name.startswith(("nvidia-", "cuda-")) or name in ("torch", "triton")}
