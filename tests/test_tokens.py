"""Token ids: hashed by NeMo RL's rule, compared, shown, and decoded where a tokenizer is here."""

import hashlib
import sys

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from restore_parity.tokens import decoder, first_difference, ids_sha256, window


@pytest.mark.parametrize(
    ("ids", "text"),
    [([12, 13], b"12,13"), ([7], b"7"), ([], b"")],
    ids=["two", "one", "none"],
)
def test_ids_are_hashed_as_decimals_joined_by_commas(ids, text):
    assert ids_sha256(ids) == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        ([1, 2], [1, 2], None),
        ([], [], None),
        ([1, 2], [1, 3], 1),
        ([0, 2], [1, 2], 0),
        ([1], [1, 2], 1),
        ([1, 2], [1], 1),
        ([], [1], 0),
    ],
    ids=["equal", "empty", "last", "first", "shorter", "longer", "empty and not"],
)
def test_the_first_difference_may_be_the_shorter_ones_end(one, other, place):
    assert first_difference(one, other) == place


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (0, "[0], 1, 2 …"),
        (2, "0, 1, [2], 3, 4 …"),
        (3, "… 1, 2, [3], 4, 5 …"),
        (7, "… 5, 6, [7], 8, 9"),
        (9, "… 7, 8, [9]"),
        (10, "… 8, 9, [end]"),
    ],
)
def test_a_window_is_two_tokens_on_each_side_of_its_place(place, shown):
    assert window(range(10), place) == shown


def test_a_window_on_nothing_is_its_end():
    assert window([], 0) == "[end]"


def test_the_text_of_a_window_is_that_of_its_tokens():
    shown = window([10, 11, 12, 13, 14], 0, lambda ids: f"{len(ids)} 'tokens'\n")
    assert shown == "[10], 11, 12 …  \"3 'tokens'\\n\""


# --- decoder --------------------------------------------------------------------------------------


@pytest.fixture
def model_folder(tmp_path):
    """A model's folder with a tokenizer of three words, one of them special."""
    tokenizer = Tokenizer(WordLevel({"ping": 0, "pong": 1, "<stop>": 2}, unk_token="ping"))
    tokenizer.add_special_tokens(["<stop>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("kind", [str, lambda folder: folder], ids=["text", "path"])
def test_ids_are_decoded_with_their_special_tokens(model_folder, kind):
    assert decoder(kind(model_folder))((0, 1, 2)) == "ping pong <stop>"


@pytest.mark.parametrize("folder", [None, ""], ids=["none", "no name"])
def test_without_a_model_nothing_is_decoded(folder):
    assert decoder(folder) is None


def test_without_a_tokenizer_in_the_folder_nothing_is_decoded(tmp_path):
    assert decoder(tmp_path) is None
    assert decoder(tmp_path / "gone") is None


def test_without_the_library_nothing_is_decoded(model_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert decoder(model_folder) is None


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]"], ids=["cut off", "bytes", "a list"])
def test_a_tokenizer_that_cannot_be_read_decodes_nothing(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert decoder(tmp_path) is None


def test_a_name_too_long_for_a_folder_decodes_nothing():
    assert decoder("m" * 5000) is None
