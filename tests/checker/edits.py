"""Edits of saved runs that the tests of the checker share, and the places they edit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders import change_records, change_row, params

from restore_parity.checker.checks import judge
from restore_parity.checker.dumps import COLUMNS, Runs
from restore_parity.checker.foreign import cuts_of_records
from restore_parity.checker.judgement import Judgement
from restore_parity.checker.loading import load_run, load_runs
from restore_parity.records import CutResult, Key, Row

# A cut of 3 prefix and 11 tail tokens, which are the last 14 of its row; a row without a cut.
CUT, ROW, FINISHED = "1/0/0#1", "1/0/0", "1/0/1"
TERMINAL = "2/1/1#1"  # a cut whose limit of 9 tokens was used up at the kill
CUTS = (CUT, "1/1/0#1", "1/1/1#0", "2/0/1#1", TERMINAL)
TRAINED = ("uninterrupted", "restored")
# a near-tie may move what a mean is taken over; single log-probabilities stay strict
LOOSE = {
    "near_tie_margin": 0.3,
    "max_set_aside": 0.5,
    "max_mean_logprob_diff": 0.05,
    "max_gap_increase": 0.01,
}
LOOSE_ALL = LOOSE | {"max_logprob_diff": 0.3, "max_policy_diff": 1e-3}
NO_MEANS = {"max_mean_logprob_diff": 9.0, "max_gap_increase": 9.0}  # single values alone


def row_of(runs: Path, key: str, run: str = "restored") -> Row:
    """A row as it stands in a dump."""
    row = load_run(runs / run).only(Key.parse(key))
    assert row is not None
    return row


def cut_of(judgement: Judgement, name: str = CUT) -> CutResult:
    """What was found of one cut."""
    return next(cut for cut in judgement.cuts if cut.key == name)


def judged_without_killed(runs: Path, settings: bool = True, **thresholds: Any) -> Judgement:
    """The judgement of two dumps alone; what was cut is known from the restore records.

    `settings`: their run.json is at hand.
    """
    loaded = load_runs(runs)
    two = Runs(uninterrupted=loaded.uninterrupted, restored=loaded.restored)
    for run in two.trained:
        if not settings:
            run.info = run.params = None
    return judge(two, params(**thresholds), cuts=cuts_of_records(two.restored))


def found_by(judgement: Judgement) -> list[tuple[str, str]]:
    """The check and the key of every problem."""
    return [(problem.check, problem.key) for problem in judgement.problems]


def change_every_row(runs: Path, change: Callable[[dict], Any]) -> None:
    """Change all rows of both dumps."""
    for run in TRAINED:
        for key in params().row_keys():
            change_row(runs, str(key), change, run)


def change_both(runs: Path, key: str, change: Callable[[dict], Any]) -> None:
    """Change one row in both dumps."""
    for run in TRAINED:
        change_row(runs, key, change, run)


def change_lines(
    runs: Path, change: Callable[[list[bytes]], list[bytes]], run: str = "restored"
) -> None:
    """Change the lines of a dump; line n holds row n of the plan."""
    file = runs / run / "training.jsonl"
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))


def resized(edit: Callable[[list], list]) -> Callable[[dict], None]:
    """A change of a row: every column edited alike, and its length with them."""

    def change(row: dict) -> None:
        row.update({name: edit(row[name]) for name in COLUMNS if row.get(name) is not None})
        row["input_length"] = len(row["token_ids"])

    return change


def change_record(runs: Path, event: str, cut: str = CUT, **fields: Any) -> None:
    """Change fields of the restore records of one kind and one cut."""

    def change(records: list[dict]) -> list[dict]:
        for record in records:
            if record["event"] == event and record["source_call_id"].endswith(cut):
                record.update(fields)
        return records

    change_records(runs, change)


def repeat_record(runs: Path, event: str, times: int, cut: str = CUT) -> None:
    """Let the restore records of one kind and one cut stand so many times."""

    def change(records: list[dict]) -> list[dict]:
        kept = []
        for record in records:
            same = record["event"] == event and record["source_call_id"].endswith(cut)
            kept += [record] * (times if same else 1)
        return kept

    change_records(runs, change)


def change_journal(runs: Path, event: str, change: Callable[[dict], Any], cut: str = CUT) -> None:
    """Change the killed run's journal records of one kind and one cut."""
    file = runs / "killed" / "journal.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        if record["event"] == event and record["call_id"].endswith(cut):
            change(record)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def recapture(runs: Path, ids: list[int], logprobs: list[float], cut: str = CUT) -> None:
    """Let the killed run have captured other tokens of a call; a journal record holds one."""
    tokens = iter(zip(ids, logprobs, strict=True))

    def change(delta: dict) -> None:
        token, logprob = next(tokens)
        delta.update(ids=[token], logprobs=[logprob])

    change_journal(runs, "delta", change, cut)


def change_info(runs: Path, run: str, **fields: Any) -> None:
    """Change fields of a run.json."""
    file = runs / run / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def exit_of(runs: Path) -> dict:
    """How the killed run ended, as its run.json tells it."""
    return json.loads((runs / "killed" / "run.json").read_text())["exit"]
