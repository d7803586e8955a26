"""What was cut: the evidence a cut is checked against."""

from collections.abc import Iterable

from msgspec import Struct

from ..journal import Call
from ..records import CutKey, Key


class Cut(Struct, frozen=True, kw_only=True):
    """A call that was open at the kill, and what is known of it.

    It is a cut where a token of it was captured; else it starts again.

    `captured` is what the killed run's journal holds of the call. Where another trainer's files
    tell of the cut there is none, and perhaps neither index nor limit.
    """

    call_id: str
    key: Key | None  # None: no row of the restored run is this group's and generation's
    group_id: str
    generation_index: int
    call_index: int | None = None  # None: the row's last call
    limit_tokens: int | None = None  # of prefix and tail together
    prefix_tokens: int | None = None  # as a selection says was captured
    prefix_digest: str | None = None
    captured: Call | None = None

    @property
    def name(self) -> str:
        """As the cut prints: `1/3/0#1`, or its row's name where the call's index is not known."""
        if self.key is None:
            return f"{self.group_id}, generation {self.generation_index}"
        if self.call_index is None:
            return str(self.key)
        return str(CutKey(self.key, self.call_index))


def cuts_of_calls(calls: Iterable[Call]) -> list[Cut]:
    """The cuts of a killed run: the calls its journal leaves open."""
    return [
        Cut(
            call_id=call.call_id,
            key=call.key,
            group_id=call.group_id,
            generation_index=call.key.generation_index,
            call_index=call.call_index,
            limit_tokens=call.max_tokens,
            captured=call,
        )
        for call in calls
    ]
