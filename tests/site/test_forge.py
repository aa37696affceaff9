"""The files for a public forge agree with the Makefile, `make matrix` and docs/project/support.md."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import nox
import pytest
import yaml

import noxfile

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
OTHERS = [ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]
HOST = re.compile(r"\b[\w-]+\.(org|com|net|io|dev)\b")
PINNED = re.compile(r"uses: (\./\S+|[\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)")

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="this copy of the sources has no .github/")


@cache
def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = read(ROOT / f".github/workflows/{name}.yml")["jobs"]
    return found


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in read(file)["jobs"].values() for step in job.get("steps", ())]


def values(job: str, name: str) -> list[str]:
    """The values of a matrix of the tests."""
    matrix = jobs("test")[job]["strategy"]["matrix"]
    return matrix.get(name) or [each[name] for each in matrix["include"]]


def names(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@pytest.mark.promise(
    "Workflows of a forge call targets of the Makefile and sessions of noxfile.py, pin actions by the "
    "commits of their releases, may write nothing but what a job needs, and name no host of a registry. No "
    "forge has run them yet",
    name="workflows",
    broke="a target that is not there; a tag of no session; an action by its tag; a right to write",
)
@pytest.mark.parametrize("file", WORKFLOWS, ids=names)
def test_a_workflow_calls_what_is_there_and_may_write_only_what_it_needs(file: Path) -> None:
    workflow = read(file)
    assert {"name", True, "permissions", "jobs"} <= workflow.keys()  # YAML takes "on" for a boolean
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert "uses" in job or {"runs-on", "timeout-minutes", "steps"} <= job.keys(), name
        extra = {**job.get("permissions", {})}
        assert extra.pop("contents", "read") == "read", name
        assert extra.keys() <= {"id-token", "pages"}, name
        assert not extra or "uses" in job or job["environment"], name
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {found[1] for step in steps(file) if (found := re.match(r"make ([a-z-]+)", step.get("run", "")))}
    assert called <= targets
    used = re.findall(r"^[ -]*(uses: .*)$", file.read_text(), re.MULTILINE)
    assert not [line for line in used if not PINNED.fullmatch(line)]


@pytest.mark.proves("workflows")
def test_the_tags_that_workflows_give_to_nox_are_tags_of_its_sessions() -> None:
    given = " ".join(step.get("run", "") for file in WORKFLOWS for step in steps(file))
    tags = {re.sub(r"\$\{\{.*?\}\}", "", tag) for tag in re.findall(r"-t ((?:\$\{\{.*?\}\}|[\w.-])+)", given)}
    assert tags == {"celery-", "django-", "redis-py-", "upstream"}
    assert set(re.findall(r"-s ([\w-]+)", given)) == {"matrix"}
    assert all(hasattr(noxfile, session) for session in ("matrix", "django", "redis_py", "upstream"))


@pytest.mark.proves("workflows")
@pytest.mark.parametrize("file", [*WORKFLOWS, *FORMS, *OTHERS], ids=names)
def test_a_file_of_the_forge_names_no_host(file: Path) -> None:
    assert not HOST.search(file.read_text())


@pytest.mark.promise(
    "The versions of Python, Celery, redis-py and Django are the same in the classifiers, in `make matrix` "
    "and in the workflows; the page about support has each version of them and of each server",
    broke="a Python in the classifiers alone; a PostgreSQL in the workflow alone",
)
def test_each_place_that_lists_versions_has_the_same_ones() -> None:
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    classifiers = " ".join(project["classifiers"])
    assert re.findall(r"Python :: (3\.\d+)", classifiers) == [*noxfile.PYTHONS] == values("matrix", "python")
    assert project["requires-python"] == f">={noxfile.PYTHONS[0]}"
    assert values("matrix", "celery") == [*noxfile.CELERIES]
    assert values("redis-py", "redis-py") == [*noxfile.REDIS_CLIENTS]
    assert [*zip(values("django", "python"), values("django", "django"), strict=True)] == [*noxfile.DJANGOS]
    page = (ROOT / "docs/project/support.md").read_text()
    rows = {
        "Python": noxfile.PYTHONS,
        "Celery": noxfile.CELERIES,
        "redis-py": noxfile.REDIS_CLIENTS,
        "Django": [django for _, django in noxfile.DJANGOS],
    }
    servers = {
        "postgres": "PostgreSQL",
        "mariadb": "MariaDB",
        "memcached": "memcached",
        "redis": "Redis",
        "valkey/valkey": "Valkey",
    }
    for image in values("servers", "image"):
        name, _, version = image.partition("@")[0].removesuffix("-bookworm").partition(":")
        rows[servers[name]] = [*rows.get(servers[name], ()), version]
    for name, versions in rows.items():
        cells = " ".join(re.findall(rf"^\| (.*\b{name} .*?) \|", page, re.MULTILINE))
        assert not [version for version in versions if not re.search(rf"(?<![\d.]){version}\b", cells)], name


@pytest.mark.proves("workflows")
def test_the_rules_that_raise_pins_find_the_requirements_and_the_images_of_servers() -> None:
    found = json.loads((ROOT / ".github/renovate.json").read_text())
    (pattern,) = found["pip_requirements"]["managerFilePatterns"]
    pinned = [names(file) for file in (ROOT / "requirements").glob("*.txt")]
    assert pinned
    assert all(re.search(pattern.strip("/"), name) for name in pinned)
    ((images,),) = (each["matchStrings"] for each in found["customManagers"])
    images = re.compile(images.replace("(?<", "(?P<"))
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    read = [f"{each['depName']}:{each['currentValue']}" for each in images.finditer(workflow)]
    assert read == [image.partition("@")[0] for image in values("servers", "image")]
    assert images.search(f'image: "redis:8@sha256:{"0" * 64}"')


@pytest.mark.promise(
    "The hooks of pre-commit are parts of `make check`; the forms for issues have what a forge needs of them",
    broke="a hook that is in no `make check`; a form without a description",
)
def test_each_hook_is_a_part_of_make_check() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    parts = {line.strip().replace("@$(BIN)/", ".venv/bin/") for line in recipe.splitlines()}
    hooks = [hook for repository in read(OTHERS[0])["repos"] for hook in repository["hooks"]]
    assert len(hooks) >= 5
    assert not [hook["id"] for hook in hooks if hook["entry"] not in parts]
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in hooks)


@pytest.mark.parametrize("file", [form for form in FORMS if form.name != "config.yml"], ids=names)
def test_a_form_for_issues_has_a_name_a_description_and_labelled_fields(file: Path) -> None:
    form = read(file)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    ids = [field["id"] for field in fields]
    assert len({*ids}) == len(ids)
    assert all(field["attributes"]["label"] for field in fields)


def test_the_citation_has_what_its_format_needs() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["license"] in (ROOT / "pyproject.toml").read_text()


def test_the_changelog_begins_with_the_version_of_the_project() -> None:
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    assert (
        re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == project["version"]
    )
