"""Downloads from a hub and from a page, both real servers on loopback."""

from __future__ import annotations

import hashlib
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
from support.command import Done, Run

CONTENT = bytes(range(256)) * 80_000  # 20 MB: huggingface_hub writes 10 MiB at a time
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """`answers`: the next replies to GET end after that many bytes, or have this error status."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    content: bytes = CONTENT
    digest: str = ""  # X-Linked-Etag
    drip: float = 0.0  # seconds between the bytes of a body
    drip_headers_of: str = ""  # the method whose replies have endless headers, a byte per 0.2 s
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path and range of each GET


@pytest.fixture
def server() -> Iterator[Server]:
    made, ended = Server(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._head(200, len(made.content))

        def do_GET(self) -> None:
            if self.path.startswith("/api/"):  # not a file
                self._head(404, 0)
                return
            made.requests.append((self.path, self.headers.get("range")))
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
            headers = {"etag": '"one"', "x-repo-commit": "0" * 40, "content-length": str(length)}
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


@pytest.fixture
def fetch(server: Server, palimpsest: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`palimpsest data download`, from the server as the hub's mirror."""
    path = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", server.url + path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return lambda *words, out: palimpsest("data", "download", *map(str, words), "--out", str(out))


def test_a_broken_hub_download_resumes(server: Server, fetch: Callable[..., Done], tmp_path: Path) -> None:
    server.answers = [12_000_000]
    done = fetch("owner/set/data/file.json", out=tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert f"SHA-256 {DIGEST}" in done.stdout
    assert (tmp_path / "new" / "file.json").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.json"]
    assert [range for _, range in server.requests] == [None, f"bytes={10 << 20}-"]
    assert {path for path, _ in server.requests} == {"/datasets/owner/set/resolve/main/data/file.json"}


def test_a_rejected_hub_download_leaves_nothing(server: Server, fetch: Callable[..., Done], tmp_path: Path) -> None:
    server.answers = [403] * 20
    done = fetch("owner/set/data/file.json", out=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: owner/set/data/file.json: download from the hub failed (")
    assert list(tmp_path.iterdir()) == []


def test_a_page_file_is_complete_or_absent(server: Server, tmp_path: Path) -> None:
    published = Published(f"{server.url}/hotpot/file.json")
    server.answers = [404, 1000]
    for why in ("404", "interrupted"):
        with pytest.raises(DataError, match=rf"hotpot/file\.json: download failed \(.*{why}"):
            download(published, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert download(published, tmp_path).read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]


REJECTED = {
    "doctype": (b"<!DOCTYPE html>\n<title>Log in</title>", "web page"),
    "mark": (b"\xef\xbb\xbf\n <HTML lang=en>", "web page"),
    "head": (b"<head><title>proxy</title>", "web page"),
    "comment": (b"<!-- hi --><!DOCTYPE html><html>", "web page"),
    "xml": (b"<?xml version='1.0'?><html>", "web page"),
    "div": (b"\n" * 5000 + b"<div>log in</div>", "web page"),
    "UTF-16": ("<html>log in".encode("utf-16"), "web page"),
    "UTF-16 without a mark": ("\n<html>log in".encode("utf-16-be"), "web page"),
    "empty": (b"", "empty file"),
    "blank": (b"\xef\xbb\xbf\n", "empty file"),
}


@pytest.mark.parametrize(("content", "reason"), REJECTED.values(), ids=REJECTED)
def test_a_web_page_or_an_empty_file_is_not_stored(content: bytes, reason: str, server: Server, tmp_path: Path) -> None:
    server.content = content
    with pytest.raises(DataError, match=reason):
        download(Published(f"{server.url}/file.json"), tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []
    if reason == "web page":
        assert download(Published(f"{server.url}/page.html"), tmp_path).read_bytes() == content


@pytest.mark.parametrize("kind", ["comment", "empty"])
def test_a_mirrors_web_page_is_not_stored(
    kind: str, server: Server, fetch: Callable[..., Done], tmp_path: Path
) -> None:
    server.content, reason = REJECTED[kind]
    done = fetch("owner/set/data/file.json", out=tmp_path / "new")
    assert (done.returncode, reason in done.stderr.splitlines()[-1]) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("digest", "status"), [(DIGEST, 0), ("0" * 64, 2), ("0" * 40, 0)])
def test_a_file_has_the_sha256_that_the_hub_announces(
    digest: str, status: int, server: Server, fetch: Callable[..., Done], tmp_path: Path
) -> None:
    server.digest = f'"{digest}"'
    done = fetch("owner/set/data/file.json", out=tmp_path / "new")
    assert (done.returncode, (tmp_path / "new" / "file.json").exists()) == (status, status == 0)
    assert "announces" in done.stderr.splitlines()[-1] if status else DIGEST in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ({"drip": 0.2}, "too slow"),
        ({"drip_headers_of": "GET"}, "too slow, no reply"),
        ({"drip_headers_of": "HEAD"}, "too slow, no reply"),
    ],
)
def test_a_download_of_a_few_bytes_per_second_ends(
    faults: dict[str, Any],
    reason: str,
    server: Server,
    fetch: Callable[..., Done],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published_files, "_PATIENCE", 0.5)
    vars(server).update(faults)
    done = fetch("owner/set/data/file.json", out=tmp_path / "new")
    assert (done.returncode, reason in done.stderr.splitlines()[-1]) == (2, True)
    if "HEAD" not in faults.values():
        with pytest.raises(DataError, match=reason):
            download(Published(f"{server.url}/file.json"), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_second_download_of_a_file_is_refused_while_the_first_runs(server: Server, tmp_path: Path) -> None:
    published = Published(f"{server.url}/file.json")
    with draft_folder(tmp_path / "file.json"), pytest.raises(RunError, match="in use by process"):
        download(published, tmp_path)
    assert download(published, tmp_path).read_bytes() == CONTENT


def test_an_existing_file_is_refused_before_any_request(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text("mine")
    with pytest.raises(RunError, match="exists: use another --out, or --force"):
        download(Published(f"{server.url}/file.json"), tmp_path)
    assert server.requests == []
    download(Published(f"{server.url}/file.json"), tmp_path, force=True)
    assert (tmp_path / "file.json").read_bytes() == CONTENT
    assert (tmp_path / "file.json.old-1").read_text() == "mine"


def test_an_unknown_name_has_a_hint(refused: Callable[..., str], tmp_path: Path) -> None:
    assert find("memagent-eval-200").path == "BytedTsinghua-SIA/hotpotqa/eval_200.json"
    assert find("owner/set/data/x.json") == Published("owner/set/data/x.json")
    assert all(item.file.endswith((".json", ".parquet")) for item in PUBLISHED.values())
    assert "did you mean hotpotqa-dev" in refused("data", "download", "hotpotqa-dve", "--out", str(tmp_path))
    for name in ("../x/y", "a/b", "a/b/../../c", "https://x/y/z"):
        with pytest.raises(DataError, match="no such data set"):
            find(name)


def test_a_second_call_fetches_missing_files(server: Server, fetch: Callable[..., Done], tmp_path: Path) -> None:
    recipe, train = tmp_path / "mine.yaml", tmp_path / "sets" / "hotpotqa_train_32k.parquet"
    recipe.write_text("data: {train_files: sets/hotpotqa_train_32k.parquet, val_files: hotpotqa_dev.parquet}")
    server.answers = [len(CONTENT), *[403] * 20]
    assert fetch("--for", recipe, out=tmp_path).returncode == 2
    assert train.read_bytes() == CONTENT
    server.answers = []
    server.requests.clear()
    assert fetch("--for", recipe, out=tmp_path).returncode == 0
    (path,) = {path for path, _ in server.requests}
    assert path == "/datasets/BytedTsinghua-SIA/hotpotqa/resolve/main/hotpotqa_dev.parquet"
    assert (tmp_path / "hotpotqa_dev.parquet").read_bytes() == CONTENT


def test_an_unpublished_file_has_its_command(server: Server, fetch: Callable[..., Done], tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "evaluation: {files: [{names: ['{task}_{size}k.json'], tasks: [qa1], sizes: [4], "
        "make: 'palimpsest data download owner/set/{task}/{size}k.json --out NEW'}, "
        "{names: [mine.jsonl], make: 'palimpsest data build x'}]}"
    )
    done = fetch("--for", recipe, out=tmp_path)
    assert done.returncode == 1
    assert "mine.jsonl: not published; palimpsest data build x" in done.stderr
    assert (tmp_path / "qa1_4k.json").read_bytes() == CONTENT  # under the name that the recipe expects
    assert {path for path, _ in server.requests} == {"/datasets/owner/set/resolve/main/qa1/4k.json"}


@pytest.mark.parametrize("name", [*recipe_names(), *recipe_names(EVALUATIONS)])
def test_every_file_of_a_shipped_recipe_is_published_or_has_its_source(name: str) -> None:
    wanted = list(files_for(name))
    assert all(file.published or file.make for file in wanted)
    generated = name.endswith("quickstart") and name != "textworld-quickstart"
    assert bool(wanted) == (not generated and name != "memact-cold-start")


@pytest.mark.parametrize("words", [[], ["memagent-train", "--for", "memagent-7b"]])
def test_one_of_a_name_and_a_recipe_is_needed(words: list[str], refused: Callable[..., str]) -> None:
    assert "--for RECIPE" in refused("data", "download", *words)
