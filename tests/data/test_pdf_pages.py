"""PDFs made to take all time, all memory or all room: each ends with an error that names the file."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from palimpsest.data.files import pdf_pages
from palimpsest.data.files.text_files import read_files
from palimpsest.errors import DataError


def pdf(objects: Sequence[bytes]) -> bytes:
    """The objects 1, 2... as a file; the first is its catalogue."""
    data, offsets = b"%PDF-1.4\n", list[int]()
    for number, each in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj" % number + each + b"endobj\n"
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(offsets) + 1)
    end = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(offsets) + 1, len(data))
    return data + head + table + end


CATALOGUE = b"<</Type/Catalog/Pages 2 0 R>>"
FONT = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"


def of_content(stream: bytes, pages: int = 1) -> bytes:
    """Pages that show one and the same compressed stream."""
    packed = zlib.compress(stream, 9)
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>"
    return pdf(
        [
            CATALOGUE,
            b"<</Type/Pages/Kids[%s]/Count %d>>" % (b" ".join([b"3 0 R"] * pages), pages),
            page,
            b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(packed), packed),
            FONT,
        ]
    )


def test_the_pages_of_a_good_file_are_read() -> None:
    assert pdf_pages.pages("a.pdf", of_content(b"BT /F1 12 Tf (Anna) Tj ET", 2)).split() == ["Anna", "Anna"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: of_content(b"BT /F1 1 Tf (a) Tj ET " * 200_000, pages=1000), "its pages "),  # take..., weren't read...
        (lambda: of_content(b" " * (100 << 20)), "can't be read as PDF (LimitReachedError"),
    ],
    ids=["time", "memory"],
)
def test_a_bomb_ends_with_its_name(
    make: Callable[[], bytes], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make()
    assert len(data) < 1 << 20
    monkeypatch.setattr(pdf_pages, "seconds_for", lambda size: 1)
    (tmp_path / "a.pdf").write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_files([tmp_path / "a.pdf"])
    assert str(caught.value).startswith(f"{tmp_path / 'a.pdf'}: {told}")
    assert "\n" not in str(caught.value)
