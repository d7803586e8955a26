"""The two ways to stop that are not a verdict: the user's mistake, and an experiment that could not run."""


class UsageError(Exception):
    """A mistake of the user's: what is wrong, then what to do. Ends a command with exit code 2."""

    def __init__(self, wrong: str, todo: str = ""):
        super().__init__(f"{wrong}\n  -> {todo}" if todo else wrong)


class IncompleteError(Exception):
    """The experiment did not come about (a worker died, a cut was never reached). Ends with exit code 3."""
