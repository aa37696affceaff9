"""What a conflict looks like. With WRITE_TABLES set, docs/reference/conflicts.md is written anew."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord

from celery_exclusive import DuplicateTask
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.stage import Stage
from tests.worker.test_unique import ONCE

TABLE = Path(__file__).parents[2] / "docs/reference/conflicts.md"
DEADLINE = 90
HEAD = """# Conflicts

The task `<id>` holds the key. What happens to a second call: alone, as a step of a chain, and as a member of
a chord? Real workers wrote this table.

* **"latest", "supersede"**: a third, newer call follows, and the running task does not look. **`Debounce`**:
  the task `<id>` waits in its window.
* **The table is for `order="arrived"`.** With "published" the caller puts the call into the line, so no
  worker logs that it was parked.
* **A step of a canvas hands a skip result on** only with `Debounce`, or if you
  [say so with `skip_result=`](../how-to/choose.md#in-a-chain-or-a-chord).

| policy | the caller gets | the worker logs | the result | the next step gets | the chord's body gets |
|---|---|---|---|---|---|
"""
UNTIL = ", once the key is free"


class Case:
    """One policy, tried while its key is held."""

    def __init__(self, lab: Lab, worker: Worker, policy: str) -> None:
        self.worker, self.policy = worker, policy
        self.task, following = lab.app.tasks[policy], lab.app.tasks["next"]
        self.holder = self.task.delay(policy, hold=True)
        if "Debounce" not in policy:  # there the second call comes before the run
            lab.journal.wait_for("start", task=policy)
        self.called, self.result = "its AsyncResult", None
        try:
            self.result = self.task.delay(policy)
        except DuplicateTask as error:
            self.called = self._told(error)
        self.is_sent = self.result is not None and self.result.id != self.holder.id
        if self.result and not self.is_sent:
            self.called = f"the AsyncResult of `<id>`, `outcome` `{self.result.outcome}`"
        self.chain = chain(self.task.si(policy), following.s()).apply_async()
        self.chord = chord([self.task.si(policy), following.si(1)])(following.s())
        is_replaced = "latest" in policy or "supersede" in policy
        self.ends_later = "give_up" in policy or is_replaced
        if "latest" in policy:  # with "supersede" they are in line when they are published
            for id in (self.result.id, self.chain.parent.id, self.chord.parent.results[0].id):
                worker.wait_for_log(f"[{id}] parked")
        if is_replaced:
            self.task.delay(policy)
        self.line = eventually(self._look, f"a line about {policy}")
        self.waits = "] parked" in self.line or "] rescheduled" in self.line

    def _look(self) -> str | None:
        """What the worker says of it, or of the step of the chain if it was not published."""
        id = self.result.id if self.is_sent and self.result else self.chain.parent.id
        verbs = "skipped|raised" if self.ends_later else "parked|rescheduled|skipped|raised"
        found = re.search(rf"^.*\[{id}\] (?:{verbs}).*$", self.worker.log, re.MULTILINE)
        return found and found[0]

    def row(self) -> str:
        until = UNTIL if self.waits else ""
        level, said = re.findall(r": (\w+)/[\w-]+\] Task .*?\] (.*)", self.line)[0]
        log = f"{level}: `{self._plain(said)}`"
        cells = [
            f"`{self.policy}`",
            self.called,
            log if self.is_sent else f"nothing; for a member of a canvas, {log}",
            self._end(self.result) + until if self.result else "-",
            self._end(self.chain) + until,
            self._end(self.chord) + until,
        ]
        return f"| {' | '.join(cells)} |\n"

    def _end(self, result: Any) -> str:
        eventually(result.ready, f"the end of {self.policy}", DEADLINE)
        return "the result of `<id>`" if result.id == self.holder.id else self._told(result.result)

    def _told(self, value: Any) -> str:
        if isinstance(value, Exception):
            return f"`{type(value).__name__}`"
        return f"`{self._plain(repr(value))}`"

    def _plain(self, text: str) -> str:
        key = self.task.lock_state(self.policy).key
        text = text.replace(self.holder.id, "<id>").replace(key, "<key>")
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "<newer id>", text)
        text = re.sub(r"(LockHeld|DuplicateTask)\(.*", r"\1(…)", text)
        text = re.sub(r"number \d+", "number 1", text)
        return re.sub(r"\d+\.\d+ ?s", "… s", text)


@pytest.mark.promise(
    "The table of [reference/conflicts.md](reference/conflicts.md) says what is seen of each policy",
    broke="another word in the table",
)
@ONCE
def test_the_table_says_what_is_seen(stage: Stage) -> None:
    lab = stage.make_lab("tests.worker.shop_policies", exclusive_ttl=600, exclusive_preview=False)
    worker = stage.start_worker(lab, slots=12)
    cases = [Case(lab, worker, name) for name in lab.app.tasks if "(" in name]
    for case in cases:
        if not case.waits:
            for result in (case.chain, case.chord):
                eventually(result.ready, f"the end of {case.policy} while its key is held")
    lab.open(*["holder"] * len(cases))
    table = HEAD + "".join(case.row() for case in cases)
    if os.environ.get("WRITE_TABLES"):
        TABLE.write_text(table)
    assert TABLE.read_text() == table
