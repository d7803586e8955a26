"""The records that travel: one frozen class a thing, with the dumps' own field names."""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

TopTwo = list[tuple[int, float]]  # the two likeliest (token id, log-probability in nats), likeliest first


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


# --- journal.jsonl ----------------------------------------------------------------------------------------------


class Start(Struct, frozen=True, tag="start", tag_field="event"):
    """A call was requested: its prompt without a prefix, and the limit of prefix and tail together."""

    call_id: str
    key: str
    call_index: int
    group_id: str
    prompt_ids: list[int]
    max_tokens: int
    t: float  # seconds since the epoch, as in every record
    prefix_tokens: int = 0


class Delta(Struct, frozen=True, tag="delta", tag_field="event"):
    """Tokens one engine step gave a call; all three lists are as long as `ids`."""

    call_id: str
    ids: list[int]
    logprobs: list[float]
    top2: list[TopTwo]
    t: float


class End(Struct, frozen=True, tag="end", tag_field="event"):
    """A call ended. Where the tool ran for it, its result comes in the same record, so that no kill parts the two."""

    call_id: str
    finish_reason: Literal["stop", "length"]
    t: float
    tool_ids: list[int] | None = None  # the untrained tokens that follow the call


# --- restores.jsonl ---------------------------------------------------------------------------------------------


class Restored(Struct, frozen=True, tag="restored", tag_field="event", kw_only=True):
    """A cut call was taken up again. Fields that older foreign logs lack are None."""

    call_id: str
    source_call_id: str
    prefix_tokens: int
    group_id: str | None = None
    generation_index: int | None = None
    call_index: int | None = None
    prefix_ids_sha256: str | None = None
    max_tokens: int | None = None


class Completed(Struct, frozen=True, tag="completed", tag_field="event", kw_only=True):
    call_id: str
    source_call_id: str
    prefix_tokens: int
    tail_tokens: int
    finish_reason: str | None = None
    group_id: str | None = None
    generation_index: int | None = None
    call_index: int | None = None


class AlreadyTerminal(Struct, frozen=True, tag="already_terminal", tag_field="event", kw_only=True):
    """Nothing was requested: the limit was used up, or a stop token was captured."""

    call_id: str
    source_call_id: str | None = None  # the origin's log line has only the new id
    prefix_tokens: int
    reason: str | None = None
    group_id: str | None = None
    generation_index: int | None = None
    call_index: int | None = None


RestoreRecord = Restored | Completed | AlreadyTerminal


# --- training.jsonl ---------------------------------------------------------------------------------------------


class Row(Struct, frozen=True):
    """One training record. Lists are (T,) with T = input_length; log-probabilities in nats, 0.0 where untrained."""

    group_id: str
    prompt_idx: int
    generation_index: int
    input_length: int
    sample_loss_mask: float
    reward: float
    token_ids: list[int]
    token_loss_mask: list[float]
    advantages: list[float]
    generation_logprobs: list[float]
    prev_logprobs: list[float]
    sample_id: str | None = None
    generation_top2: list[TopTwo | None] | None = None
    prev_top2: list[TopTwo | None] | None = None  # the same two tokens' log-probabilities in the trainer's forward pass

    def segments(self) -> list[tuple[int, int]]:
        """The trained segments as half-open (start, stop) places, one a call, in order."""
        found, start = [], None
        for place, trained in enumerate([*self.token_loss_mask, 0]):
            if trained and start is None:
                start = place
            elif not trained and start is not None:
                found.append((start, place))
                start = None
        return found


# --- run.json ---------------------------------------------------------------------------------------------------


class OpenCall(Struct, frozen=True):
    call_id: str
    key: str
    call_index: int
    tokens: int


class Exit(Struct, frozen=True):
    """How a workload's process group ended, as its supervisor saw it."""

    time: float
    signal: int | None = None  # 9 for the killed run
    code: int | None = None
    open_calls: list[OpenCall] = []
    removed: list[str] = []  # shared-memory files the killed group had left behind


class RunInfo(Struct, frozen=True):
    """What one run was. `setup` is what must be equal in the three runs for their rows to be comparable."""

    phase: str
    run_id: str
    params: dict[str, Any]
    params_sha256: str
    setup: dict[str, Any]
    stop_token_ids: list[int]
    device: str
    git_revision: str | None
    start: float
    ready: float  # the engine took its first request
    exit: Exit | None = None
    trained: float | None = None  # the dump was complete


# --- what the checks find ---------------------------------------------------------------------------------------


class Problem(Struct, frozen=True):
    """One violation: what `check` expected at `where` of the row or cut `key`, and the command to look further."""

    check: str
    key: str
    where: str
    expected: str
    got: str
    next: str

    def __str__(self) -> str:
        head = f"{self.check} {self.key}".rstrip()
        parts = [("where", self.where), ("expected", self.expected), ("got", self.got), ("next", self.next)]
        return "\n".join([head, *(f"  {name:<8}  {text}" for name, text in parts)])


class MutationResult(Struct, frozen=True):
    """Whether a deliberately broken copy of the rows was reported. `caught_by`: None where they hold no place for it."""

    id: str
    check: str  # must be among caught_by
    caught_by: list[str] | None


class CutResult(Struct, frozen=True):
    """What the cut check found of one cut; places count tokens from the row's start."""

    key: str
    prefix_tokens: int
    tail_tokens: int
    status: Literal["match", "set_aside", "broken"]
    limit_tokens: int | None = None
    segment: tuple[int, int] | None = None
    first_difference: int | None = None
    tokens: tuple[int, int] | None = None  # at the first difference: uninterrupted, restored
    margin_uninterrupted: float | None = None
    margin_restored: float | None = None
    margin_trainer: float | None = None  # signed: over 0 where the trainer prefers the baseline's token
    spans: list[tuple[str, int, int]] = []  # the restored row: (prompt | earlier call | tool result | …, start, stop)
