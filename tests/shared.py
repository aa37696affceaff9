"""Servers that the processes of a run share: the first that needs one starts it, the last one ends it."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Protocol

from typing_extensions import Self

from tests.servers import NoServer, wait_until


class Server(Protocol):
    @property
    def port(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


Kind = Callable[[], Server]
ROOT = Path(__file__).parents[1]
_keepers: list[subprocess.Popen[str]] = []
"""Those that this process started: they may live longer than it."""


@contextmanager
def shared(kind: Kind, folder: Path) -> Iterator[int]:
    """The port of the one server of this kind for all processes that share this folder.

    Each process that uses it holds a shared lock on a file there, which the kernel releases however the
    process ends, and which no forked child inherits. The server belongs to a keeper, a process that ends the
    server when it alone has the lock.
    """
    with (folder / "starting").open("w") as starting, (folder / f"{kind.__name__}.port").open("a+") as file:
        fcntl.lockf(starting, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_SH)
        file.seek(0)
        if not (port := file.read()):
            port = _start_keeper(kind, Path(file.name))
            file.write(port)
            file.flush()
        fcntl.lockf(starting, fcntl.LOCK_UN)
        yield int(port)


def wait_until_ended(folder: Path) -> None:
    """Wait until the servers have ended that nobody uses any more."""
    for file in folder.glob("*.port"):
        wait_until(lambda file=file: not _is_used(file), f"the end of the server of {file}", 30)  # type: ignore[misc]


def _is_used(file: Path) -> bool:
    with suppress(FileNotFoundError):  # a later run of pytest removes the folders of earlier ones
        return bool(file.read_text())
    return False


def _start_keeper(kind: Kind, file: Path) -> str:
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.shared", kind.__module__, kind.__name__, str(file)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests
    )
    _keepers.append(keeper)
    assert keeper.stdout
    with keeper.stdout as said:
        answer = said.readline().strip()
    if answer.isdecimal():
        return answer
    if answer:
        raise NoServer(answer)
    raise RuntimeError(f"{kind.__name__} does not start: see standard error")


def _keep(kind: Kind, path: Path) -> None:
    with path.open("r+") as file:
        with kind() as server:
            print(server.port, flush=True)  # noqa: T201
            fcntl.lockf(file, fcntl.LOCK_EX)
        file.truncate(0)


if __name__ == "__main__":
    module, name, path = sys.argv[1:]
    try:
        _keep(getattr(import_module(module), name), Path(path))
    except NoServer as why:
        print(why)  # noqa: T201
