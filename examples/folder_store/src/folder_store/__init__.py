"""folder:///var/lib/proj/locks: leases in a folder of JSON files. An example of another package's store."""

from __future__ import annotations

import fcntl
import json
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from celery_exclusive.core.records import NEVER, Document, Entry, Holder, Line, overdue, reach
from celery_exclusive.errors import StoreUnavailable, UnreadableKey
from celery_exclusive.stores.base import Capabilities, Cursor, Page, Times
from celery_exclusive.stores.document_store import CLOCK_MARGIN, Change, DocumentStore, Loaded, page_of_line
from celery_exclusive.stores.workers import FORGOTTEN_AFTER, WorkerRecord, by_number


class FolderStore(DocumentStore):
    """Leases in files of one machine, changed one at a time under one lock of the folder."""

    capabilities = Capabilities(one_host=True)

    def __init__(self, url: str, *, prefix: str = "cx", **options: int) -> None:
        super().__init__(url, prefix=prefix, **options)
        self._folder = Path(unquote(urlsplit(url).path), quote(prefix, safe=""))
        self._common = self._folder / "common.json"

    def load(self, key: str, ids: tuple[str, ...] = (), limit: int = 1, *, replaces: bool = False) -> Loaded:
        id = next(iter(ids), "")
        with self._locked() as common:
            kept, now = self._read(key), time.time_ns() // 1000
        holders = tuple(Holder(*holder) for holder in kept.get("holders", ()))
        deadline = kept.get("deadline", NEVER)
        document = Document(kept.get("limit", 1), common["fence"], holders, common["epoch"], deadline)
        entries = [Entry(*entry) for entry in kept.get("entries", ())]
        waiting = sorted((e for e in entries if e.state == "waiting"), key=attrgetter("seq"))
        aside = sorted((e for e in entries if e.state == "aside"), key=attrgetter("offer_until", "id"))
        own = next((entry for entry in entries if entry.id == id), None)
        due, deadline = overdue(entries, now)
        until, token = kept.get("tombstones", {}).get(id, (0, None))
        line = Line(
            waiting=len(waiting),
            head=tuple(waiting[: reach(document, limit)]),
            aside=tuple(aside[: reach(document, limit)]),
            behind=tuple(entry for entry in entries if entry.state == "behind"),
            overdue=due,
            deadline=deadline,
            last=tuple(waiting[-10:]) if replaces else (),
            entry=own,
            ahead=sum(entry.seq < own.seq for entry in waiting) if own else len(waiting),
            tombstone=token if until > now else None,
        )
        return Loaded(kept.get("version", common["version"]), now, document, line, len(aside))

    def swap(self, key: str, version: int, change: Change) -> bool:
        to, id = change.transition, change.id
        with self._locked() as common:
            kept = self._read(key)
            if kept.get("version", common["version"]) != version:
                return False
            common |= {"version": common["version"] + 1, "fence": max(common["fence"], to.document.fence)}
            entries = {it[0]: it for it in (*kept.get("entries", ()), *map(astuple, to.entries))}
            messages, tombstones = kept.get("messages", {}), kept.get("tombstones", {})
            if change.message is not None:
                messages[id] = b64encode(change.message).decode()
            for gone in to.removed:
                entries.pop(gone, None)
                messages.pop(gone, None)
            if to.tombstone is not None:
                tombstones[id] = (change.tombstone_until, to.tombstone)
            self._save(self._common, common)  # first: a process may be killed in between
            self._write(
                key=key,
                version=common["version"],
                limit=to.document.limit,
                deadline=to.document.deadline,
                holders=[*map(astuple, to.document.holders)],
                due=to.due,
                entries=list(entries.values()),
                messages=messages,
                tombstones=tombstones,
            )
            return True

    def messages(self, key: str, ids: Sequence[str]) -> dict[str, bytes]:
        with self._locked():
            kept = self._read(key).get("messages", {})
        return {id: b64decode(kept[id]) for id in ids if id in kept}

    def due(self, limit: int, every: int) -> list[str] | None:
        with self._locked() as common:
            now = time.time_ns() // 1000
            if common["reaped"] <= now < common["reaped"] + every:
                return None
            self._save(self._common, common | {"reaped": now})
            due = []
            for kept in self._all():
                stones = kept["tombstones"].items()
                kept["tombstones"] = {id: it for id, it in stones if it[0] + CLOCK_MARGIN > now}
                if not kept["entries"] and all(Holder(*it).expiry <= now for it in kept["holders"]):
                    kept["holders"] = []
                self._write(**kept)
                due.append((now + 1 if kept["due"] is None else kept["due"], kept["key"]))
            return [key for time_, key in sorted(due)[:limit] if time_ <= now]

    def line(self, key: str, after: Cursor | None = None, count: int = 250) -> Page:
        with self._locked():
            kept, now = self._read(key), time.time_ns() // 1000
        messages = {id: b64decode(message) for id, message in kept.get("messages", {}).items()}
        return page_of_line([Entry(*it) for it in kept.get("entries", ())], messages, now, after, count)

    def places(self) -> Iterator[tuple[str, str]]:
        with self._locked():
            found = [(kept["key"], Entry(*entry)) for kept in self._all() for entry in kept["entries"]]
        return ((key, entry.id) for key, entry in found if entry.state != "behind")

    def scan(self, prefix: str = "") -> Iterator[str]:
        with self._locked():
            used = [kept["key"] for kept in self._all() if kept["holders"] or kept["entries"]]
        return (key for key in used if key.startswith(prefix))

    def times(self) -> Times:
        with self._locked() as common:
            return Times(time.time_ns() // 1000, common["reaped"] or None)

    def keep_namespace(
        self, broker: str, life: int, worker: WorkerRecord | None = None, *, adopts: bool = False
    ) -> str:
        if worker:
            with self._locked() as common:
                common["workers"][worker.text.decode()] = time.time_ns() // 1000 + FORGOTTEN_AFTER
                self._save(self._common, common)
        return super().keep_namespace(broker, life, adopts=adopts)

    def workers(self) -> dict[int, list[WorkerRecord]]:
        with self._locked() as common:
            now = time.time_ns() // 1000
            return by_number(text.encode() for text, until in common["workers"].items() if until > now)

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """Yield what all keys have in common, while no other process reads or writes."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not self._common.exists():
                    self._save(
                        self._common,
                        {"epoch": token_hex(8), "version": 0, "fence": 0, "reaped": 0, "workers": {}},
                    )
                yield json.loads(self._common.read_bytes())
        except OSError as error:
            raise StoreUnavailable(f"store {self.url}: {error}") from error

    def _file(self, key: str) -> Path:
        return self._folder / f"{blake2b(json.dumps(key).encode()).hexdigest()}.key"

    def _read(self, key: str) -> dict[str, Any]:
        try:
            return json.loads(self._file(key).read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise UnreadableKey(key, str(error), self.url) from error

    def _all(self) -> Iterator[dict[str, Any]]:
        for path in self._folder.glob("*.key"):
            with suppress(ValueError):  # a damaged key holds up no other
                yield json.loads(path.read_bytes())

    def _write(self, **kept: Any) -> None:
        """Store the data of a key, or delete the file if the key has neither holder nor line."""
        if kept["holders"] or kept["entries"] or kept["tombstones"]:
            self._save(self._file(kept["key"]), kept)
        else:
            self._file(kept["key"]).unlink(missing_ok=True)

    def _save(self, path: Path, value: dict[str, Any]) -> None:
        path.with_suffix(".new").write_text(json.dumps(value))
        path.with_suffix(".new").replace(path)
