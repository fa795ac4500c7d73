"""lm-eval and inspect ask a served agent, with the files and commands of docs/how-to/serve.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.data.synthetic.documents import make_problem
from palimpsest.servers.openai.answer_text import unboxed
from support.serving import server

SECTION = (
    (Path(__file__).parents[3] / "docs" / "how-to" / "serve.md")
    .read_text()
    .split("\n## Under lm-eval and inspect\n")[1]
)
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", SECTION.split("\n## ")[0], re.DOTALL)
"""The section's code: (language, text)."""
FILES = {"yaml": "problems.yaml", "python": "problems.py"}
COMMANDS = [text for language, text in BLOCKS if language == "sh"]
PYTHONS = {"lm_eval": "PALIMPSEST_LM_EVAL_PYTHON", "inspect_ai": "PALIMPSEST_INSPECT_PYTHON"}
NEEDED = {"lm_eval": "lm_eval", "inspect_ai": "inspect_ai, openai"}


def of_lm_eval(folder: Path) -> dict[str, str]:
    """Problem to reply."""
    (log,) = (folder / "lm-eval").rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {row["doc"]["id"]: row["resps"][0][0] for row in rows}


def of_inspect(folder: Path) -> dict[str, str]:
    """Problem to reply."""
    (log,) = (folder / "inspect").glob("*.json")
    return {sample["id"]: sample["output"]["completion"] for sample in json.loads(log.read_text())["samples"]}


def played(module: str, command: str, url: str, folder: Path) -> None:
    """The command of the docs, by the Python that has the module, in the folder."""
    python = os.environ.get(PYTHONS[module], sys.executable)
    probe = subprocess.run([python, "-c", f"import {NEEDED[module]}"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no {NEEDED[module]}: pip install it, or name a Python that has it as ${PYTHONS[module]}")
    words = shlex.split(command.replace("\\\n", " ").replace("http://127.0.0.1:8400", url))
    given = dict(word.split("=", 1) for word in words if word.startswith("PALIMPSEST_"))
    _, *arguments = [word for word in words if not word.startswith("PALIMPSEST_")]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment: Mapping[str, str] = {**kept, **given, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, "-m", module, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder with the files of the docs and the problems, problem to the reply that an evaluation gives)."""
    folder = tmp_path_factory.mktemp("asked")
    for language, text in BLOCKS:
        if language in FILES:
            (folder / FILES[language]).write_text(text)
    drawn = [
        make_problem(2, "eval", at, chunks=chunks, facts_per_chunk=2) for at, chunks in enumerate((1, 1, 1, 2, 60))
    ]
    rows = [{"id": p.id, "question": p.question, "answers": p.answers, "context": p.context} for p in drawn]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = palimpsest.evaluate("embedded", folder / "problems.jsonl", baselines=False, quiet=True)
    replies = {sample.id: sample.answer for sample in evaluation}
    assert len(set(replies.values())) > 2
    return folder, replies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "command", "replies"),
    [("lm_eval", COMMANDS[0], of_lm_eval), ("inspect_ai", COMMANDS[1], of_inspect)],
)
def test_a_harness_records_the_replies_that_an_evaluation_gives(
    module: str, command: str, replies: Any, asked: Any, tmp_path: Path
) -> None:
    folder, expected = asked
    with server(tmp_path / "store") as (url, _):
        played(module, command, url, folder)
    if module == "inspect_ai":
        expected = {name: unboxed(reply) for name, reply in expected.items()}
    assert replies(folder) == expected
