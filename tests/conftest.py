import os
import shutil
from pathlib import Path

import pytest
from builders import healthy_runs, report

# threads of engines that run side by side sleep while they wait: spinning, they starve each other
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
MADE_ONCE = {"tiny", "report_of"}  # fixtures that take half a minute; one process makes them


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together, where tests run in several processes, those that share what takes long."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        group = "reports" if MADE_ONCE.intersection(names) else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))


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
    """One real report of the tiny model."""
    folder = tmp_path_factory.mktemp("tiny") / "runs"
    assert report(folder) == 0
    return folder


@pytest.fixture
def saved(tiny, tmp_path) -> Path:
    """A copy of it, its runs saved and nothing reported yet."""
    reported = shutil.ignore_patterns("report*", "results.json", "*.md", "*.xml")
    return Path(shutil.copytree(tiny, tmp_path / "runs", ignore=reported))
