"""The records that travel: one frozen class a thing, with the dumps' own field names."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Logprob = Annotated[float, Meta(le=0)]  # nats
Mask = Annotated[float, Meta(ge=0, le=1, multiple_of=1)]
TopTwo = list[tuple[int, float | None]]  # (token id, log-probability in nats), likeliest first; None: not a finite number


class Key(NamedTuple):
    """A row's identity across runs; train_step from 1, the others from 0. Prints as `1/3/0`."""

    train_step: int
    prompt_idx: int
    generation_index: int

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Raises ValueError unless `text` is three integers joined by slashes."""
        step, prompt, generation = map(int, text.split("/"))
        return cls(step, prompt, generation)


def cut_name(key: Key, call_index: int) -> str:
    return f"{key}#{call_index}"


def ids_sha256(ids: Sequence[int]) -> str:
    """SHA-256 of the ids in decimal joined by commas, the origin's rule (`[12, 13]` -> `12,13`)."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


class RestoreRecord(Struct, frozen=True, kw_only=True, tag_field="event"):
    """A line of restores.jsonl. Fields that the origin's log lines lack are None."""

    call_id: str
    source_call_id: str
    prefix_tokens: Count
    group_id: str | None = None
    generation_index: Count | None = None
    call_index: Count | None = None


class Restored(RestoreRecord, frozen=True, kw_only=True, tag="restored"):
    """A cut call was taken up again."""

    prefix_ids_sha256: str | None = None
    max_tokens: Count | None = None


class Completed(RestoreRecord, frozen=True, kw_only=True, tag="completed"):
    tail_tokens: Count
    finish_reason: str | None = None


class AlreadyTerminal(RestoreRecord, frozen=True, kw_only=True, tag="already_terminal"):
    """Nothing was requested: the limit was used up, or a stop token was captured."""

    reason: str | None = None


class Row(Struct, frozen=True):
    """One training record. Lists are (T,) with T = input_length; log-probabilities in nats, 0.0 where untrained."""

    group_id: str
    prompt_idx: int
    generation_index: int
    input_length: int
    sample_loss_mask: float
    reward: float
    token_ids: list[TokenId]
    token_loss_mask: list[Mask]
    advantages: list[float]
    generation_logprobs: list[Logprob]
    prev_logprobs: list[float]
    sample_id: str | None = None
    generation_top2: list[TopTwo | None] | None = None
    prev_top2: list[TopTwo | None] | None = None  # the same two tokens' log-probabilities in the trainer's forward pass

    def segments(self) -> list[tuple[int, int]]:
        """The trained segments as half-open (start, stop) places, one a call, in order."""
        edges = [at for at, (one, other) in enumerate(pairwise([0, *self.token_loss_mask, 0])) if one != other]
        return list(zip(edges[::2], edges[1::2], strict=True))


class CutResult(Struct, frozen=True):
    """What the cut check found of one cut; places count tokens from the row's start."""

    key: str
    prefix_tokens: int
    tail_tokens: int
    status: Literal["match", "set_aside", "broken"]
    limit_tokens: int | None = None
    ended: str | None = None  # the restored call's finish reason, or why nothing was requested
    segments: list[tuple[int, int]] = []  # the restored row's calls, half-open
    call_index: int = 0  # which of them was cut
    first_difference: int | None = None
    tokens: tuple[int, int] | None = None  # at the first difference: uninterrupted, restored
    margin_uninterrupted: float | None = None
    margin_restored: float | None = None
    margin_trainer: float | None = None  # signed: over 0 where the trainer prefers the baseline's token
