"""Data files: downloaded and resumed, converted, inspected; the addresses of published ones.

Guaranteed: the file appears under its name whole, with the size and, where it is known, the SHA-256 that it should
have, or not at all; what came of it stays beside it as `.NAME.palimpsest-partial` and is gone on with by the next call,
unless the server has another file by then (`If-Range`); a server that is busy or breaks off is asked again, `attempts`
times without a byte of progress, after a pause that doubles, or the one it asks for.
Not covered: servers that send another file under the same ETag; files that need a login.

Where published data sets lie, under plain addresses.

A name here is one file; `OWNER/NAME/FILE` is any file of a data set of the Hugging Face hub.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from palimpsest import files
from palimpsest.errors import DataError, nearest
from palimpsest.http_services import retry_after
from palimpsest.models.model_folder import HUB
from palimpsest.progress.reporter import Progress, Silent, Tick
from palimpsest.runs.folder_guard import free_file

# ---- Where published data sets lie, under plain addresses ----------------------------------------------------


_OF_THE_HUB = re.compile(r"([\w.-]+)/([\w.-]+)/((?:[\w.-]+/)*[\w.-]+)")


@dataclass(frozen=True, slots=True)
class Published:
    """A file that somebody publishes."""

    url: str
    licence: str = "not known here: ask its page"

    @property
    def file(self) -> str:
        """Its name."""
        return self.url.rpartition("/")[2]


def _hub(name: str, file: str) -> str:
    return f"{HUB}/datasets/{name}/resolve/main/{file}"


def address(url: str) -> str:
    """Where a file is asked for: a file of the hub at `HF_ENDPOINT`, if that is set."""
    mirror = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/")
    return mirror + url.removeprefix(HUB) if mirror and url.startswith(f"{HUB}/") else url


_MEMAGENT, _HOTPOT = "BytedTsinghua-SIA/hotpotqa", "CC BY-SA 4.0 (HotpotQA, Yang et al. 2018)"
_EVALS = (50, 100, 200, 400, 800, 1600, 3200, 6400)
PUBLISHED: dict[str, Published] = {
    "memagent-train": Published(_hub(_MEMAGENT, "hotpotqa_train_32k.parquet"), _HOTPOT),
    "memagent-dev": Published(_hub(_MEMAGENT, "hotpotqa_dev.parquet"), _HOTPOT),
    **{f"memagent-eval-{n}": Published(_hub(_MEMAGENT, f"eval_{n}.json"), _HOTPOT) for n in _EVALS},
    "hotpotqa-train": Published("https://curtis.ml.cmu.edu/datasets/hotpot/hotpot_train_v1.1.json", _HOTPOT),
    "hotpotqa-dev": Published("https://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json", _HOTPOT),
    "squad-dev": Published(
        "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json",
        "CC BY-SA 4.0 (SQuAD, Rajpurkar et al. 2018)",
    ),
}


def find(name: str) -> Published:
    """The file of that name. Raises DataError.

    >>> find("owner/set/data/test.parquet").url
    'https://huggingface.co/datasets/owner/set/resolve/main/data/test.parquet'
    """
    if name in PUBLISHED:
        return PUBLISHED[name]
    match = _OF_THE_HUB.fullmatch(name)
    if match is None or ".." in name.split("/"):
        raise DataError(
            f"{name}: no such data set{nearest(name, PUBLISHED)}; there: {', '.join(PUBLISHED)}, or OWNER/NAME/FILE of "
            "the hub"
        )
    return Published(_hub(f"{match[1]}/{match[2]}", match[3]))


# ---- A file fetched from a plain address, gone on with where it broke off ------------------------------------


LONGEST_PAUSE = 60.0  # seconds
_TIMEOUT = 30.0  # seconds without a byte
_BUSY = (408, 425, 429)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What was fetched."""

    path: Path
    size: int
    sha256: str
    checked: bool
    """Whether it was compared with a digest that was known before."""


class _Again(Exception):
    """Another attempt may succeed; `pause` in seconds if the server named one."""

    def __init__(self, said: str, pause: float | None = None) -> None:
        super().__init__(said)
        self.pause = pause


def download(
    published: Published,
    out: Path,
    *,
    sha256: str | None = None,
    force: bool = False,
    attempts: int = 5,
    pause: float = 1.0,
    progress: Progress | None = None,
) -> Downloaded:
    """Fetch a file to `out`; `pause`: seconds before the second try. Raises DataError; RunError if it is there."""
    progress = progress or Silent()
    if sha256 is not None and not _SHA256.fullmatch(sha256.lower()):
        raise DataError(f"--sha256 {sha256:.80}: expected 64 hexadecimal digits")
    if not force:
        free_file(out, force=False, progress=progress)
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        client = stack.enter_context(httpx2.Client(follow_redirects=True, timeout=_TIMEOUT))
        fetch = _Fetch(address(published.url), out, client, stack, progress)
        fetch.known_sha256 = sha256 and sha256.lower()
        _attempts(fetch, attempts, pause)
        return fetch.finish(force=force)


def _attempts(fetch: _Fetch, attempts: int, pause: float) -> None:
    failed = 0
    while True:
        before = fetch.size
        try:
            return fetch.go_on()
        except _Again as again:
            failed = 1 if fetch.size > before else failed + 1
            if failed >= attempts:
                kept = f"; {fetch.size:,} bytes are kept, the same command goes on" if fetch.size else ""
                raise DataError(f"{fetch.url}: gave up after {attempts} attempts: {again}{kept}") from None
            wait = pause * 2 ** (failed - 1) if again.pause is None else again.pause
            time.sleep(min(wait, LONGEST_PAUSE))


@dataclass
class _Fetch:
    """One file on its way."""

    url: str
    out: Path
    client: httpx2.Client
    stack: ExitStack
    progress: Progress
    known_sha256: str | None = None
    ticks: list[Tick] = field(default_factory=list)

    @property
    def partial(self) -> Path:
        return files.hidden_name(self.out)

    @property
    def note(self) -> Path:
        """Which file of which server the partial one is of."""
        return self.partial.with_name(f"{self.partial.name}.json")

    @property
    def size(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0

    def go_on(self) -> None:
        """Ask for what is lacking, and write it. Raises _Again, DataError."""
        have, etag = self.size, self._etag()
        if have and etag is None:
            have = self._begin_anew()
        headers = {"Accept-Encoding": "identity"}
        if have and etag:
            headers |= {"Range": f"bytes={have}-", "If-Range": etag}
        try:
            with self.client.stream("GET", self.url, headers=headers) as answer:
                self._take(answer, have)
        except httpx2.ConnectError as error:
            raise _Again(f"can't be reached ({error}); offline? fetch it elsewhere, or give a file you have") from None
        except httpx2.InvalidURL as error:
            raise DataError(f"{self.url}: no address ({error})") from None
        except httpx2.TransportError as error:
            raise _Again(f"broke off after {self.size:,} bytes ({error or type(error).__name__})") from None

    def _take(self, answer: httpx2.Response, have: int) -> None:
        if answer.status_code == 416:
            total = answer.headers.get("content-range", "").rpartition("/")[2]
            if total == str(have):
                return
            self._begin_anew()
            raise _Again(f"what came before is not of its {total or '?'} bytes; begun anew")
        if answer.status_code not in (200, 206):
            self._refused(answer)
        if answer.status_code == 206 and not answer.headers.get("content-range", "").startswith(f"bytes {have}-"):
            self._begin_anew()
            raise _Again("the server sent another part than was asked for")
        if answer.status_code == 200 and have:
            have = self._begin_anew()
        self._remember(answer)
        length = answer.headers.get("content-length", "")
        tick = self._tick(have + int(length) if length.isdecimal() else 0, have)
        with self.partial.open("ab") as file, files.naming(self.partial):
            for chunk in answer.iter_raw():
                file.write(chunk)
                tick(len(chunk))

    def _refused(self, answer: httpx2.Response) -> None:
        status = answer.status_code
        if status in _BUSY or status >= 500:
            raise _Again(f"status {status}", retry_after(answer.headers))
        why = {401: "needs a login", 403: "is not for everybody", 404: "there is no such file"}.get(status, "refused")
        raise DataError(f"{self.url}: {why} (status {status})")

    def _remember(self, answer: httpx2.Response) -> None:
        """The digest and the ETag that the server tells; the hub tells them before it sends on to where the file is."""
        linked = [each.headers.get("x-linked-etag", "").strip('"') for each in (*answer.history, answer)]
        found = next((text for text in linked if _SHA256.fullmatch(text)), None)
        self.known_sha256 = self.known_sha256 or found
        etag = answer.headers.get("etag")
        strong = etag if etag and not etag.startswith("W/") else None
        files.write_file(self.note, json.dumps({"url": self.url, "etag": strong}).encode())

    def _etag(self) -> str | None:
        """Of what came before; None if it isn't known to be of this file."""
        try:
            noted = json.loads(self.note.read_text())
            return str(noted["etag"]) if noted["url"] == self.url and noted["etag"] else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def _begin_anew(self) -> int:
        self.partial.unlink(missing_ok=True)
        return 0

    def _tick(self, total: int, done: int) -> Tick:
        if not self.ticks:
            self.ticks.append(self.stack.enter_context(self.progress.count("bytes", max(total, 1), done=done)))
        return self.ticks[0]

    def finish(self, *, force: bool) -> Downloaded:
        """Check what came, and give it its name."""
        digest, size = files.sha256(self.partial), self.size
        if self.known_sha256 and digest != self.known_sha256:
            self._begin_anew()
            self.note.unlink(missing_ok=True)
            raise DataError(
                f"{self.url}: SHA-256 is {digest}, expected {self.known_sha256}; what came was removed, fetch it again"
            )
        free_file(self.out, force=force, progress=self.progress)
        files.sync(self.partial)
        files.rename(self.partial, self.out)
        self.note.unlink(missing_ok=True)
        return Downloaded(self.out, size, digest, self.known_sha256 is not None)
