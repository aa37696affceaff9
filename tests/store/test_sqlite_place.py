"""What a sqlite:// URL names, and where locks cannot be kept."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from celery_exclusive.core.operations import Acquire
from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.stores.sql import sqlite_file
from celery_exclusive.stores.sql.sqlite_file import file_system
from tests.store.operations import take

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 0:27 / /srv rw,relatime shared:9 master:2 - nfs4 nas:/srv rw,vers=4.2
31 30 8:1 / /srv/local rw,relatime - xfs /dev/sda1 rw
32 27 0:40 / /mnt/two\\040words rw - fuse.sshfs me@far: rw
33 27 0:41 / /over rw - tmpfs tmpfs rw
34 33 0:42 / /over rw - cifs //nas/over rw
not a mount
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/locks.db", "ext4"),
        ("/srv/locks.db", "nfs4"),
        ("/srv", "nfs4"),
        ("/srvice/locks.db", "ext4"),
        ("/srv/local/locks.db", "xfs"),
        ("/srv/localhost/locks.db", "nfs4"),
        ("/mnt/two words/locks.db", "fuse.sshfs"),
        ("/over/locks.db", "cifs"),  # the second mount hides the first
    ],
)
def test_the_longest_mount_point_tells_the_file_system(path: str, kind: str) -> None:
    assert file_system(path, MOUNTS) == kind


def test_without_mounts_the_kind_of_file_system_is_unknown() -> None:
    assert file_system("/var/lib/locks.db", "") == ""


@pytest.mark.promise(
    "Misuse of a SQLite store is refused with the fix",
    name="SQLite, misuse",
    broke="network not looked for, check only reads",
)
@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "lustre"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    store = open_store(f"sqlite:///{tmp_path}/locks.db")
    monkeypatch.setattr(sqlite_file, "file_system", lambda path, mounts: kind)
    with pytest.raises(
        OptionError, match=rf"exclusive_store: {tmp_path}.*network file system \({kind}\).*disk"
    ):
        store.check()
    with pytest.raises(StoreUnavailable, match="network file system"):
        store.apply("key", Acquire("a", "token", 1))
    assert not list(tmp_path.iterdir())


def test_a_link_to_a_network_file_system_is_seen_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = tmp_path / "far"
    far.mkdir()
    (tmp_path / "near").symlink_to(far)
    mounts = f"{MOUNTS}40 27 0:50 / {far} rw - nfs nas:/far rw\n"
    monkeypatch.setattr(sqlite_file.Path, "read_text", lambda self, **_: mounts)
    with pytest.raises(OptionError, match=r"network file system \(nfs\)"):
        open_store(f"sqlite:///{tmp_path}/near/locks.db").check()


def test_a_sqlite_url_has_the_forms_of_sqlalchemy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///locks.db", f"sqlite:///{tmp_path}/locks.db", "sqlite:///locks.db?x=1"):
        assert open_store(url).url == f"sqlite:///{tmp_path}/locks.db"


def test_a_relative_path_stays_where_it_was_and_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///locks.db")
    monkeypatch.chdir("/")
    (warning,) = store.check()
    assert f"{tmp_path}/locks.db" in warning
    assert (tmp_path / "locks.db").exists()
    store.close()


@pytest.mark.proves("SQLite, misuse")
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "names no file.*sqlite:///locks.db.*memory://"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://locks.db", "names no file: write three slashes"),
        ("sqlite:///file:locks.db?uri=true", "plain path"),
        ("sqlite:///locks.db?timeout=soon", "cannot understand.*a number of seconds"),
        ("sqlite:///locks.db?timeout=-1", "cannot understand.*a number of seconds"),
        ("sqlite:///locks.db?timeout=nan", "cannot understand.*a number of seconds"),
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str, says: str) -> None:
    with pytest.raises(OptionError, match=f"exclusive_store.*{says}"):
        open_store(url)


@pytest.mark.proves("SQLite, misuse")
def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/missing/locks.db")
    with pytest.raises(
        OptionError, match=f"exclusive_store: there is no folder {tmp_path}/missing: create it"
    ):
        store.check()
    (tmp_path / "missing").mkdir()
    assert store.check() == []
    store.close()


@pytest.mark.proves("SQLite, misuse")
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    stored = tmp_path / "stored.txt"
    stored.write_text("Dear reader,\n" * 100)
    with pytest.raises(
        OptionError, match=f"exclusive_store: {stored}: file is not a database; .*name a new one"
    ):
        open_store(f"sqlite:///{stored}").check()
    assert stored.read_text() == "Dear reader,\n" * 100
    with pytest.raises(OptionError, match=f"exclusive_store: {tmp_path}: unable to open.*right"):
        open_store(f"sqlite:///{tmp_path}").check()


@pytest.mark.proves("SQLite, misuse")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("folder_mode", "mode", "says"),
    [
        (0o777, 0o444, "readonly database"),
        (0o755, 0o444, "readonly database"),
        (0o755, 0o000, "unable to open"),
        (0o000, 0o600, "unable to open"),
    ],
)
def test_a_file_that_its_user_may_not_write_is_refused(folder_mode: int, mode: int, says: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "locks.db")
        store = open_store(f"sqlite:///{path}")
        store.check()
        store.close()
        path.chmod(mode)
        Path(folder).chmod(folder_mode)
        assert in_child_without_rights(partial(is_refused, store, says))
        Path(folder).chmod(0o700)


@pytest.mark.promise(
    "A process that may only read a SQLite file can look at its locks",
    broke="red before: attempt to write a readonly database",
)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_file_can_be_read_by_a_user_without_the_right_to_write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "locks.db")
        store = open_store(f"sqlite:///{path}")
        store.apply("key", take("a"))
        with closing(sqlite3.connect(path)) as owner:  # while it is open, so is -wal
            owner.execute("SELECT * FROM exclusive2_version").fetchall()
            store.close()
            for found in (*Path(folder).iterdir(), Path(folder)):
                found.chmod(0o555 if found.is_dir() else 0o444)
            assert in_child_without_rights(lambda: [*store.scan()] == ["key"])
            assert in_child_without_rights(partial(is_refused, store, "readonly database"))
        Path(folder).chmod(0o700)


def in_child_without_rights(is_so: Callable[[], bool]) -> bool:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            if not os.geteuid():
                os.setuid(65534)
            code = 0 if is_so() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def is_refused(store: Store, says: str) -> bool:
    try:
        store.check()
    except OptionError as error:
        return says in str(error) and "the right to" in str(error)
    return False


@pytest.mark.proves("SQLite, misuse")
def test_a_missing_driver_of_sqlite_is_reported_with_the_fix() -> None:
    code = """
import sys
sys.modules["sqlite3"] = None
from celery_exclusive.errors import OptionError
from celery_exclusive.stores.base import open_store
open_store("memory://")
for _ in range(2):
    try:
        open_store("sqlite:///locks.db")
    except OptionError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == second
    assert re.match(r"exclusive_store: sqlite:// needs .* sqlite3, .* build Python again", first)


@pytest.mark.proves("SQLite, misuse")
def test_the_sqlite_store_needs_no_package(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["sqlalchemy"] = None
from celery_exclusive.stores.base import open_store
print(open_store("sqlite:///{tmp_path}/locks.db").check())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_driver_of_sqlite_is_imported_only_where_it_is_used() -> None:
    code = """
import sys, celery_exclusive
from celery_exclusive.stores.base import knows, open_store
open_store("memory://"), knows("sqlite:///locks.db")
print({"sqlalchemy", "sqlite3"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
