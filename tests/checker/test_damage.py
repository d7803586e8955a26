"""Damaged and hostile files: one clear message, the right exit code, no traceback."""

import json
import re
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
from builders import at_place, change_row
from edits import FINISHED, TRAINED, change_info, change_journal, change_lines

from restore_parity.cli import main

NESTED = b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n"


class Done(NamedTuple):
    """How a command ended, and all it printed."""

    code: int
    printed: str


@pytest.fixture
def check(runs, monkeypatch, capsys) -> Callable[..., Done]:
    """The command `check` over the (broken) runs."""

    def run(*more, uninterrupted="uninterrupted") -> Done:
        words = ["check", "--uninterrupted", runs / uninterrupted, "--restored", runs / "restored"]
        words += ["--killed", runs / "killed", *more]
        monkeypatch.setattr(sys, "argv", ["restore-parity", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        return Done(caught.value.code or 0, "".join(capsys.readouterr()))

    return run


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("killed/run.json", 3),
        ("killed/journal.jsonl", 3),
        ("restored/run.json", 3),
        ("restored/restores.jsonl", 1),
    ],
)
@pytest.mark.parametrize(
    "content",
    [NESTED, b"\xff\xfe\x00\n", b"[]\n", b"1e400\n"],
    ids=["nested", "bytes", "list", "huge"],
)
def test_a_file_that_is_no_such_file_is_named(runs, check, name, code, content):
    (runs / name).write_bytes(content)
    done = check()
    assert done.code == code
    assert name.split("/")[1] in done.printed


@pytest.mark.parametrize(
    "name",
    ["killed/run.json", "killed/journal.jsonl", "restored/run.json", "restored/restores.jsonl"],
)
def test_a_folder_in_a_files_place_is_named(runs, check, name):
    (runs / name).unlink()
    (runs / name).mkdir()
    done = check()
    assert done.code == 3
    assert f"{name}: " in done.printed
    assert "Is a directory" in done.printed


@pytest.mark.parametrize(
    "change", [{"key": "x"}, {"key": "1/0"}, {"call_index": -5}, {"max_tokens": 0}], ids=str
)
def test_a_call_of_no_place_is_a_broken_journal(runs, check, change):
    file = runs / "killed" / "journal.jsonl"
    first, *rest = file.read_text().splitlines(keepends=True)
    file.write_text("".join([json.dumps(json.loads(first) | change) + "\n", *rest]))
    done = check()
    assert done.code == 3
    assert "journal.jsonl, line 1, byte 0: broken journal record" in done.printed


@pytest.mark.parametrize("run", ["killed", "restored"])
@pytest.mark.parametrize(
    "saved", [{"old_thing": 1}, {"steps": 10**9}, {"steps": "two"}], ids=["unknown", "huge", "text"]
)
def test_parameters_of_another_version_are_incomplete_and_name_the_file(runs, check, run, saved):
    change_info(runs, run, params=saved)
    done = check()
    assert done.code == 3
    wrong = "params_sha256" if run == "killed" else "params: "
    assert re.search(rf"{run}/run\.json[:,] {wrong}", done.printed)


@pytest.mark.parametrize("name", ["uninterrupted", "killed", "restored"])
def test_a_run_without_its_run_json_is_incomplete(runs, check, name):
    (runs / name / "run.json").unlink()
    done = check()
    assert done.code == 3
    assert f"{name}/run.json" in done.printed


def test_a_run_compared_with_itself_is_incomplete(check):
    done = check(uninterrupted="restored")
    assert done.code == 3
    assert "expected  different runs" in done.printed


def test_a_lone_surrogate_is_told_where_it_stands(runs, check):
    def with_surrogate(line):
        return line.replace(b'"sample_id":"', b'"sample_id":"\\ud800')

    change_lines(runs, lambda lines: [with_surrogate(lines[0]), *lines[1:]])
    done = check()
    assert done.code == 1
    assert "training.jsonl, line 1" in done.printed


@pytest.mark.parametrize(
    "change",
    [{"prev_top_logprobs": [None]}, {"token_ids": [2**40]}],
    ids=["a short witness", "a huge id"],
)
def test_columns_that_could_not_be_read_later_are_damage(runs, check, change):
    change_row(runs, "1/0/0", lambda row: row.update(change), "uninterrupted")
    done = check()
    assert done.code == 1
    assert "dump-complete" in done.printed


def test_thresholds_come_from_the_runs_where_none_are_given(runs, check):
    """The defaults would allow this difference; the runs' own parameters are strict."""
    change_row(runs, FINISHED, at_place(-3, generation_logprobs=-0.31))
    done = check()
    assert done.code == 1
    assert "judged by the parameters in" in done.printed


def test_thresholds_of_a_file_go_before_the_runs_own(runs, check, tmp_path):
    for run in TRAINED:
        logprob = -0.31 if run == "restored" else -0.3
        change_row(runs, FINISHED, at_place(-3, prev_logprobs=logprob), run)
    (tmp_path / "loose.yaml").write_text("max_policy_diff: 0.3")
    assert check("--params", tmp_path / "loose.yaml").code == 0


def test_results_are_not_written_over_a_folder(runs, check):
    done = check("--json", runs / "killed")
    assert done.code == 2
    assert "Is a directory" in done.printed


# --- values of another type -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"input_length": 115.0}, "Expected `int`, got `float`"),
        ({"group_id": 7}, "Expected `str`, got `int`"),
        ({"generation_logprobs": [1e-9]}, "Expected `float` <= 0"),
        ({"generation_logprobs": [None]}, "got `null`"),
    ],
    ids=["an integer with a point", "an integer group", "a log-probability over 0", "null"],
)
def test_a_row_of_other_types_is_damage_of_that_row(runs, check, change, wrong):
    """Case 51: a value is of its documented type in every file, or it is told."""
    change_row(runs, FINISHED, lambda row: row.update(change))
    done = check()
    assert done.code == 1
    assert "training.jsonl, line 2, row 0" in done.printed
    assert wrong in done.printed


@pytest.mark.parametrize(
    "name", ["killed/journal.jsonl", "restored/restores.jsonl", "restored/training.jsonl"]
)
def test_an_empty_line_is_skipped_in_every_file(runs, check, name):
    with (runs / name).open("ab") as stream:
        stream.write(b"\n")
    assert check().code == 0


@pytest.mark.parametrize(
    "name",
    [
        "killed/run.json",
        "killed/journal.jsonl",
        "restored/restores.jsonl",
        "restored/training.jsonl",
    ],
)
def test_a_byte_order_mark_is_skipped_in_every_file(runs, check, name):
    content = (runs / name).read_bytes()
    (runs / name).write_bytes(b"\xef\xbb\xbf" + content)
    assert check().code == 0


def test_a_log_probability_that_was_not_finite_names_its_place_in_the_journal(runs, check):
    """Case 46."""
    change_journal(runs, "delta", lambda delta: delta.update(logprobs=[None]))
    done = check()
    assert done.code == 3
    assert (
        "broken journal record: Expected `float`, got `null` - at `$.logprobs[0]`" in done.printed
    )


# --- names and tokenizers -------------------------------------------------------------------------


def test_a_model_of_an_absurd_name_stops_nothing(runs, check):
    """Case 47."""
    for run in ("uninterrupted", "killed", "restored"):
        change_info(runs, run, model_folder="m" * 5000)
    assert check().code == 0


def test_a_tokenizer_that_cannot_be_read_stops_nothing(runs, check, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    for run in ("uninterrupted", "killed", "restored"):
        change_info(runs, run, model_folder=str(tmp_path))
    assert check().code == 0
