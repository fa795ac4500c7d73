"""The pictures of a report."""

from __future__ import annotations

import struct
import threading
import zlib
from pathlib import Path

import pytest

from palimpsest.evaluation.summary import Score
from palimpsest.report.axis_labels import LengthLabels, Point
from palimpsest.report.plots import accuracy_by_length, accuracy_figure, reward_figure, tokens_figure


def png_size(data: bytes) -> tuple[int, int]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def idat(png: bytes) -> bytes:
    """The compressed pixels of a PNG file."""
    chunks, at = [], 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            chunks.append(png[at + 8 : at + 8 + length])
        at += 12 + length
    return b"".join(chunks)


def test_pictures_are_complete_and_large_enough() -> None:
    points = [Point(4 * m, 0.9, 0.8, 1.0) for m in (1, 16, 64, 256)]
    for png in (
        reward_figure([0.1, 0.9], [1, 2]),
        accuracy_figure({"agent": points}, training_length=4),
        tokens_figure({"agent": points}, training_length=4),
    ):
        width, height = png_size(png)
        assert (width > 900, height > 500) == (True, True)
        assert len(zlib.decompress(idat(png))) > width * height


def test_rewards_beyond_0_to_1_are_drawn() -> None:
    for first, second in (([1.2, 1.4], [1.4, 1.2]), ([-0.5, -0.2], [-0.2, -0.5])):
        assert reward_figure(first, [1, 1]) != reward_figure(second, [1, 1])


def test_a_seventh_line_is_drawn() -> None:
    lines = {f"agent {number}": [Point(4, 0.1 * number, 0.0, 1.0), Point(8, 0.5, 0.0, 1.0)] for number in range(7)}
    for draw in (accuracy_figure, tokens_figure):
        moved = lines | {"agent 6": [Point(4, 0.9, 0.0, 1.0), Point(8, 0.2, 0.0, 1.0)]}
        assert draw(lines, training_length=4) != draw(moved, training_length=4)


@pytest.mark.parametrize(
    ("score", "ends"),
    [
        (Score(1.45, None, None), (1.45, 1.45)),
        (Score(1.33333, 1.3333, 1.3333), (1.3333, 1.33333)),
        (Score(-0.5, -0.5, 0.1), (-0.5, 0.1)),
    ],
)
def test_values_of_a_reward_beyond_accuracies_are_drawn(score: Score, ends: tuple[float, float]) -> None:
    assert score.ends == ends
    axis = LengthLabels("chunks", {4.0: "4"}, multiplies=False)
    drawn = [{"a": [Point(4, value, value, value)]} for value in (0.5, 2.5)]
    images = [accuracy_by_length(lines, axis, "png") for lines in ({"a": [Point(4, ends[0], *ends)]}, *drawn)]
    assert len(set(images)) == 3


def test_figures_on_new_threads_open_no_additional_file() -> None:
    points, opened, end = {"agent": [Point(4, 0.5, 0.4, 0.6)]}, list[int](), threading.Event()

    def draw() -> None:
        accuracy_figure(points, training_length=4)
        opened.append(len(list(Path("/proc/self/fd").iterdir())))
        end.wait()  # another thread may get the name of one that ended

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for number, thread in enumerate(threads):
        thread.start()
        while len(opened) <= number and thread.is_alive():
            thread.join(0.01)
    end.set()
    for thread in threads:
        thread.join()
    assert opened == opened[:1] * 4
