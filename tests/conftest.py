"""Fixtures shared by all tests: a small byte-level tokenizer, a random-weight Llama, the command line, a browser."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache

if os.environ.get("PALIMPSEST_GPU_TESTS") != "cuda":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what other tests compare byte by byte is a CPU's
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two threads collapse where the cores are shared
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, settings

from support.browser import Watched, chromium, watching
from support.command import Done, Run
from support.models import build_llama, build_tokenizer

# An example may take long on a busy machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Modules and syntax trees stay: each collection of garbage would scan their million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, *gc.get_threshold()[1:])  # a call of the library ends with gc.unfreeze
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def unignored_interrupts() -> Iterator[None]:
    """Lets SIGINT and SIGHUP end tests and their child processes; background jobs and nohup ignore them."""
    handlers: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture(scope="session")
def tiny_codec(tiny_tokenizer: Any) -> Any:
    from palimpsest.text.codec import Codec

    return Codec(tiny_tokenizer)


@pytest.fixture
def tiny_model(tiny_tokenizer: Any) -> Any:
    """A new model for each test, so that a test may train it."""
    return build_llama(len(tiny_tokenizer))


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Any) -> Path:
    """A Hugging Face folder: config, safetensors, tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-model")
    build_llama(len(tiny_tokenizer)).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_page(browser: Any) -> Iterator[Watched]:
    page = Watched(browser, "about:blank")
    yield page
    page.close()


@pytest.fixture
def watched(shared_page: Watched, origin: str) -> Iterator[Watched]:
    """A page of a module's viewer, whose address its fixture `origin` gives, without traces of other tests."""
    with watching(shared_page, origin) as page:
        yield page


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the published files: $PALIMPSEST_DATA, or ../shared/data next to the checkout."""
    checkout_data = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("PALIMPSEST_DATA", checkout_data))
    if not (folder / "hotpotqa_train_100.json").is_file():
        pytest.skip(f"no published data at {folder}; set PALIMPSEST_DATA to the folder with hotpotqa_train_100.json")
    return folder


@pytest.fixture(scope="session")
def device() -> str:
    """Where a test of the marker `gpu` computes: `cuda`, or `cpu` at tiny size, as $PALIMPSEST_GPU_TESTS says."""
    import torch

    chosen = os.environ.get("PALIMPSEST_GPU_TESTS", "")
    if chosen not in ("cuda", "cpu"):
        pytest.skip("`make test-gpu` runs this on a GPU, `make test-gpu DEVICE=cpu` without one at tiny size")
    if chosen == "cuda" and not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no CUDA device here")
    return chosen


built_once = cache(typer.main.get_command)
"""The command line of an application: it takes 0.1 s to build, and calls don't change it."""


@pytest.fixture
def palimpsest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The console script in this process: torch is imported once for all tests."""
    from palimpsest.cli.main import main

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("typer.main.get_command", built_once)

    def run(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["palimpsest", *args])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return Done(int(caught.value.code or 0), out, err)

    return run


@pytest.fixture
def refused(palimpsest: Run) -> Callable[..., str]:
    """The error line of a command, without its lines of progress."""

    def run(*args: str) -> str:
        done = palimpsest(*args)
        assert done.returncode == 2, done.stderr
        lines = [line for line in done.stderr.splitlines() if not line.startswith(("loading ", "[100%]"))]
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("error: ")
        return lines[0]

    return run
