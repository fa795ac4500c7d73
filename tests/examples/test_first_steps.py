"""The notebook in examples/ in a real kernel, whose event loop runs while its cells do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[2]


def executed(notebook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The code cells after a run in `folder`, by a kernel of this interpreter and this tree."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    client = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return code_of(notebook)


def shown(cell: Any) -> str:
    """All that a cell printed or displayed, as text."""
    texts = [out.get("text", "") + out.get("data", {}).get("text/plain", "") for out in cell.outputs]
    return "\n".join(texts)


def first_steps() -> Any:
    return nbformat.read(ROOT / "examples" / "first_steps.ipynb", as_version=4)


def code_of(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebook_of_first_steps_ships_with_results() -> None:
    notebook = first_steps()
    assert all(cell.outputs for cell in code_of(notebook))
    assert str(ROOT.parent) not in nbformat.writes(notebook)


@pytest.mark.slow
def test_the_notebook_of_first_steps_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped outputs are of 60 steps; here it takes 2, with 2 problems."""
    notebook = first_steps()
    for cell in code_of(notebook):
        cell.source = cell.source.replace('"train.max_steps": 60', '"train.max_steps": 2').replace(
            "limit=64", "limit=2"
        )
    cells = executed(notebook, tmp_path, monkeypatch)
    assert "2 of 2 steps, finished" in shown(cells[0])
    assert any("<table>" in out.get("data", {}).get("text/html", "") for cell in cells for out in cell.outputs)
    assert "Episode of" in shown(cells[-1])
    assert all(not [out for out in cell.outputs if out.output_type == "error"] for cell in cells)


INTERRUPTED = """
import json, os, signal, sys, threading, time
sys.path.insert(0, {tests!r})
import palimpsest
from support.small_run import small_run
settings = small_run({model!r}, max_steps=500) | {{"logging.report_to": ["console"]}}
def interrupt():
    while not os.path.exists("run/checkpoints/step-000002"):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
run = palimpsest.train("memagent-quickstart", settings, out="run")
print("stopped", 2 <= run.steps < 500, run.finished, run.checkpoint.is_dir())
"""


AWAITED = """
import asyncio, sys
sys.path.insert(0, {tests!r})
import palimpsest
from support.small_run import small_run
ticks = 0
async def tick():
    global ticks
    while True:
        await asyncio.sleep(0.01)
        ticks += 1
ticking = asyncio.ensure_future(tick())
run = await palimpsest.train_async("memagent-quickstart", small_run({model!r}), out="run", quiet=True)
ticking.cancel()
print("awaited", run.finished, ticks > 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "printed"),
    [
        pytest.param(INTERRUPTED, "stopped True False True", id="an interrupted cell finishes its step and saves"),
        pytest.param(AWAITED, "awaited True True", id="async calls run in the notebook's loop"),
    ],
)
def test_training_in_a_cell(
    code: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_folder: Path
) -> None:
    source = code.format(tests=str(ROOT / "tests"), model=str(tiny_model_folder))
    (cell,) = executed(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), tmp_path, monkeypatch)
    assert printed in shown(cell)
