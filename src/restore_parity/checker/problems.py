"""What a violation looks like, made in one place for notebook, terminal, JUnit and JSON alike."""

from collections.abc import Callable
from functools import partial

from msgspec import Struct
from tqdm import tqdm

AROUND = 2  # tokens a message shows on each side of a place
SHOWN = 20  # problems a message shows; results.json holds all


progress = partial(tqdm, delay=2, mininterval=2, leave=False)  # a bar for what takes longer than two seconds


class Problem(Struct, frozen=True):
    """One violation: what `check` expected at `where` of the row or cut `key`, and the command to look further."""

    check: str
    key: str
    where: str
    expected: str
    got: str
    next: str

    def __str__(self) -> str:
        told = [f"  {name:<8}  {printable(getattr(self, name))}" for name in ("where", "expected", "got", "next")]
        return "\n".join([f"{self.check} {printable(self.key)}".rstrip(), *told])


def printable(text: str, longest: int = 1000) -> str:
    """Text that can do nothing but be read: control and direction characters as their escapes, the middle cut out."""
    text = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= longest else f"{text[: longest // 2]} … {len(text):,} characters … {text[-longest // 2 :]}"


def render(problems: list[Problem]) -> str:
    more = len(problems) - SHOWN
    shown = "\n\n".join(map(str, problems[:SHOWN]))
    return shown + (f"\n\n… and {more} more, all of them in results.json" if more > 0 else "")


def window(values: list, at: int, text: Callable[[list[int]], str] | None = None) -> str:
    """The values round a place, that place in brackets; `end` where the list is over. `text` decodes them."""
    first = max(0, at - AROUND)
    near = values[first : at + AROUND + 1]
    shown = [str(value) for value in near]
    shown[at - first : at - first + 1] = [f"[{values[at] if at < len(values) else 'end'}]"]
    told = ("… " if first else "") + ", ".join(shown) + (" …" if at + AROUND + 1 < len(values) else "")
    return told + (f"  {text(near)!r}" if text else "")
