"""Lists of token ids: how they are hashed, compared, shown and decoded."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WINDOW_TOKENS = 2  # that a message shows on each side of a place

Decode = Callable[[Sequence[int]], str]


def ids_sha256(ids: Sequence[int]) -> str:
    """SHA-256 of the ids in decimal joined by commas, NeMo RL's rule.

    >>> ids_sha256([12, 13]) == hashlib.sha256(b"12,13").hexdigest()
    True
    """
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """The first place at which two lists differ, the shorter one's end included; None: equal.

    >>> first_difference([1, 2, 3], [1, 9, 3])
    1
    >>> first_difference([1, 2], [1, 2, 3])
    2
    >>> first_difference([1, 2], [1, 2]) is None
    True
    """
    if one == other:
        return None
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def window(values: Sequence[Any], at: int, decode: Decode | None = None) -> str:
    """The values around place `at`, that place in brackets; `decode` adds them as text.

    >>> window([10, 11, 12, 13, 14, 15], 3)
    '… 11, 12, [13], 14, 15'
    >>> window([10, 11], 2)
    '10, 11, [end]'
    """
    first = max(0, at - WINDOW_TOKENS)
    near = values[first : at + WINDOW_TOKENS + 1]
    shown = [str(value) for value in near]
    if at < len(values):
        shown[at - first] = f"[{values[at]}]"
    else:
        shown.append("[end]")
    text = ", ".join(shown)
    if first:
        text = f"… {text}"
    if at + WINDOW_TOKENS + 1 < len(values):
        text = f"{text} …"
    if decode:
        text = f"{text}  {decode(near)!r}"
    return text


def decoder(model_folder: str | Path | None) -> Decode | None:
    """What decodes a model's token ids, special tokens shown.

    None where the model's tokenizer, or the library that reads it, is not on this machine, or the
    tokenizer cannot be read: text helps a reader and decides nothing.
    """
    if not model_folder:
        return None
    file = Path(model_folder) / "tokenizer.json"
    try:
        from tokenizers import Tokenizer

        if not file.is_file():
            return None
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # tokenizers raises nothing narrower; is_file raises for a name too long
        return None

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    return decode
