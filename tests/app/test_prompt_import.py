"""Prompts read from repositories in the published form, compared with what `str.format` shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from palimpsest.app.prompt_import import ImportedPrompts, import_prompts
from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError
from palimpsest.memory.registry import build_policy
from support.agents import base_codec
from support.command import Run

READ = "Problem: {prompt}\n<memory>\n{memory}\n</memory>\nText: {chunk}\nas {{json}} and \\x{{}}:\n"
ANSWER = "Q {prompt}\nM {memory}\nin \\boxed{{}}:\n"
OVERWRITE = f"""
import nowhere
TEMPLATE = {READ!r}
TEMPLATE_FINAL_BOXED = {ANSWER!r}
class Agent:
    def __init__(self, tokenizer):
        self.NO_MEMORY_TOKENS = tokenizer.encode("Nothing yet", add_special_tokens=False)
        open("ran", "w")
open("ran", "w")
"""
RECALL_READ = "{prompt}|{recalled_memory}|{memory}|{chunk}"
RECALL_ANSWER = "{prompt}|{recalled_memory}|{memory}"
RECALL = f"""
T1: str = {RECALL_READ!r}
T2 = {RECALL_ANSWER!r}
class Agent:
    def __init__(self):
        self.NO_MEMORY_STRING = "Nothing yet"
        self.NO_MEMORY_RECALLED_STRING = "Nothing recalled"
"""
MERGE = "Q {prompt}\n<notes>\n{memories}\n</notes>\n"
PARALLEL = f"""
TEMPLATE_CHUNK = {READ!r}
TEMPLATE_MERGE = {MERGE!r}
TEMPLATE_FINAL_BOXED = {ANSWER!r}
NO_MEMORY = "Nothing yet"
def merge(memory, notes, encode):
    return encode("\\n[Previous Memory]:\\n") + memory + "".join(f"\\n[Section {{i + 1}}]:\\n" for i in notes)
"""
VALUES = {"prompt": "who {is} it?", "memory": "an old one", "chunk": "a text", "recalled_memory": "a recalled one"}
SLOTS = {"prompt": "question", "memory": "memory", "chunk": "section", "recalled_memory": "recalled"}


def repository(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / "recurrent" / "impls" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def policy_of(made: ImportedPrompts) -> Any:
    options = {"prompts": yaml.safe_load(made.text), "layout": "memory_first"}
    return build_policy(PolicyConfig(name=made.policy, options=options))


def shown(policy: Any, name: str, **values: list[int]) -> str:
    """The text called `name` as its policy shows it, without the chat template around it."""
    codec = base_codec()
    template = policy.texts.template(codec, name)
    ids = {ours: codec.encode(VALUES[theirs]) for theirs, ours in SLOTS.items()} | values
    text = codec.decode(list(template.fill({slot: ids[slot] for slot in template.slots})))
    return text.removeprefix("<|im_start|>user\n").removesuffix("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("source", "policy", "read", "answer"),
    [(OVERWRITE, "overwrite", READ, ANSWER), (RECALL, "recall", RECALL_READ, RECALL_ANSWER)],
)
def test_a_prompt_shows_what_str_format_shows(
    source: str, policy: str, read: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = import_prompts(repository(tmp_path, memory=source))
    built = policy_of(made)
    assert made.policy == policy
    assert shown(built, "read") == read.format(**VALUES)
    assert shown(built, "answer") == answer.format(**VALUES)
    assert built.texts.empty_memory == "Nothing yet"
    assert getattr(built.texts, "nothing_recalled", "Nothing recalled") == "Nothing recalled"
    assert not Path("ran").exists()


@pytest.mark.parametrize("first", [True, False])
def test_a_merge_shows_memory_and_replies_under_the_published_labels(first: bool, tmp_path: Path) -> None:
    policy, codec = policy_of(import_prompts(repository(tmp_path, memory=PARALLEL))), base_codec()
    replies = [
        one for number, text in ((1, "a note"), (2, "b")) for one in policy._item(codec.encode(text), number, codec)
    ]
    memory = "" if first else "\n[Previous Memory]:\nan old one"
    published = MERGE.format(prompt=VALUES["prompt"], memories=f"{memory}\n[Section 1]:\na note\n[Section 2]:\nb")
    assert shown(policy, "merge_first" if first else "merge", replies=replies) == published


def test_several_prompts_are_named_and_one_is_chosen_by_its_policy(tmp_path: Path) -> None:
    folder = repository(tmp_path, memory=OVERWRITE, same=OVERWRITE, other=PARALLEL, broken="def (", empty="")
    (folder / "evaluation.py").write_text(OVERWRITE.replace("Problem", "Evaluated"))
    with pytest.raises(ConfigError, match=r"impls/memory\.py \(overwrite\).*impls/other\.py \(parallel\)"):
        import_prompts(folder)
    assert import_prompts(folder, "overwrite").path == Path("recurrent/impls/memory.py")
    assert import_prompts(folder, "parallel").path == Path("recurrent/impls/other.py")
    assert import_prompts(folder / "evaluation.py").texts["read"].startswith("Evaluated")
    with pytest.raises(ConfigError, match="no prompts of policy recall"):
        import_prompts(folder, "recall")


def test_a_hostile_repository_is_read_without_harm(tmp_path: Path) -> None:
    folder = repository(tmp_path, memory=OVERWRITE, nested="(" * 100_000, zero="\0", long="x = 1\n" * 300_000)
    os.mkfifo(folder / "pipe.py")
    (folder / "loop").symlink_to(folder)
    (folder / "latin.py").write_bytes(b"T = '\xff'")
    assert import_prompts(folder).texts.keys() == {"read", "answer", "empty_memory"}


def test_named_texts_are_shown_as_they_are(tmp_path: Path) -> None:
    source = OVERWRITE.replace("Nothing yet", "no {memory} yet") + 'NO_RECALLED_MEMORY = "none"\n'
    assert policy_of(import_prompts(repository(tmp_path, memory=source))).texts.empty_memory == "no {memory} yet"
    large = tmp_path / "large.py"
    large.write_text(OVERWRITE + "#" * 140_000)
    with pytest.raises(ConfigError, match=r"large\.py: 140,\d+ bytes, at most 131,072"):
        import_prompts(large)


def test_the_command_writes_a_file_that_the_policy_reads(
    tmp_path: Path, palimpsest: Run, refused: Callable[..., str]
) -> None:
    folder, out = repository(tmp_path / "agent", memory=OVERWRITE), tmp_path / "prompts" / "mine.yaml"
    palimpsest("recipes", "import", str(folder), "--out", str(out))
    again = palimpsest("recipes", "show", "memagent-7b", f"policy.options.prompts={out}", "--prompts")
    assert yaml.safe_load(again.stdout) == yaml.safe_load(out.read_text())
    assert "more.sh" in refused("recipes", "import", str(folder), "more.sh")
    assert "--policy recall" in refused("recipes", "import", "train.sh", "--policy", "recall")


def test_texts_of_a_recall_are_no_texts_of_another_policy(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(f"{PARALLEL}\nNO_RECALLED_MEMORY = 'none'\n")
    made = import_prompts(tmp_path / "agent.py")
    assert (made.policy, "nothing_recalled" in made.texts) == ("parallel", False)
    assert yaml.safe_load(made.text)["merge"]


def test_a_deep_name_leaves_a_file_without_prompts(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(f"{OVERWRITE}\na{'.b' * 900} += 'x'\n")
    with pytest.raises(ConfigError, match="no prompts"):
        import_prompts(tmp_path / "agent.py")
