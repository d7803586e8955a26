"""A sign of life: what takes long says how far it is, and what does not says nothing."""

import pytest

from restore_parity.checker import progress


@pytest.fixture
def impatient(monkeypatch):
    """A sign after every item."""
    monkeypatch.setattr(progress, "FILE_S", 0.0)


def test_items_are_passed_on_in_silence(capsys):
    assert list(progress.progress("abc", "checks", "row")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_what_takes_long_says_on_standard_error_how_far_it_is(impatient, capsys):
    list(progress.progress("ab", "checks", "row"))
    assert capsys.readouterr() == ("", "checks: 1 rows\nchecks: 2 rows\n")
