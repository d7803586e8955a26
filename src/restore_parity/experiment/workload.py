"""The calendar workload: what rows ask, what the tool answers and the verifier pays, as tokens."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from ..params import Params
from ..records import Key
from .models import stop_token_ids

NOUNS = ("Call", "Lunch", "Sync", "Trip", "Talk", "Visit")
SYSTEM = "Call tools in JSON."
EXAMPLES = (("Tea 42", "2026-01-08", 8), ("Run 5", "2026-02-21", 16))
# stands for the assistant's answer while the template's text after it is cut out
MARK = "\u241fanswer\u241f"


Message = dict[str, str]


class Task(Struct, frozen=True, kw_only=True):
    """One row's task. Its event is its sentinel: siblings ask for different ones, in both calls."""

    key: Key
    title: str
    date: str
    request: str
    expected: str  # what the verifier wants as the closing answer

    def messages(self) -> list[Message]:
        """The chat up to the row's first call: two examples, then its request."""
        chat = [_message("system", SYSTEM)]
        for title, date, n in EXAMPLES:
            call = _call(title, date)
            chat += [
                _message("user", f'Book "{title}" on {date}, then count from 1 to {n}.'),
                _message("assistant", call),
                _message("tool", json.dumps(run_tool(call, booked=0))),
                _message("assistant", _closing(title, n)),
            ]
        chat.append(_message("user", self.request))
        return chat


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def tasks(params: Params) -> list[Task]:
    """The tasks of all rows, in the order of their keys."""
    return [_task(place, key, params) for place, key in enumerate(params.row_keys())]


def _task(place: int, key: Key, params: Params) -> Task:
    title = f"{NOUNS[place % len(NOUNS)]} {place + 17}"
    date = f"2026-{place % 12 + 1:02}-{place % 28 + 1:02}"
    n = params.list_lengths[key.prompt_idx]
    expected_n = n
    if key.prompt_idx == 0:  # paid for one more than asked, so that rewards cannot all be the same
        expected_n += 1
    return Task(
        key=key,
        title=title,
        date=date,
        request=f'Book "{title}" on {date}, then {params.closing.format(n=n)}.',
        expected=_closing(title, expected_n),
    )


def run_tool(call: str, booked: int) -> dict[str, object]:
    """`calendar_create_event`: the result of one call's text, whatever it is.

    The event's number counts the executions, `booked` before this one, so that a second one after
    a restore shows in the row.
    """
    if _is_event(call):
        return {"event_id": booked + 1}
    return {"error": "no such call", "attempt": booked + 1}


def _is_event(call: str) -> bool:
    try:
        asked = json.loads(call)
        arguments = asked["arguments"]
        texts = [arguments["title"], arguments["date"]]
        name = asked["name"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
    return bool(name == "calendar_create_event") and all(isinstance(text, str) for text in texts)


def reward(task: Task, call: str, closing: str) -> float:
    """Half for the event as asked, half for how like the closing answer is to the expected one.

    Between 0.0 and 1.0.
    """
    # what rambles on is wrong already, and thousands of tokens take seconds
    compared = closing[: 2 * len(task.expected)]
    matcher = difflib.SequenceMatcher(None, task.expected, compared, autojunk=False)
    return 0.5 * (call == _call(task.title, task.date)) + 0.5 * matcher.ratio()


def _call(title: str, date: str) -> str:
    arguments = {"title": title, "date": date}
    return json.dumps({"name": "calendar_create_event", "arguments": arguments})


def _closing(title: str, n: int) -> str:
    """The event again, then the integers: siblings' closing calls differ from their first token."""
    return f"{title}: {' '.join(map(str, range(1, n + 1)))}"


class Codec:
    """A checkpoint's tokenizer and chat template: the one place where text becomes token ids."""

    def __init__(self, folder: Path):
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.stop_ids: Sequence[int] = stop_token_ids(folder)

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        """A chat as the prompt of its next answer."""
        return self.encode(self._render(messages))

    def tool_ids(
        self, messages: list[Message], last_id: int, result: dict[str, object]
    ) -> list[int]:
        """What stands between a call and the next: the end of its turn, and the tool's turn.

        The end of its turn is left out where `last_id`, the call's last token, is that already.
        """
        turns = [_message("assistant", MARK), _message("tool", json.dumps(result))]
        _, after = self._render([*messages, *turns]).split(MARK, 1)
        ids = self.encode(after)
        return ids[1:] if ids[0] == last_id else ids

    def text(self, ids: list[int]) -> str:
        """Decoded text without special tokens, for the tool and the verifier."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def encode(self, text: str) -> list[int]:
        """The ids of a text as it stands, nothing added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _render(self, messages: list[Message]) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        )
