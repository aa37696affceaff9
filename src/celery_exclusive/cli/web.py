"""The command `celery -A proj locks web`, which serves the page."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

import click
from celery.bin.base import CLIContext

from celery_exclusive.cli.app import app_services


@click.command
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=9808, show_default=True, help="0 chooses a free one."
)
@click.option(
    "--token",
    envvar="CELERY_LOCKS_TOKEN",
    show_envvar=True,
    help="The secret that visitors sign in with, to release and drop. The list of processes does not show "
    "the variable.",
)
@click.option("--url", default="", help="The https:// address of a proxy in front, the only way to this one.")
@click.pass_obj
def web(obj: CLIContext, *, host: str, port: int, token: str | None, url: str) -> None:
    """Serve a page that shows problems, keys and lines, and why a task does not run.

    Without a token it is read-only, and only for this machine. With one, visitors sign in with it, and can
    release keys and drop waiting tasks; the log has each action, with its reason.

    It is a server for a few operators, without TLS: for others put a proxy with TLS in front and name its
    address with --url, or mount celery_exclusive.web.application.
    """
    from celery_exclusive.web import application
    from celery_exclusive.web.server import LOOPBACK, Server, is_loopback

    is_local, proxy = is_loopback(host), urlsplit(url)
    if url and not (proxy.scheme == "https" and proxy.hostname):
        raise click.UsageError(f"--url {url} is no https:// address, as of a proxy with TLS")
    if not token and (url or not is_local):
        raise click.UsageError(
            f"{f'--url {url}' if url else f'--host {host}'} is reached from other machines: set a token in "
            "the variable CELERY_LOCKS_TOKEN, or leave it out"
        )
    services = app_services(obj, is_used=False)
    names = LOOPBACK | {host, proxy.hostname or host}
    page = application(
        services.app, token=token or None, hosts=names if is_local else None, behind_tls=bool(url)
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        server = Server(host, port, page)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host} port {port}: {error}") from error
    with server:
        click.echo(
            f"{server.url}{' for ' * bool(url)}{url} ({'sign in with the token' if token else 'read-only'})"
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
