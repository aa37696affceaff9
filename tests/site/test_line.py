"""The line in the browser: its world in this process, and its page in a real browser."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from docs.line.model import TTL, World
from tests.browser import Browser


def play(*commands: str | int) -> World:
    """A world after these commands; a number is a count of seconds."""
    world = World()
    for command in commands:
        for one in ["tick"] * command if isinstance(command, int) else [command]:
            world.do(one)
    return world


def go_on(world: World, seconds: int) -> World:
    for _ in range(seconds):
        world.do("tick")
    return world


def runs(world: World) -> dict[str, tuple[str, int]]:
    """The call and the fence of each run, by the name of its worker."""
    return {
        worker.name: (worker.run.message.name, worker.run.fence) for worker in world.workers if worker.run
    }


def said(world: World, text: str) -> int:
    """The second at which the log has this text."""
    return next(second for second, line in world.log if text in line)


def test_a_waiting_call_takes_no_slot_and_runs_by_an_offer() -> None:
    world = play("send A", "send A", "send B", 2)
    assert {call for call, _ in runs(world).values()} == {"A1", "B1"}
    assert [worker.run for worker in world.workers].count(None) == 1
    assert list(world.store["A"].entries) == ["A2/1"]
    go_on(world, 5)
    assert [message.name for message in world.queue] == ["A2"]
    assert said(world, "offers the lock of A to A2 for 5 s") == said(world, "A1 ends") == 7
    go_on(world, 1)
    assert "A2" in {call for call, _ in runs(world).values()}


def test_a_killed_workers_lease_expires_after_ttl_and_the_next_call_has_a_higher_fence() -> None:
    world = play("send A", "send A", 3)
    (call, fence) = runs(world)["w1"]
    assert call == "A1"
    world.do("kill 1")
    go_on(world, 8)
    ((call, next_fence),) = runs(world).values()
    assert call == "A2"
    assert next_fence > fence
    assert said(world, "The lease of A1 has expired") == said(world, "w1 receives A1") + TTL
    assert said(go_on(world, 20), "A1 ends") > said(world, "A2 ends")


def test_tenants_of_a_shared_key_start_in_turn() -> None:
    world = play("send acme", "send acme", "send acme", "send acme", 2, "send zeta", "send zeta", 60)
    texts = [text for _, text in world.log if "acquires the lock of S" in text]
    assert [text.split()[2] for text in texts] == ["acme1", "acme2", "zeta1", "acme3", "zeta2", "acme4"]


def test_a_paused_worker_finds_its_lease_lost() -> None:
    world = play("send A", "send A", 3, "pause 1", 10)
    assert {call for call, _ in runs(world).values()} == {"A1", "A2"}
    world.do("resume 1")
    world.do("tick")
    assert "w1" not in runs(world)
    assert said(world, "w1 finds its lease on A (fence 1,000,000) lost") == 14


def test_a_lost_store_loses_its_line_and_a_worker_restores_its_lease() -> None:
    world = play("send A", "send A", 3, "lose", 1)
    assert said(world, "with it the calls in line: A2") == 3
    assert said(world, "w1 sees that the store is another one, and restores its lease") == 4
    assert [holder.id for holder in world.store["A"].document.holders] == ["A1/1"]


@pytest.mark.promise(
    "In the line in the browser no key has two runs, and each call ends once, whichever workers die",
    broke="a world without its sweep; two runs of a key at a time",
    figure="400 random plays of 40 commands",
)
def test_calls_of_a_key_never_overlap_in_random_plays_with_kills() -> None:
    for seed in range(400):
        chance, world = random.Random(seed), World()
        for _ in range(40):
            number = chance.randint(1, 3)
            ticks = ["tick"] * 6
            calls = ["send A", "send B", "send acme", "send zeta"]
            world.do(chance.choice([*calls, f"kill {number}", f"start {number}", *ticks]))
            names = [worker.run.message.key for worker in world.workers if worker.run]
            assert len(names) == len(set(names)), (seed, world.log)
        for number in (1, 2, 3):
            world.do(f"start {number}")
        go_on(world, 400)
        ended = [line.split()[0] for _, line in world.log if " ends, and " in line]
        calls = [f"{key}{number + 1}" for key, count in world.calls.items() for number in range(count)]
        assert sorted(ended) == sorted(calls), (seed, world.log)


@pytest.mark.slow
@pytest.mark.xdist_group("site")
@pytest.mark.skipif(not Path(sys.prefix, "pyodide").exists(), reason="no Pyodide here: `make docs` gets it")
@pytest.mark.promise(
    "[The line in the browser](explanation/line.md) runs the library's core in Python, from a file and "
    "without a network: a call that waits takes no slot, the call after a killed worker gets the lock with "
    "a higher fence, tenants start in turn, a paused worker finds its lease lost, and a store without its "
    "data has lost the line",
    broke="a script that fetches what Pyodide asks for",
    figure="Chromium 150 without a window; Pyodide 0.29, pinned by its hash",
)
def test_the_line_runs_in_a_browser_that_has_opened_its_page_as_a_file(site: Path, browser: Browser) -> None:
    browser.open(f"file://{site}/explanation/line.html")
    assert browser.text("#line .clock") == "0 s"  # Python has started
    browser.run("document.querySelector('#line input').value = 4")
    expected = {
        "three calls": ["its slot is free.", "offers the lock of A to A3", "A3 ends"],
        "a worker is killed": [
            "w1 is killed",
            "The lease of A1 has expired",
            "A2 again and acquires",
            "A1 ends",
        ],
        "a tenant floods the line": ["zeta1 again and acquires", "acme4 ends"],
        "a worker is paused": ["w1 is paused", "(fence 1,000,000) lost"],
        "the store loses its data": ["the calls in line: A2.", "restores its lease", "B1, which stops"],
    }
    for name, lines in expected.items():
        browser.click(f"[data-play='{name}']")
        while browser.text("[data-run]") == "Stop":
            time.sleep(0.1)
        log = browser.text("#line ol")
        assert not [line for line in lines if line not in log], log
    browser.click("[data-reset]")
    browser.click("[data-do='send A']")
    browser.click("[data-do='tick']")
    assert browser.text(".w1 .slot").split()[0] == "A1"
    assert "fence 1,000,000" in browser.text(".store")
    browser.click("[data-do='kill 1']")
    assert "w1 is killed" in browser.texts("#line li")[0]
