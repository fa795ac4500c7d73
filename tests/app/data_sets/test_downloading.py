"""Files fetched from a real server on loopback that breaks off, is busy, or sends something else."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets import data_files
from palimpsest.app.datasets.data_files import PUBLISHED, Published, address, download, find
from palimpsest.errors import DataError, RunError

CONTENT = bytes(range(256)) * 20_000  # 5 MB
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """What was asked, and how the next requests are answered: a number of bytes before it breaks off, or a status."""

    url: str = ""
    content: bytes = CONTENT
    etag: str = '"one"'
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    redirect: dict[str, str] = field(default_factory=dict)


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if server.redirect and self.path != "/cdn":
                self._reply(302, b"", {"location": "/cdn", **server.redirect})
                return
            server.asked.append(self.headers.get("range"))
            server.paths.append(self.path)
            wanted = server.answers.pop(0) if server.answers else len(server.content)
            if 400 <= wanted < 600:
                self._reply(wanted, b"no", dict(server.headers))
                return
            start = 0
            if self.headers.get("range") and self.headers.get("if-range") == server.etag:
                start = int(self.headers["range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(server.content) and start:
                self._reply(416, b"", {"content-range": f"bytes */{len(server.content)}"})
                return
            body = server.content[start:]
            told = {"content-range": f"bytes {start}-{len(server.content) - 1}/{len(server.content)}"} if start else {}
            self._reply(206 if start else 200, body, {**told, "etag": server.etag}, cut=wanted)

        def _reply(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[:cut])
            if cut is not None and cut < len(body):
                self.close_connection = True

        def log_message(self, *_: Any) -> None: ...

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}/file.json"
    try:
        yield server
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def fetch(server: Server, out: Path, **options: Any) -> data_files.Downloaded:
    return download(Published(server.url), out, pause=0.0, **options)


def test_a_file_comes_whole_with_its_digest(server: Server, tmp_path: Path) -> None:
    done = fetch(server, tmp_path / "new" / "file.json")
    assert (done.size, done.sha256, done.checked) == (len(CONTENT), DIGEST, False)
    assert done.path.read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.json"]


def test_what_breaks_off_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    server.answers = [1_000_000, 2_000_000, 600_000]
    done = fetch(server, tmp_path / "file.json")
    assert done.path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1000000-", "bytes=3000000-", "bytes=3600000-"]


def test_a_later_call_goes_on_with_what_an_earlier_one_left(server: Server, tmp_path: Path) -> None:
    server.answers = [700_000, *[503] * 5]
    with pytest.raises(DataError, match=r"gave up after 5 attempts: status 503; 700,000 bytes are kept"):
        fetch(server, tmp_path / "file.json")
    assert not (tmp_path / "file.json").exists()
    assert fetch(server, tmp_path / "file.json").sha256 == DIGEST
    assert server.asked[-1] == "bytes=700000-"


def test_another_file_on_the_server_is_begun_anew(server: Server, tmp_path: Path) -> None:
    server.answers = [700_000, *[503] * 5]
    with pytest.raises(DataError, match="gave up"):
        fetch(server, tmp_path / "file.json")
    server.content, server.etag = CONTENT[::-1], '"two"'
    assert fetch(server, tmp_path / "file.json").path.read_bytes() == CONTENT[::-1]


def test_a_range_beyond_the_end_is_either_the_whole_file_or_begun_anew(server: Server, tmp_path: Path) -> None:
    server.answers = [700_000, *[503] * 5]
    with pytest.raises(DataError, match="gave up"):
        fetch(server, tmp_path / "file.json")
    partial = tmp_path / ".file.json.palimpsest-partial"
    partial.write_bytes(CONTENT)  # all of it came, and then the process was killed
    assert fetch(server, tmp_path / "file.json").sha256 == DIGEST
    server.answers = [700_000, *[503] * 5]
    with pytest.raises(DataError, match="gave up"):
        fetch(server, tmp_path / "other.json")
    (tmp_path / ".other.json.palimpsest-partial").write_bytes(CONTENT + b"more")
    assert fetch(server, tmp_path / "other.json").sha256 == DIGEST


def test_a_busy_server_is_asked_again_after_the_pause_it_names(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("palimpsest.app.datasets.data_files.time.sleep", slept.append)
    server.answers, server.headers = [429, 500, 429], {"retry-after": "7"}
    assert fetch(server, tmp_path / "file.json").sha256 == DIGEST
    assert slept == [7.0, 7.0, 7.0]
    server.answers, server.headers = [503, 503], {}
    assert download(Published(server.url), tmp_path / "b.json", pause=2.0).sha256 == DIGEST
    assert slept[3:] == [2.0, 4.0]
    server.answers, server.headers = [429], {"retry-after": "86400"}
    fetch(server, tmp_path / "c.json")
    assert slept[5:] == [data_files.LONGEST_PAUSE]


@pytest.mark.parametrize(
    ("status", "said"), [(404, "there is no such file"), (401, "needs a login"), (403, "not for everybody")]
)
def test_what_the_server_refuses_is_said_at_once(server: Server, tmp_path: Path, status: int, said: str) -> None:
    server.answers = [status]
    with pytest.raises(DataError, match=rf"file.json: .*{said} \(status {status}\)"):
        fetch(server, tmp_path / "file.json")
    assert len(server.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_wrong_bytes_are_removed(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"x"
    with pytest.raises(DataError, match=f"expected {DIGEST}; what came was removed"):
        fetch(server, tmp_path / "file.json", sha256=DIGEST)
    assert list(tmp_path.iterdir()) == []
    server.content = CONTENT
    assert fetch(server, tmp_path / "file.json", sha256=DIGEST.upper()).checked


def test_the_digest_that_the_hub_tells_is_checked(server: Server, tmp_path: Path) -> None:
    server.redirect = {"x-linked-etag": f'"{DIGEST}"'}
    assert fetch(server, tmp_path / "file.json").checked
    server.redirect = {"x-linked-etag": f'"{DIGEST[::-1]}"'}
    with pytest.raises(DataError, match="what came was removed"):
        fetch(server, tmp_path / "other.json")


def test_a_file_of_the_hub_comes_from_the_mirror_that_is_set(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{server.url.rpartition('/')[0]}/")
    download(find("owner/set/data/file.json"), tmp_path / "file.json", pause=0.0)
    assert server.paths == ["/datasets/owner/set/resolve/main/data/file.json"]
    assert address("https://curtis.ml.cmu.edu/x.json") == "https://curtis.ml.cmu.edu/x.json"


def test_a_file_that_is_there_is_refused_before_anything_is_asked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text("mine")
    with pytest.raises(RunError, match="is there: give another --out, or --force"):
        fetch(server, tmp_path / "file.json")
    assert server.asked == []
    assert fetch(server, tmp_path / "file.json", force=True).sha256 == DIGEST
    assert (tmp_path / "file.json.old-1").read_text() == "mine"


def test_offline_is_said_in_plain_words(tmp_path: Path) -> None:
    with serving() as gone:
        pass
    with pytest.raises(DataError, match=r"can't be reached .*offline\? fetch it elsewhere, or give a file you have"):
        download(Published(gone.url), tmp_path / "file.json", pause=0.0)


def test_names_are_found_and_near_ones_hinted(refused: Callable[..., str], tmp_path: Path) -> None:
    assert all(each.url.startswith("https://") for each in PUBLISHED.values())
    assert find("memagent-eval-200").url.endswith("BytedTsinghua-SIA/hotpotqa/resolve/main/eval_200.json")
    assert "did you mean hotpotqa-dev" in refused("data", "download", "hotpotqa-dve", "--out", str(tmp_path))
    for name in ("../x/y", "a/b", "a/b/../../c", "https://x/y/z"):
        with pytest.raises(DataError, match="no such data set"):
            find(name)
