"""The row index: one streaming pass, every damage told with file, line and field, nothing dropped unsaid."""

import json
import tracemalloc

import msgspec
import pytest
from builders import change_row, params

from restore_parity.errors import IncompleteError
from restore_parity.records import Key
from restore_parity.saved import load_run

DUMP = "training.jsonl"


def told(runs) -> list[str]:
    return [f"{p.key}|{p.where}|{p.expected}|{p.got}" for p in load_run(runs / "restored").problems]


def edit(runs, change) -> None:
    file = runs / "restored" / DUMP
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(change(lines)))


def test_every_row_is_found_by_its_key(pristine):
    run = load_run(pristine / "restored")
    assert sorted(run.rows) == params().row_keys() and not run.problems


def test_a_row_is_read_again_as_it_stands(pristine):
    line = json.loads((pristine / "restored" / DUMP).read_text().splitlines()[3])
    row = load_run(pristine / "restored").only(Key(1, 1, 1))
    assert msgspec.to_builtins(row)["generation_logprobs"] == line["rows"][0]["generation_logprobs"]


def test_rows_of_one_line_are_told_apart(runs):
    edit(
        runs,
        lambda lines: [
            json.dumps({"train_step": 1, "rows": [json.loads(x)["rows"][0] for x in lines[:4]]}).encode() + b"\n",
            *lines[4:],
        ],
    )
    run = load_run(runs / "restored")
    assert [run.only(key).generation_index for key in run.rows] == [key.generation_index for key in run.rows]
    assert str(run.rows[Key(1, 1, 0)][0].place) == "training.jsonl, line 1, row 2"


def test_a_doubled_row_keeps_both_places(runs):
    edit(runs, lambda lines: [*lines, lines[0]])
    run = load_run(runs / "restored")
    assert [str(ref.place) for ref in run.rows[Key(1, 0, 0)]] == [
        "training.jsonl, line 1, row 0",
        "training.jsonl, line 9, row 0",
    ]
    assert run.only(Key(1, 0, 0)) is None


def test_a_torn_last_line_is_told_and_the_others_are_read(runs):
    edit(runs, lambda lines: [*lines[:-1], lines[-1][:50]])
    assert len(load_run(runs / "restored").rows) == 7
    assert told(runs)[0].startswith("|restored: training.jsonl, line 8|a trained chunk in JSON|torn last line")


@pytest.mark.parametrize(
    "line", [b"{]\n", b"[]\n", b"null\n", b'{"rows": []}\n', b'{"train_step": 1, "rows": 3}\n', b"\xff\n"], ids=repr
)
def test_a_broken_line_is_told_and_the_others_are_read(runs, line):
    edit(runs, lambda lines: [lines[0], line, *lines[2:]])
    assert len(load_run(runs / "restored").rows) == 7
    assert "training.jsonl, line 2" in told(runs)[0]


@pytest.mark.parametrize(
    "field", ["group_id", "prompt_idx", "input_length", "reward", "token_ids", "token_loss_mask", "prev_logprobs"]
)
def test_a_missing_field_is_named(runs, field):
    change_row(runs, "1/0/1", lambda row: row.pop(field))
    assert (
        f"line 2, row 0|every field of a row, each of its type, its numbers finite|Object missing required field `{field}`"
        in told(runs)[0]
    )


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("token_ids", 1.5, "token_ids[2]"),
        ("token_ids", None, "token_ids[2]"),
        ("token_ids", True, "token_ids[2]"),
        ("generation_logprobs", None, "generation_logprobs[2]"),
        ("prev_logprobs", "x", "prev_logprobs[2]"),
        ("prev_logprobs", float("nan"), "prev_logprobs[2]"),
        ("generation_logprobs", float("-inf"), "generation_logprobs[2]"),
        ("advantages", float("inf"), "advantages[2]"),
        ("token_loss_mask", 0.5, "token_loss_mask"),
    ],
)
def test_a_value_that_is_no_such_number_is_named_with_its_place(runs, field, value, named):
    change_row(runs, "1/0/1", lambda row: row[field].__setitem__(2, value))
    assert len(told(runs)) == 1 and "line 2, row 0" in told(runs)[0] and named in told(runs)[0]


@pytest.mark.parametrize(
    "field", ["token_ids", "token_loss_mask", "advantages", "generation_logprobs", "prev_logprobs", "generation_top2"]
)
def test_a_ragged_list_is_named_with_both_lengths(runs, field):
    change_row(runs, "1/0/1", lambda row: row[field].pop())
    length = load_run(runs / "uninterrupted").only(Key(1, 0, 1)).input_length
    assert told(runs) == [
        f"1/0/1|restored: training.jsonl, line 2, row 0, {field}|{length} entries, as input_length says|{length - 1}"
    ]


def test_a_row_without_a_generated_token_is_told(runs):
    change_row(runs, "1/0/1", lambda row: row.update(token_loss_mask=[0] * row["input_length"]))
    assert told(runs)[0].endswith("token_loss_mask|at least one trained token|none")


def test_a_nan_reward_is_told(runs):
    change_row(runs, "1/0/1", lambda row: row.update(reward=float("nan")))
    assert told(runs)[0].endswith("got `null`, NaN or Infinity - at `$.reward`")


def test_other_line_ends_inside_text_do_not_part_a_line(runs):
    edit(runs, lambda lines: [lines[0].replace(b'"sample_id":"r', '"sample_id":"\u2028r'.encode()), *lines[1:]])
    assert not told(runs)


def test_a_missing_dump_is_incomplete_and_a_half_one_says_so(runs):
    (runs / "restored" / DUMP).rename(runs / "restored" / "training.jsonl.partial")
    with pytest.raises(IncompleteError, match=r"training\.jsonl: no such dump \(its trainer never came to an end\)"):
        load_run(runs / "restored")


def test_a_broken_restore_record_is_told(runs):
    with (runs / "restored" / "restores.jsonl").open("a") as stream:
        stream.write('{"event": "restored", "call_id": "x"}\n')
    assert "restores.jsonl, line 11|a restore record|Object missing required field" in told(runs)[0]


def test_memory_stays_that_of_the_largest_line(runs):
    """A dump of many rows is a stream: its index may grow by its keys, not by its tokens."""
    line = (runs / "restored" / DUMP).read_bytes().splitlines(keepends=True)[0]
    (runs / "restored" / DUMP).write_bytes(line * 2000)
    tracemalloc.start()
    load_run(runs / "restored")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2000 * len(line) / 4
