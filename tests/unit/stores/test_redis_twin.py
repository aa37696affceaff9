"""The script that Redis runs says what `core` says, in the same words."""

import re
from importlib.resources import files

import pytest

from celery_exclusive.core import key_state, step


@pytest.mark.parametrize(
    ("script", "mirrored", "of_lua_alone"),
    [
        ("key_state.lua", key_state.KeyState, {"without", "drop"}),
        ("step.lua", step._Step, {"hold"}),
    ],
)
def test_functions_of_a_script_have_the_names_of_the_methods_that_they_mirror(
    script: str, mirrored: type, of_lua_alone: set[str]
) -> None:
    text = (files("celery_exclusive.stores.redis") / script).read_text(encoding="utf-8")
    functions = set(re.findall(r"^local function (\w+)", text, re.MULTILINE))
    assert len(functions) > 10
    assert functions - {name.strip("_") for name in vars(mirrored)} == of_lua_alone
