"""Frames are found where a decompressor finds them, and nothing that is cut is taken for one."""

from __future__ import annotations

import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.rollout.trajectory_file import frame_spans

CONTENTS = st.lists(st.binary(max_size=200) | st.binary(min_size=1, max_size=4).map(lambda part: part * 80_000))


def decompressed(data: bytes) -> list[bytes]:
    """By the library's own walk: what is behind a frame is its unused data."""
    found = []
    while data:
        reader = zstandard.ZstdDecompressor().decompressobj()
        found.append(reader.decompress(data))
        data = reader.unused_data
    return found


@settings(max_examples=30, deadline=None)
@given(contents=CONTENTS, checksum=st.booleans(), level=st.sampled_from([1, 3, 19]))
def test_frames_are_those_that_a_decompressor_finds(contents: list[bytes], checksum: bool, level: int) -> None:
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=checksum)
    data = b"".join(compressor.compress(content) for content in contents)
    spans = list(frame_spans(data))
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    assert [zstandard.ZstdDecompressor().decompress(data[a:b]) for a, b in spans] == decompressed(data) == contents


def test_of_a_file_cut_anywhere_the_whole_frames_are_found() -> None:
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    frames = [compressor.compress(content) for content in (b"one", b"two" * 100, b"three")]
    data, ends = b"".join(frames), [0]
    for frame in frames:
        ends.append(ends[-1] + len(frame))
    for cut in range(len(data) + 1):
        assert [end for _, end in frame_spans(data[:cut])] == [end for end in ends[1:] if end <= cut]
