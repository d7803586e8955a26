"""Each mutation applied to the very rows of a report: the proof that the checks can fail."""

from collections import Counter

from ..params import Params
from ..records import Key
from .dumps import Run, Runs
from .judgement import CHECKS, Judgement, MutationResult
from .mutations import MUTATIONS, Mutation
from .progress import progress
from .worlds import Subject, World, journal_of, judge_world, subjects, world_of

MANY_TOKENS = 20_000


def prove(judgement: Judgement, runs: Runs, params: Params) -> None:
    """Apply every mutation to these runs' own rows; an unreported one is a problem.

    So are rows that pass and have no place for any mutation. Where the dumps are large, some groups
    of one step stand for all, those with most cuts first.
    """
    journal = journal_of(runs)
    keys = sorted(runs.uninterrupted.rows.keys() & runs.restored.rows.keys())
    if judgement.counts["tokens"] > MANY_TOKENS:
        cuts = Counter(call.key.group for call in journal.open_calls() if call.ids)
        keys = _some_groups(keys, cuts, runs.uninterrupted)
    judgement.mutations = apply_mutations(world_of(runs, params, keys))
    tried = [result for result in judgement.mutations if result.caught_by is not None]
    if judgement.verdict == "PASS" and not tried:
        judgement.expect(
            "mutations",
            False,
            "a place for some mutation",
            "no place for any",
            where="these rows",
        )
    for result in tried:
        checks = ", ".join(result.caught_by or []) or "no check"
        judgement.expect(
            "mutations",
            result.caught,
            f"reported by {result.check}",
            f"reported by {checks}",
            where=f"mutation {result.id}",
        )


def apply_mutations(world: World) -> list[MutationResult]:
    """Every mutation on its own, judged against what the unbroken world already reports."""
    before = _reports(world)
    candidates = subjects(world)
    results = []
    for mutation in progress(MUTATIONS, "mutations", "mutation"):
        broken = _break(world, candidates, mutation)
        caught_by = None
        if broken:
            new = {check for check, *_ in _reports(broken) - before}
            caught_by = [check for check in CHECKS if check in new]
        result = MutationResult(id=mutation.id, check=mutation.check, caught_by=caught_by)
        results.append(result)
    return results


def _break(world: World, candidates: list[Subject], mutation: Mutation) -> World | None:
    """The first changed world that the mutation makes of any cut; None: no place for it."""
    for subject in candidates:
        changed = mutation.change(world, subject)
        if changed is not None and changed != world:
            return changed
    return None


def _reports(world: World) -> Counter[tuple[str, str, str, str]]:
    """The problems of a world, counted: a change behind a known one is told by what it got."""
    problems = judge_world(world).problems
    return Counter((one.check, one.key, one.where, one.got) for one in problems)


def _some_groups(keys: list[Key], cuts: Counter[tuple[int, int]], run: Run) -> list[Key]:
    """The keys of whole groups of one step, two at least, of about MANY_TOKENS."""
    step = min((step for step, _ in cuts), default=keys[0].train_step)
    of_step = [key for key in keys if key.train_step == step]
    kept: list[Key] = []
    groups: set[tuple[int, int]] = set()
    tokens = 0
    for key in sorted(of_step, key=lambda key: (-cuts[key.group], key)):
        if key.group not in groups and len(groups) >= 2 and tokens > MANY_TOKENS:
            break
        groups.add(key.group)
        row = run.only(key)
        tokens += row.input_length if row else 0
        kept.append(key)
    return kept
