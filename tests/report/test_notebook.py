"""The notebook as source: the only one, small cells, readable ids, parameters that are the package's own."""

import ast

import nbformat
import pytest

from restore_parity.checks import CHECKS
from restore_parity.params import NOTEBOOK, ROOT, Params

FILES = sorted((ROOT / "notebooks").glob("*.ipynb"))
ROLES = {"parameters", "setup", "run", "load", "plot", "check", "verdict"}


def cells(file=NOTEBOOK):
    return nbformat.read(file, as_version=4).cells


def code(file=NOTEBOOK):
    return [cell for cell in cells(file) if cell.cell_type == "code"]


def by_tag(tag):
    return [cell for cell in code() if tag in cell.metadata.get("tags", [])]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_valid_and_holds_no_outputs(file):
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.outputs or cell.execution_count for cell in code(file))
    assert notebook.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_ids_are_readable_and_each_cell_has_one_role(file):
    assert all(cell.id.replace("-", "").isalpha() for cell in cells(file))
    assert all(len(ROLES & set(cell.metadata.tags)) == 1 for cell in code(file))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_cells_say_what_and_leave_the_how_to_modules(file):
    for cell in code(file):
        tree = ast.parse(cell.source)
        assert not any(isinstance(node, ast.FunctionDef | ast.If | ast.For | ast.Try) for node in ast.walk(tree)), cell.id
        assert "parameters" in cell.metadata.tags or len(cell.source.splitlines()) <= 8, cell.id


def test_the_parameters_cell_is_the_packages_parameters_with_their_defaults():
    namespace: dict = {}
    exec(by_tag("parameters")[0].source, namespace)
    told = {name: value for name, value in namespace.items() if not name.startswith("__")}
    assert told == Params.model_construct().model_dump()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_name_of_a_notebook_hides_one_of_its_parameters(file):
    given, *others = [_bound(cell) for cell in code(file)]
    assert "runs" in given and given.isdisjoint(set().union(*others))


def _bound(cell) -> set[str]:
    """The names that a cell assigns or imports."""
    nodes = list(ast.walk(ast.parse(cell.source)))
    aliases = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {alias.asname or alias.name for alias in aliases}


def test_there_is_one_cell_a_check_in_the_order_of_the_plan():
    planned = ("mutations", *CHECKS)
    assert [cell.id for cell in by_tag("check")] == [f"check-{check}" for check in planned]
    assert [cell.source for cell in by_tag("check")] == [f'results.require(judgement, "{check}")' for check in planned]


def test_a_failed_check_lets_the_others_run_and_the_verdict_does_not():
    assert all("raises-exception" in cell.metadata.tags for cell in by_tag("check"))
    assert by_tag("verdict") == [code()[-1]] and code()[-1].metadata.tags == ["verdict"]
