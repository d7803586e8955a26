import shutil
from pathlib import Path

import pytest
from builders import healthy_runs


@pytest.fixture(scope="session")
def pristine(tmp_path_factory) -> Path:
    """Three healthy runs as files; never to be changed."""
    return healthy_runs(tmp_path_factory.mktemp("healthy") / "runs")


@pytest.fixture
def runs(pristine, tmp_path) -> Path:
    """A copy of the healthy runs to break."""
    return Path(shutil.copytree(pristine, tmp_path / "runs"))
