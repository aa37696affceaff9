"""The site, and the packages of `make dist`, for the tests of this folder, which one process runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
URL = "https://site.invalid/docs"
HIDDEN = {".github", ".pre-commit-config.yaml"}
"""The hidden files of the repository that go with the source."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with the packages that are installed, and without a network for clients that heed proxies."""
    folder = tmp_path_factory.mktemp("site") / "html"
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    command = ["make", "docs", "PYTHON=true", f"SITE={folder}"]
    run = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **nowhere}, check=False, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packages that are built where an owner has filled in the URL of the site."""
    clone = tmp_path_factory.mktemp("packages") / "clone"
    shutil.copytree(ROOT, clone, ignore=made_or_hidden)
    project = clone / "pyproject.toml"
    urls = re.sub(r"^Documentation = .*\n", "", project.read_text(), flags=re.MULTILINE)
    project.write_text(urls.replace("[project.urls]\n", f'[project.urls]\nDocumentation = "{URL}"\n'))
    subprocess.run([sys.executable, clone / "scripts/dist"], check=True, capture_output=True)
    return clone / "dist"


def made_or_hidden(folder: str, names: list[str]) -> set[str]:
    made = {"dist", "site", "upstream"} if Path(folder) == ROOT else {"__pycache__"}
    return {name for name in names if name in made or (name.startswith(".") and name not in HIDDEN)}
