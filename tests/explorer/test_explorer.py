"""Every reachable world of `step`: nothing is lost, runs twice, is stuck or overlaps."""

from __future__ import annotations

import pytest

from tests.explorer.explore import explore
from tests.explorer.model import Setting
from tests.explorer.settings import CONTROLS, QUICK, SETTINGS

pytestmark = pytest.mark.timeout(600)  # it computes, and a busy machine is no bug
WORLDS = [pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one not in QUICK)) for one in SETTINGS]


@pytest.mark.promise(
    "No reachable world of `core.step` breaks a promise: with crashes, lost messages and replies, pauses, "
    "retries and slow queues no task is lost, twice, stuck or beside another",
    figure=(
        "56 settings, 506,000 states, and with `--large` 39 more, about 22,600,000 states, none bad: "
        "`recover` with all troubles 7,970,865, late acknowledgement with all 2,389,819, lost replies "
        "1,635,905, retries 1,768,974, three workers 1,682,472, three tasks 1,010,617, "
        '`order="published"` with all 376,839, and others'
    ),
    command="python -m tests.explorer --large",
)
@pytest.mark.parametrize("setting", WORLDS)
def test_no_reachable_world_breaks_a_promise(setting: Setting):
    explored = explore(setting)
    assert not explored.broken, str(explored)
    assert explored.states > 1000


@pytest.mark.promise(
    "The explorer of `core.step` finds each fault that is planted",
    broke=(
        "a copy that returns unflagged is stale for want of an entry, a rejected message returns under its "
        "old id, an early message that has begun leaves no mark, park in two steps, no tombstone, no "
        "`done`, no reaper, id without publish id, promoted copies are fresh, a repeated request sent as "
        "the first, an overtaken delivery takes the copy along, any token will do, no task is woken, one "
        "too many, a run that dies is not kept, a sweep after an outage that does not wait for living "
        "runs, any operation that ends a lease with a copy, a dead run that loses its place, a lease that "
        "holds one unit whatever its run costs; a run superseded by what has begun, by a call that it has "
        "passed, or by one that is gone; its retry that runs"
    ),
    command="python -m tests.explorer",
)
@pytest.mark.parametrize("control", CONTROLS)
def test_a_planted_fault_is_found(control: str, capsys: pytest.CaptureFixture[str]):
    setting, protocol = CONTROLS[control]
    explored = explore(setting, protocol)
    print(f"planted: {control}\n{explored}")  # noqa: T201
    assert explored.broken, f"nobody noticed: {control}"
    assert not explore(setting).broken, "found without the planted fault, too"
