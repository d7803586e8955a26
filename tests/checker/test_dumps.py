"""The row index: one streaming pass, damage told with file, line and field, nothing dropped."""

import json
import tracemalloc

import msgspec
import pytest
from builders import at_place, change_row, failed, judged, params
from edits import (
    FINISHED,
    change_both,
    change_info,
    change_lines,
    change_record,
    judged_without_killed,
    row_of,
)

from restore_parity.checker.dumps import COLUMNS, run_of
from restore_parity.checker.loading import load_killed, load_run, load_runs
from restore_parity.errors import IncompleteError
from restore_parity.records import Key

DUMP = "training.jsonl"
EVERY_COLUMN = [
    name for name in COLUMNS if name != "prev_top_logprobs"
]  # which the scripted rows lack


def damage(runs):
    """The damage of the restored run's files."""
    return load_run(runs / "restored").problems


def the_damage(runs):
    """The only damage there is."""
    (problem,) = damage(runs)
    return problem


# --- rows -----------------------------------------------------------------------------------------


def test_every_row_is_found_by_its_key(pristine):
    run = load_run(pristine / "restored")
    assert sorted(run.rows) == params().row_keys()
    assert run.problems == []


def test_a_row_is_read_again_as_it_stands(pristine):
    chunk = json.loads((pristine / "restored" / DUMP).read_text().splitlines()[3])
    row = msgspec.to_builtins(row_of(pristine, "1/1/1"))
    assert row["generation_logprobs"] == chunk["rows"][0]["generation_logprobs"]


def test_rows_of_one_line_are_told_apart(runs):
    def one_line(lines):
        rows = [json.loads(line)["rows"][0] for line in lines[:4]]
        return [json.dumps({"train_step": 1, "rows": rows}).encode() + b"\n", *lines[4:]]

    change_lines(runs, one_line)
    run = load_run(runs / "restored")
    (ref,) = run.rows[Key(1, 1, 0)]
    assert ref.place == "training.jsonl, line 1, row 2"
    indexes = [run.only(key).generation_index for key in run.rows]
    assert indexes == [key.generation_index for key in run.rows]


def test_a_doubled_row_keeps_both_places(runs):
    change_lines(runs, lambda lines: [*lines, lines[0]])
    run = load_run(runs / "restored")
    assert [ref.place for ref in run.rows[Key(1, 0, 0)]] == [
        "training.jsonl, line 1, row 0",
        "training.jsonl, line 9, row 0",
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[1:],
        lambda lines: [*lines, lines[0]],
        lambda lines: [lines[0].replace(b'"input_length":122', b'"input_length":9'), *lines[1:]],
    ],
    ids=["missing", "doubled", "unsound"],
)
def test_a_row_that_is_not_one_sound_row_is_none(runs, change):
    change_lines(runs, change)
    assert load_run(runs / "restored").only(Key(1, 0, 0)) is None


def test_rows_at_hand_are_indexed_as_a_dump_is(pristine):
    row = row_of(pristine, FINISHED)
    run = run_of("x", [(1, row), (2, row)])
    assert run.only(Key(1, 0, 1)) == row
    assert sorted(run.rows) == [Key(1, 0, 1), Key(2, 0, 1)]


def test_memory_stays_that_of_the_largest_line(runs):
    """A dump of many rows is a stream: its index may grow by its keys, not by its tokens."""
    line = (runs / "restored" / DUMP).read_bytes().splitlines(keepends=True)[0]
    (runs / "restored" / DUMP).write_bytes(line * 2000)
    tracemalloc.start()
    load_run(runs / "restored")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2000 * len(line) / 4


# --- lines ----------------------------------------------------------------------------------------


def test_a_torn_last_line_is_told_and_the_others_are_read(runs):
    change_lines(runs, lambda lines: [*lines[:-1], lines[-1][:50]])
    problem = the_damage(runs)
    assert problem.where == "restored: training.jsonl, line 8"
    assert problem.expected == "a trained chunk in JSON"
    assert problem.got.startswith("torn last line: ")
    assert len(load_run(runs / "restored").rows) == 7


@pytest.mark.parametrize(
    "line",
    [
        b"{]\n",
        b"[]\n",
        b"null\n",
        b'{"rows": []}\n',
        b'{"train_step": 1, "rows": 3}\n',
        b"\xff\n",
        b'{"train_step": 1, "rows": ["\\ud800"]}\n',
    ],
    ids=["no JSON", "a list", "null", "no step", "no list of rows", "bytes", "a lone surrogate"],
)
def test_a_broken_line_is_told_and_the_others_are_read(runs, line):
    change_lines(runs, lambda lines: [lines[0], line, *lines[2:]])
    assert the_damage(runs).where.startswith("restored: training.jsonl, line 2")
    assert len(load_run(runs / "restored").rows) == 7


def test_blank_lines_are_no_damage(runs):
    change_lines(runs, lambda lines: [b"\n", *lines, b"  \n"])
    assert judged(runs).verdict == "PASS"


def test_other_line_ends_inside_text_do_not_part_a_line(runs):
    def renamed(line):
        return line.replace(b'"sample_id":"', '"sample_id":"\u2028\x85'.encode())

    change_lines(runs, lambda lines: [renamed(lines[0]), *lines[1:]])
    assert row_of(runs, "1/0/0").sample_id.startswith("\u2028")
    assert damage(runs) == []


# --- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    [
        "group_id",
        "prompt_idx",
        "input_length",
        "sample_loss_mask",
        "reward",
        "token_ids",
        "token_loss_mask",
        "advantages",
        "generation_logprobs",
        "prev_logprobs",
    ],
)
def test_a_missing_field_is_named(runs, field):
    change_row(runs, FINISHED, lambda row: row.pop(field))
    problem = the_damage(runs)
    assert problem.where == "restored: training.jsonl, line 2, row 0"
    assert problem.expected == "every field of a row, each of its type, its numbers finite"
    assert problem.got == f"Object missing required field `{field}`"


@pytest.mark.parametrize(
    ("field", "key"),
    [("reward", FINISHED), ("group_id", "")],
    ids=["enough stands", "not enough"],
)
def test_damage_names_its_row_where_enough_stands_to_say_whose_it_is(runs, field, key):
    change_row(runs, FINISHED, lambda row: row.pop(field))
    assert the_damage(runs).key == key


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("token_ids", 1.5, "token_ids[2]"),
        ("token_ids", None, "token_ids[2]"),
        ("token_ids", True, "token_ids[2]"),
        ("token_ids", -7, "token_ids[2]"),
        ("token_ids", 2**40, "token_ids[2]"),
        ("generation_logprobs", None, "generation_logprobs[2]"),
        ("generation_logprobs", 0.5, "generation_logprobs[2]"),
        ("generation_logprobs", float("nan"), "generation_logprobs[2]"),
        ("generation_logprobs", float("inf"), "generation_logprobs[2]"),
        ("generation_logprobs", float("-inf"), "generation_logprobs[2]"),
        ("prev_logprobs", "x", "prev_logprobs[2]"),
        ("prev_logprobs", float("nan"), "prev_logprobs[2]"),
        ("advantages", float("inf"), "advantages[2]"),
        ("token_loss_mask", 0.5, "token_loss_mask[2]"),
        ("token_loss_mask", 2, "token_loss_mask[2]"),
    ],
    ids=str,
)
def test_a_value_that_is_no_such_number_is_named_with_its_place(runs, field, value, named):
    change_row(runs, FINISHED, at_place(2, **{field: value}))
    problem = the_damage(runs)
    assert problem.where == "restored: training.jsonl, line 2, row 0"
    assert f"$.{named}" in problem.got.replace("[...]", "[2]")


def test_a_nan_is_called_what_it_is(runs):
    change_row(runs, FINISHED, lambda row: row.update(reward=float("nan")))
    assert the_damage(runs).got == "Expected `float`, got `null`, NaN or Infinity - at `$.reward`"


@pytest.mark.parametrize(
    "change",
    [{"generation_logprobs": 0.5}, {"token_ids": -7}],
    ids=["over 0 nats", "a negative id"],
)
def test_values_that_no_engine_gives_are_damage_even_where_both_runs_have_them(runs, change):
    change_both(runs, FINISHED, at_place(-3, **change))
    judgement = judged(runs)
    assert failed(judgement) == {"dump-complete"}
    assert len(judgement.problems) == 2


@pytest.mark.parametrize("field", EVERY_COLUMN)
def test_a_ragged_list_is_named_with_both_lengths(runs, field):
    change_row(runs, FINISHED, lambda row: row[field].pop())
    problem = the_damage(runs)
    assert problem.key == FINISHED
    assert problem.where == f"restored: training.jsonl, line 2, row 0, {field}"
    assert problem.expected == "115 entries, as input_length says"
    assert problem.got == "114"


def test_a_ragged_column_that_only_some_trainers_have_is_damage_too(runs):
    change_row(runs, FINISHED, lambda row: row.update(prev_top_logprobs=[None]))
    assert the_damage(runs).where.endswith(", prev_top_logprobs")


def test_a_row_without_a_generated_token_is_damage(runs):
    change_row(runs, FINISHED, lambda row: row.update(token_loss_mask=[0] * row["input_length"]))
    problem = the_damage(runs)
    assert problem.where.endswith(", token_loss_mask")
    assert (problem.expected, problem.got) == ("at least one trained token", "none")


# --- the files beside the dump --------------------------------------------------------------------


def test_a_missing_dump_is_incomplete(runs):
    (runs / "restored" / DUMP).unlink()
    with pytest.raises(IncompleteError, match=r"training\.jsonl: no such dump$"):
        load_run(runs / "restored")


def test_a_dump_that_was_never_finished_is_incomplete_and_says_so(runs):
    (runs / "restored" / DUMP).rename(runs / "restored" / "training.jsonl.partial")
    with pytest.raises(IncompleteError, match=r"\(its trainer never came to an end\)$"):
        load_run(runs / "restored")


def test_a_dump_alone_has_neither_settings_nor_records(pristine):
    run = load_run(pristine / "restored" / DUMP, "restored")
    assert run.info is None
    assert run.planned == set()
    assert run.restores == []


def test_a_folder_without_run_json_has_no_plan(runs):
    (runs / "restored" / "run.json").unlink()
    run = load_run(runs / "restored")
    assert run.planned == set()
    assert len(run.restores) == 10


@pytest.mark.parametrize(
    ("name", "check"), [("journal.jsonl", "kill-happened"), ("run.json", "same-setup")]
)
def test_a_file_that_the_killed_run_lacks_is_a_problem_of_it(runs, name, check):
    (runs / "killed" / name).unlink()
    (problem,) = load_killed(runs / "killed").problems
    assert problem.check == check
    assert problem.got.startswith(f"{runs / 'killed' / name} is missing")


@pytest.mark.parametrize("name", ["journal.jsonl", "run.json"])
def test_a_killed_run_that_is_not_whole_is_incomplete_where_all_of_it_is_needed(runs, name):
    (runs / "killed" / name).unlink()
    with pytest.raises(IncompleteError, match=rf"{name} is missing"):
        load_killed(runs / "killed").whole()


def test_runs_are_told_in_the_order_in_which_they_ran(pristine):
    loaded = load_runs(pristine)
    assert [run.name for run in loaded.every] == ["uninterrupted", "killed", "restored"]
    assert [run.name for run in loaded.trained] == ["uninterrupted", "restored"]


def test_the_plan_is_known_where_either_run_knows_it(runs):
    change_info(runs, "restored", params=params(steps=1, cut_tokens={}).model_dump())
    assert load_runs(runs).planned == set(params().row_keys())


# --- restore records ------------------------------------------------------------------------------


def test_a_broken_restore_record_is_told_with_its_line(runs):
    with (runs / "restored" / "restores.jsonl").open("a") as stream:
        stream.write('\n{"event": "restored", "call_id": "x"}\n')
    problem = the_damage(runs)
    assert problem.where == "restored: restores.jsonl, line 12"
    assert problem.expected == "a restore record"
    assert problem.got.startswith("Object missing required field")


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("restored", {"prefix_tokens": -7}),
        ("restored", {"call_index": -9}),
        ("completed", {"tail_tokens": -1}),
    ],
    ids=str,
)
def test_absurd_counts_of_a_record_are_damage(runs, event, fields):
    change_record(runs, event, **fields)
    judgement = judged_without_killed(runs)
    (problem,) = judgement.of("dump-complete")
    assert problem.expected == "a restore record"
    assert judgement.verdict == "FAIL"
