"""The engine as the rest of the package sees it: token ids in, deltas of token ids out."""

from collections.abc import Iterable
from typing import Any, Literal, Protocol

from msgspec import Struct

from ...records import TopLogprobs

FinishReason = Literal["stop", "length"]


class Output(Struct, frozen=True, kw_only=True):
    """What one step gave one call; lists are (tokens,), log-probabilities raw and in nats."""

    call_id: str
    ids: list[int]
    logprobs: list[float]
    top_logprobs: list[TopLogprobs]
    finish_reason: FinishReason | None


class Engine(Protocol):
    """What rollouts ask of an engine."""

    def add(self, call_id: str, prompt_ids: list[int], max_tokens: int, **sampling: Any) -> None:
        """Request at most `max_tokens` tokens after `prompt_ids`."""

    def step(self) -> list[Output]:
        """Run one engine step; an empty list when nothing came out."""

    def busy(self) -> bool:
        """Whether a requested call has not ended."""


class Request(Struct, frozen=True, kw_only=True):
    """One call to be generated to its end; `sampling` goes over the engine's own."""

    call_id: str
    prompt_ids: list[int]
    max_tokens: int
    sampling: dict[str, Any] = {}


class Answer(Struct, frozen=True, kw_only=True):
    """All that a call was given; lists are (tokens,), log-probabilities raw and in nats."""

    ids: list[int] = []
    logprobs: list[float] = []
    top_logprobs: list[TopLogprobs] = []


def generate(engine: Engine, requests: Iterable[Request]) -> dict[str, Answer]:
    """Run requests together to their ends; the answers by call id."""
    answers = {}
    for request in requests:
        answers[request.call_id] = Answer()
        engine.add(request.call_id, request.prompt_ids, request.max_tokens, **request.sampling)
    while engine.busy():
        for output in engine.step():
            answer = answers[output.call_id]
            answer.ids.extend(output.ids)
            answer.logprobs.extend(output.logprobs)
            answer.top_logprobs.extend(output.top_logprobs)
    return answers
