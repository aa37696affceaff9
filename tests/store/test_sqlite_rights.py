"""Who may read and change a file of locks."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from celery_exclusive.core.operations import Acquire, Granted, Held
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import Store, open_store

GROUP, ANNE, BERT = 64_201, 64_202, 64_203
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for other users")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that other users can reach, unlike `tmp_path`."""
    found = Path(tempfile.mkdtemp())
    yield found
    shutil.rmtree(found)


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "locks.db"


def take(store: Store, id: str) -> object:
    """Acquire a key, or wait in its line, which makes all files."""
    return store.apply("key", Acquire(id, f"token of {id}", 30 * SECOND, message=b"arguments")).answer


def modes(path: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}


@pytest.mark.promise(
    "A SQLite file, and the files beside it, belong to their owner alone, also under a permissive umask, "
    "which stays as it is; a mode that an operator has set is kept, and a group can share the file",
    name="SQLite, modes",
    broke="made by SQLite (0644); the umask set meanwhile; chmod of what is there",
)
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_file_and_those_beside_it_are_of_their_owner_alone(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with closing(open_store(f"sqlite:///{path}")) as store:
            take(store, "a")
            assert modes(path) == dict.fromkeys(("locks.db", "locks.db-wal", "locks.db-shm"), 0o600)
            assert store.check() == []
    finally:
        os.umask(before)


@pytest.mark.proves("SQLite, modes")
def test_a_new_file_behind_a_link_is_of_its_owner_alone(path: Path) -> None:
    link = path.parent / "link.db"
    link.symlink_to(path)
    before = os.umask(0)
    try:
        with closing(open_store(f"sqlite:///{link}")) as store:
            take(store, "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.proves("SQLite, modes")
@pytest.mark.parametrize("mode", [0o640, 0o660, 0o644])
def test_a_mode_that_an_operator_has_set_is_kept(path: Path, mode: int) -> None:
    path.touch()
    path.chmod(mode)
    with closing(open_store(f"sqlite:///{path}")) as store:
        take(store, "a")
        assert set(modes(path).values()) == {mode}
        assert store.check() == []


@pytest.mark.proves("SQLite, modes")
def test_threads_that_make_files_meanwhile_get_the_mode_of_the_process(path: Path) -> None:
    """Nobody changes the umask, which is that of the whole process."""
    before = os.umask(0o027)
    over = threading.Event()
    found: set[int] = set()

    def make_files() -> None:
        while not over.is_set():
            made = path.parent / "other"
            made.touch()
            found.add(stat.S_IMODE(made.stat().st_mode))
            made.unlink()

    thread = threading.Thread(target=make_files)
    thread.start()
    try:
        for number in range(10):
            with closing(open_store(f"sqlite:///{path}{number}")) as store:
                take(store, "a")
    finally:
        over.set()
        thread.join()
        os.umask(before)
    assert found == {0o640}


@pytest.mark.proves("SQLite, modes")
@as_root
def test_users_of_a_group_share_a_file_whose_mode_says_so(folder: Path, path: Path) -> None:
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    path.touch()
    os.chown(path, ANNE, GROUP)
    path.chmod(0o660)
    with closing(open_store(f"sqlite:///{folder}/warm-up.db")) as store:
        take(store, "a")  # a child may not import what only root can read
    with closing(open_store(f"sqlite:///{path}")) as store:
        for user, expected in ((ANNE, Granted), (BERT, Held)):
            assert as_user(user, lambda user=user, expected=expected: isinstance(hold(store, user), expected))
            assert as_user(user, lambda: store.check() == [])


def hold(store: Store, user: int) -> object:
    return store.apply("key", Acquire(str(user), "token", 30 * SECOND)).answer


def as_user(user: int, is_so: Callable[[], bool]) -> bool:
    """Whether something is so for a process of this user, who is of the group."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.umask(0o077)
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(user)
            code = 0 if is_so() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
