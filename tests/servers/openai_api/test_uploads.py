"""Files: sent in pieces of any size, kept once, deleted."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx2
import pytest

from palimpsest.servers.http_service import Refused
from palimpsest.servers.openai.agent_app import Limits
from palimpsest.servers.openai.episode_store import Quota, Store
from palimpsest.servers.openai.file_uploads import Multipart, boundary_of
from support.serving import body, scripted


def sent(**files: Any) -> tuple[bytes, str]:
    request = httpx2.Request("POST", "http://x", files=files, data={"purpose": "user_data"})
    return request.read(), request.headers["content-type"]


@pytest.mark.parametrize("content", [b"", b"Anna", b"\r\n--", b"\r\n" * 40, b"a\r\n--b" * 50, bytes(range(256)) * 9])
def test_the_parts_do_not_depend_on_how_they_are_cut(content: bytes) -> None:
    data, kind = sent(file=("a.txt", content))
    draw = random.Random(1)
    for step in (1, 2, 3, 7, 64, len(data)):
        parts, found, place = Multipart(boundary_of(kind)), dict[str, bytes](), 0
        while place < len(data):
            size = draw.randint(1, step)
            for part, piece in parts.feed(data[place : place + size]):
                found[part.name] = found.get(part.name, b"") + piece
            place += size
        assert found == {"purpose": b"user_data", "file": content}
        assert parts.complete


async def test_a_file_is_kept_once_read_by_its_id_and_deleted(tmp_path: Path) -> None:
    client, _, sampler = scripted(tmp_path)
    files = [
        (await client.post("/v1/files", files={"file": (name, b"Anna sells tea.")})).json() for name in ("a", "a", "b")
    ]
    assert files[0] == files[1]
    assert files[0]["id"] != files[2]["id"]
    assert len(list((tmp_path / "blobs").iterdir())) == 1
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"} == {
        0o600
    }
    assert {each["id"] for each in (await client.get("/v1/files")).json()["data"]} == {files[0]["id"], files[2]["id"]}
    content = await client.get(f"/v1/files/{files[0]['id']}/content")
    assert (content.content, content.headers["content-type"]) == (b"Anna sells tea.", "application/octet-stream")
    part = {"type": "file", "file": {"file_id": files[0]["id"]}}
    answer = (await client.post("/v1/chat/completions", json=body([part, {"type": "text", "text": "Who?"}]))).json()
    assert answer["palimpsest"]["input"] == "file_parts"
    assert "Anna sells tea." in sampler.prompts[0]
    for file in (files[0], files[2]):
        assert (await client.delete(f"/v1/files/{file['id']}")).json()["deleted"]
    assert not list((tmp_path / "blobs").iterdir())
    assert (
        await client.post("/v1/chat/completions", json=body([part, {"type": "text", "text": "Who?"}]))
    ).status_code == 404


async def test_of_several_files_in_a_request_none_is_kept(tmp_path: Path) -> None:
    client, _, _ = scripted(tmp_path)
    refused = await client.post("/v1/files", files=[("file", ("a", b"Anna")), ("file", ("a", b" is Bob"))])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "file")
    assert not list((tmp_path / "blobs").iterdir())


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "a\0b", "..", "x" * 999, "C:\\a\\b.txt"])
async def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    client, _, _ = scripted(tmp_path / "store")
    added = (await client.post("/v1/files", files={"file": (name, b"Anna")})).json()
    assert "/" not in added["filename"]
    assert {path.name for path in tmp_path.iterdir()} == {"store"}


@pytest.mark.parametrize("file_id", ["file-1", "../blobs/x", "file-" + "0" * 32, "ep_" + "0" * 32])
async def test_an_id_that_is_none_is_not_found(tmp_path: Path, file_id: str) -> None:
    client, _, _ = scripted(tmp_path)
    assert (await client.get(f"/v1/files/{file_id}")).status_code == 404
    assert (await client.delete(f"/v1/files/{file_id}")).status_code == 404


@pytest.mark.parametrize(
    ("data", "kind", "status"),
    [
        (b"Anna", "text/plain", 415),
        (b"Anna", "multipart/form-data", 415),
        (b"Anna", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n\r\nAnna\r\n--x--", "multipart/form-data; boundary=x", 400),
        (b"--xAnna", "multipart/form-data; boundary=x", 400),
        (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nAnna', "multipart/form-data; boundary=x", 400),
        (
            b'--x\r\nContent-Disposition: form-data; name="odd"\r\n\r\nAnna\r\n--x--',
            "multipart/form-data; boundary=x",
            400,
        ),
        (b"--x\r\n" + b"A: b\r\n" * 9999, "multipart/form-data; boundary=x", 400),
    ],
)
async def test_what_is_no_upload_is_refused_and_leaves_nothing(
    tmp_path: Path, data: bytes, kind: str, status: int
) -> None:
    client, _, _ = scripted(tmp_path)
    answer = await client.post("/v1/files", content=data, headers={"content-type": kind})
    assert (answer.status_code, set(answer.json()["error"])) == (status, {"message", "type", "param", "code"})
    assert not list((tmp_path / "blobs").iterdir())


async def test_a_file_beyond_the_quota_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path, limits=Limits(file_bytes=100))
    assert (await client.post("/v1/files", files={"file": ("a", b"x" * 101)})).status_code == 413
    service.store.quota = Quota(files=50)
    assert (await client.post("/v1/files", files={"file": ("a", b"x" * 40)})).status_code == 200
    assert (await client.post("/v1/files", files={"file": ("b", b"y" * 40)})).status_code == 413
    assert len(list((tmp_path / "blobs").iterdir())) == 1


@pytest.mark.parametrize(
    "parameter",
    [
        "filename*=idna''%ff",
        "filename*=undefined''abc",
        'filename="a\0b"',
        "filename*=utf-8''a%00b",
        "filename*=a%00b''abc",
        "filename*=utf-7''%2b2AA-",
        "filename*=utf-8''%ff",
        "filename*=utf-8''%ed%a0%80",
        "filename*=raw_unicode_escape''%5cud800",
        "filename*0*=unicode_escape''%5cud800",
        "filename*=punycode''%ff-%ff",
        "filename*=utf-8''\u20ac",
        "filename=a; name*=idna''%ff",
    ],
)
async def test_a_name_that_is_no_text_is_refused(tmp_path: Path, parameter: str) -> None:
    client, _, _ = scripted(tmp_path)
    named = "" if "name*=idna" in parameter and "filename=" in parameter else 'name="file"; '
    data = f"--x\r\nContent-Disposition: form-data; {named}{parameter}\r\n\r\nAnna\r\n--x--\r\n".encode()
    answer = await client.post("/v1/files", content=data, headers={"content-type": "multipart/form-data; boundary=x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_multipart")
    assert not list((tmp_path / "blobs").iterdir())


@pytest.mark.parametrize(
    ("parameter", "name"), [("utf-8''%e2%82%ac.txt", "\u20ac.txt"), ("ISO-8859-1'en'%e9.txt", "\u00e9.txt")]
)
async def test_a_name_may_be_written_as_rfc_5987_does(tmp_path: Path, parameter: str, name: str) -> None:
    client, _, _ = scripted(tmp_path)
    head = f'Content-Disposition: form-data; name="file"; filename*={parameter}'
    data = f"--x\r\n{head}\r\n\r\nAnna\r\n--x--\r\n".encode()
    answer = await client.post("/v1/files", content=data, headers={"content-type": "multipart/form-data; boundary=x"})
    assert answer.json()["filename"] == name


async def test_uploads_at_the_same_time_share_the_quota(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path)
    service.store.quota = Quota(files=100)
    begun = asyncio.Event()

    async def slowly(letter: bytes) -> Any:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + letter
        await begun.wait()
        yield letter * 59 + b"\r\n--x--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=x"}
    sent = [
        asyncio.create_task(client.post("/v1/files", content=slowly(each), headers=headers))
        for each in (b"a", b"b", b"c")
    ]
    await asyncio.sleep(0.05)
    begun.set()
    files = [await each for each in sent]
    assert sorted(each.status_code for each in files) == [200, 413, 413]
    assert sum(path.stat().st_size for path in (tmp_path / "blobs").iterdir()) == 60
    assert service.store.room() == 40
    kept = next(each.json()["id"] for each in files if each.status_code == 200)
    await client.delete(f"/v1/files/{kept}")
    assert service.store.room() == 100
    assert (await client.post("/v1/files", content=slowly(b"d"), headers=headers)).status_code == 200
    service.store.close()
    assert Store(tmp_path, Quota(files=100)).room() == 40


async def test_a_server_that_stores_nothing_takes_no_files_but_those_of_a_message() -> None:
    client, _, _ = scripted(None)
    assert (await client.post("/v1/files", files={"file": ("a", b"x")})).json()["error"]["code"] == "no_store"
    part = {"type": "file", "file": {"file_data": "QW5uYSBzZWxscyB0ZWEu", "filename": "a.txt"}}
    answer = await client.post("/v1/chat/completions", json=body([part, {"type": "text", "text": "Who?"}]))
    assert answer.json()["palimpsest"]["outcome"] == "answered"


def test_two_servers_do_not_share_a_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(Exception, match="in use"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()


def test_a_refused_multipart_is_a_refusal() -> None:
    with pytest.raises(Refused):
        boundary_of("multipart/form-data; boundary=")


HEAD = b'--x\r\nContent-Disposition: form-data; name="purpose"'


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((HEAD + b"\r\n\r\n\r\n") * 17, "more than 16 parts"),
        (HEAD + b"; x=y" * 1_000 + b"\r\n\r\n", "the head of a part exceeds 4096 bytes"),
        (HEAD + b';"' * 1_000 + b"\r\n\r\n", "parameters can't be read"),
        (b"y" * 5_000, "more than 4096 bytes outside its parts"),
        (HEAD + b"\r\n\r\n\r\n--x--" + b"y" * 5_000, "more than 4096 bytes outside its parts"),
    ],
    ids=["parts", "head", "parameters", "before", "after"],
)
@pytest.mark.parametrize("cut", [100_000, 7])
def test_what_is_no_content_of_a_part_is_bounded(data: bytes, said: str, cut: int) -> None:
    parts = Multipart(b"x")
    with pytest.raises(Refused, match=said):
        _ = [parts.feed(data[place : place + cut]) for place in range(0, len(data), cut)]
