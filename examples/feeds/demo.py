"""The feed importer under load, with a worker killed on stage, and a verdict in the end.

Exit status: 0 green, 1 red, 2 inconclusive, 3 could not run, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    options = _options(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    tempfile.gettempdir()  # for us it stays: a database that runs as another user must get there
    stack = ExitStack()
    try:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeds-demo-")))
        _configure(folder, options.store, is_protected=not options.unprotected)
        from stage.broker import NoServer
        from stage.show import Failed, Show
        from stage.stores import SERVERS

        try:
            store = options.store if options.store in SERVERS else None
            show = Show(folder, options.feeds, options.url, store, is_protected=not options.unprotected)
            return stack.enter_context(show).run(options.deadline)
        except (NoServer, Failed, FileNotFoundError, ConnectionError) as error:
            print(f"The demo could not run: {error}", file=sys.stderr)
            return 3
    except KeyboardInterrupt:
        print("\nInterrupted; tidying up.", file=sys.stderr)
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        stack.close()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    add = parser.add_argument
    add("--unprotected", action="store_true", help="the same load without our options (also: UNPROTECTED=1)")
    add("--feeds", type=Path, metavar="DIR", help="import this folder's feed documents, not the example's")
    add("--url", action="append", default=[], help="import this live feed, too; it is fetched only once")
    add(
        "--store",
        metavar="URL",
        help="keep the locks there, in a new file: sqlite, in the project's database: django, or in a server "
        "of their own: postgres, mariadb, memcached (default: with the results)",
    )
    add("--keep", type=Path, metavar="DIR", help="keep journal, logs and database in this new folder")
    add("--deadline", type=float, default=120.0, metavar="SECONDS", help="give up after that (default: 120)")
    options = parser.parse_args(argv)
    from stage.stores import SERVERS

    known = ("sqlite", "django", *SERVERS)
    if options.store and options.store not in known and "://" not in options.store:
        parser.error(f"--store {options.store}: name a URL, or one of {', '.join(known)}")
    options.unprotected |= os.environ.get("UNPROTECTED", "") not in ("", "0")
    if options.keep:
        options.keep = options.keep.resolve()
        options.keep.mkdir(parents=True)
    return options


def _configure(folder: Path, store: str | None, *, is_protected: bool) -> None:
    """Tell this process and all that it starts where things are, before Django is imported."""
    from stage import journal

    os.environ["UNPROTECTED"] = "" if is_protected else "1"
    os.environ["DJANGO_SETTINGS_MODULE"] = "planet.settings"
    os.environ["FEEDS_DATABASE"] = str(folder / "feeds.sqlite3")
    os.environ[journal.VARIABLE] = str(folder / "journal.jsonl")
    os.environ["FEEDS_STORE"] = _absolute(store or "", folder)
    os.environ["TMPDIR"] = str(folder / "tmp")  # a killed worker cannot tidy up
    (folder / "tmp").mkdir()


def _absolute(store: str, folder: Path) -> str:
    """Return a URL that means the same in every process, wherever it runs."""
    if store == "django":
        return "django://default"
    if store == "sqlite":
        return f"sqlite:///{folder}/locks.sqlite3"
    scheme, _, path = store.partition(":///")
    return f"{scheme}:///{Path(path).resolve()}" if scheme == "sqlite" else store


if __name__ == "__main__":
    sys.exit(main())
