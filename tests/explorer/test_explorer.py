"""Every reachable world of `step`: nothing is lost, runs twice, is stuck or overlaps."""

from __future__ import annotations

import pytest

from tests.explorer.explore import explore
from tests.explorer.model import Setting
from tests.explorer.settings import CONTROLS, QUICK, SETTINGS

pytestmark = pytest.mark.timeout(600)  # it computes, and a busy machine is no bug
WORLDS = [pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one not in QUICK)) for one in SETTINGS]


@pytest.mark.parametrize("setting", WORLDS)
def test_no_reachable_world_breaks_a_promise(setting: Setting):
    explored = explore(setting)
    assert not explored.broken, str(explored)
    assert explored.states > 1000


@pytest.mark.parametrize("control", CONTROLS)
def test_a_planted_fault_is_found(control: str, capsys: pytest.CaptureFixture[str]):
    setting, protocol = CONTROLS[control]
    explored = explore(setting, protocol)
    print(f"planted: {control}\n{explored}")  # noqa: T201
    assert explored.broken, f"nobody noticed: {control}"
    assert not explore(setting).broken, "found without the planted fault, too"
