"""Parts of a key as an operator sees and changes them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from celery_exclusive import Exclusive, locks
from celery_exclusive.core.operations import Acquire, Granted, Parked
from celery_exclusive.core.records import SECOND
from tests.cli.conftest import Desk
from tests.cli.test_terminal import message

pytestmark = pytest.mark.promise(
    "`locks limit`, `pause`, `resume` and `hold` with --part change one part of a key, also an idle one; "
    "`why` says what the part of a task waits for, and its number there; `ls`, `show`, --json and `doctor` "
    "name the parts",
    broke="--part dropped on the way to the store, so the whole key was paused: red",
)
KEY = "x=openai"
A_MINUTE = 60 * SECOND


def ask(desk: Desk, id: str, part: str = "", **more: Any) -> Any:
    options = {"limit": 25, "part": part, "message": message(id, KEY), **more}
    return desk.store.apply(KEY, Acquire(f"{id}/p", "0" * 16, 600 * SECOND, **options)).answer


@pytest.fixture
def busy(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Two runs of acme, which may have two, and one of zeta, which has started one in this minute."""
    monkeypatch.setenv("SUDO_USER", "ada")
    of_acme, of_zeta = {"part_limit": 2, "weight": 3}, {"part_limit": 4, "part_rates": ((1, A_MINUTE),)}
    answers = [ask(desk, f"a{number}", "acme", **of_acme) for number in range(6)]
    answers += [ask(desk, f"z{number}", "zeta", **of_zeta) for number in range(2)]
    assert [type(answer) for answer in answers] == [Granted] * 2 + [Parked] * 4 + [Granted, Parked]
    desk.pass_time(5)
    return desk


def test_why_names_the_part_that_a_task_waits_for_and_its_number_there(busy: Desk) -> None:
    why = busy.run("why", "a4")
    assert why.exit_code == 0
    assert why.stdout.startswith(
        f"WAITING: number 3 of part acme for {KEY}, for 4s, and not in line yet; it waits for a slot of part "
        "acme: 2 of 2 run\n"
    )
    answer = locks.why("z1", app=busy.app)
    assert answer.reason == "rate"
    assert "it waits for room of part zeta: rate: 1 of 1 in the last 1m00s; the next may" in answer.sentence
    assert answer.waiting
    assert (answer.waiting.place, answer.waiting.is_shut, answer.waiting.part) == (0, True, "zeta")
    assert "5 wait (5 of them for room in their part of the key (per=)); 4 wait for a slot of part acme" in (
        busy.run("why", KEY).stdout
    )


def test_ls_and_show_name_the_parts_with_the_most_waiting_tasks(busy: Desk) -> None:
    for number in range(12):
        assert ask(busy, f"t{number}", f"tenant {number:02}") == Granted(busy.now + number)
    shown = busy.run("show", KEY).stdout
    assert "running; limit 25; 0 in line, 5 for room in their part of the key (per=), 0 aside\n" in shown
    assert "\n  part acme: 2 run, 0 in line, 4 for room of it; limit 2; weight 3\n  part zeta: 1 run" in shown
    assert "limit 4\n    rate: 1 of 1 in the last 1m00s; the next may start in 55.0 s\n" in shown
    assert "\n  part tenant 07: 1 run, 0 in line, 0 for room of it; no limit\n  and 4 more parts\n" in shown
    assert "\n  not in line: a2, for 4s; of part acme; waits for room of its part\n" in shown
    listed = busy.run("ls", "openai").stdout
    assert "5 (5 for parts)" in listed
    assert "\npart acme: 2 run, 0 in line, 4 for room of it; limit 2; weight 3\n" in listed
    busy.acquire("x=other", "o/p")
    assert "part acme" not in busy.run("ls").stdout


def test_parts_are_in_the_records_of_json(busy: Desk) -> None:
    record = json.loads(busy.run("show", KEY, "--json").stdout)
    assert (record["waiting"], record["shut"]) == (5, 5)
    assert record["parts"][0] == {
        "name": "acme",
        "running": 2,
        "in_line": 0,
        "shut": 4,
        "weight": 3,
        "room": {"limit": 2, "is_known": True, "override": None, "opens_in": None, "rates": []},
    }
    first = record["line"][0]
    assert (first["task_id"], first["part"], first["is_shut"], first["place"]) == ("a2", "acme", True, 0)
    (listed,) = busy.run("ls", "--json").stdout.splitlines()
    assert json.loads(listed)["parts"] == record["parts"]


def test_a_part_that_is_paused_starts_nothing_and_the_others_go_on(
    busy: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    paused = busy.run("pause", "openai", "--part", "acme", "--why", "abuse")
    assert paused.exit_code == 0
    assert (
        "part acme: 2 run, 0 in line, 4 for room of it; limit 2; weight 3\n    paused by ada@"
        in paused.stdout
    )
    assert "part zeta" not in paused.stdout
    (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert record.getMessage().startswith(f"part acme of lock {KEY} was paused by ada@")
    assert record.getMessage().endswith("(abuse)")
    answer = locks.why("a2", app=busy.app)
    assert answer.reason == "paused"
    assert "not in line yet; part acme is paused by ada@" in answer.sentence
    assert isinstance(ask(busy, "free", "free"), Granted)
    assert isinstance(ask(busy, "late", "acme", part_limit=9), Parked)
    assert busy.store.inspect(KEY).terms.override is None
    resumed = busy.run("resume", "openai", "--part", "acme")
    assert "part acme: 2 run, 5 in line, 0 for room of it; limit 9" in resumed.stdout
    assert "neither paused nor held back" in busy.run("resume", "openai", "--part", "acme").stdout


def test_a_part_gets_a_limit_and_a_hold_of_its_own(busy: Desk) -> None:
    assert "limit 3 set by ada@" in busy.run("limit", KEY, "3", "--part", "acme", "--for", "2h").stdout
    assert busy.store.inspect(KEY).waiting - busy.store.inspect(KEY).terms.shut == 1
    why = busy.run("why", "a3").stdout
    assert "a slot of part acme: 2 of 3 run, 1 in line (limit 3 set by ada@" in why
    assert "for another 2h00m)" in why
    busy.run("hold", KEY, "30s", "--part", "acme")
    assert "part acme is held back: nothing starts for another 30s" in busy.run("why", "a3").stdout
    busy.run("limit", KEY, "reset", "--part", "acme")
    assert "counted already" in busy.run("limit", KEY, "reset", "--part", "acme").stdout


def test_an_idle_key_whose_part_is_paused_is_listed(desk: Desk) -> None:
    assert desk.run("pause", "openai", "--part", "acme").exit_code == 0
    assert "set; 0 in line, 0 aside\n  part acme: 0 run" in desk.run("show", "openai").stdout
    assert "set" in desk.run("ls").stdout
    assert "a call of it can run now; part acme is paused by" in desk.run("why", KEY).stdout
    assert isinstance(ask(desk, "z", "zeta"), Granted)
    desk.run("resume", "openai", "--part", "acme")
    assert "paused" not in desk.run("show", "openai").stdout


def test_a_key_whose_tasks_all_wait_for_their_parts_says_so(desk: Desk) -> None:
    desk.run("pause", "openai", "--part", "acme")
    ask(desk, "a", "acme")
    assert locks.why(KEY, app=desk.app).reason == "paused"
    why = desk.run("why", KEY)
    assert "no task holds it" in why.stdout
    assert "1 wait (1 of them for room in their part of the key (per=)); part acme is paused by" in why.stdout
    assert why.exit_code == 0


def test_a_pause_of_a_part_counts_the_tasks_of_this_part_that_end_meanwhile(busy: Desk) -> None:
    ask(busy, "b", "acme", part_limit=2, gives_up_in=600 * SECOND)
    assert "1 of 5 waiting tasks give up" in busy.run("pause", KEY, "--part", "acme").stdout
    assert "give up" not in busy.run("pause", KEY, "--part", "zeta").stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("pause", "openai", "--part", ""), "it is empty, and names no part"),
        (("pause", "u:feeds.send_digest", "--part", "acme"), "is a unique key, which has no limit"),
        (("hold", "openai", "--part", "acme"), "Missing argument 'TIME'"),
    ],
)
def test_a_part_that_cannot_be_meant_is_refused(desk: Desk, words: tuple[str, ...], says: str) -> None:
    done = desk.run(*words)
    assert done.exit_code
    assert says in done.stderr
    assert not desk.store.parts(KEY)


@pytest.mark.promise(
    "`locks doctor` names a part whose counters are not what its line and its runs say",
    broke="the costs not summed; tasks in line counted as shut; the runs not compared: each red",
)
@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        (
            {"waiting": 9},
            "part acme counts 9 units in line and 4 tasks that wait for room, and there are 0 and 4",
        ),
        (
            {"shut": 1},
            "part acme counts 0 units in line and 1 tasks that wait for room, and there are 0 and 4",
        ),
        ({"held": 8}, "its parts count 29 units that run, and all runs hold 23"),
    ],
)
def test_doctor_names_a_part_whose_counters_disagree(busy: Desk, wrong: Any, finding: str) -> None:
    for id, cost in (("runs", 20), ("waits", 9)):
        ask(busy, id, "zeta", cost=cost)
    assert "units in line" not in busy.run("doctor").stdout
    parts = busy.store._store._memory.keys[KEY].known_parts
    parts["acme"] = replace(parts["acme"], **wrong)
    assert f"{KEY}: {finding}" in busy.run("doctor").stdout


def test_doctor_names_a_part_that_is_paused_for_an_hour_while_its_tasks_wait(busy: Desk) -> None:
    @busy.app.task(name="desk.load", shared=False, exclusive=Exclusive(key="openai", limit=25, per="tenant"))
    def load(tenant: str) -> None: ...

    busy.run("pause", KEY, "--part", "acme")
    busy.run("pause", KEY, "--part", "idle")
    assert "of its tasks wait" not in busy.run("doctor").stdout
    busy.pass_time(3_601)
    said = busy.run("doctor").stdout
    assert f"{KEY}: part acme is paused by ada@" in said
    assert "4 of its tasks wait" in said
    assert f"celery -A proj locks resume --part=acme {KEY}" in said
    assert "part idle" not in said
