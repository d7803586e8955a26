"""summary.md: short, and inert whatever the text of a run is."""

import pytest
from builders import change_row, judged
from msgspec.structs import replace

from restore_parity.checker.results import Results, incomplete, results
from restore_parity.report.summary import write_summary

HOSTILE = "<script>alert(1)</script> | `x` \x1b[31m \x00 </pre> \u202e ]]>"
LIMIT = 1024 * 1024  # bytes of a step's summary; a longer one is dropped whole


@pytest.fixture
def summary(tmp_path):
    """The summary of results, as text."""

    def write(given: Results) -> str:
        write_summary(tmp_path / "summary.md", given)
        return (tmp_path / "summary.md").read_text(encoding="utf-8")

    return write


@pytest.fixture
def broken(runs) -> Results:
    change_row(runs, "1/0/1", lambda row: row.update(reward=0.9))
    return results(judged(runs), {})


def test_it_begins_with_the_verdict(summary, broken):
    assert summary(broken).startswith("## FAIL: 8 rows")


def test_it_has_a_line_for_each_check(summary, broken):
    assert "| `row-exact` | fail | 40 |  |" in summary(broken)


def test_it_says_what_a_check_could_not_compare(summary, pristine):
    judgement = judged(pristine)
    judgement.lack("token-budget", "cuts without a known limit")
    why = "5 compared; not compared: 1 cuts without a known limit"
    assert f"| `token-budget` | pass | 5 | {why} |" in summary(results(judgement, {}))


def test_it_shows_the_first_problems(summary, broken):
    assert "<pre>row-exact 1/0/1\n  where     reward\n" in summary(broken)


def test_without_a_problem_there_is_no_block_of_them(summary):
    assert "<pre>" not in summary(incomplete("the kernel died", {}))


@pytest.mark.parametrize("char", ["\x1b", "\x00", "\u202e", "<script>", "`x`"])
def test_hostile_text_is_inert(summary, broken, char):
    broken.problems[0] = replace(broken.problems[0], got=HOSTILE)
    broken.summary = HOSTILE
    assert char not in summary(broken)


def test_hostile_text_ends_no_block(summary, broken):
    broken.problems[0] = replace(broken.problems[0], got=HOSTILE)
    assert summary(broken).count("</pre>") == 1


def test_it_stays_under_what_a_steps_summary_may_hold(summary, broken):
    long = "'" * 100_000  # each character is six when it is escaped
    problem = replace(broken.problems[0], where=long, expected=long, got=long, next=long, key=long)
    broken.problems = [problem] * 50
    broken.summary = long
    assert len(summary(broken).encode()) < LIMIT
