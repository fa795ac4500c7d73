"""Prompt files from the Python source of published memory agents: MemAgent, its ports, ReMemR1, PI-Mem.

    TEMPLATE = "... {prompt} ... {memory} ... {chunk} ..."      a text for str.format, named as its authors like
    NO_MEMORY = "..."

A text is known by its placeholders, whatever its name. It keeps every character that `str.format` shows; PI-Mem's one
placeholder for memory and replies becomes two.

Guaranteed: nothing in a file runs; number and size of files are bounded; the policy accepts the texts.
Not covered: texts that code puts together, and chat templates.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import Formatter

from palimpsest.app.starter_files import prompt_file
from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError
from palimpsest.files import read_regular
from palimpsest.text.display_text import counted, printable
from palimpsest.text.template import escaped

_MOST_FILES, _MOST_BYTES, _SHOWN = 20_000, 1 << 17, 5
_SLOTS = {"prompt": "question", "memory": "memory", "chunk": "section"}
_SLOTS |= {"recalled_memory": "recalled", "memories": "replies"}
"""Their placeholders and ours."""
_READ, _ANSWER = {"question", "memory", "section"}, {"question", "memory"}
_TEXTS = [("read", _READ), ("read", _READ | {"recalled"}), ("answer", _ANSWER), ("answer", _ANSWER | {"recalled"})]
_TEXTS += [("merge", {"question", "replies"})]
"""Texts and the slots by which they are known."""
_NAMED = {"empty_memory": re.compile(r"_?NO_MEMORY(_STRING|_TOKENS)?")}
_NAMED |= {"nothing_recalled": re.compile(r"_?NO_(RECALLED_MEMORY|MEMORY_RECALLED(_STRING)?)")}
_LABELS = {"memory": re.compile(r"\s*\[Previous Memory\]:\s*"), "item": re.compile(r"\s*\[Section \{\w+\}\]:\s*")}
"""Labels of the memory and of the replies in PI-Mem's merge."""


@dataclass(frozen=True, slots=True)
class ImportedPrompts:
    """The texts of a source file."""

    path: Path
    policy: str
    texts: Mapping[str, str]
    """By our names."""

    @property
    def name(self) -> str:
        """The path as it can be shown."""
        return printable(self.path.as_posix())

    @property
    def text(self) -> str:
        """Contents of the prompt file. Raises ConfigError if the policy rejects it."""
        layout = "memory_first" if "read" in self.texts else "section_first"
        options = {"prompts": dict(self.texts), "layout": layout}
        head = f"# Prompts of {self.name}, for policy.name={self.policy} policy.options.layout={layout}\n"
        return head + prompt_file(PolicyConfig(name=self.policy, options=options))


def import_prompts(path: Path, policy: str | None = None) -> ImportedPrompts:
    """The prompts in a Python file, or in a repository's folder. `policy`: only those of this policy.

    If files differ, those of the training count, which are in a folder `impls`. Raises ConfigError without prompts, and
    with the files' names if they still differ.
    """
    if path.is_file() and (size := path.stat().st_size) > _MOST_BYTES:
        raise ConfigError(f"{path}: {size:,} bytes, at most {_MOST_BYTES:,}; copy its prompts into a file of their own")
    files = [path] if path.is_file() else _python_files(path)
    read = (_prompts_of(file, path if path.is_dir() else path.parent) for file in files)
    found = [one for one in read if one is not None and policy in (None, one.policy)]
    if not found:
        wanted = f" of policy {policy}" if policy else ""
        raise ConfigError(
            f"{path}: no prompts{wanted} in {counted(len(files), 'Python file')}: name a file with one text for "
            "reading, one for the answer, and one NO_MEMORY at most"
        )
    trained = [one for one in found if "impls" in one.path.parts]
    first, *others = trained or found
    different = [one for one in others if (one.policy, one.texts) != (first.policy, first.texts)]
    if different:
        names = ", ".join(f"{one.name} ({one.policy})" for one in [first, *different][:_SHOWN])
        raise ConfigError(f"{path}: several prompts; name one file, or choose with --policy: {names}")
    return first


def _python_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such file or folder; name a checkout of the agent's repository")
    try:
        files = list(islice(folder.rglob("*.py"), _MOST_FILES + 1))
    except (OSError, RecursionError) as error:
        raise ConfigError(f"{folder}: unreadable ({type(error).__name__}); name a folder of the repository") from None
    if len(files) > _MOST_FILES:
        raise ConfigError(f"{folder}: more than {_MOST_FILES:,} Python files; name a folder of the repository")
    return sorted(files)


def _prompts_of(file: Path, root: Path) -> ImportedPrompts | None:
    """None for a file without a text for reading and one for the answer, or with several of either."""
    try:
        source = read_regular(file, _MOST_BYTES + 1)
        tree = ast.parse(source if len(source) <= _MOST_BYTES else b"")
        strings = list(_strings(tree))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # no file of prompts
    texts: dict[str, str] = {}
    for name, value in strings:
        key, text = _known(name, value)
        if key is not None and texts.setdefault(key, text) != text:
            return None
    if "answer" not in texts or not texts.keys() & {"read", "read_section_first"}:
        return None
    policy = "parallel" if "merge" in texts else "recall" if "{recalled}" in texts["answer"] else "overwrite"
    if policy != "recall":
        texts.pop("nothing_recalled", None)
    texts |= _merges(tree, texts["merge"]) if policy == "parallel" else {}
    return ImportedPrompts(file.relative_to(root), policy, texts)


def _known(name: str, value: str) -> tuple[str | None, str]:
    """(name of our text or None, the text)."""
    if key := next((key for key, pattern in _NAMED.items() if pattern.fullmatch(name)), None):
        return key, escaped(value)
    slots = _slots_of(value) or []
    key = next((key for key, wanted in _TEXTS if sorted(slots) == sorted(wanted)), None)
    if key == "read" and slots.index("section") < slots.index("memory"):
        key = "read_section_first"
    return key, _ours(value) if key else value


def _strings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, text) of each assigned string, and of each that a tokenizer encodes; not of a name that grows later."""
    grown = {ast.unparse(node.target) for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            value = node.value
            if isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "encode" and value.args:
                value = value.args[0]
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and ast.unparse(target) not in grown:
                yield name, value.value


def _slots_of(text: str) -> list[str] | None:
    """Our names of the placeholders, in order; None if a text has others, or is none for str.format."""
    try:
        fields = [field for field in Formatter().parse(text) if field[1] is not None]
    except ValueError:
        return None
    if not fields or any(spec or conversion or name not in _SLOTS for _, name, spec, conversion in fields):
        return None
    return [_SLOTS[str(name)] for _, name, _, _ in fields]


def _ours(text: str) -> str:
    """A text for str.format with our slots; text in single braces that looks like a slot is escaped.

    >>> _ours("{prompt} {{}} {{a}}"), _ours("\\\\boxed{{}}")
    ('{question} {} {{a}}', '\\\\boxed{}')
    """
    parts = [""]
    for literal, name, _, _ in Formatter().parse(text):
        parts[-1] += literal
        parts += [] if name is None else [f"{{{_SLOTS[name]}}}", ""]
    parts[::2] = map(escaped, parts[::2])
    return "".join(parts)


def _merges(tree: ast.Module, merge: str) -> dict[str, str]:
    """PI-Mem's merge has one place for the memory, if there is one, and the replies, each under its label."""
    shown = {"memory": "{memory}\n\n"}
    for text in map(_as_text, ast.walk(tree)):
        line = text if text.endswith("\n") else f"{text}\n"
        if _LABELS["memory"].fullmatch(text):
            shown["memory"] = f"{line}{{memory}}"
        elif _LABELS["item"].fullmatch(text):
            before = "" if text[:1].isspace() else "\n\n"
            shown["item"] = before + re.sub(r"\{\w+\}", "{number}", line) + "{reply}"
    memory, item = shown["memory"], shown.get("item")
    made = {"merge": merge.replace("{replies}", f"{memory}{{replies}}"), "merge_first": merge}
    return made if item is None else made | {"item": item}


def _as_text(node: ast.AST) -> str:
    """A string, or a formatted one with its expressions as placeholders; empty for another node."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_as_text(part) or "{number}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
