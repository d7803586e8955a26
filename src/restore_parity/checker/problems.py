"""What a violation looks like, made in one place for notebook, terminal, JUnit and JSON alike."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

SHOWN = 20  # problems that a message shows; results.json holds all
LONGEST = 1000  # characters of one line of a message


class Problem(Struct, frozen=True, kw_only=True):
    """One violation: what `check` expected and got at `where` of the row or cut `key`.

    `next` is the command that looks further.
    """

    check: str
    key: str
    where: str
    expected: str
    got: str
    next: str

    def __str__(self) -> str:
        title = f"{self.check} {printable(self.key)}".rstrip()
        lines = [
            f"  {name:<8}  {printable(getattr(self, name))}"
            for name in ("where", "expected", "got", "next")
        ]
        return "\n".join([title, *lines])


def printable(text: str, longest: int = LONGEST) -> str:
    r"""Text that can do nothing but be read.

    Control and direction characters stand as their escapes; the middle of a long text is cut out.

    >>> printable("\x1b[2J cleared")
    '\\x1b[2J cleared'
    """
    text = "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} … {len(text):,} characters … {text[-half:]}"


def render(problems: Sequence[Problem]) -> str:
    """The first problems as text, and how many more there are."""
    shown = "\n\n".join(map(str, problems[:SHOWN]))
    more = len(problems) - SHOWN
    if more <= 0:
        return shown
    return f"{shown}\n\n… and {more} more, all of them in results.json"


def concerning(problems: Iterable[Problem], cut: str) -> list[Problem]:
    """The problems with the cut that prints as `cut`, or with its row."""
    return [problem for problem in problems if problem.key in (cut, cut.partition("#")[0])]
