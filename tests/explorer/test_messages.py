"""Every reachable world of the plans of messages: one body per key, none lost, none stuck."""

from __future__ import annotations

import pytest

from tests.explorer.explore import search
from tests.explorer.messages.controls import CONTROLS
from tests.explorer.messages.model import Model
from tests.explorer.messages.settings import SETTINGS
from tests.explorer.messages.world import Setting

pytestmark = pytest.mark.timeout(600)  # it computes, and a busy machine is no bug
OF_MANY_STATES = {
    "two keys: the store is away for long",
    "give up: a retry",
    "recover: a killed child comes again",
    "two keys: a retry, the store is away for long",
    "two keys: a crash",
    "recover, one key: members of canvases, the next step, a crash",
    "one task id twice, two keys: a conflict at the lock is skipped: a crash",
    "one call sends, and has to: lost replies",
    "one task id twice: a queue longer than queued_ttl",
}
"""Those of more than 14,000 states, which `make test` leaves to `make test-all`."""
WORLDS = [
    pytest.param(one, id=one.name, marks=[pytest.mark.large] * (one.name in OF_MANY_STATES))
    for one in SETTINGS
]


@pytest.mark.promise(
    "No reachable world of messages breaks a promise: the plans of publishers and workers "
    "(`core/publishing`, `admission`, `endings`) on the real `step`, with second deliveries, retries, "
    "replacements, crashes, lost replies, failed sends, a store that is away for longer than a lease "
    "lasts, or loses its data",
    figure=(
        "80 settings, 501,000 states, none bad. Of the larger ones, a retry and a crash of a task with "
        "`recover`: 52,998, two such calls whose store is away: 42,109; the same with `unique=` alone, "
        "with a copy: 291,591, and 28,537"
    ),
    command="python -m tests.explorer --large",
)
@pytest.mark.parametrize("setting", WORLDS)
def test_no_reachable_world_of_messages_breaks_a_promise(setting: Setting):
    explored = search(Model(setting))
    assert not explored.broken, str(explored)
    assert explored.states > 1000


SMALL = dict.fromkeys(one.setting for one in CONTROLS.values() if one.setting not in SETTINGS)


@pytest.mark.proves("planted faults in plans")
@pytest.mark.parametrize("setting", SMALL, ids=lambda setting: setting.name)
def test_without_a_planted_fault_no_promise_is_broken(setting: Setting):
    """The settings in which faults are planted: the others are explored above."""
    explored = search(Model(setting))
    assert not explored.broken, str(explored)


@pytest.mark.promise(
    "The explorer of messages finds each fault that is planted in a plan, by the promise that it breaks, "
    "and their settings break no promise without a fault",
    name="planted faults in plans",
    broke=(
        "a duplicate dropped, a retry that does not take its lease over, a key taken over from a run, an "
        "offer for one key that counts at the other, a duplicate that runs, fails or ends twice in place of "
        "joining, the retry of a superseded run that runs, and others"
    ),
    command="python -m tests.explorer",
)
@pytest.mark.parametrize("name", CONTROLS)
def test_a_fault_planted_in_a_plan_is_found_by_the_promise_that_it_breaks(name: str):
    control = CONTROLS[name]
    explored = control.explore()
    assert control.finds in explored.broken, str(explored)
