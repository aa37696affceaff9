"""docs/verification.md says what the tests declare, and a declaration that cannot be right is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import verification

FENCE = '@pytest.mark.promise("The fence grows", name="fence", broke="a|b")\ndef test_fence(): ...\n'
RESTART = '@pytest.mark.proves("fence")\ndef test_restart(): ...\n'
CHAPTER = "# Page\n\n<!-- promises: worker/test_*.py -->\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write test files and the source of the page, and return the page."""
    for name, path in {"ROOT": "", "TESTS": "", "KIT": "kit", "SOURCE": "verification.md"}.items():
        monkeypatch.setattr(verification, name, tmp_path / path)

    def write(source: str, **files: str) -> str:
        (tmp_path / "verification.md").write_text(source)
        for name, text in files.items():
            path = tmp_path / (name.replace("__", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return verification.page()

    return write


def test_the_page_says_what_the_tests_declare() -> None:
    assert verification.PAGE.read_text() == verification.page(), "python -m tests.verification writes it"


def test_a_promise_is_a_row_with_all_its_tests(write: Callable[..., str]) -> None:
    proof = "pytestmark = [pytest.mark.proves('fence')]"
    page = write(CHAPTER, worker__test_line=FENCE + RESTART, store__test_redis=proof)
    tests = "`worker/test_line.py::test_fence`, `::test_restart`; all of `store/test_redis.py`"
    assert page.endswith(f"|\n| The fence grows | {tests} | a\\|b |\n")


def test_the_page_counts_promises_and_tests(write: Callable[..., str]) -> None:
    page = write("{promises} of {tests}\n" + CHAPTER, worker__test_line=FENCE + RESTART)
    assert page.startswith("1 of 2\n")


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (RESTART, "worker/test_line.py::test_restart.*no promise has the name 'fence'"),
        (FENCE, "nothing else proves 'fence'"),
        (FENCE + FENCE + RESTART, "two promises have the name 'fence'"),
        ("@pytest.mark.promise(TEXT)\ndef test_fence(): ...\n", "literal strings, not by TEXT"),
        ('@pytest.mark.promise("a", broken="b")\ndef test_fence(): ...\n', "name, broke, figure"),
    ],
)
def test_a_wrong_declaration_is_refused(write: Callable[..., str], mistake: str, text: str) -> None:
    with pytest.raises(verification.MistakeError, match=text):
        write(CHAPTER, worker__test_line=mistake)


def test_a_file_without_a_chapter_is_refused(write: Callable[..., str]) -> None:
    with pytest.raises(
        verification.MistakeError, match=r"name unit/test_line\.py in a chapter of verification\.md"
    ):
        write(CHAPTER, unit__test_line=FENCE + RESTART)


def test_a_chapter_without_promises_is_refused(write: Callable[..., str]) -> None:
    with pytest.raises(verification.MistakeError, match=r"no promise stands in store/\*"):
        write(CHAPTER + "<!-- promises: store/* -->\n", worker__test_line=FENCE + RESTART)


def test_prose_that_names_a_missing_test_is_refused(write: Callable[..., str]) -> None:
    source = f"`worker/test_line.py::test_gone`\n{CHAPTER}"
    with pytest.raises(verification.MistakeError, match="test_gone is named, and is not there"):
        write(source, worker__test_line=FENCE + RESTART)
