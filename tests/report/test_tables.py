"""What the report tells in tables and how its figures divide what they draw."""

import re
from itertools import pairwise

import pytest
from builders import change_row, generate, judged, params, tie
from sample_reports import row_set_aside

from restore_parity.checker.checks import judge
from restore_parity.checker.judgement import MutationResult
from restore_parity.checker.loading import load_runs
from restore_parity.params import Params
from restore_parity.report import provenance, tables
from restore_parity.report.figures import row_parts, stages
from restore_parity.report.html_table import Markup, table
from restore_parity.report.ties import parted_rows
from restore_parity.report.timeline import timelines


def cells(page) -> list[list[str]]:
    """The texts of a table's lines, the titles first."""
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in page.data.split("<tr")[1:]]


def pairs(page) -> dict[str, str]:
    """A table of two columns."""
    return {first: second for first, second in cells(page)[1:]}


def test_a_cell_is_escaped_and_markup_of_our_own_is_not():
    page = table([{"a": "<b>", "b": Markup("<i>x</i>")}])
    assert cells(page)[1] == ["&lt;b&gt;", "<i>x</i>"]


def test_a_cell_without_a_value_says_none():
    assert cells(table([{"a": None, "b": 0.125}]))[1] == ["none", "0.125"]


def test_a_table_without_lines_says_none():
    assert table([]).data == "<p>none</p>"


def test_rows_are_counted_on_the_side_they_are_on(runs):
    file = runs / "restored" / "training.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[1:], lines[1]]))
    counts = pairs(tables.rows(load_runs(runs)))
    assert counts == {
        "planned by the parameters": "8",
        "in both dumps": "7",
        "only in the uninterrupted run&#x27;s": "1",
        "only in the restored run&#x27;s": "0",
        "planned and in neither": "0",
        "more than once in a dump": "1",
        "damaged": "0",
    }


def test_a_run_that_never_ended_is_not_listed(runs):
    loaded = load_runs(runs)
    loaded.restored.info = None
    assert [line[0] for line in cells(tables.runs(loaded))] == ["run", "uninterrupted", "killed"]


def test_times_count_from_the_first_start(pristine):
    times = timelines(load_runs(pristine))
    assert min(times["uninterrupted"].values()) == times["uninterrupted"]["start"] == 0.0
    assert list(times["killed"])[-1] == "killed"
    assert "restored" in times["restored"]


def test_the_table_of_times_has_a_column_for_each_milestone(pristine):
    titles, *lines = cells(tables.timeline(load_runs(pristine)))
    assert titles[0] == "run"
    assert titles[-2:] == ["killed, s", "trained, s"]
    assert [line[-2] == "none" for line in lines] == [True, False, True]


def test_stages_follow_each_other_to_the_end_of_a_run():
    times = {"start": 0.0, "engine ready": 2.0, "gate open": 3.0, "first token": 4.0, "killed": 9.0}
    assert [tuple(span) for span in stages(times)] == [
        ("start", 0.0, 2.0),
        ("engine ready", 2.0, 3.0),
        ("gate open", 3.0, 4.0),
        ("first token", 4.0, 9.0),
    ]


@pytest.mark.parametrize(
    ("cut", "parts"),
    [
        ("1/0/0#1", ["prompt", "earlier call", "tool result", "prefix", "tail"]),
        ("1/1/1#0", ["prompt", "prefix", "tail", "tool result", "later call"]),
    ],
)
def test_the_parts_of_a_cuts_row_are_named(pristine, cut, parts):
    result = next(one for one in judged(pristine).cuts if one.key == cut)
    assert [part.what for part in row_parts(result)] == parts


def test_the_parts_of_a_cuts_row_cover_it_from_end_to_end(pristine):
    for cut in judged(pristine).cuts:
        parts = row_parts(cut)
        assert parts[0].start == 0
        assert parts[-1].stop == cut.segments[-1][1]
        assert all(one.stop == other.start for one, other in pairwise(parts))


def test_an_empty_tail_is_not_drawn(pristine):
    result = next(cut for cut in judged(pristine).cuts if cut.key == "2/1/1#1")
    assert "tail" not in [part.what for part in row_parts(result)]


def test_a_margin_of_nothing_is_called_an_exact_tie(runs):
    tie(runs, 0.0)
    assert "or 99: an exact tie" in tables.ties(judged(runs, max_set_aside=1.0)).data


def test_margins_of_bfloat16_are_told_in_its_steps(runs):
    tie(runs, 0.25)
    judgement = judged(runs, near_tie_margin=0.3, max_set_aside=1.0)
    judgement.params = params(dtype="bfloat16")
    assert "0.25 and 0.25 nats, 2 and 2 bfloat16 steps" in tables.ties(judgement).data


def test_the_tokens_of_a_tie_are_text_where_a_tokenizer_is_at_hand(runs):
    tie(runs, 0.0)
    judgement = judged(runs, max_set_aside=1.0)
    judgement.decode = lambda ids: f"<{ids[0]}>"
    assert "or 99 &#x27;&lt;99&gt;&#x27;" in tables.ties(judgement).data


@pytest.mark.parametrize(
    ("place", "part"), [(-4, "tail"), (-13, "prefix")], ids=["behind the seam", "before it"]
)
def test_a_cuts_row_is_said_to_part_in_its_prefix_or_its_tail(runs, place, part):
    tie(runs, 0.0, place)
    assert [row.parted_in for row in parted_rows(judged(runs, max_set_aside=1.0))] == [part]


@pytest.fixture
def aside(tmp_path):
    """A judgement that sets a row without a cut aside."""
    given = row_set_aside(tmp_path / "runs")
    return judge(load_runs(tmp_path / "runs"), given)


def test_a_row_set_aside_without_a_cut_stands_among_the_near_ties(aside):
    titles, line = cells(tables.ties(aside))
    found = dict(zip(titles, line, strict=True))
    assert found["cut or row"] == "2/1/0"
    assert found["status"] == "set aside"
    assert found["parted in"] == "restored run"
    assert found["margin uninterrupted"] == "0.125"
    assert found["margin in the other run"] == "0.25"


def test_a_row_set_aside_that_has_a_problem_is_told_as_broken(aside):
    aside.failed_keys.add("2/1/0")
    assert [row.status for row in parted_rows(aside)] == ["broken"]


def test_the_cut_that_failed_comes_first(runs):
    change_row(runs, "1/1/1", lambda row: row["token_ids"].__setitem__(-2, 99))
    lines = cells(tables.cuts(judged(runs)))
    assert 'id="cut-1-1-1-0"' in lines[1][0]
    assert [line[1] for line in lines[1:]] == ["broken", "match", "match", "match", "match"]


def test_of_a_whole_comparison_only_idle_checks_are_unchecked(pristine):
    found = pairs(tables.unchecked(judged(pristine)))
    why = "nothing to judge: no row with a cut parts from the baseline"
    assert found == {"before-cut-call": why, "near-tie": why}


def test_what_could_not_be_checked_is_told_with_its_reason(pristine):
    judgement = judged(pristine)
    judgement.not_run["prefix-hash"] = "no record has a hash"
    judgement.counts["rows_after_set_aside"] = 3
    judgement.mutations = [MutationResult(id="lost", check="row-exact", caught_by=None)]
    found = pairs(tables.unchecked(judgement))
    assert found["prefix-hash"] == "no record has a hash"
    assert found["policy-logprobs"] == "3 rows trained behind a set-aside one: not compared"
    assert found["mutations"] == "1 without a place in these rows: lost"


def test_a_check_that_compared_only_a_part_is_told_with_its_numbers(pristine):
    judgement = judged(pristine)
    for _ in range(2):
        judgement.lack("token-budget", "cuts without a known limit")
    found = pairs(tables.unchecked(judgement))
    why = "5 compared; not compared: 2 cuts without a known limit"
    assert found["token-budget"] == why


def test_columns_that_no_check_reads_are_told(runs):
    for run in ("uninterrupted", "restored"):
        for key in params().row_keys():
            change_row(runs, str(key), lambda row: row.update(entropy=0.5), run)
    found = pairs(tables.unchecked(judged(runs)))
    assert found["columns of the dumps"] == "no check reads entropy"


def test_calls_that_start_again_are_told(tmp_path):
    generate(tmp_path / "uninterrupted", "uninterrupted", params())
    generate(tmp_path / "killed", "killed", params(), steps=0)
    generate(tmp_path / "restored", "restored", params(), source=tmp_path / "killed")
    found = pairs(tables.unchecked(judged(tmp_path)))
    why = "8 calls open at the kill without a token: started again, not cut"
    assert found["cuts"] == why


def test_a_changed_parameter_is_marked_and_explained():
    titles, *lines = cells(provenance.parameters(Params(steps=3)))
    changed = {line[0]: dict(zip(titles, line, strict=True)) for line in lines if line[2]}
    assert list(changed) == ["steps"]
    assert changed["steps"]["changed from"] == "2"
    assert changed["steps"]["what it is"] == "train steps"


def test_hashes_name_the_bytes_that_were_judged(pristine):
    found = pairs(provenance.hashes(params(), load_runs(pristine)))
    hashes = {found[f"{run}: dump_sha256"] for run in ("uninterrupted", "restored")}
    assert {len(digest) for digest in hashes} == {64}
    assert "killed: dump_sha256" not in found


def test_commands_can_be_typed_whatever_the_folder_is_called(pristine):
    judgement = judged(pristine, runs="my runs")
    found = pairs(provenance.commands(judgement))
    assert found["open one cut"] == "restore-parity cut 1/0/0#1 --runs &#x27;my runs&#x27;"
