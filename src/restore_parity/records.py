"""The records that travel: one frozen class a thing, with the dumps' own field names."""

import re
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Logprob = Annotated[float, Meta(le=0)]  # nats
Mask = Annotated[float, Meta(ge=0, le=1, multiple_of=1)]
# (token id, log-probability in nats), likeliest first; None: the log-probability was not finite
TopLogprobs = list[tuple[int, float | None]]


class Key(NamedTuple):
    """A row's identity across runs; train_step counts from 1, the others from 0.

    >>> str(Key(1, 3, 0))
    '1/3/0'
    """

    train_step: int
    prompt_idx: int
    generation_index: int

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @property
    def group(self) -> tuple[int, int]:
        """The train step and the prompt, which a row shares with its siblings."""
        return self.train_step, self.prompt_idx

    @classmethod
    def parse(cls, text: str) -> "Key":
        """The key that prints as `text`. Raises ValueError where none does.

        >>> Key.parse("1/3/0")
        Key(train_step=1, prompt_idx=3, generation_index=0)
        >>> Key.parse("1/3")
        Traceback (most recent call last):
        ValueError: '1/3' does not name a row, as 1/3/0 does
        """
        if not re.fullmatch(r"\d{1,9}/\d{1,9}/\d{1,9}", text, re.ASCII):
            raise ValueError(f"{text!r} does not name a row, as 1/3/0 does")
        step, prompt, generation = map(int, text.split("/"))
        return cls(step, prompt, generation)


class CutKey(NamedTuple):
    """One call of a row, and the cut in it where it was cut; calls count from 0.

    >>> str(CutKey(Key(1, 3, 0), 1))
    '1/3/0#1'
    """

    row: Key
    call_index: int

    def __str__(self) -> str:
        return f"{self.row}#{self.call_index}"

    @property
    def slug(self) -> str:
        """The name as an anchor or a folder can have it.

        >>> CutKey(Key(1, 3, 0), 1).slug
        '1-3-0-1'
        """
        return slug(str(self))

    @classmethod
    def parse(cls, text: str) -> "CutKey":
        """The cut that prints as `text`. Raises ValueError where none does.

        >>> CutKey.parse("1/3/0#1").call_index
        1
        >>> CutKey.parse("1/3/0")
        Traceback (most recent call last):
        ValueError: '1/3/0' does not name a cut, as 1/3/0#1 does
        """
        row, _, call_index = text.partition("#")
        if not re.fullmatch(r"\d{1,9}", call_index, re.ASCII):
            raise ValueError(f"{text!r} does not name a cut, as 1/3/0#1 does")
        return cls(Key.parse(row), int(call_index))


def slug(name: str) -> str:
    """The printed name of a row or a cut as an anchor or a folder can have it."""
    return re.sub(r"[/#]", "-", name)


class RestoreRecord(Struct, frozen=True, kw_only=True, tag_field="event"):
    """A line of restores.jsonl. Fields that NeMo RL's log lines lack are None."""

    call_id: str
    source_call_id: str
    prefix_tokens: Count
    group_id: str | None = None
    generation_index: Count | None = None
    call_index: Count | None = None


class Restored(RestoreRecord, frozen=True, kw_only=True, tag="restored"):
    """A cut call was taken up again."""

    prefix_ids_sha256: str | None = None
    prefix_digest: str | None = None  # NeMo RL's, which cannot be computed from a row
    max_tokens: Count | None = None


class Completed(RestoreRecord, frozen=True, kw_only=True, tag="completed"):
    """A restored call came to its end, `tail_tokens` behind its prefix."""

    tail_tokens: Count
    finish_reason: str | None = None


class AlreadyTerminal(RestoreRecord, frozen=True, kw_only=True, tag="already_terminal"):
    """Nothing was requested: the limit was used up, or a stop token was captured."""

    reason: str | None = None


EndRecord = Completed | AlreadyTerminal


class CallView(Struct, frozen=True, kw_only=True):
    """One whole answer to a call and the tokens before it; lists are (tokens,), in nats."""

    before: list[int]
    ids: list[int]
    logprobs: list[float]
    top_logprobs: list[TopLogprobs | None]


class Row(Struct, frozen=True, kw_only=True):
    """One training record.

    Lists are (T,) with T = input_length; log-probabilities are in nats, 0.0 where untrained.
    """

    sample_id: str | None = None
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
    generation_top_logprobs: list[TopLogprobs | None] | None = None
    prev_top_logprobs: list[TopLogprobs | None] | None = None  # the trainer's, of the same tokens

    def segments(self) -> list[tuple[int, int]]:
        """The trained segments as half-open (start, stop) places, one a call, in order."""
        padded = pairwise([0, *self.token_loss_mask, 0])
        edges = [at for at, (before, after) in enumerate(padded) if before != after]
        return list(zip(edges[::2], edges[1::2], strict=True))

    def call(self, call_index: int) -> CallView | None:
        """One call of the row; None where it has no such call."""
        segments = self.segments()
        if call_index >= len(segments):
            return None
        start, stop = segments[call_index]
        top_logprobs = self.generation_top_logprobs or [None] * self.input_length
        return CallView(
            before=self.token_ids[:start],
            ids=self.token_ids[start:stop],
            logprobs=self.generation_logprobs[start:stop],
            top_logprobs=top_logprobs[start:stop],
        )


class CutResult(Struct, frozen=True, kw_only=True):
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
    margin_trainer: float | None = None  # signed: over 0 where the trainer prefers the baseline's


class Rerun(Struct, frozen=True, kw_only=True):
    """A cut's call run again.

    `torch` scores the uninterrupted call; its top_logprobs hold both calls' tokens.
    """

    prefill: CallView
    decode: CallView
    torch: CallView
    changed: list[str] = []  # in what this machine differs from the saved run's


def likely(top_logprobs: TopLogprobs | None) -> dict[int, float]:
    """Token id to log-probability in nats; a token without a finite one is left out."""
    return {token: logprob for token, logprob in top_logprobs or () if logprob is not None}
