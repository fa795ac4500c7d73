"""Files fetched from a hub and from a page, both real servers on loopback."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets import published_files
from palimpsest.app.datasets.published_files import download, files_for, find
from palimpsest.config.data import PUBLISHED, Published
from palimpsest.config.load import EVALUATIONS, recipe_names
from palimpsest.errors import DataError, RunError
from palimpsest.runs.folder_guard import draft_folder

CONTENT = bytes(range(256)) * 80_000  # 20 MB: huggingface_hub writes 10 MiB at a time
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """What was asked; the next replies to GET break off after so many bytes, or are an error's status."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    content: bytes = CONTENT
    digest: str = ""
    """`X-Linked-Etag`."""
    drip: float = 0.0
    """Seconds between the bytes of a body."""
    drip_headers_of: str = ""
    """Method whose replies have headers that never end, a byte per 0.2 s."""
    kind: str = "application/json"
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and range of each GET."""


@pytest.fixture
def server() -> Iterator[Server]:
    made, ended = Server(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._head(200, len(made.content))

        def do_GET(self) -> None:
            if self.path.startswith("/api/"):  # what the client asks besides files
                self._head(404, 0)
                return
            made.asked.append((self.path, self.headers.get("range")))
            wanted = made.answers.pop(0) if made.answers else len(made.content)
            if 400 <= wanted < 600:
                self._head(wanted, 0)
                return
            start = int((self.headers.get("range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
            body = made.content[start:]
            self._head(206 if start else 200, len(body), start)
            while made.drip and not ended.wait(made.drip):
                self.wfile.write(body[:1])
            self.wfile.write(body[:wanted])
            self.close_connection = wanted < len(body)

        def _head(self, status: int, length: int, start: int = 0) -> None:
            while made.drip_headers_of == self.command and not ended.wait(0.2):
                self.wfile.write(b"H")
            self.send_response(status)
            headers = {
                "content-type": made.kind,
                "etag": '"one"',
                "x-repo-commit": "0" * 40,
                "content-length": str(length),
            }
            headers |= {"x-linked-etag": made.digest} if made.digest else {}
            headers |= {"content-range": f"bytes {start}-{len(made.content) - 1}/{len(made.content)}"} if start else {}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    made.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    yield made
    ended.set()
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def fetched(server: Server, *words: str | Path, out: Path) -> subprocess.CompletedProcess[str]:
    """By a process of its own: huggingface_hub reads HF_ENDPOINT when it is imported."""
    patient = "from palimpsest.app.datasets import published_files as p; p._PATIENCE = 0.5"
    started = f"{patient}; from palimpsest.cli.main import main; main()"
    command = [sys.executable, "-c", started, "data", "download", *map(str, words), "--out", str(out)]
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_file_of_the_hub_comes_from_the_mirror_and_a_broken_connection_is_resumed(
    server: Server, tmp_path: Path
) -> None:
    server.answers = [12_000_000]
    done = fetched(server, "owner/set/data/file.json", out=tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert f"SHA-256 {DIGEST}" in done.stdout
    assert (tmp_path / "new" / "file.json").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.json"]
    assert [part for _, part in server.asked] == [None, f"bytes={10 << 20}-"]
    assert {path for path, _ in server.asked} == {"/datasets/owner/set/resolve/main/data/file.json"}


def test_what_the_hub_refuses_is_one_line_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.answers = [403] * 20
    done = fetched(server, "owner/set/data/file.json", out=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: owner/set/data/file.json: download from the hub failed (")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_page_comes_whole_or_not_at_all(server: Server, tmp_path: Path) -> None:
    published = Published(f"{server.url}/hotpot/file.json")
    server.answers = [404, 1000]
    for why in ("404", "interrupted"):
        with pytest.raises(DataError, match=rf"hotpot/file\.json: download failed \(.*{why}"):
            download(published, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert download(published, tmp_path).read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]


PAGES = {
    "doctype": b"<!DOCTYPE html>\n<title>Log in</title>",
    "mark": b"\xef\xbb\xbf\n <HTML lang=en>",
    "head": b"<head><title>proxy</title>",
    "comment": b"<!-- hi --><!DOCTYPE html><html>",
    "xml": b"<?xml version='1.0'?><html>",
    "div": b"\n" * 5000 + b"<div>log in</div>",
    "UTF-16": "<html>log in".encode("utf-16"),
    "UTF-16 without a mark": "\n<html>log in".encode("utf-16-be"),
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_a_web_page_is_not_a_data_set(page: bytes, server: Server, tmp_path: Path) -> None:
    server.content = page
    with pytest.raises(DataError, match="web page"):
        download(Published(f"{server.url}/file.json"), tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []
    assert download(Published(f"{server.url}/page.html"), tmp_path).read_bytes() == page


@pytest.mark.parametrize(
    ("content", "kind", "why"),
    [
        (PAGES["comment"], "application/json", "web page"),
        (b"", "application/json", "empty file"),
        (b"\xef\xbb\xbf\n", "application/json", "empty file"),
    ],
)
def test_what_a_mirror_or_a_page_gives_instead_of_data_is_not_stored(
    content: bytes, kind: str, why: str, server: Server, tmp_path: Path
) -> None:
    server.content, server.kind = content, kind
    done = fetched(server, "owner/set/data/file.json", out=tmp_path / "new")
    assert (done.returncode, why in done.stderr.splitlines()[-1]) == (2, True)
    with pytest.raises(DataError, match=why):
        download(Published(f"{server.url}/file.json"), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("digest", "status"), [(DIGEST, 0), ("0" * 64, 2), ("0" * 40, 0)])
def test_a_file_has_the_sha256_that_the_hub_announces(digest: str, status: int, server: Server, tmp_path: Path) -> None:
    server.digest = f'"{digest}"'
    done = fetched(server, "owner/set/data/file.json", out=tmp_path / "new")
    assert (done.returncode, (tmp_path / "new" / "file.json").exists()) == (status, status == 0)
    assert "announces" in done.stderr.splitlines()[-1] if status else DIGEST in done.stdout, done.stderr


def test_a_body_that_drips_is_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.drip = 0.2
    monkeypatch.setattr(published_files, "_PATIENCE", 0.5)
    with pytest.raises(DataError, match="too slow"):
        download(Published(f"{server.url}/file.json"), tmp_path / "new")
    done = fetched(server, "owner/set/data/file.json", out=tmp_path / "new")
    assert (done.returncode, "too slow" in done.stderr.splitlines()[-1]) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_headers_that_drip_are_given_up(
    method: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.drip_headers_of = method
    done = fetched(server, "owner/set/data/file.json", out=tmp_path / "new")
    assert (done.returncode, "too slow, no reply" in done.stderr.splitlines()[-1]) == (2, True)
    monkeypatch.setattr(published_files, "_PATIENCE", 0.5)
    if method == "GET":
        with pytest.raises(DataError, match="too slow, no reply"):
            download(Published(f"{server.url}/file.json"), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_second_download_of_a_file_is_refused_while_the_first_runs(server: Server, tmp_path: Path) -> None:
    published = Published(f"{server.url}/file.json")
    with draft_folder(tmp_path / "file.json"), pytest.raises(RunError, match="in use by process"):
        download(published, tmp_path)
    assert download(published, tmp_path).read_bytes() == CONTENT


def test_a_file_that_is_there_is_refused_before_anything_is_asked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text("mine")
    with pytest.raises(RunError, match="exists: use another --out, or --force"):
        download(Published(f"{server.url}/file.json"), tmp_path)
    assert server.asked == []
    download(Published(f"{server.url}/file.json"), tmp_path, force=True)
    assert (tmp_path / "file.json").read_bytes() == CONTENT
    assert (tmp_path / "file.json.old-1").read_text() == "mine"


def test_names_are_found_and_near_ones_hinted(refused: Callable[..., str], tmp_path: Path) -> None:
    assert find("memagent-eval-200").path == "BytedTsinghua-SIA/hotpotqa/eval_200.json"
    assert find("owner/set/data/x.json") == Published("owner/set/data/x.json")
    assert all(each.file.endswith((".json", ".parquet")) for each in PUBLISHED.values())
    assert "did you mean hotpotqa-dev" in refused("data", "download", "hotpotqa-dve", "--out", str(tmp_path))
    for name in ("../x/y", "a/b", "a/b/../../c", "https://x/y/z"):
        with pytest.raises(DataError, match="no such data set"):
            find(name)


# ---- all files of a recipe -----------------------------------------------------------------------------------


def test_files_of_a_recipe_come_to_the_places_that_it_names_and_a_second_call_fetches_the_rest(
    server: Server, tmp_path: Path
) -> None:
    recipe, train = tmp_path / "mine.yaml", tmp_path / "sets" / "hotpotqa_train_32k.parquet"
    recipe.write_text("data: {train_files: sets/hotpotqa_train_32k.parquet, val_files: hotpotqa_dev.parquet}")
    server.answers = [len(CONTENT), *[403] * 20]
    assert fetched(server, "--for", recipe, out=tmp_path).returncode == 2
    assert train.read_bytes() == CONTENT
    server.answers = []
    server.asked.clear()
    assert fetched(server, "--for", recipe, out=tmp_path).returncode == 0
    assert {path for path, _ in server.asked} == {
        "/datasets/BytedTsinghua-SIA/hotpotqa/resolve/main/hotpotqa_dev.parquet"
    }
    assert (tmp_path / "hotpotqa_dev.parquet").read_bytes() == CONTENT


def test_a_file_that_is_not_published_is_named_with_what_makes_it_and_the_others_come(
    server: Server, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "evaluation: {files: [{names: ['{task}_{size}k.json'], tasks: [qa1], sizes: [4], "
        "make: 'palimpsest data download owner/set/{task}/{size}k.json --out NEW'}, "
        "{names: [mine.jsonl], make: 'palimpsest data build x'}]}"
    )
    done = fetched(server, "--for", recipe, out=tmp_path)
    assert done.returncode == 1
    assert "mine.jsonl: not published; palimpsest data build x" in done.stderr
    assert (tmp_path / "qa1_4k.json").read_bytes() == CONTENT  # under the name that the recipe expects
    assert {path for path, _ in server.asked} == {"/datasets/owner/set/resolve/main/qa1/4k.json"}


@pytest.mark.parametrize("name", [*recipe_names(), *recipe_names(EVALUATIONS)])
def test_every_file_of_a_shipped_recipe_is_published_or_has_its_source(name: str) -> None:
    wanted = list(files_for(name))
    assert all(file.published or file.make for file in wanted)
    assert bool(wanted) == (not name.endswith("quickstart") and name != "memact-cold-start")


@pytest.mark.parametrize("words", [[], ["memagent-train", "--for", "memagent-7b"]])
def test_one_of_a_name_and_a_recipe_is_needed(words: list[str], refused: Callable[..., str]) -> None:
    assert "--for RECIPE" in refused("data", "download", *words)
