"""The notebooks as source, and what their first cells call."""

import ast
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from restore_parity.checker.judgement import CHECKS
from restore_parity.errors import UsageError
from restore_parity.experiment.supervisor import Experiment
from restore_parity.params import Params
from restore_parity.report.notebook import (
    REPORT_NOTEBOOK,
    begin,
    enter_base_folder,
    params_of,
)

FILES = sorted(REPORT_NOTEBOOK.parent.glob("*.ipynb"))
ROLES = {"parameters", "setup", "run", "load", "plot", "check", "verdict"}
BRANCHES = (ast.FunctionDef, ast.If, ast.For, ast.While, ast.Try, ast.IfExp)

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def cells(file=REPORT_NOTEBOOK):
    return nbformat.read(file, as_version=4).cells


def code(file=REPORT_NOTEBOOK):
    return [cell for cell in cells(file) if cell.cell_type == "code"]


def by_tag(tag):
    return [cell for cell in code() if tag in cell.metadata.tags]


@every_file
def test_it_is_valid_and_runs_with_any_python(file):
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"


@every_file
def test_it_holds_no_outputs(file):
    assert not any(cell.outputs for cell in code(file))
    assert not any(cell.execution_count for cell in code(file))


@every_file
def test_ids_are_readable(file):
    assert all(cell.id.replace("-", "").isalpha() for cell in cells(file))


@every_file
def test_each_cell_has_one_role(file):
    roles = {cell.id: ROLES & set(cell.metadata.tags) for cell in code(file)}
    assert [cell for cell, found in roles.items() if len(found) != 1] == []


@every_file
def test_cells_leave_the_how_to_modules(file):
    nodes = [(cell.id, node) for cell in code(file) for node in ast.walk(ast.parse(cell.source))]
    assert [cell for cell, node in nodes if isinstance(node, BRANCHES)] == []


@every_file
def test_cells_are_short(file):
    others = [cell for cell in code(file) if "parameters" not in cell.metadata.tags]
    assert [cell.id for cell in others if len(cell.source.splitlines()) > 8] == []


def test_the_parameters_cell_is_the_packages_parameters_with_their_defaults():
    namespace: dict = {}
    exec(by_tag("parameters")[0].source, namespace)
    given = {name: value for name, value in namespace.items() if not name.startswith("__")}
    assert given == Params().model_dump()


@every_file
def test_no_name_of_a_notebook_hides_one_of_its_parameters(file):
    parameters, *others = [_bound(cell) for cell in code(file)]
    assert "runs" in parameters
    assert parameters.isdisjoint(set().union(*others))


def _bound(cell) -> set[str]:
    """The names that a cell assigns or imports."""
    names = set()
    for node in ast.walk(ast.parse(cell.source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_there_is_one_cell_a_check_in_the_order_of_the_plan():
    planned = ("mutations", *CHECKS)
    sources = {f"check-{check}": f'results.require(judgement, "{check}")' for check in planned}
    assert [(cell.id, cell.source) for cell in by_tag("check")] == list(sources.items())


def test_a_failed_check_lets_the_others_run():
    assert all("raises-exception" in cell.metadata.tags for cell in by_tag("check"))


def test_the_last_cell_is_the_verdict_and_fails_the_notebook():
    assert by_tag("verdict") == [code()[-1]]
    assert code()[-1].metadata.tags == ["verdict"]


def shell(**names) -> SimpleNamespace:
    """What the cells see of IPython: the names of a running notebook."""
    hidden = {"exit": "of IPython"}
    return SimpleNamespace(
        user_ns={"In": [""], "Out": {}, "_i": "", "shown": print, **hidden, **names},
        user_ns_hidden=hidden,
    )


def test_every_plain_value_is_a_parameter():
    assert params_of(shell(runs="elsewhere", steps=3)) == Params(runs="elsewhere", steps=3)


def test_a_misspelt_parameter_is_a_mistake():
    with pytest.raises(UsageError, match="did you mean 'near_tie_margin'"):
        params_of(shell(near_tie_magrin=0.1))


class Begun:
    """Stands for a workload that waits at its gate."""

    ended = False

    def end(self) -> None:
        self.ended = True


def test_running_the_cells_again_ends_what_they_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"runs": str(tmp_path), "reuse": True}
    earlier, workload = Experiment(Params(**given)), Begun()
    earlier.begun["restored"] = workload
    experiment = begin(shell(experiment=earlier, **given))
    assert workload.ended
    assert experiment is not earlier


@pytest.fixture
def notebooks(tmp_path) -> Path:
    """A project's notebooks folder, with the report's notebook in it."""
    folder = tmp_path / "project" / "notebooks"
    folder.mkdir(parents=True)
    (folder / REPORT_NOTEBOOK.name).touch()
    return folder


def base_from(folder: Path, monkeypatch) -> Path:
    monkeypatch.chdir(folder)
    enter_base_folder("runs/smoke")
    return Path.cwd()


def test_relative_paths_count_from_the_working_directory(tmp_path, monkeypatch):
    assert base_from(tmp_path, monkeypatch) == tmp_path


def test_of_the_parents_the_nearest_that_has_the_runs_counts(notebooks, monkeypatch):
    (notebooks.parent / "runs" / "smoke").mkdir(parents=True)
    (notebooks.parent.parent / "runs" / "smoke").mkdir(parents=True)
    assert base_from(notebooks, monkeypatch) == notebooks.parent


def test_a_report_opened_among_its_runs_finds_them(notebooks, monkeypatch):
    runs = notebooks.parent / "runs" / "smoke"
    runs.mkdir(parents=True)
    assert base_from(runs, monkeypatch) == notebooks.parent


def test_before_there_are_runs_the_notebooks_parent_counts(notebooks, monkeypatch):
    assert base_from(notebooks, monkeypatch) == notebooks.parent


def test_another_folder_called_notebooks_is_left_alone(notebooks, monkeypatch):
    (notebooks / REPORT_NOTEBOOK.name).unlink()
    assert base_from(notebooks, monkeypatch) == notebooks
