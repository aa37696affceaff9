"""Every reachable world of the plans of messages: one body per key, none lost, none stuck."""

from __future__ import annotations

import pytest

from tests.explorer.explore import search
from tests.explorer.messages.controls import CONTROLS
from tests.explorer.messages.model import Model
from tests.explorer.messages.settings import SETTINGS
from tests.explorer.messages.world import Setting

pytestmark = pytest.mark.timeout(600)  # it computes, and a busy machine is no bug


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_no_reachable_world_of_messages_breaks_a_promise(setting: Setting):
    explored = search(Model(setting))
    assert not explored.broken, str(explored)
    assert explored.states > 1000


SMALL = dict.fromkeys(one.setting for one in CONTROLS.values() if one.setting not in SETTINGS)


@pytest.mark.parametrize("setting", SMALL, ids=lambda setting: setting.name)
def test_without_a_planted_fault_no_promise_is_broken(setting: Setting):
    """The settings in which faults are planted: the others are explored above."""
    explored = search(Model(setting))
    assert not explored.broken, str(explored)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_fault_planted_in_a_plan_is_found_by_the_promise_that_it_breaks(name: str):
    control = CONTROLS[name]
    explored = control.explore()
    assert control.finds in explored.broken, str(explored)
