"""Reports of saved runs, healthy and damaged, that tests look at."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import nbformat
from builders import change_row, choose, healthy_runs, params
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from restore_parity.checker.loading import load_run
from restore_parity.params import Params
from restore_parity.records import Key
from restore_parity.report.notebook import REPORT_NOTEBOOK
from restore_parity.report.report import make_report

HOSTILE = {
    77: "<script>window.hacked = 1</script>",
    78: "</pre></section><b id=hacked>",
    79: "[link](javascript:alert(1)) # *markdown* `x`",
    80: "\x1b[31mred\x1b[2J",
    81: "\u202eright to left\u2066",
    82: "x" * 20_000,
}
MANY = {
    "prompts_per_step": 20,
    "generations_per_prompt": 4,
    "list_lengths": [3] * 20,
    "closing_limit_tokens": [14] * 20,
}


class Made(NamedTuple):
    """A report: the folder it is in, and the exit code that making it ended with."""

    folder: Path
    exit_code: int

    @property
    def page(self) -> Path:
        return self.folder / "report.html"


def make(runs: Path, given: Params, notebook: Path = REPORT_NOTEBOOK) -> Made:
    """The report of saved runs."""
    changed = given.model_dump(exclude_defaults=True) | {"runs": str(runs), "reuse": True}
    return Made(runs, make_report(Params.model_validate(changed), changed, notebook))


def notebook_with(file: Path, cell_id: str, source: str) -> Path:
    """The report's notebook with another source of one cell."""
    notebook = nbformat.read(REPORT_NOTEBOOK, as_version=4)
    next(cell for cell in notebook.cells if cell.id == cell_id).source = source
    nbformat.write(notebook, file)
    return file


def replace_token(place: int, token: int) -> Callable[[dict], None]:
    """A change of one token of a row."""
    return lambda row: row["token_ids"].__setitem__(place, token)


def failing(folder: Path) -> Made:
    """One token of a cut's tail is another; a notebook saved with a kernel that is not here."""
    runs = healthy_runs(folder / "runs")
    change_row(runs, "1/1/1", replace_token(-2, 99))
    notebook = nbformat.read(REPORT_NOTEBOOK, as_version=4)
    notebook.metadata.kernelspec = {
        "name": "conda-env-x-py",
        "display_name": "x",
        "language": "python",
    }
    nbformat.write(notebook, folder / "other_kernel.ipynb")
    return make(runs, params(), folder / "other_kernel.ipynb")


def stopped(source: str) -> Callable[[Path], Made]:
    """A report whose kernel ends in the cell of a check."""

    def stop(folder: Path) -> Made:
        notebook = notebook_with(folder / "stopped.ipynb", "check-same-setup", source)
        return make(healthy_runs(folder / "runs"), params(), notebook)

    return stop


def large(folder: Path) -> Made:
    """More cuts than are drawn singly, two of them failing."""
    given = params(cut_tokens={}, **MANY)
    runs = healthy_runs(folder / "runs", given, steps=6)
    for key in ("1/3/0", "2/15/3"):
        change_row(runs, key, replace_token(-2, 99))
    return make(runs, given)


def row_set_aside(runs: Path) -> Params:
    """Make runs of which 2/1/0, a row without a cut, parts at a near-tie in the restored run.

    Four calls run at a time, so the killed run has not begun that row's second call. Returns the
    parameters that set it aside.
    """
    given = params(cut_tokens={}, near_tie_margin=0.3, max_set_aside=0.5)
    healthy_runs(runs, given, steps=16, width=4)
    token = load_run(runs / "uninterrupted").only(Key(2, 1, 0)).token_ids[-3]
    choose(runs, "uninterrupted", "2/1/0", -3, [token, 99], 0.125)
    choose(runs, "restored", "2/1/0", -3, [99, token], 0.25)
    return given


def aside(folder: Path) -> Made:
    """A row without a cut is set aside."""
    return make(folder / "runs", row_set_aside(folder / "runs"))


def hostile(folder: Path) -> Made:
    """A failing run whose model text, groups and files are what an attacker would choose."""
    vocabulary = {HOSTILE.get(i, chr(i) if i > 32 else f"t{i}"): i for i in range(128)}
    (folder / "model").mkdir()
    Tokenizer(WordLevel(vocabulary, unk_token="t0")).save(str(folder / "model" / "tokenizer.json"))
    given = params(model=str(folder / "model"))
    runs = healthy_runs(folder / "runs", given)
    for place, token in enumerate(HOSTILE, start=2):
        change_row(runs, "1/0/0", replace_token(-place, token))
    for text in HOSTILE.values():
        change_row(
            runs, "2/0/0", lambda row, text=text: row.update(group_id=row["group_id"] + text)
        )
    return make(runs, given)


REPORTS = {
    "failing": failing,
    "killed": stopped("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    "left": stopped("import sys; sys.exit(0)"),
    "large": large,
    "aside": aside,
    "hostile": hostile,
}
PAGES = ("passing", *REPORTS)  # the passing one is the real report's
