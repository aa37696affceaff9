"""The incidents of the page about operating, with real workers: its commands print what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.played import Names, Step, steps_of
from tests.worker.journal import eventually
from tests.worker.lab import Lab, Worker, start
from tests.worker.message import stop_consuming

HOW_TO: Final = Path(__file__).parents[2] / "docs/how-to"
PAGES: Final = [(HOW_TO / f"{name}.md").read_text() for name in ("operate", "move-store")]
ONCE: Final = "tests.worker.shop_unique"
WAIT: Final = "tests.worker.shop.wait"


SECTIONS: Final = {
    text.partition("\n")[0]: steps
    for page in PAGES
    for text in re.split(r"^## ", page, flags=re.MULTILINE)
    if (steps := steps_of(text))
}


@dataclass
class Incident:
    """A section of the page that is played: `run` takes its commands one after the other."""

    make_lab: Callable[..., Lab]
    request: pytest.FixtureRequest
    steps: Iterator[Step]
    names: Names = field(default_factory=Names)
    count: int = 0

    def lab(self, **conf: Any) -> Lab:
        return self.make_lab(**{"task_acks_late": True, **conf})

    def run(self, lab: Lab, code: int = 0, *, old: Lab | None = None, **names: object) -> str:
        """Run the next command of the section with these names, and compare what it prints with the page."""
        self.names.given |= {"proj": lab.module, **{name: str(value) for name, value in names.items()}}
        step = next(self.steps)
        assert old is None or "# with the old settings" in step.command
        app, *words = shlex.split(self.names.named(step.command), comments=True)[3:]
        assert app == lab.module
        self.count += 1
        output = lab.folder / f"command{self.count}"
        child = start(
            ["-A", lab.module, *words],
            (old or lab).environment,
            lab.folder,
            output,
            pool="prefork",
            is_fresh=False,
        )
        ended, printed = child.wait(timeout=60), output.read_text()
        assert ended == code, printed
        assert not (line := self.names.missing(step.lines, printed)), f"{line}\nis not in\n{printed}"
        return printed


def hold(lab: Lab, *waiting: str, **conf: Any) -> tuple[Worker, Any, list[Any], str]:
    """Start a worker whose body holds the key 17, with others in line: the worker, holder, line and key."""
    worker = lab.start_worker("web1", 2, **conf)
    holder = lab.send("wait", 17, tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    line = [lab.send("wait", 17, tag=tag) for tag in waiting]
    lab.wait_for_line(len(waiting), "wait", 17)
    return worker, holder, line, lab.task("wait").lock_state(17).key


def ends(lab: Lab, *tags: str) -> None:
    for tag in tags:
        lab.journal.wait_for("end", tag=tag)


def a_body_hangs(it: Incident) -> None:
    lab = it.lab()
    worker, holder, (behind,), key = hold(lab, "behind")
    worker.wait_accepted(holder.id)
    it.run(lab, ID=behind.id, KEY=key, HOLDER=holder.id)
    it.run(lab)
    ends(lab, "behind")
    eventually(lambda: holder.state == "REVOKED", "the end of the holder")


def a_worker_has_died(it: Incident) -> None:
    lab = it.lab()
    worker, holder, _, key = hold(lab, "behind")
    worker.kill()
    it.run(lab, ID=holder.id, KEY=key)
    it.run(lab)
    lab.start_worker("web2")
    ends(lab, "behind")


def a_task_kills_its_process(it: Incident) -> None:
    lab = it.lab(task_reject_on_worker_lost=True)
    worker, holder, _, _ = hold(lab)
    worker.wait_accepted(holder.id)
    kill_child_of(lab, 1)
    lab.journal.wait_for("start", 2)
    worker.wait_accepted(holder.id)
    it.run(lab, ID=holder.id)
    kill_child_of(lab, 2)
    eventually(lambda: holder.state == "REVOKED", "the end of the task")


def kill_child_of(lab: Lab, run: int) -> None:
    os.kill(lab.journal.events("start")[run - 1]["pid"], signal.SIGKILL)


def no_worker_takes_it(it: Incident) -> None:
    lab = it.lab(exclusive_offer=0.005, exclusive_reap_period=0.05)
    worker, _, _, _ = hold(lab, options=("-Q", "lab,reports"))
    lab.send("wait", 17, tag="lost", options={"queue": "reports"})
    lab.wait_for_line(1, "wait", 17)
    lab.send("wait", 17, tag="next")
    lab.wait_for_line(2, "wait", 17)
    stop_consuming(lab, worker, "reports")
    lab.open("holder")
    worker.wait_for_log("steps aside in the line")
    it.run(lab, QUEUE="reports")
    ends(lab, "lost")


def after_a_purge(it: Incident) -> None:
    lab = it.make_lab(module=ONCE)
    lab.send("once", 17, tag="lost")
    lab.app.control.purge()
    assert lab.send("once", 17).outcome == "skipped"
    it.run(lab, TASK=f"{ONCE}.once")
    assert lab.send("once", 17).outcome == "published"


def a_line_is_dropped(it: Incident) -> None:
    lab = it.lab(exclusive_store=it.request.getfixturevalue("postgres_url"))
    _, _, line, key = hold(lab, "a", "b", "c")
    it.run(lab, KEY=key, FILE=lab.folder / "feeds.jsonl")
    assert [result.state for result in line] == ["REVOKED"] * 3
    it.run(lab)
    it.run(lab)
    lab.open("holder")
    ends(lab, "a", "b", "c")
    assert sorted(lab.journal.tags("start")) == ["a", "b", "c", "holder"]


def the_store_is_down(it: Incident) -> None:
    server = it.request.getfixturevalue("start_redis")()
    lab = it.lab(exclusive_store=server.url)
    server.kill()
    it.run(lab, 3)


def the_locks_move_to_another_store(it: Incident) -> None:
    old = it.lab()
    worker, holder, line, key = hold(old, "a", "b", "c")
    new = it.lab(exclusive_store=it.request.getfixturevalue("postgres_url"))
    it.run(new, 1, ID=line[0].id, KEY=key, HOLDER=holder.id, TASK=WAIT, FILE=new.folder / "feeds.jsonl")
    it.run(new, old=old)
    it.run(new, old=old)
    assert key not in it.run(new, old=old)
    old.open("holder")
    ends(old, "holder")
    assert worker.stop() == 0
    it.run(new)
    new.start_worker("web2")
    ends(new, "a", "b", "c")
    assert sorted(new.journal.tags("start")) == ["a", "b", "c", "holder"]


def two_releases_and_back(it: Incident) -> None:
    lab = it.lab()
    worker, _, _, _ = hold(lab, "behind")
    it.run(lab, TASK=WAIT, FILE=lab.folder / "feeds.jsonl")
    assert not lab.waiting("wait", 17)
    worker.kill()


def a_call_is_skipped(it: Incident) -> None:
    lab = it.make_lab(module=ONCE)
    first, second = (lab.send("once", 17) for _ in range(2))
    assert (second.outcome, second.id) == ("skipped", first.id)
    it.run(lab, 1, ID=first.id, KEY=lab.task("once").lock_state(17).key, TASK=f"{ONCE}.once")


INCIDENTS: Final = {
    "A body hangs": a_body_hangs,
    "A worker has died": a_worker_has_died,
    "A task kills its process": a_task_kills_its_process,
    "No worker takes it": no_worker_takes_it,
    "After a purge": after_a_purge,
    "Drop a line, and put it back": a_line_is_dropped,
    "The store is down": the_store_is_down,
    "The locks move to another store": the_locks_move_to_another_store,
    "Two releases, and back": two_releases_and_back,
    "A call is skipped": a_call_is_skipped,
}


@pytest.mark.promise(
    "The commands of each incident of [Operating](how-to/operate.md) print what the page shows, and mend it, "
    "with real workers; so do the commands of [a move](how-to/move-store.md)",
    name="the incidents of the runbook",
    broke="another word on the page; `locks why` that ends with an error while the store is down",
)
@pytest.mark.parametrize("heading", SECTIONS)
def test_the_commands_of_an_incident_print_what_the_page_shows_and_mend_it(
    heading: str, make_lab: Callable[..., Lab], request: pytest.FixtureRequest
) -> None:
    steps = iter(SECTIONS[heading])
    INCIDENTS[heading](Incident(make_lab, request, steps))
    assert not list(steps), "the page has commands that were not played"


@pytest.mark.proves("the incidents of the runbook")
def test_each_incident_is_on_the_page() -> None:
    assert SECTIONS.keys() == INCIDENTS.keys()
