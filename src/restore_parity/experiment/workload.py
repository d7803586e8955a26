"""The calendar workload: what each row asks, what the tool answers, what the verifier pays, and all of it in tokens."""

import difflib
import json
from pathlib import Path

from msgspec import Struct

from ..params import Params
from ..records import Key

NOUNS = ("Call", "Lunch", "Sync", "Trip", "Talk", "Visit")
SYSTEM = "Call tools in JSON."
EXAMPLES = (("Tea 42", "2026-01-08", 8), ("Run 5", "2026-02-21", 16))
MARK = "\u241fanswer\u241f"  # stands for the assistant's answer while the template's text after it is cut out


class Task(Struct, frozen=True):
    """One row's task. Its event is its sentinel: siblings ask for different ones, in both calls."""

    key: Key
    title: str
    date: str
    request: str
    expected: str  # what the verifier wants as the closing answer

    def messages(self) -> list[dict[str, str]]:
        told = [{"role": "system", "content": SYSTEM}]
        for title, date, n in EXAMPLES:
            told += [
                {"role": "user", "content": f'Book "{title}" on {date}, then count from 1 to {n}.'},
                {"role": "assistant", "content": _call(title, date)},
                {"role": "tool", "content": json.dumps(run_tool(_call(title, date), booked=0))},
                {"role": "assistant", "content": _closing(title, n)},
            ]
        return [*told, {"role": "user", "content": self.request}]


def tasks(params: Params) -> list[Task]:
    """The tasks of all rows, in the order of their keys."""
    made = []
    for place, key in enumerate(params.row_keys()):
        title = f"{NOUNS[place % len(NOUNS)]} {place + 17}"
        date = f"2026-{place % 12 + 1:02}-{place % 28 + 1:02}"
        n = params.list_lengths[key.prompt_idx]
        request = f'Book "{title}" on {date}, then {params.closing.format(n=n)}.'
        # Slot 0 is paid for one integer more than its prompt asks, so that rewards cannot all be the same.
        made.append(Task(key, title, date, request, _closing(title, n + (key.prompt_idx == 0))))
    return made


def run_tool(call: str, booked: int) -> dict[str, object]:
    """`calendar_create_event`: the result of one call's text, whatever it is, after `booked` earlier events.

    The event's number counts the executions, so a second one after a restore shows in the row.
    """
    try:
        asked = json.loads(call)
        title, date = asked["arguments"]["title"], asked["arguments"]["date"]
        if asked["name"] != "calendar_create_event" or not isinstance(title, str) or not isinstance(date, str):
            raise ValueError
    except (ValueError, LookupError, TypeError, RecursionError):
        return {"error": "no such call", "attempt": booked + 1}
    return {"event_id": booked + 1}


def reward(task: Task, call: str, closing: str) -> float:
    """Half for the event as asked, half for how like the closing answer is to the expected integers; 0.0 to 1.0."""
    heard = closing[: 2 * len(task.expected)]  # what rambles on is wrong already, and thousands of tokens take seconds
    likeness = difflib.SequenceMatcher(None, task.expected, heard, autojunk=False).ratio()
    return 0.5 * (call == _call(task.title, task.date)) + 0.5 * likeness


def _call(title: str, date: str) -> str:
    return json.dumps({"name": "calendar_create_event", "arguments": {"title": title, "date": date}})


def _closing(title: str, n: int) -> str:
    """The event named again, so that siblings' closing calls differ from their first token on, then the integers."""
    return f"{title}: {' '.join(map(str, range(1, n + 1)))}"


class Codec:
    """A checkpoint's tokenizer and chat template: the one place where text becomes token ids."""

    def __init__(self, folder: Path):
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.stop_ids = stop_token_ids(folder)

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        return self._encode(self._render(messages))

    def tool_ids(self, messages: list[dict[str, str]], last_id: int, result: dict[str, object]) -> list[int]:
        """What stands between a call and the next: the end of its turn unless `last_id` is that, and the tool's turn."""
        told = [{"role": "assistant", "content": MARK}, {"role": "tool", "content": json.dumps(result)}]
        ids = self._encode(self._render([*messages, *told]).split(MARK, 1)[1])
        return ids[1:] if ids[0] == last_id else ids

    def text(self, ids: list[int]) -> str:
        """Decoded text without special tokens, for the tool and the verifier."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _render(self, messages) -> str:
        return self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def stop_token_ids(folder: Path) -> list[int]:
    """The ids that end a call, where the engine looks for them: generation_config.json, else config.json."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        found = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
        if found is not None:
            return found if isinstance(found, list) else [found]
    return []
