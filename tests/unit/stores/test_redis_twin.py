"""The script that Redis runs says what `core` says, in the same words."""

import re
from importlib.resources import files

from celery_exclusive.core import step

OF_LUA_ALONE = {"without", "drop", "hold"}


def test_functions_of_the_script_have_the_names_of_those_that_they_mirror() -> None:
    text = (files("celery_exclusive.stores.redis") / "step.lua").read_text(encoding="utf-8")
    functions = set(re.findall(r"^local function (\w+)", text, re.MULTILINE))
    methods = {name.strip("_") for name in dir(step._Step)}
    assert len(functions) > 20
    assert functions - methods == OF_LUA_ALONE
