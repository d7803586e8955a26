"""The ways to stop: a user's mistake, an experiment that did not come about, parity not held."""


class ExpectedError(Exception):
    """An error whose message alone is shown: a traceback would only show this package's code."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What IPython prints in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(ExpectedError):
    """A mistake of the user's: what is wrong, then what to do. Ends a command with exit code 2."""

    exit_code = 2

    def __init__(self, wrong: str, remedy: str = ""):
        super().__init__(f"{wrong}\n  -> {remedy}" if remedy else wrong)


class IncompleteError(ExpectedError):
    """The experiment did not come about: a worker died, say. Ends a command with exit code 3."""

    exit_code = 3


class ParityError(ExpectedError):
    """A check found problems. Ends a command with exit code 1."""
