"""The processor time that processes have had, in seconds of user and kernel mode."""

from __future__ import annotations

import os
from pathlib import Path

from tests.servers import RedisServer

_TICKS = os.sysconf("SC_CLK_TCK")


def of_process(pid: int) -> float:
    """Return the processor time of a process and its children, in steps of some ten milliseconds."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return _own(pid) + sum(_own(int(child)) for child in children)


def of_redis(server: RedisServer) -> float:
    """Return the processor time of a Redis, as it reports it: in microseconds."""
    with server.client() as client:
        spent = client.info("cpu")
    return float(spent["used_cpu_user"]) + float(spent["used_cpu_sys"])


def _own(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
