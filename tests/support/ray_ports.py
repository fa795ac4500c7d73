"""Ports of a run on Ray, and calls to them without a token."""

from __future__ import annotations

import grpc
import psutil

from support.cluster import ClusterRun


def call_without_a_token(address: str) -> str:
    """Status of a call that aborts the gcs_server of ray 2.60."""
    path = "/ray.rpc.syncer.RaySyncer/StartSync"
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(path, lambda sent: sent, lambda received: received)
        try:
            call(b"", timeout=30)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def heads_with_ranks(run: ClusterRun) -> list[psutil.Process]:
    """gcs_servers that have ranks; one without may be replaced by a later attempt of the same start."""
    since = max((rank.create_time() for rank in run.named("ray::Rank")), default=0.0)
    return [server for server in run.named("gcs_server") if server.create_time() < since]


def ports_of(process: psutil.Process) -> list[int]:
    return [c.laddr.port for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
