"""What listens for a run on Ray, and calls at it that bring no token."""

from __future__ import annotations

import grpc
import psutil

from support.cluster import ClusterRun


def call_without_a_token(address: str) -> str:
    """What a call that aborts the gcs_server of ray 2.60 gives: the name of a status."""
    path = "/ray.rpc.syncer.RaySyncer/StartSync"
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(path, lambda sent: sent, lambda received: received)
        try:
            call(b"", timeout=30)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def heads_with_ranks(run: ClusterRun) -> list[psutil.Process]:
    """A gcs_server with ranks of its own: while Ray starts it is tried again, which is no restart."""
    since = max((rank.create_time() for rank in run.named("ray::Rank")), default=0.0)
    return [each for each in run.named("gcs_server") if each.create_time() < since]


def ports_of(process: psutil.Process) -> list[int]:
    return [c.laddr.port for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
