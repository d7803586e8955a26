"""Where a restored row parts from the baseline, and what is shown of a tie there."""

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ..journal import Call
from ..records import Key, Row
from ..tokens import first_difference
from .captured import captured_choice
from .judgement import Judgement
from .near_tie import Tie, choice_of, find_tie, trainer_margin


class RowPair(Struct, frozen=True, kw_only=True):
    """The rows of one key, each sound and the only one of its dump, and what was captured of it."""

    key: Key
    baseline: Row
    restored: Row
    calls: list[Call] = []


class KeyRows(NamedTuple):
    """The rows of one key; None: missing, doubled or unsound, as other checks say."""

    baseline: Row | None
    restored: Row | None


class Parting(Struct, frozen=True, kw_only=True):
    """Where a restored row parts from the baseline, and what is shown of a tie there."""

    at: int
    captured: bool  # the killed run parted there already
    tie: Tie
    same_masks: bool  # of the rows and of their tokens before
    tokens: tuple[int, int] | None = None  # baseline's and restored; None: one row ends there
    witness: float | None = None  # the trainer's margin


def find_parting(judgement: Judgement, pair: RowPair) -> Parting | None:
    """Where the restored row parts from the baseline; None: nowhere."""
    baseline, restored = pair.baseline, pair.restored
    at = first_difference(baseline.token_ids, restored.token_ids)
    if at is None:
        return None
    captured = captured_choice(pair.calls, restored, at)
    chosen = choice_of("restored", restored, at)
    if captured and chosen:
        chosen = replace(captured, is_greedy=captured.is_greedy and chosen.is_greedy)
    bound = judgement.params.near_tie_margin
    tie = find_tie(choice_of("uninterrupted", baseline, at), chosen, bound, judgement.vocabulary)
    same_masks = (
        baseline.sample_loss_mask == restored.sample_loss_mask
        and baseline.token_loss_mask[:at] == restored.token_loss_mask[:at]
    )
    found = Parting(at=at, captured=captured is not None, tie=tie, same_masks=same_masks)
    if at < min(baseline.input_length, restored.input_length):
        tokens = baseline.token_ids[at], restored.token_ids[at]
        found = replace(found, tokens=tokens, witness=trainer_margin(baseline, at, *tokens))
    return found
