"""What all checks found together: problems, how much each compared, what could not run and why."""

import math
from collections import Counter, defaultdict
from typing import Any, Literal

from msgspec import Struct, field

from ..params import Params
from ..records import CutResult
from ..tokens import Decode, first_difference, window
from .problems import Problem

CHECKS = (
    "kill-happened",
    "cut-coverage",
    "same-setup",
    "reward-signal",
    "dump-complete",
    "row-membership",
    "group-membership",
    "restored-once",
    "completed-once",
    "tail-generated",
    "already-terminal",
    "call-position",
    "row-shape",
    "prefix-hash",
    "prefix-captured",
    "prefix-logprobs",
    "finished-captured",
    "token-budget",
    "before-cut-call",
    "near-tie",
    "set-aside-share",
    "row-exact",
    "tail-logprobs",
    "policy-logprobs",
    "engine-trainer-gap",
)
# of the experiment: where one does not hold, the verdict is INCOMPLETE, not FAIL
ASSUMPTIONS = ("kill-happened", "cut-coverage", "same-setup", "reward-signal")

Status = Literal["pass", "fail", "not_run"]
Verdict = Literal["PASS", "FAIL", "INCOMPLETE"]


class MutationResult(Struct, frozen=True, kw_only=True):
    """Whether a deliberately broken copy of the rows was reported.

    `caught_by` is None where these rows hold no place for the mutation.
    """

    id: str
    check: str  # must be among caught_by
    caught_by: list[str] | None

    @property
    def caught(self) -> bool:
        """Whether the check that must report it did."""
        return self.caught_by is not None and self.check in self.caught_by


class RowResult(Struct, frozen=True, kw_only=True):
    """A row that was not cut and is set aside; places count tokens from the row's start."""

    key: str
    first_difference: int
    parted_in: Literal["killed", "restored"]  # the run that chose another token
    tokens: tuple[int, int] | None  # at the first difference: uninterrupted, the other run
    margin_uninterrupted: float
    margin_restored: float  # of the run it parted in
    margin_trainer: float | None = None


class Judgement(Struct, kw_only=True):
    """What the checks found; `expect` and `same` are the only ways to compare."""

    params: Params
    stop_ids: set[int] = field(default_factory=set)
    workload: Params | None = None  # of the runs, where their run.json tells: limits, planned rows
    vocabulary: int | None = None  # tokens the model knows, where that is known
    has_journal: bool = False  # the killed run's
    cut_options: str = ""  # of the command that shows a cut, behind the cut's name
    decode: Decode | None = None  # None: no tokenizer at hand
    problems: list[Problem] = field(default_factory=list)
    failed_keys: set[str] = field(default_factory=set)  # rows and cuts that have a problem
    seen: Counter[str] = field(default_factory=Counter)  # comparisons, by check
    not_run: dict[str, str] = field(default_factory=dict)  # check: reason
    # what of a check's matter lacks evidence: reason, and how many
    lacking: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    cuts: list[CutResult] = field(default_factory=list)
    rows: list[RowResult] = field(default_factory=list)  # set aside without a cut
    unread: set[str] = field(default_factory=set)  # columns of the dumps that no check reads
    counts: Counter[str] = field(default_factory=Counter)
    # how far log-probabilities of equal tokens moved: floor(log2(nats)), None where bit-identical
    noise: Counter[int | None] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=dict)  # difference a check saw, in nats
    mutations: list[MutationResult] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)  # checks whose cell has said what it found

    def expect(
        self,
        check: str,
        holds: bool,
        expected: object,
        got: object,
        *,
        where: str,
        key: object = "",
    ) -> bool:
        """Count one comparison, and note a problem unless it holds; returns whether it does."""
        self.seen[check] += 1
        if not holds:
            next_step = f"look at {where}"
            if key:
                next_step = f"restore-parity cut {key} {self.cut_options}".rstrip()
            self.add(
                Problem(
                    check=check,
                    key=str(key),
                    where=where,
                    expected=str(expected),
                    got=str(got),
                    next=next_step,
                )
            )
        return holds

    def same(
        self,
        check: str,
        expected: list[Any],
        actual: list[Any],
        *,
        where: str,
        key: object,
        note: str = "",
    ) -> bool:
        """Expect two lists to be equal.

        A problem shows both around their first difference, token ids with their text.
        """
        at = first_difference(expected, actual)
        if at is None:
            return self.expect(check, True, expected, actual, where=where, key=key)
        are_ids = isinstance((expected or actual)[0], int)
        decode = self.decode if are_ids else None
        return self.expect(
            check,
            False,
            window(expected, at, decode),
            window(actual, at, decode) + note,
            where=f"{where}[{at}]",
            key=key,
        )

    def ends_by_stop(self, ids: list[int]) -> bool:
        """Whether the last of these tokens is one that ends a call."""
        return bool(ids) and ids[-1] in self.stop_ids

    def add(self, *problems: Problem) -> None:
        """Note problems that were found elsewhere."""
        self.problems += problems
        self.failed_keys.update(problem.key for problem in problems)

    def lack(self, check: str, reason: str) -> None:
        """Note one thing that a check cannot compare: `reason` goes on from a number, in plural."""
        self.lacking[check][reason] += 1

    def why(self, check: str) -> str | None:
        """Why a check could not run, or what it could not compare; None where it compared all."""
        if check in self.not_run:
            return self.not_run[check]
        if not self.lacking[check]:
            return None
        without = "; ".join(f"{count} {reason}" for reason, count in self.lacking[check].items())
        return f"{self.seen[check]} compared; not compared: {without}"

    def note_largest(self, name: str, value: float) -> None:
        """Note the largest of a kind of difference, in nats."""
        self.largest[name] = max(self.largest.get(name, 0.0), value)

    def note_gaps(self, check: str, gaps: list[float]) -> None:
        """Note how far log-probabilities of equal tokens are apart, in nats."""
        self.note_largest(check, max(gaps))
        if check == "tail-logprobs":
            self.noise.update(math.floor(math.log2(gap)) if gap else None for gap in gaps)

    def of(self, check: str) -> list[Problem]:
        """The problems of one check."""
        return [problem for problem in self.problems if problem.check == check]

    def status(self, check: str) -> Status:
        """How one check came out."""
        if self.of(check):
            return "fail"
        nothing_to_compare = not self.seen[check] and self.lacking[check]
        return "not_run" if check in self.not_run or nothing_to_compare else "pass"

    @property
    def set_aside(self) -> int:
        """How many cuts are set aside."""
        return sum(cut.status == "set_aside" for cut in self.cuts)

    @property
    def verdict(self) -> Verdict:
        """PASS, FAIL, or INCOMPLETE where only assumptions of the experiment do not hold."""
        failed = {problem.check for problem in self.problems}
        if failed.difference(ASSUMPTIONS):
            return "FAIL"
        return "INCOMPLETE" if failed else "PASS"
