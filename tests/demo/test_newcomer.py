"""The tutorial, in an empty folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.newcomer import PAGE, play

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.promise(
    "The commands of the [tutorial](tutorial/first-task.md) print what the page shows, with real workers in "
    "an empty folder (all but the two that install the package and start a server)",
    name="tutorial",
    broke="another word in an output of the page; late acknowledgement left out of its app",
)
@pytest.mark.slow
@pytest.mark.large  # `make test` plays them with the wheel alone
def test_the_commands_of_the_tutorial_print_what_the_page_shows(redis_url: str, tmp_path: Path) -> None:
    (folder := tmp_path / "empty").mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    assert (
        play(PAGE.read_text(), folder, redis_url, {**os.environ, "PATH": path, "PYTHONPATH": str(SOURCE)})
        > 10
    )
