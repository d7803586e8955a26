"""Children that are scripts of a few lines instead of a worker with an engine."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

HEAD = """
import json, os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)

"""


@pytest.fixture
def script(tmp_path, monkeypatch) -> Callable[[str, str], None]:
    """Make a child's module the given code; the code finds its folder as `folder`."""
    package = tmp_path / "scripts" / "restore_parity"
    (package / "experiment").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "experiment" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    def write(module: str, code: str) -> None:
        (package / "experiment" / f"{module}.py").write_text(HEAD + textwrap.dedent(code))

    return write


@pytest.fixture
def killed(tmp_path) -> Path:
    """The folder of the killed run, empty."""
    folder = tmp_path / "killed"
    folder.mkdir()
    return folder
