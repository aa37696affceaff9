"""The facts that a server reports of itself, and the warnings for its operator."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery_exclusive.stores.redis.client import Denied, Server


def facts_of(server: Server) -> dict[str, str]:
    """Return the facts in INFO. Hosted servers leave some or all of them out."""
    info: bytes = _ask_if_allowed(server, "INFO") or b""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, _, value in lines}


def warnings_of(server: Server, facts: dict[str, str], url: str) -> list[str]:
    """Return warnings about a server that may evict locks, or that loses them in a restart."""
    warnings = []
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
        warnings.append(
            f"store {url}: its maxmemory-policy is {policy}, which may drop locks and waiting tasks "
            "when memory is full; set it to noeviction"
        )
    if facts.get("aof_enabled") == "0" and _saves(server) is False:
        warnings.append(
            f"store {url}: it writes nothing to disk, so a restart loses locks and waiting tasks; "
            "set appendonly to yes"
        )
    return warnings


def too_few_replicas(facts: dict[str, str], wanted: int, url: str) -> list[str]:
    """Return a warning about a server with fewer replicas than its URL wants to confirm each lease."""
    found = int(facts.get("connected_slaves", wanted))
    if found >= wanted:
        return []
    text = f"replicas={wanted} of its URL have to confirm each lease, and {found} follow it"
    return [
        f"store {url}: {text}: no lease is granted before they do; look for the replicas, or lower replicas="
    ]


def _saves(server: Server) -> bool | None:
    """Whether the server makes snapshots; None if it does not say."""
    answer = _ask_if_allowed(server, "CONFIG", "GET", "save")
    return bool(answer[1]) if answer else None


def _ask_if_allowed(server: Server, *command: str) -> Any:
    """Send a command about the server itself. None: the server denies it, as hosted servers do."""
    with suppress(Denied):
        return server.ask(*command)
    return None
