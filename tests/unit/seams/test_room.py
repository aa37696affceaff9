"""Private names of other packages stand in `seams/` alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_exclusive.seams.table import SEAMS
from tests.renaming import attribute

SOURCE = Path(__file__).parents[3] / "src/celery_exclusive"
GENERIC = {"RLock", "conn_or_acquire", "execute", "index", "prefix", "publish", "signal", "table"}
"""Names in the table that are ordinary words: they are public, or we have them, too."""
NAMES = {attribute(seam) for seam in SEAMS} - GENERIC
OURS = {
    "events.py": {"_publish"},
    "local/heartbeat.py": {"_store"},
    "messages/courier.py": {"_publish"},
    "stores/idle.py": {"_local"},
    "worker/heartbeat.py": {"_tasks"},
    "worker/relay.py": {"_publish"},
}
"""Attributes of our own that have such a name."""
PUBLIC = {"_exit", "_make", "_meta", "_replace"}
"""What is documented in spite of its underscore: of `os`, of named tuples, of Django's models."""


def private_names(text: str) -> Iterator[str]:
    """Yield the names in a text that the table has, and those with an underscore that are not its own."""
    tree = ast.parse(text)
    own = set(defined(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_own = ast.unparse(node.value) in ("self", "cls", "super()") or node.attr in own
            if node.attr in NAMES or (is_private(node.attr) and not is_own):
                yield node.attr
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in NAMES:
            yield node.name
        elif isinstance(node, ast.Constant) and node.value in NAMES:
            yield str(node.value)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            words = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if not (words and words[0].startswith(("celery_exclusive", "__future__"))):
                words += [alias.name for alias in node.names]
                yield from (word for word in words for part in word.split(".") if is_private(part))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a source text gives to functions, classes, and attributes of its objects."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            yield from [node.attr] if isinstance(node.ctx, ast.Store) else []


def test_no_private_name_of_another_package_stands_outside_its_room() -> None:
    found: dict[str, set[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        names = set(private_names(file.read_text())) - OURS.get(name, set()) - {"_celery_exclusive"}
        if names and not name.startswith("seams/"):
            found[name] = names
    assert not found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("semaphore._waiting = None", "_waiting"),
        ("super()._announce_revoked()", "_announce_revoked"),
        ("class A:\n def _basic_consume(self): ...", "_basic_consume"),
        ("getattr(app, '_tasks')", "_tasks"),
        ("pool.state_handlers[1] = None", "state_handlers"),
        ("from celery._state import current_app", "celery._state"),
        ("import _thread", "_thread"),
        ("from a import _b", "_b"),
    ],
)
def test_a_private_name_is_found_in_each_form(text: str, name: str) -> None:
    assert set(private_names(text)) == {name}


def test_a_private_name_of_its_own_is_no_finding() -> None:
    assert not set(private_names("class A:\n def __init__(self): self._a = 1\n\ndef f(a): return a._a"))


def test_the_room_touches_every_name_of_its_table() -> None:
    lists = {"table.py", "seam.py", "probe.py"}
    files = [file for file in (SOURCE / "seams").glob("*.py") if file.name not in lists]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    # The class of the one inherits from the request that `worker/request.py` wraps; the other is public.
    elsewhere = {"create_request_cls", "publish"}
    assert {attribute(seam) for seam in SEAMS} - words == elsewhere
