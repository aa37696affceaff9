"""mypy and pyright, as a user runs them who has installed the package beside Celery."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any, NamedTuple

from tests.pages import ROOT


class Finding(NamedTuple):
    """An error that a checker reports."""

    file: str
    line: int
    code: str
    text: str


MYPY = """
[mypy]
strict = true
python_version = 3.10
explicit_package_bases = true
ignore_missing_imports = true

[mypy-kombu.*]
implicit_reexport = true

[mypy-pages.*]
check_untyped_defs = true
disallow_untyped_defs = false
disallow_untyped_calls = false
disallow_untyped_decorators = false
disallow_incomplete_defs = false
disallow_subclassing_any = false
"""
LEFT_OUT = ("celery_exclusive", "django")
"""Our own package, which is linked as it is here, and one without types, at whose source pyright guesses."""
PYRIGHT = {
    "include": ["."],
    "pythonVersion": "3.10",
    "typeCheckingMode": "standard",
    "reportMissingImports": False,
    "reportPrivateImportUsage": False,  # of kombu, without its stubs
}


class Checkers:
    """The checkers over a folder of code, in an environment with or without the stubs of Celery."""

    def __init__(self, folder: Path, *, has_stubs: bool) -> None:
        self.code, self.folder, self.has_stubs = folder / "code", folder, has_stubs
        self.python = _environment(folder / f"environment-{has_stubs}", has_stubs=has_stubs)

    def mypy(self) -> list[Finding]:
        config = self.folder / f"mypy-{self.has_stubs}.ini"
        config.write_text(MYPY)
        cache = self.folder / f"cache-{self.has_stubs}"
        options = ("--config-file", config, "--python-executable", self.python, "--cache-dir", cache)
        lines = self._run("mypy", *options, "--output", "json", ".").splitlines()
        return [
            Finding(found["file"], found["line"], found["code"], found["message"])
            for found in map(json.loads, lines)
            if found["severity"] == "error"
        ]

    def pyright(self) -> list[Finding]:
        """Report what pyright finds. The spellings are strict where Celery's classes have types, too."""
        config = self.code / f"pyright-{self.has_stubs}.json"
        config.write_text(json.dumps(PYRIGHT | {"strict": ["api.py"] if self.has_stubs else []}))
        output = self._run("basedpyright", "--outputjson", "--project", config, "--pythonpath", self.python)
        return [
            Finding(
                str(Path(found["file"]).relative_to(self.code)),
                found["range"]["start"]["line"] + 1,
                found.get("rule", "syntax"),
                found["message"],
            )
            for found in json.loads(output)["generalDiagnostics"]
            if found["severity"] == "error"
        ]

    def _run(self, program: str, *arguments: Any) -> str:
        command = (sys.executable, "-m", program, *map(str, arguments))
        done = subprocess.run(command, cwd=self.code, capture_output=True, text=True, check=False)
        assert done.returncode in {0, 1}, done.stdout + done.stderr
        return done.stdout


def _environment(folder: Path, *, has_stubs: bool) -> Path:
    """Make an environment with the packages of this one, but with our own as it is in this folder."""
    venv.create(folder)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        is_stub = package.name.endswith("-stubs")
        if package.is_dir() and package.name not in LEFT_OUT and (has_stubs or not is_stub):
            (packages / package.name).symlink_to(package)
    (packages / "celery_exclusive").symlink_to(ROOT / "src/celery_exclusive")
    return folder / "bin/python"
