"""The installed wheel, in an empty folder: what it does with and without its extra `report`."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import params

from restore_parity.params import CHECKOUT, profiles

# what checks and cuts do without, as distributions
OF_REPORTS = {"ipython", "jupyter", "matplotlib", "numpy", "pandas", "papermill", "torch", "vllm"}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    subprocess.run(words, cwd=CHECKOUT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


def environment(folder: Path, wanted: str) -> Path:
    """An environment with a wheel and what it needs, from uv's cache where all of it is there."""
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    install = [*uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", wanted]
    cached = subprocess.run([*install, "--offline"], capture_output=True)
    if cached.returncode:
        subprocess.run(install, check=True)
    return folder


@pytest.fixture(scope="session")
def bare(wheel, tmp_path_factory) -> Path:
    """An environment that holds the wheel with its base dependencies."""
    return environment(tmp_path_factory.mktemp("bare") / "venv", str(wheel))


@pytest.fixture(scope="session")
def reporting(wheel, tmp_path_factory) -> Path:
    """An environment that holds the wheel with its extra `report`: no engine."""
    return environment(tmp_path_factory.mktemp("reporting") / "venv", f"{wheel}[report]")


@pytest.fixture
def empty(tmp_path) -> Path:
    """An empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.fixture
def run(empty) -> Run:
    """Run a command of an environment in the empty folder."""

    def command(venv: Path, name: str, *words) -> subprocess.CompletedProcess[str]:
        # the checkout's own environment is no part of it
        kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG")}
        done = [str(venv / "bin" / name), *map(str, words)]
        return subprocess.run(done, cwd=empty, env=kept, capture_output=True, text=True)

    return command


def test_the_wheel_ships_the_notebooks_and_the_profiles(wheel):
    names = [name for name in zipfile.ZipFile(wheel).namelist() if "/shipped/" in name]
    notebooks = [
        f"restore_parity/shipped/notebooks/{name}.ipynb" for name in ("debug_cut", "restore_parity")
    ]
    files = [f"restore_parity/shipped/params/{name}.yaml" for name in profiles()]
    assert sorted(names) == notebooks + files


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"restore_parity"}


def test_the_bare_environment_holds_nothing_of_reports(bare, run):
    code = "import importlib.metadata as m; print(*[d.name.lower() for d in m.distributions()])"
    installed = set(run(bare, "python", "-c", code).stdout.split())
    assert "restore-parity" in installed
    assert installed.isdisjoint(OF_REPORTS)


def test_check_needs_no_more(bare, run, pristine):
    given = [f"--{name}={pristine / name}" for name in ("uninterrupted", "killed", "restored")]
    done = run(bare, "restore-parity", "check", *given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("PASS: ")


def test_cut_needs_no_more(bare, run, pristine):
    done = run(bare, "restore-parity", "cut", "1/0/0#1", "--runs", pristine)
    assert done.returncode == 0, done.stderr
    assert "the token ids of both runs are equal" in done.stdout


def test_cut_names_the_notebook_of_the_wheel(bare, run, pristine):
    done = run(bare, "restore-parity", "cut", "1/0/0#1", "--runs", pristine)
    (shipped,) = bare.glob("lib/*/site-packages/restore_parity/shipped/notebooks/debug_cut.ipynb")
    assert str(shipped) in done.stdout


def test_profiles_lists_those_of_the_wheel(bare, run):
    done = run(bare, "restore-parity", "profiles")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(profiles())


def test_a_report_names_the_extra_that_it_needs(bare, run, empty):
    done = run(bare, "restore-parity", "report", "smoke")
    assert done.returncode == 2
    assert "'restore-parity[report]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(empty.iterdir()) == []


def test_a_report_of_new_runs_names_the_extras_that_bring_an_engine(reporting, run, empty):
    done = run(reporting, "restore-parity", "report", "smoke")
    assert done.returncode == 2
    assert "'restore-parity[cpu]' or 'restore-parity[gpu]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(empty.iterdir()) == []


def test_a_report_of_saved_runs_needs_the_extra_report_alone(reporting, run, runs, empty):
    """It is made where it is typed: `runs` counts from the working directory."""
    runs.rename(empty / "saved")
    given = params().model_dump(exclude_defaults=True) | {"runs": "saved", "reuse": True}
    (empty / "tiny.yaml").write_text(json.dumps(given))
    done = run(reporting, "restore-parity", "report", "tiny.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "PASS: saved/report.html"
    assert (empty / "saved" / "report.html").is_file()
    assert sorted(file.name for file in empty.iterdir()) == ["saved", "tiny.yaml"]
