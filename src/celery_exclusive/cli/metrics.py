"""The command `celery -A proj locks metrics`: the state of all locks as metrics for Prometheus."""

from __future__ import annotations

import re
from typing import Any

import click
from celery.bin.base import CLIContext

from celery_exclusive.cli.app import app_services


@click.command
@click.option(
    "--listen", metavar="HOST:PORT", help="Serve them by HTTP, until Ctrl-C, for example at 127.0.0.1:9809."
)
@click.pass_obj
def metrics(obj: CLIContext, *, listen: str | None) -> None:
    """Print the metrics of all locks for Prometheus, or serve them by HTTP.

    \b
    celery -A proj locks metrics --listen 127.0.0.1:9809     a target of Prometheus
    celery -A proj locks metrics > locks.prom.new && mv locks.prom.new locks.prom
                                     for the textfile collector of node_exporter

    A scrape reads the names of all keys, and the states of at most 2,000. If the store does not answer,
    celery_exclusive_up is 0.

    Exit code: 0, also if the store does not answer, since that is a value; 1 if the store cannot list its
    keys, or prometheus-client is not installed.
    """
    address = _address(listen) if listen else None
    services = app_services(obj, is_used=False)
    try:
        from prometheus_client import CollectorRegistry, generate_latest, start_http_server

        from celery_exclusive.contrib.prometheus import LockCollector
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("prometheus_client"):
            raise
        raise click.ClickException(
            "locks metrics needs prometheus-client: pip install 'celery-exclusive[prometheus]'"
        ) from error
    if not services.store.capabilities.listing:
        next(iter(services.store.scan()), None)  # raises, and says why
    registry = CollectorRegistry()
    registry.register(LockCollector(services.app))
    if address is None:
        click.echo(generate_latest(registry).decode(), nl=False)
        return
    host, port = address
    try:
        server: Any
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise click.ClickException(f"--listen {listen}: {error}") from error
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"metrics at http://{shown}:{server.server_port}/metrics", err=True)
    try:
        thread.join()
    except KeyboardInterrupt:
        server.shutdown()


def _address(text: str) -> tuple[str, int]:
    """Return host and port. Without a host all addresses of this machine are served."""
    found = re.fullmatch(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})", text)
    if not found or int(found["port"]) >= 2**16:
        raise click.UsageError(f"--listen {text!r} is no address: write HOST:PORT, as 127.0.0.1:9809")
    return found["six"] or found["host"] or "0.0.0.0", int(found["port"])  # noqa: S104 - as asked for
