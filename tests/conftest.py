import os
import shutil
from pathlib import Path

import pytest
from builders import healthy_runs, report
from filelock import FileLock

# Threads of engines that run side by side sleep while they wait: spinning, they starve each other.
for name, value in {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}.items():
    os.environ.setdefault(name, value)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory) -> Path:
    """Three healthy runs as files; never to be changed."""
    return healthy_runs(tmp_path_factory.mktemp("healthy") / "runs")


@pytest.fixture
def runs(pristine, tmp_path) -> Path:
    """A copy of the healthy runs to break."""
    return Path(shutil.copytree(pristine, tmp_path / "runs"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """One real report of the tiny model, made once however many processes run the tests."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "tiny" / "runs"
    with FileLock(shared / "tiny.lock"):
        if not folder.exists():
            folder.parent.mkdir()
            assert report(folder) == 0
    return folder


@pytest.fixture
def saved(tiny, tmp_path) -> Path:
    """A copy of it, its runs saved and nothing reported yet."""
    reported = shutil.ignore_patterns("report*", "results.json", "*.md", "*.xml")
    return Path(shutil.copytree(tiny, tmp_path / "runs", ignore=reported))
