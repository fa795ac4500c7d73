"""/v1/files: multipart bodies to disk as they come; list, content, delete.

Guaranteed: a file never stands in memory whole while it is sent; one that is broken off, too large or over the quota
leaves nothing behind; its name is never a path; a body is parsed in time proportional to its length, and its heads, its
parts and what lies outside them are bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from palimpsest.servers.http_service import Intake, Refused, json_response, shown
from palimpsest.servers.openai.episode_store import Store, writing
from palimpsest.servers.openai.request_inputs import shown_name
from palimpsest.servers.openai.request_resolver import needed

_HEAD = 4 << 10
"""Bytes of one part's head."""
_PARTS = 16
_OUTSIDE = 4 << 10
"""Bytes before the first boundary and after the last."""
_FIELD = 1 << 10
"""Bytes of all parts that are no file."""
_BOUNDARY = 70
"""Characters (RFC 2046)."""


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
        self._parts = self._outside = 0
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
            self._leave_out(len(self._held))
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
        if self._part is None:
            self._leave_out(count)
            return
        if count:
            found.append((self._part, bytes(self._held[:count])))
        del self._held[:count]

    def _leave_out(self, count: int) -> None:
        self._outside += count
        if self._outside > _OUTSIDE:
            raise _broken(f"more than {_OUTSIDE} bytes outside its parts")
        del self._held[:count]

    def _read_head(self, found: list[tuple[_Part, bytes]]) -> bool:
        end = self._held.find(b"\r\n\r\n")
        if (len(self._held) if end < 0 else end) > _HEAD:
            raise _broken(f"the head of a part exceeds {_HEAD} bytes")
        if end < 0:
            return False
        self._parts += 1
        if self._parts > _PARTS:
            raise _broken(f"more than {_PARTS} parts")
        lines = bytes(self._held[:end]).decode("utf-8", "replace").split("\r\n")
        del self._held[: end + 4]
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip().lower() == "content-disposition":
                _, given = _parameters(value)
                named, filename = _text_of(given, "name"), _text_of(given, "filename")
                self._part = None if named is None else _Part(named, filename)
        if self._part is None:
            raise _broken("a part has no name")
        self._state = "data"
        found.append((self._part, b""))  # one that is empty is there too
        return True


_CHARSETS = ("utf-8", "iso-8859-1", "latin-1")
_PARAMETER = re.compile(r'\s*;\s*(?:([^\s=;"]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;"]*))?\s*')


def _parameters(value: str) -> tuple[str, dict[str, str]]:
    r"""The value of a head's line and its parameters, by name. Raises Refused.

    >>> _parameters(r'form-data; name="a;b"; filename="c\"d"; x=1')
    ('form-data', {'name': 'a;b', 'filename': 'c"d', 'x': '1'})
    """
    kind = value.partition(";")[0]
    place, found = len(kind), dict[str, str]()
    while place < len(value):
        match = _PARAMETER.match(value, place)
        if match is None or match.end() == place:
            raise _broken(f"its parameters can't be read from {shown(value[place:])}")
        if match[1] is not None:
            given = re.sub(r'\\(["\\])', r"\1", match[2][1:-1]) if match[2].startswith('"') else match[2]
            found.setdefault(match[1].lower(), given)
        place = match.end()
    return kind.strip().lower(), found


def _text_of(given: Mapping[str, str], name: str) -> str | None:
    """A parameter, plain or as RFC 5987 writes it. Raises Refused for what is no text."""
    if any(each.startswith(f"{name}*") and each != f"{name}*" for each in given):
        raise _broken(f"{name} is given in sections; give it whole")
    text = given.get(name)
    if (coded := given.get(f"{name}*")) is not None:
        charset, _, rest = coded.partition("'")
        if charset.lower() not in _CHARSETS:
            raise _broken(f"{name}: charset {shown(charset)}, utf-8 and iso-8859-1 are read")
        try:
            text = unquote_to_bytes(rest.partition("'")[2].encode("ascii")).decode(charset)
        except UnicodeError:
            raise _broken(f"{name} is no text in its charset") from None
    if text is not None and "\0" in text:
        raise _broken(f"{name} holds a NUL")
    return text


def _broken(why: str) -> Refused:
    return Refused(400, f"the body is no multipart/form-data ({why})", code="invalid_multipart")


def boundary_of(content_type: str) -> bytes:
    """Raises Refused."""
    kind, given = _parameters(content_type)
    boundary = given.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise Refused(
            415, "send the file as multipart/form-data, with fields file and purpose", code="invalid_multipart"
        )
    if len(boundary) > _BOUNDARY:
        raise _broken(f"its boundary has {len(boundary)} characters, at most {_BOUNDARY} are possible")
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

    def __init__(self, store: Store | None, intake: Intake, *, file_bytes: int, silence_s: float) -> None:
        self._store, self._intake, self._most, self._silence_s = store, intake, file_bytes, silence_s

    async def create(self, request: Request) -> Response:
        store = needed(self._store)
        parts = Multipart(boundary_of(request.headers.get("content-type", "")))
        upload = _Upload(store.draft())
        try:
            with self._intake.place(), writing():
                return await self._created(request, store, parts, upload)
        finally:
            upload.path.unlink(missing_ok=True)
            store.release(upload.claimed)

    async def _created(self, request: Request, store: Store, parts: Multipart, upload: _Upload) -> Response:
        descriptor = os.open(upload.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            async for chunk in self._intake.pieces(request, silence=self._silence_s):
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

    def list(self, request: Request) -> Response:
        purpose = request.query_params.get("purpose")
        files = [each for each in needed(self._store).files() if purpose in (None, each["purpose"])]
        data = [_shown(each) for each in files]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        return json_response({"object": "list", "data": data, "has_more": False, **ends})

    def get(self, request: Request) -> Response:
        return json_response(_shown(needed(self._store).file(request.path_params["file_id"])))

    async def content(self, request: Request) -> Response:
        path = await asyncio.to_thread(needed(self._store).content, request.path_params["file_id"])
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
    value = upload.fields.setdefault(part.name, bytearray())  # the only one, so this bounds all
    value += data
    if len(value) > _FIELD:
        raise Refused(400, f"{part.name}: exceeds {_FIELD} bytes", code="invalid_value", param=part.name)


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "sha256"}
