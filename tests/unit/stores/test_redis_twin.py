"""The script that Redis runs says what `core` says, in the same words."""

import re
from importlib.resources import files

import pytest

from celery_exclusive.core import call_steps, key_state, step

METHODS = {"recall": "recall_one", "drop": "drop_one", "hold": "hold_key"}
"""The methods whose verbs have other names."""


@pytest.mark.parametrize(
    ("script", "mirrored", "of_lua_alone", "elsewhere"),
    [
        (
            "key_state.lua",
            [key_state.KeyState],
            {"drop", "extra", "most"},
            {
                *("init", "next_number", "stays_expired", "hold", "put_behind"),
                *("open_parts", "part_lets", "closed_part"),
            },
        ),
        (
            "step.lua",
            [step._Step, call_steps.CallSteps],
            {"add_entry", "hold", "set_deadline", "change", "after"},
            {"transition", "reap", "renew", "inherited", "obsolete", "again_in_line", "set_terms", "granted"},
        ),
    ],
)
def test_functions_of_a_script_have_the_names_of_the_methods_that_they_mirror(
    script: str, mirrored: list[type], of_lua_alone: set[str], elsewhere: set[str]
) -> None:
    """`elsewhere` are methods whose counterpart is in another script, or within another function."""
    text = (files("celery_exclusive.stores.redis") / script).read_text(encoding="utf-8")
    functions = set(re.findall(r"^(?:local function |function parts\.)(\w+)", text, re.MULTILINE))
    verbs = re.findall(r"^function verbs\.(\w+)", text, re.MULTILINE)
    functions |= {METHODS.get(verb, verb) for verb in verbs}
    assert len(functions) > 10
    members = [member for part in mirrored for member in vars(part).items()]
    methods = {name.strip("_") for name, value in members if callable(value)}
    assert functions - methods == of_lua_alone
    assert methods - functions == elsewhere
