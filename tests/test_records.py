"""Names of rows and cuts, and what a row tells of its calls."""

import pytest
from msgspec.structs import replace

from restore_parity.records import CutKey, Key, Row, likely, slug

ROW = Row(
    group_id="g",
    prompt_idx=3,
    generation_index=0,
    input_length=6,
    sample_loss_mask=1.0,
    reward=0.5,
    token_ids=[1, 2, 3, 4, 5, 6],
    token_loss_mask=[0.0, 1.0, 1.0, 0.0, 1.0, 0.0],
    advantages=[0.0] * 6,
    generation_logprobs=[0.0, -0.2, -0.3, 0.0, -0.5, 0.0],
    prev_logprobs=[0.0] * 6,
    generation_top_logprobs=[None, [(2, -0.2)], [(3, -0.3)], None, [(5, -0.5)], None],
)
HOSTILE = {
    "nothing": "",
    "text": "x/y/z",
    "too few": "1/3",
    "too many": "1/3/0/0",
    "an empty part": "1//0",
    "a sign": "1/-3/0",
    "a plus": "1/+3/0",
    "a space": "1/3/ 0",
    "a space before": " 1/3/0",
    "a line feed": "1/3/0\n",
    "an underscore": "1/1_0/0",
    "a point": "1/3.0/0",
    "digits of another script": "1/٣/0",
    "a superscript": "1/³/0",
    "a full-width slash": "1／3／0",  # noqa: RUF001 (it is the point)
    "ten digits": "1/1234567890/0",
    "a hexadecimal": "1/0x3/0",
}


def parametrize(texts):
    """A test for each text, by its name."""
    return pytest.mark.parametrize("text", texts.values(), ids=texts.keys())


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1/3/0", "0/0/0", "999999999/1/12"])
def test_a_row_is_named_as_it_prints(text):
    assert str(Key.parse(text)) == text


@parametrize(HOSTILE)
def test_a_text_that_names_no_row_is_refused(text):
    with pytest.raises(ValueError, match=r"does not name a row, as 1/3/0 does$"):
        Key.parse(text)


def test_a_refused_text_is_shown_with_its_escapes():
    with pytest.raises(ValueError, match=r"^'1/3/0\\n' does not"):
        Key.parse("1/3/0\n")


@pytest.mark.parametrize("text", ["1/3/0#0", "1/3/0#12"])
def test_a_cut_is_named_as_it_prints(text):
    assert str(CutKey.parse(text)) == text


@parametrize(HOSTILE)
def test_a_cut_of_no_row_is_refused(text):
    with pytest.raises(ValueError, match=r"does not name a row, as 1/3/0 does$"):
        CutKey.parse(f"{text}#1")


@parametrize(
    {
        "no call": "1/3/0",
        "an empty call": "1/3/0#",
        "a sign": "1/3/0#-1",
        "a plus": "1/3/0#+1",
        "a space": "1/3/0# 1",
        "a line feed": "1/3/0#1\n",
        "two calls": "1/3/0#1#2",
        "digits of another script": "1/3/0#٣",
        "ten digits": "1/3/0#1234567890",
    }
)
def test_a_text_that_names_no_call_is_refused(text):
    with pytest.raises(ValueError, match=r"does not name a cut, as 1/3/0#1 does$"):
        CutKey.parse(text)


def test_rows_are_sorted_by_number():
    keys = [Key.parse(text) for text in ("10/0/0", "9/10/0", "9/2/1", "9/2/0")]
    assert [str(key) for key in sorted(keys)] == ["9/2/0", "9/2/1", "9/10/0", "10/0/0"]


def test_siblings_share_their_group():
    assert Key(1, 3, 0).group == Key(1, 3, 7).group
    assert Key(1, 3, 0).group != Key(2, 3, 0).group


@pytest.mark.parametrize(("name", "expected"), [("1/3/0", "1-3-0"), ("1/3/0#1", "1-3-0-1")])
def test_a_name_becomes_one_word(name, expected):
    assert slug(name) == expected


def test_the_word_of_a_cut_is_that_of_its_name():
    assert CutKey(Key(1, 3, 0), 1).slug == slug("1/3/0#1")


# --- calls of a row -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("masks", "segments"),
    [
        ([0, 1, 1, 0, 1, 0], [(1, 3), (4, 5)]),
        ([1, 1], [(0, 2)]),
        ([1, 0, 1], [(0, 1), (2, 3)]),
        ([0, 0], []),
        ([], []),
    ],
    ids=["two calls", "all trained", "calls at both ends", "none trained", "no token"],
)
def test_a_rows_calls_are_its_trained_segments(masks, segments):
    assert replace(ROW, token_loss_mask=masks).segments() == segments


def test_a_call_is_what_was_generated_and_what_came_before():
    call = ROW.call(1)
    assert call.before == [1, 2, 3, 4]
    assert call.ids == [5]
    assert call.logprobs == [-0.5]
    assert call.top_logprobs == [[(5, -0.5)]]


def test_a_row_has_no_call_behind_its_last():
    assert ROW.call(2) is None


def test_a_call_of_a_row_without_candidates_has_none():
    assert replace(ROW, generation_top_logprobs=None).call(0).top_logprobs == [None, None]


# --- likely ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top_logprobs", "found"),
    [
        ([(7, -0.5), (9, -1.0)], {7: -0.5, 9: -1.0}),
        ([(7, -0.5), (9, None)], {7: -0.5}),
        ([], {}),
        (None, {}),
    ],
    ids=["two", "one of them not finite", "none", "no column"],
)
def test_tokens_are_found_with_their_finite_log_probabilities(top_logprobs, found):
    assert likely(top_logprobs) == found
