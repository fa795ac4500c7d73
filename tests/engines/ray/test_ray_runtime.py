"""Waiting for Ray, its sockets and its messages; Ray itself is not started."""

from __future__ import annotations

import socket
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="needs the extra ray")

import ray._private.worker as rays
from ray._private import services

from palimpsest.engines.ray.ray_runtime import PRINTS, open_sockets, patient, prints_as_warnings


def test_a_node_is_waited_for_as_long_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[RuntimeError] = []

    def get_node(*_: object) -> dict[str, str]:
        if late:
            raise late.pop()
        return {"labels": "there"}

    monkeypatch.setattr(services, "get_node", get_node)
    for limit in (60, -1):
        late += [RuntimeError("no such node")] * 3
        with patient(limit):
            look: Any = services.get_node  # Ray looks for 30 s otherwise
            if limit < 0:
                with pytest.raises(RuntimeError, match="no such node"):
                    look("127.0.0.1:1", "node")
            else:
                assert look("127.0.0.1:1", "node") == {"labels": "there"}
    assert services.get_node is get_node


def test_sockets_on_other_interfaces_than_loopback_are_listed() -> None:
    with socket.create_server(("127.0.0.1", 0)), socket.create_server(("0.0.0.0", 0)) as listening:
        port = listening.getsockname()[1]
        assert [line.rpartition(" at ")[2] for line in open_sockets([psutil.Process()])] == [f"0.0.0.0:{port}"]


def test_messages_of_ray_are_warnings_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def say(text: str) -> None:
        getattr(rays, PRINTS)({"lines": [text], "pid": "raylet", "is_err": False}, ignore_prefix=False)

    with prints_as_warnings(), pytest.warns(UserWarning, match=r"^Ray: A worker died\.$"):
        say("\nA worker died.\nIts log follows.")
    assert capsys.readouterr() == ("", "")
    say("a message of another Ray")
    assert "of another Ray" in capsys.readouterr().out
