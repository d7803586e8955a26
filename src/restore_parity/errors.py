"""The ways to stop: the user's mistake, an experiment that did not come about, parity that does not hold."""


class Told(Exception):
    """Shown in a notebook by its message alone: a traceback would only show this package."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class UsageError(Told):
    """A mistake of the user's: what is wrong, then what to do. Ends a command with exit code 2."""

    exit_code = 2

    def __init__(self, wrong: str, todo: str = ""):
        super().__init__(f"{wrong}\n  -> {todo}" if todo else wrong)


class IncompleteError(Told):
    """The experiment did not come about (a worker died, a cut was never reached). Ends with exit code 3."""

    exit_code = 3


class ParityError(Told):
    """A check found problems. Ends with exit code 1."""
