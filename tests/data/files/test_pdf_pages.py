"""Text of PDFs, and PDFs that would take all time or memory: each is rejected with its name."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest.data.files import pdf_pages
from palimpsest.data.files.text_files import read_files
from palimpsest.errors import DataError
from support.records import one_line_error


def pdf(stream: bytes, pages: int = 1) -> bytes:
    """A file, written by hand, whose pages all show the same compressed stream."""
    packed = zlib.compress(stream, 9)
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (b" ".join([b"3 0 R"] * pages), pages),
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(packed), packed),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    data, offsets = b"%PDF-1.4\n", list[int]()
    for number, item in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj" % number + item + b"endobj\n"
    entries = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % len(data)
    return data + b"xref\n0 6\n0000000000 65535 f \n" + entries + end


def test_a_pdf_is_the_text_of_its_pages(tmp_path: Path) -> None:
    assert pdf_pages.pages("a.pdf", pdf(b"BT /F1 12 Tf (Anna) Tj ET", 2)).split() == ["Anna", "Anna"]
    (tmp_path / "a.pdf").write_bytes(pdf(b"BT /F1 12 Tf 72 720 Td (Anna lives in Rome.) Tj ET"))
    assert read_files([tmp_path / "a.pdf"]).text.strip() == "Anna lives in Rome."


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: pdf(b"BT /F1 1 Tf (a) Tj ET " * 200_000, pages=1000), "its pages "),
        (lambda: pdf(b" " * (100 << 20)), "can't be read as PDF (LimitReachedError"),
    ],
    ids=["time", "memory"],
)
def test_a_pdf_bomb_is_rejected(
    make: Callable[[], bytes], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_pages, "seconds_for", lambda size: 1)
    path = tmp_path / "a.pdf"
    path.write_bytes(make())
    assert path.stat().st_size < 1 << 20
    assert one_line_error(DataError, read_files, [path]).startswith(f"{path}: {reason}")
