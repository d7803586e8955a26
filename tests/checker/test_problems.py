"""Problems as text: four lines, nothing in them that acts, a long list cut short."""

import pytest
from edits import CUT, ROW
from msgspec.structs import replace

from restore_parity.checker.problems import LONGEST, Problem, concerning, printable, render

PROBLEM = Problem(
    check="prefix-captured",
    key=CUT,
    where="row 1/0/0, tokens 108 to 122",
    expected="48, [49]",
    got="48, [50]",
    next=f"restore-parity cut {CUT}",
)


def test_a_problem_is_a_title_and_four_lines():
    assert str(PROBLEM).splitlines() == [
        "prefix-captured 1/0/0#1",
        "  where     row 1/0/0, tokens 108 to 122",
        "  expected  48, [49]",
        "  got       48, [50]",
        "  next      restore-parity cut 1/0/0#1",
    ]


def test_the_title_of_a_problem_of_no_row_is_its_check():
    assert str(replace(PROBLEM, key="")).splitlines()[0] == "prefix-captured"


@pytest.mark.parametrize(
    ("char", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("\x00", "\\x00"),
        ("\u202e", "\\u202e"),
        ("\uffff", "\\uffff"),
        ("\ud7ff", "\\ud7ff"),
        ("\r", "\\r"),
        ("ä \n", "ä \n"),
    ],
    ids=[
        "terminal colour",
        "NUL",
        "right to left",
        "no character of XML",
        "unassigned",
        "carriage return",
        "text and a line feed",
    ],
)
def test_text_can_do_nothing_but_be_read(char, shown):
    assert printable(char) == shown


def test_hostile_text_of_a_problem_is_inert():
    shown = str(replace(PROBLEM, key="\x1b[2J", got="\u202e"))
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_the_middle_of_a_long_text_is_cut_out():
    shown = printable("a" * LONGEST + "b" * LONGEST)
    assert shown == f"{'a' * (LONGEST // 2)} … 2,000 characters … {'b' * (LONGEST // 2)}"


def test_a_text_as_long_as_may_be_is_whole():
    assert printable("a" * LONGEST) == "a" * LONGEST


def test_no_problem_is_no_text():
    assert render([]) == ""


@pytest.mark.parametrize("count", [1, 20], ids=["one", "as many as are shown"])
def test_problems_are_shown_whole(count):
    assert render([PROBLEM] * count) == "\n\n".join([str(PROBLEM)] * count)


def test_a_long_list_is_cut_short_and_says_so():
    text = render([PROBLEM] * 25)
    assert text.count("prefix-captured") == 20
    assert text.splitlines()[-1] == "… and 5 more, all of them in results.json"


@pytest.mark.parametrize(
    ("key", "concerns"),
    [(CUT, True), (ROW, True), ("1/0/0#0", False), ("1/0/1", False), ("", False)],
    ids=["the cut", "its row", "another call of the row", "another row", "no row"],
)
def test_the_problems_of_a_cut_are_its_own_and_its_rows(key, concerns):
    problem = replace(PROBLEM, key=key)
    assert concerning([problem], CUT) == [problem] * concerns


def test_the_problems_of_a_cut_named_by_its_row_are_the_rows():
    assert concerning([PROBLEM, replace(PROBLEM, key=ROW)], ROW) == [replace(PROBLEM, key=ROW)]
