"""Reports and pages that many tests look at, each made once."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_reports import REPORTS, Made

STARTS_ENGINE = {"tiny", "overlapped"}  # fixtures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start an engine through a fixture."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        given = item.callspec.params if hasattr(item, "callspec") else {}
        if STARTS_ENGINE.intersection(item.fixturenames) or given.get("name") == "passing":
            item.add_marker("engine")


@pytest.fixture(scope="session")
def report_of(tmp_path_factory, request) -> Callable[[str], Made]:
    """A report by its name among PAGES; never to be changed."""

    @functools.cache
    def made(name: str) -> Made:
        if name == "passing":
            return Made(request.getfixturevalue("tiny"), 0)
        return REPORTS[name](tmp_path_factory.mktemp(name))

    return made


@pytest.fixture(scope="session")
def rerun(tmp_path_factory, tiny) -> Path:
    """The real runs, in a folder of their own for what runs a cut again."""
    folder = tmp_path_factory.mktemp("rerun") / "runs"
    return Path(shutil.copytree(tiny, folder))
