"""/v1/files: multipart bodies to disk as they come; list, content, delete.

Guaranteed: a file never stands in memory whole while it is sent; one that is broken off, too large or over the quota
leaves nothing behind; its name is never a path.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.message import Message as Header
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from palimpsest.serve.agent.inputs import shown_name
from palimpsest.serve.agent.orders import needed
from palimpsest.serve.agent.store import Store, writing
from palimpsest.serve.http import Refused, json_response, shown

_HEAD = 8 << 10
_FIELD = 1 << 10


@dataclass(slots=True, eq=False)
class _Part:
    name: str
    filename: str | None


class Multipart:
    r"""The parts of a body, fed piece by piece.

    >>> parts = Multipart(b"x")
    >>> [(part.name, bytes(data)) for part, data in parts.feed(
    ...     b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\none\r\n--x--\r\n')]
    [('a', b''), ('a', b'one')]
    """

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"\r\n--" + boundary
        self._held = bytearray(b"\r\n")  # the first boundary begins the body
        self._part: _Part | None = None
        self._state = "preamble"

    @property
    def complete(self) -> bool:
        return self._state == "end"

    def feed(self, data: bytes) -> list[tuple[_Part, bytes]]:
        """(part, what came of it). Raises Refused for what is no multipart body."""
        self._held += data
        found: list[tuple[_Part, bytes]] = []
        while self._step(found):
            pass
        return found

    def _step(self, found: list[tuple[_Part, bytes]]) -> bool:
        """One piece further; False where more has to come."""
        if self._state == "end":
            self._held.clear()
            return False
        if self._state == "head":
            return self._read_head(found)
        place = self._held.find(self._mark)
        if place < 0:
            keep = len(self._mark) - 1
            self._give(found, max(0, len(self._held) - keep))
            return False
        after = place + len(self._mark)
        if len(self._held) < after + 2:
            self._give(found, place)
            return False
        self._give(found, place)
        following = bytes(self._held[len(self._mark) : len(self._mark) + 2])
        if following not in (b"\r\n", b"--"):
            raise _broken("a boundary is followed by neither a line break nor --")
        del self._held[: len(self._mark) + 2]
        self._part = None
        self._state = "head" if following == b"\r\n" else "end"
        return True

    def _give(self, found: list[tuple[_Part, bytes]], count: int) -> None:
        if count and self._part is not None:
            found.append((self._part, bytes(self._held[:count])))
        del self._held[:count]

    def _read_head(self, found: list[tuple[_Part, bytes]]) -> bool:
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            if len(self._held) > _HEAD:
                raise _broken(f"the head of a part exceeds {_HEAD} bytes")
            return False
        lines = bytes(self._held[:end]).decode("utf-8", "replace").split("\r\n")
        del self._held[: end + 4]
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip().lower() == "content-disposition":
                header = Header()
                header["content-disposition"] = value.strip()
                named, filename = _text_of(header, "name"), _text_of(header, "filename")
                self._part = None if named is None else _Part(named, filename)
        if self._part is None:
            raise _broken("a part has no name")
        self._state = "data"
        found.append((self._part, b""))  # one that is empty is there too
        return True


_CHARSETS = ("utf-8", "iso-8859-1", "latin-1")


def _text_of(header: Header, param: str) -> str | None:
    """A parameter of a part's head, plain or as RFC 5987 writes it. Raises Refused for what is no text."""
    try:
        given = header.get_param(param, header="content-disposition")
        if isinstance(given, tuple):  # (charset, language, bytes as Latin-1)
            charset = (given[0] or "utf-8").lower()
            if charset not in _CHARSETS:
                raise _broken(f"{param}: charset {shown(charset)}, utf-8 and iso-8859-1 are read")
            given = given[2].encode("latin-1").decode(charset)
        if given is not None:
            given.encode()  # a lone surrogate is no text
    except (ValueError, LookupError):
        raise _broken(f"{param} is no text in its charset") from None
    if given is not None and "\0" in given:
        raise _broken(f"{param} holds a NUL")
    return given


def _broken(why: str) -> Refused:
    return Refused(400, f"the body is no multipart/form-data ({why})", code="invalid_multipart")


def boundary_of(content_type: str) -> bytes:
    """Raises Refused."""
    header = Header()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if header.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        raise Refused(
            415, "send the file as multipart/form-data, with fields file and purpose", code="invalid_multipart"
        )
    return boundary.encode("utf-8", "replace")


@dataclass(slots=True)
class _Upload:
    """A file as it comes: its place, its hash, and the fields beside it."""

    path: Path
    part: _Part | None = None
    """The one that is the file."""
    size: int = 0
    claimed: int = 0
    """Bytes of the store's quota."""
    digest: Any = field(default_factory=hashlib.sha256)
    fields: dict[str, bytearray] = field(default_factory=dict)


class Files:
    """The routes of /v1/files."""

    def __init__(self, store: Store | None, *, file_bytes: int, silence_s: float) -> None:
        self._store, self._most, self._silence_s = store, file_bytes, silence_s

    async def create(self, request: Request) -> Response:
        store = needed(self._store)
        parts = Multipart(boundary_of(request.headers.get("content-type", "")))
        upload = _Upload(store.draft())
        try:
            with writing():
                return await self._created(request, store, parts, upload)
        finally:
            upload.path.unlink(missing_ok=True)
            store.release(upload.claimed)

    async def _created(self, request: Request, store: Store, parts: Multipart, upload: _Upload) -> Response:
        descriptor = os.open(upload.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            async for chunk in self._chunks(request):
                for part, data in parts.feed(chunk):
                    self._take(store, upload, part, data, file)
        if not parts.complete or upload.part is None:
            raise _broken("it ends before its last boundary" if upload.part else "it holds no file")
        purpose = bytes(upload.fields.get("purpose", b"user_data")).decode("utf-8", "replace")
        named = shown_name(upload.part.filename or "file.txt")
        added = await asyncio.to_thread(store.add_file, upload.path, upload.digest.hexdigest(), named, purpose)
        return json_response(_shown(added))

    def _take(self, store: Store, upload: _Upload, part: _Part, data: bytes, file: Any) -> None:
        if part.filename is None and part.name != "file":
            _take_field(upload, part, data)
            return
        if upload.part not in (None, part):
            raise Refused(400, "file: several; send one a request", code="invalid_multipart", param="file")
        upload.part = part
        if upload.size + len(data) > self._most or not store.claim(len(data)):
            room = min(self._most, upload.size + store.room())
            said = f"file: beyond the {room} bytes that are left for it; delete files"
            raise Refused(413, said, code="file_too_large")
        upload.claimed += len(data)
        upload.size += len(data)
        upload.digest.update(data)
        file.write(data)

    async def _chunks(self, request: Request) -> AsyncIterator[bytes]:
        stream = request.stream().__aiter__()
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    chunk = await stream.__anext__()
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise Refused(408, f"nothing of the file came for {self._silence_s:g} s") from None
            yield chunk

    def list(self, request: Request) -> Response:
        purpose = request.query_params.get("purpose")
        files = [each for each in needed(self._store).files() if purpose in (None, each["purpose"])]
        data = [_shown(each) for each in files]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        return json_response({"object": "list", "data": data, "has_more": False, **ends})

    def get(self, request: Request) -> Response:
        return json_response(_shown(needed(self._store).file(request.path_params["file_id"])))

    def content(self, request: Request) -> Response:
        store = needed(self._store)
        path = store.blob(store.file(request.path_params["file_id"])["sha256"])
        return FileResponse(path, media_type="application/octet-stream")  # never as a page that a browser shows

    def delete(self, request: Request) -> Response:
        file_id = request.path_params["file_id"]
        needed(self._store).delete_file(file_id)
        return json_response({"id": file_id, "object": "file", "deleted": True})


def _take_field(upload: _Upload, part: _Part, data: bytes) -> None:
    if part.name != "purpose":
        raise Refused(
            400, f"{shown(part.name)}: fields are file and purpose", code="unknown_parameter", param=part.name
        )
    value = upload.fields.setdefault(part.name, bytearray())
    value += data
    if len(value) > _FIELD:
        raise Refused(400, f"{part.name}: exceeds {_FIELD} bytes", code="invalid_value", param=part.name)


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "sha256"}
