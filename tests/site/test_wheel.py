"""The wheel in an environment that has nothing else, and the tag of a release."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox
import pytest

from tests.newcomer import PAGE, play
from tests.site.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]
VERSION = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["version"]


@pytest.fixture(scope="module")
def commands(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the wheel, its extra `redis`, and what these need."""
    venv = tmp_path_factory.mktemp("wheel") / "venv"
    (wheel,) = packages.glob("*.whl")
    pins = ROOT / "requirements/demo.txt"
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, venv], check=True)
    install = ["uv", "pip", "install", "--quiet", "--python", venv / "bin/python", "--constraint", pins]
    subprocess.run([*install, f"{wheel}[redis]"], check=True)
    return venv / "bin"


def test_the_wheel_has_the_version_of_the_project(commands: Path) -> None:
    code = "from importlib.metadata import version; print(version('celery-exclusive'))"
    printed = subprocess.run(
        [commands / "python", "-I", "-c", code], check=True, capture_output=True, text=True
    )
    assert printed.stdout.strip() == VERSION


@pytest.mark.promise(
    "The wheel, in an environment with nothing else, is enough for the tutorial: in an empty folder each of "
    "its commands prints what the page shows",
    broke="no Lua files in the wheel; no entry point of `locks`",
)
@pytest.mark.proves("tutorial")
def test_the_commands_of_the_tutorial_print_what_it_shows_with_the_wheel_alone(
    commands: Path, redis_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "newcomer"
    folder.mkdir()
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = os.pathsep.join([str(commands), os.environ["PATH"]])
    assert play(PAGE.read_text(), folder, redis_url, {**others, "PATH": path}) > 10


@pytest.mark.promise(
    "A tag of a release is the version of the project, and no release is built without the URL of its site",
    broke="another tag built; a tag built without the URL",
)
@pytest.mark.parametrize(
    ("tag", "problem"),
    [("v0.0.1", "the tag is v0.0.1"), (f"v{VERSION}", "without working links")],
    ids=["another version", "no site"],
)
def test_a_tag_that_cannot_be_released_is_refused(
    packages: Path, tmp_path: Path, tag: str, problem: str
) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(packages.parent, clone)
    shutil.rmtree(clone / "dist")
    project = clone / "pyproject.toml"
    project.write_text(re.sub(r"\nDocumentation = .*", "", project.read_text()))
    command = [sys.executable, clone / "scripts/dist", tag]
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert problem in refused.stderr
    assert refused.returncode == 1
    assert not (clone / "dist").exists()
