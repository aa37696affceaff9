"""The commands that change what a key lets start."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_exclusive.core.operations import Acquire, Granted, Held
from celery_exclusive.core.records import SECOND
from tests.cli.conftest import Desk
from tests.cli.test_terminal import message

KEY = "x=openai"


def acquire(desk: Desk, id: str, **more: Any) -> Granted | Held:
    answer = desk.store.apply(KEY, Acquire(f"{id}/p", "0" * 16, 60 * SECOND, 25, **more)).answer
    assert isinstance(answer, (Granted, Held))
    return answer


@pytest.mark.promise(
    "`locks limit`, `pause`, `hold` and `resume` change an idle key, too, and say what counts then; `ls`, "
    "`show`, `why` and --json show it with the operator and the reason",
    broke="the change was lost when the key was idle: red",
)
def test_a_limit_that_is_set_is_seen_everywhere(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    done = desk.run("limit", "openai", "4", "--for", "2h", "--why", "an incident")
    assert done.exit_code == 0
    assert f"lock {KEY}\n  set; 0 in line, 0 aside\n  limit 4 set by ada@" in done.stdout
    assert "for another 2h00m: an incident" in done.stdout
    for number in range(4):
        assert isinstance(acquire(desk, f"a{number}", rates=((9, 60 * SECOND),)), Granted)
    assert isinstance(acquire(desk, "b", rates=((9, 60 * SECOND),)), Held)
    assert "4 (not 25), 4/9 per 1m00s" in desk.run("ls").stdout
    record = json.loads(desk.run("show", KEY, "--json").stdout)["room"]
    assert record["limit"] == 25
    assert record["override"]["limit"] == 4
    assert record["override"]["reason"] == "an incident"
    assert record["rates"] == [{"units": 9, "used": 4, "period": 60.0, "opens_in": None}]
    assert "the limit of the code counted already" not in desk.run("limit", "openai", "reset").stdout
    assert "the limit of the code counted already" in desk.run("limit", "openai", "reset").stdout
    assert isinstance(acquire(desk, "b", rates=((9, 60 * SECOND),)), Granted)


def test_a_pause_and_a_hold_end_together(desk: Desk) -> None:
    assert "paused by" in desk.run("pause", "openai", "--reason", "vendor is down").stdout
    answer = acquire(desk, "a")
    assert isinstance(answer, Held)
    assert (answer.by[0].phase, answer.by[0].opens_in) == ("paused", None)
    assert "nothing starts for another 30s" in desk.run("hold", "openai", "30s").stdout
    why = desk.run("why", KEY)
    assert why.stdout.startswith(f"CLOSED: no task of {KEY} starts: paused by ")
    assert why.exit_code == 0
    assert "set" in desk.run("ls").stdout
    assert "neither paused" not in desk.run("resume", "openai").stdout
    assert "it was neither paused nor held back" in desk.run("resume", "openai").stdout
    assert isinstance(acquire(desk, "a"), Granted)


@pytest.mark.promise(
    "`locks pause` says how many of the waiting tasks give up or expire meanwhile, and at a terminal pauses "
    "nothing before it is told to",
    broke="tasks that end later counted, too; any answer accepted; a pause without an end said nothing: red",
)
@pytest.mark.parametrize(
    ("words", "answer", "said", "is_paused"),
    [
        ((), "y", "2 of 4 waiting tasks give up or expire within the next 2h00m", True),
        ((), "n", "2 of 4 waiting tasks give up or expire within the next 2h00m", False),
        ((), "", "2 of 4 waiting tasks give up or expire within the next 2h00m", False),
        (("--yes",), "", "2 of 4 waiting tasks give up or expire within the next 2h00m", True),
        (("--for", "1h"), "n", "1 of 4 waiting tasks give up or expire within the next 1h00m", False),
        (("--for", "2m"), "", "", True),
    ],
)
def test_a_pause_asks_if_waiting_tasks_end_meanwhile(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    answer: str,
    said: str,
    is_paused: bool,
) -> None:
    desk.acquire(KEY, "a/p")
    for id, ends in (
        ("b", {"gives_up_in": 600 * SECOND}),
        ("c", {"expires_in": 7_000 * SECOND}),
        ("d", {"gives_up_in": 7_300 * SECOND}),
        ("e", {}),
    ):
        desk.acquire(KEY, f"{id}/p", message=message(id, KEY), **ends)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    done = desk.run("pause", KEY, *words, answer=f"{answer}\n")
    assert (said in done.stdout, "give up" in done.stdout) == (True, bool(said))
    assert ("pause it all the same?" in done.stdout) == (bool(said) and "--yes" not in words)
    assert desk.store.inspect(KEY).is_set is is_paused
    assert done.exit_code == (not is_paused)


def test_a_pause_by_a_program_does_not_ask(desk: Desk) -> None:
    desk.acquire(KEY, "a/p")
    desk.acquire(KEY, "b/p", message=message("b", KEY), gives_up_in=600 * SECOND)
    done = desk.run("pause", KEY)
    assert (done.exit_code, "1 of 1 waiting tasks give up" in done.stdout) == (0, True)
    assert desk.store.inspect(KEY).is_set


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("limit", "openai", "0"), "For 0: locks pause"),
        (("limit", "openai", "many"), "is no number"),
        (("hold", "openai", "soon"), "write 30s, 5m, 2h or 1d"),
        (("pause", "u:feeds.send_digest"), "is a unique key, which has no limit"),
    ],
)
def test_a_wrong_word_is_refused(desk: Desk, words: tuple[str, ...], says: str) -> None:
    done = desk.run(*words)
    assert done.exit_code
    assert says in done.stderr
