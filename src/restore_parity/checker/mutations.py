"""Mutations: broken restores made from a healthy one, each with the check that must report it.

A `World` is all that the checks read, as plain data; a mutation is a pure function from a world and a subject in it to a
broken world, or None where this data holds no place for it. The report applies them to the very rows it judges.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from .checks import CHECKS, Judgement, judge
from .dumps import COLUMNS, Run, run_of
from ..journal import Call, Journal
from .problems import progress
from ..params import Params
from ..records import AlreadyTerminal, Completed, Key, Restored, RestoreRecord, Row, ids_sha256
from .loading import Exit, RunInfo

MANY_TOKENS = 20_000
Rows = dict[Key, Row]


class MutationResult(Struct, frozen=True):
    """Whether a deliberately broken copy of the rows was reported. `caught_by`: None where they hold no place for it."""

    id: str
    check: str  # must be among caught_by
    caught_by: list[str] | None


class World(Struct, frozen=True):
    """What one judgement reads: the rows of both runs (with extra ones behind), the capture, the restore records."""

    baseline: Rows
    rows: Rows
    calls: dict[str, Call]  # open at the kill
    records: list[RestoreRecord]
    infos: dict[str, RunInfo]
    extra: tuple[tuple[int, Row], ...] = ()  # rows of the restored dump beyond `rows`: (train step, row)


class Subject(NamedTuple):
    """A cut to break: its call occupies tokens [first, stop) of its row, the prefix is [first, seam)."""

    key: Key
    call: Call
    first: int
    seam: int
    stop: int
    row: Row


class Mutation(NamedTuple):
    id: str
    check: str  # must report it; others may follow
    change: Callable[[World, Subject], World | None]


def world_of(uninterrupted: Run, killed: Run, restored: Run, keys: list[Key] | None = None) -> World:
    """The world of three runs, or of the rows of `keys` alone; only rows that both dumps hold whole."""
    wanted = sorted(uninterrupted.rows.keys() & restored.rows.keys()) if keys is None else keys
    pairs = {key: (uninterrupted.only(key), restored.only(key)) for key in wanted}
    whole = {key: (there, here) for key, (there, here) in pairs.items() if there and here}
    opened = [call for call in killed.journal.open_calls() if call.key in whole]
    calls = {call.call_id: call for call in opened if call.call_index < len(whole[call.key][1].segments())}
    return World(
        baseline={key: there for key, (there, _) in whole.items()},
        rows={key: here for key, (_, here) in whole.items()},
        calls=calls,
        records=[record for record in restored.restores if record.source_call_id in calls],
        infos={run.name: run.info for run in (uninterrupted, killed, restored)},
    )


def judged(world: World, params: Params) -> Judgement:
    """Every check on a world, as the report applies them to the runs."""
    runs = {
        "uninterrupted": run_of("uninterrupted", [(k.train_step, row) for k, row in world.baseline.items()]),
        "restored": run_of("restored", [*((k.train_step, row) for k, row in world.rows.items()), *world.extra]),
        "killed": Run("killed"),
    }
    for name, run in runs.items():
        run.info, run.planned = world.infos[name], set(world.baseline)
    journal = Journal(Path("memory"))
    journal.calls = world.calls
    runs["killed"].journal = journal
    ended = world.infos["killed"].exit
    if ended and ended.open_calls:  # the supervisor's count, of the calls of this world
        seen = {call.call_id: len(call.ids) for call in world.calls.values()}
        runs["killed"].info = replace(world.infos["killed"], exit=replace(ended, open_calls=seen))
    runs["restored"].restores = world.records
    return judge(runs["uninterrupted"], runs["restored"], runs["killed"], params)


def subjects(world: World, params: Params) -> list[Subject]:
    """The cuts that can be broken in most ways first: a prefix and a tail of two tokens or more, the row a match."""
    found = []
    for call in world.calls.values():
        key = call.key
        row = world.rows[key]
        segments = row.segments()
        if call.ids and call.call_index < len(segments) and row.token_ids == world.baseline[key].token_ids:
            first, stop = segments[call.call_index]
            found.append(Subject(key, call, first, first + len(call.ids), stop, row))
    whole = [s for s in found if s.seam - s.first >= 2 and s.stop - s.seam >= 2]
    # one with an earlier call, and no call behind it, has a place for the most
    return sorted(whole, key=lambda s: (-s.call.call_index, -min(s.seam - s.first, s.stop - s.seam), s.key)) or found


def apply_mutations(world: World, params: Params) -> list[MutationResult]:
    """Every mutation on its own, judged against what the unbroken world already reports."""
    before, candidates, results = _reported(world, params), subjects(world, params), []
    for mutation in progress(MUTATIONS, "mutations"):
        changed = (mutation.change(world, subject) for subject in candidates)
        broken = next((other for other in changed if other is not None and other != world), None)
        new = {check for check, *_ in _reported(broken, params) - before} if broken else set()
        caught_by = [check for check in CHECKS if check in new] if broken else None
        results.append(MutationResult(mutation.id, mutation.check, caught_by))
    return results


def prove(judgement: Judgement, runs: tuple[Run, Run, Run], params: Params) -> None:
    """Show on these runs' own rows that the checks can fail; a problem for each mutation that goes unreported, or
    where rows that pass have no place for any.

    Where the dumps are large, some groups of one step stand for all, those with most cuts first.
    """
    uninterrupted, killed, restored = runs
    keys = sorted(uninterrupted.rows.keys() & restored.rows.keys())
    if judgement.counts["tokens"] > MANY_TOKENS:
        keys = _some(keys, Counter(call.key[:2] for call in killed.journal.open_calls() if call.ids), uninterrupted)
    judgement.mutations = apply_mutations(world_of(uninterrupted, killed, restored, keys), params)
    if judgement.verdict == "PASS" and all(result.caught_by is None for result in judgement.mutations):
        judgement.expect("mutations", False, "these rows", "a place for some mutation", "no place for any")
    for result in judgement.mutations:
        if result.caught_by is not None:
            got = f"reported by {', '.join(result.caught_by) or 'no check'}"
            caught = result.check in result.caught_by
            judgement.expect("mutations", caught, f"mutation {result.id}", f"reported by {result.check}", got)


def _some(keys: list[Key], cuts: Counter, run: Run) -> list[Key]:
    """Whole groups of one step, two at least, of about MANY_TOKENS."""
    step = min((step for step, _ in cuts), default=keys[0].train_step)
    some, groups, tokens = [], [], 0
    for key in sorted((key for key in keys if key.train_step == step), key=lambda key: (-cuts[key[:2]], key)):
        if key[:2] not in groups:
            if len(groups) >= 2 and tokens > MANY_TOKENS:
                break
            groups.append(key[:2])
        row = run.only(key)
        tokens += row.input_length if row else 0
        some.append(key)
    return some


def _reported(world: World, params: Params) -> Counter:
    return Counter((problem.check, problem.key, problem.where, problem.got) for problem in judged(world, params).problems)


# --- pure edits -------------------------------------------------------------------------------------------------


def splice(row: Row, start: int, stop: int, source: Row, first: int, last: int) -> Row:
    """The row with the tokens [start, stop) of every column replaced by [first, last) of another row."""
    columns = {}
    for name in COLUMNS:
        values, others = getattr(row, name), getattr(source, name)
        columns[name] = values and [*values[:start], *others[first:last], *values[stop:]]
    return replace(row, input_length=len(columns["token_ids"]), **columns)


def put(row: Row, at: int, **columns) -> Row:
    """The row with one place of some columns replaced."""
    return replace(
        row, **{name: [*getattr(row, name)[:at], value, *getattr(row, name)[at + 1 :]] for name, value in columns.items()}
    )


def with_row(world: World, key: Key, row: Row | None) -> World | None:
    return row and replace(world, rows=world.rows | {key: row})


def with_records(world: World, subject: Subject, change: Callable[[RestoreRecord], list[RestoreRecord]]) -> World:
    """The world with the records of the subject's call replaced."""
    mine = subject.call.call_id
    return replace(
        world, records=[r for old in world.records for r in (change(old) if old.source_call_id == mine else [old])]
    )


def restored(world: World, subject: Subject, **fields) -> World:
    return with_records(world, subject, lambda r: [replace(r, **fields)] if isinstance(r, Restored) else [r])


def ended(world: World, subject: Subject, **fields) -> World:
    return with_records(world, subject, lambda r: [replace(r, **fields)] if isinstance(r, Completed) else [r])


def with_call(world: World, subject: Subject, **fields) -> World:
    return replace(world, calls=world.calls | {subject.call.call_id: replace(subject.call, **fields)})


def other_id(token: int) -> int:
    return token + 1 if token % 2 == 0 else token - 1


# --- tokens of the restored call ------------------------------------------------------------------------------------

PLACES: dict[str, Callable[[Subject], int]] = {
    "prefix-start": lambda s: s.first,
    "prefix-middle": lambda s: (s.first + s.seam) // 2,
    "seam": lambda s: s.seam - 1,
    "tail": lambda s: s.stop - 1,
}


def dropped(place):
    return lambda w, s: with_row(w, s.key, splice(s.row, place(s), place(s) + 1, s.row, 0, 0))


def doubled(place):
    return lambda w, s: with_row(w, s.key, splice(s.row, place(s), place(s), s.row, place(s), place(s) + 1))


def swapped(place):
    """Exchange a token with the next one (the last one: with the one before)."""

    def change(w: World, s: Subject) -> World | None:
        at = min(place(s), s.stop - 2)
        one, other = s.row.token_ids[at : at + 2]
        if one == other:
            return None
        turned = splice(splice(s.row, at, at + 1, s.row, at + 1, at + 2), at + 1, at + 2, s.row, at, at + 1)
        return with_row(w, s.key, turned)

    return change


def changed(place):
    return lambda w, s: with_row(w, s.key, put(s.row, place(s), token_ids=other_id(s.row.token_ids[place(s)])))


# --- prefixes that are not the captured one ---------------------------------------------------------------------------


def foreign_prefix(pick: Callable[[World, Subject], Call | None]):
    """The prefix of another call, as many tokens of it, restored and logged without a fault of its own."""

    def change(w: World, s: Subject) -> World | None:
        other = pick(w, s)
        size = s.seam - s.first
        if other is None or len(other.ids) < size or other.ids[:size] == s.call.ids:
            return None
        row = s.row
        for at in range(size):
            row = put(row, s.first + at, token_ids=other.ids[at], generation_logprobs=other.logprobs[at])
        return restored(with_row(w, s.key, row), s, prefix_ids_sha256=ids_sha256(other.ids[:size]))

    return change


def sibling(w: World, s: Subject) -> Call | None:
    mine = [c for c in w.calls.values() if c.key != s.call.key and c.key[:2] == s.key[:2]]
    return max(mine, key=lambda call: len(call.ids), default=None)


def stranger(w: World, s: Subject) -> Call | None:
    mine = [c for c in w.calls.values() if c.key[:2] != s.key[:2]]
    return max(mine, key=lambda call: len(call.ids), default=None)


def other_attempt(w: World, s: Subject) -> Call:
    """An older attempt at the same call, whose last token was another."""
    return replace(s.call, ids=[*s.call.ids[:-1], other_id(s.call.ids[-1])])


def other_length(by: int):
    """Restored from one token fewer or more than was captured, with all records agreeing: the row itself is right."""

    def change(w: World, s: Subject) -> World | None:
        size = s.seam - s.first + by
        if size < 1 or s.stop - s.seam - by < 1:
            return None
        digest = ids_sha256(s.row.token_ids[s.first : s.first + size])
        longer = restored(w, s, prefix_tokens=size, prefix_ids_sha256=digest, max_tokens=s.call.max_tokens - size)
        return ended(longer, s, prefix_tokens=size, tail_tokens=s.stop - s.seam - by)

    return change


def wrong_capture(w: World, s: Subject) -> World:
    """C16: one captured token is wrong, and restore, record and row all agree with the capture."""
    at = (s.first + s.seam) // 2
    wrong = other_id(s.row.token_ids[at])
    row = put(s.row, at, token_ids=wrong)
    ids = row.token_ids[s.first : s.seam]
    return restored(with_call(with_row(w, s.key, row), s, ids=ids), s, prefix_ids_sha256=ids_sha256(ids))


# --- near-ties --------------------------------------------------------------------------------------------------------


def claimed(w: World, s: Subject, at: int, margin: float, logprob: float = -0.6) -> World | None:
    """A world in which the two runs part at token `at`, their top-2 showing the two tokens `margin` nats apart."""
    there, here = w.baseline[s.key], w.rows[s.key]
    if there.generation_top2 is None or here.generation_top2 is None or not here.token_loss_mask[at]:
        return None
    ours, theirs = there.token_ids[at], other_id(there.token_ids[at])
    if {ours, theirs} & set(w.infos["restored"].setup["stop_token_ids"]):
        return None
    pairs = {run: [(run, logprob), (ours + theirs - run, logprob - margin)] for run in (ours, theirs)}
    there = put(there, at, generation_logprobs=logprob, generation_top2=pairs[ours])
    here = put(here, at, token_ids=theirs, generation_logprobs=logprob, generation_top2=pairs[theirs])
    return replace(w, baseline=w.baseline | {s.key: there}, rows=w.rows | {s.key: here})


def tie_at(margin: float):
    """A tie claimed in the tail, its two tokens `margin` nats apart."""
    return lambda w, s: claimed(w, s, s.seam, margin) if s.seam < s.stop else None


def tie_without(**columns):
    """A true tie in the tail whose evidence is then spoilt in the restored run."""

    def change(w: World, s: Subject) -> World | None:
        tied = claimed(w, s, s.seam, 0.0) if s.seam < s.stop else None
        if tied is None:
            return None
        row = tied.rows[s.key]
        token = row.token_ids[s.seam]
        spoilt = {name: value(token) if callable(value) else value for name, value in columns.items()}
        return with_row(tied, s.key, put(row, s.seam, **spoilt))

    return change


def tie_before(w: World, s: Subject) -> World | None:
    """A true tie in an earlier call than the restored one, in the killed run already: the capture has it too."""
    earlier = [first for first, _ in s.row.segments() if first < s.first]
    tied = claimed(w, s, earlier[0], 0.0) if earlier else None
    return tied and with_call(tied, s, prompt_ids=tied.rows[s.key].token_ids[: s.first])


def all_set_aside(w: World, s: Subject) -> World | None:
    """A true tie in the tail of every cut that has one; the others were never cut."""
    live = {}
    for cut in [call for call in w.calls.values() if call.ids]:
        first, stop = w.rows[cut.key].segments()[cut.call_index]
        seam = first + len(cut.ids)
        tied = claimed(w, Subject(cut.key, cut, first, seam, stop, w.rows[cut.key]), seam, 0.0) if seam < stop else None
        if tied:
            w, live[cut.call_id] = tied, cut
    return replace(w, calls=live, records=[r for r in w.records if r.source_call_id in live]) if live else None


def tied_and_stopped(w: World, s: Subject) -> World | None:
    """A true tie in the tail, behind which the restored run stops short of the limit, all its records agreeing."""
    tied = claimed(w, s, s.seam, 0.0) if s.stop - s.seam >= 3 else None
    if tied is None or len(s.row.segments()) != s.call.call_index + 1:
        return None
    short = splice(tied.rows[s.key], s.stop - 1, s.stop, s.row, 0, 0)
    if short.token_ids[-1] in w.infos["restored"].setup["stop_token_ids"]:
        return None
    return ended(with_row(tied, s.key, short), s, tail_tokens=s.stop - s.seam - 1)


# --- rows, columns, records, experiments -----------------------------------------------------------------------------


def on_finished(change: Callable[[Row], Row | None], sibling: bool = False):
    """Change a row that was not cut, one with a `sibling` where asked; no place where there is none."""

    def apply(w: World, s: Subject) -> World | None:
        cut = {call.key for call in w.calls.values()}
        prompts = Counter(key[:2] for key in w.rows)
        key = next((key for key in w.rows if key not in cut and (prompts[key[:2]] > 1 or not sibling)), None)
        return key and with_row(w, key, change(w.rows[key]))

    return apply


def on_row(change: Callable[[Row, Subject], Row | None]):
    return lambda w, s: with_row(w, s.key, change(s.row, s))


def span(column: str, start: str, stop: str, values: Callable[[list[float]], list[float]]):
    """Replace a column's values in the subject's [start, stop)."""

    def change(w: World, s: Subject) -> World | None:
        first, last = getattr(s, start), getattr(s, stop)
        old = getattr(s.row, column)
        new = values(old[first:last])
        return (
            with_row(w, s.key, replace(s.row, **{column: [*old[:first], *new, *old[last:]]}))
            if new != old[first:last]
            else None
        )

    return change


def zeroed(values: list[float]) -> list[float]:
    return [0.0] * len(values)


def shifted(values: list[float]) -> list[float]:
    return [*values[1:], *values[:1]]


def recomputed(values: list[float]) -> list[float]:
    """As a prefill would give them again: right but for the last digits."""
    return [value * (1 + 1e-6) for value in values]


def permuted_rewards(w: World, s: Subject) -> World | None:
    """The rewards of a step's rows, each given to the next."""
    keys = [key for key in w.rows if key.train_step == s.key.train_step]
    turned = {key: replace(w.rows[key], reward=w.rows[keys[i - 1]].reward) for i, key in enumerate(keys)}
    return replace(w, rows=w.rows | turned) if any(turned[key].reward != w.rows[key].reward for key in keys) else None


def other_weights(w: World, s: Subject) -> World:
    return replace(
        w, rows={key: replace(row, prev_logprobs=[x - 1.0 for x in row.prev_logprobs]) for key, row in w.rows.items()}
    )


def lost(w: World, s: Subject) -> World:
    return replace(w, rows={key: row for key, row in w.rows.items() if key != s.key})


def row_twice(w: World, s: Subject) -> World:
    return replace(w, extra=((s.key.train_step, s.row),))


def moved(w: World, s: Subject) -> World:
    return replace(lost(w, s), extra=((s.key.train_step + 1000, s.row),))


def drop(kind: type):
    return lambda w, s: with_records(w, s, lambda r: [] if isinstance(r, kind) else [r])


def twice(kind: type):
    return lambda w, s: with_records(w, s, lambda r: [r, r] if isinstance(r, kind) else [r])


def record_of_no_cut(w: World, s: Subject) -> World:
    stray = Restored(call_id="stray", source_call_id="no-such-call", prefix_tokens=1)
    return replace(w, records=[*w.records, stray])


def past_stop(w: World, s: Subject) -> World | None:
    """The prefix ends by a stop token, and the restored run generates on."""
    stop_ids = w.infos["restored"].setup.get("stop_token_ids")
    if not stop_ids or s.seam == s.stop or s.row.token_ids[s.seam - 1] in stop_ids:
        return None
    row = put(s.row, s.seam - 1, token_ids=stop_ids[0])
    ids = row.token_ids[s.first : s.seam]
    return restored(with_call(with_row(w, s.key, row), s, ids=ids), s, prefix_ids_sha256=ids_sha256(ids))


def past_stop_in_both(w: World, s: Subject) -> World | None:
    """Both runs generate on after the same stop token, as an engine does that does not know it."""
    broken = past_stop(w, s)
    return broken and replace(
        broken,
        baseline=w.baseline
        | {s.key: put(w.baseline[s.key], s.seam - 1, token_ids=broken.rows[s.key].token_ids[s.seam - 1])},
    )


def said_terminal(w: World, s: Subject) -> World:
    """A call with budget left is said to have been terminal, and its tail is not generated."""
    gone = splice(s.row, s.seam, s.stop, s.row, 0, 0)

    def said(record: RestoreRecord) -> list[RestoreRecord]:
        terminal = AlreadyTerminal(
            call_id=record.call_id, source_call_id=s.call.call_id, prefix_tokens=record.prefix_tokens
        )
        return [terminal] if isinstance(record, Completed) else [record]

    return with_records(with_row(w, s.key, gone), s, said)


def info(run: str, **fields):
    return lambda w, s: replace(w, infos=w.infos | {run: replace(w.infos[run], **fields)})


def nothing_captured(w: World, s: Subject) -> World | None:
    """Every call open at the kill had no token yet, and was restored from the empty prefix."""
    if not any(isinstance(record, Completed) and record.prefix_tokens and record.tail_tokens for record in w.records):
        return None
    calls = {call_id: replace(call, ids=[], logprobs=[], top2=[]) for call_id, call in w.calls.items()}
    records: list[RestoreRecord] = []
    for call in w.calls.values():
        first, stop = w.rows[call.key].segments()[call.call_index]
        place = {"call_id": f"new {call.call_id}", "source_call_id": call.call_id, "prefix_tokens": 0}
        place |= {"group_id": call.group_id, "generation_index": call.key.generation_index}
        place |= {"call_index": call.call_index}
        records.append(Restored(prefix_ids_sha256=ids_sha256([]), max_tokens=call.max_tokens, **place))
        records.append(Completed(tail_tokens=stop - first, **place))
    return replace(w, calls=calls, records=records)


def constant_rewards(w: World, s: Subject) -> World:
    flat = [{key: replace(row, reward=0.5) for key, row in rows.items()} for rows in (w.baseline, w.rows)]
    return replace(w, baseline=flat[0], rows=flat[1])


def none_trained(w: World, s: Subject) -> World:
    flat = [{key: replace(row, sample_loss_mask=0.0) for key, row in rows.items()} for rows in (w.baseline, w.rows)]
    return replace(w, baseline=flat[0], rows=flat[1])


SPOT = {"dropped": (dropped, "call-position", "call-position"), "doubled": (doubled, "call-position", "call-position")}
SPOT |= {"swapped": (swapped, "prefix-captured", "near-tie"), "changed": (changed, "prefix-captured", "near-tie")}
DEAD = Exit(time=0.0, code=0)
MUTATIONS: list[Mutation] = [
    *(Mutation(f"token-{name}-{where}", tail if where == "tail" else prefix, edit(place))
      for name, (edit, prefix, tail) in SPOT.items() for where, place in PLACES.items()),
    Mutation("prefix-of-the-sibling", "prefix-captured", foreign_prefix(sibling)),
    Mutation("prefix-of-another-group", "prefix-captured", foreign_prefix(stranger)),
    Mutation("prefix-of-an-older-attempt", "prefix-captured", foreign_prefix(other_attempt)),
    Mutation("prefix-one-shorter", "prefix-captured", other_length(-1)),
    Mutation("prefix-one-longer", "prefix-captured", other_length(1)),
    Mutation("prefix-hash-of-other-tokens", "prefix-hash", lambda w, s: restored(w, s, prefix_ids_sha256=ids_sha256([0, *s.call.ids]))),
    Mutation("capture-wrong-restore-agrees", "near-tie", wrong_capture),
    Mutation("mask-bit-off-in-prefix", "call-position", on_row(lambda row, s: put(row, s.first, token_loss_mask=0.0))),
    Mutation("mask-bit-off-in-tail", "call-position", on_row(lambda row, s: put(row, s.stop - 1, token_loss_mask=0.0))),
    Mutation("mask-not-extended", "call-position", span("token_loss_mask", "seam", "stop", zeroed)),
    Mutation("mask-of-a-finished-row", "row-exact", on_finished(lambda row: put(row, 0, token_loss_mask=1.0))),
    Mutation("restored-twice", "restored-once", twice(Restored)),
    Mutation("restored-never", "restored-once", drop(Restored)),
    Mutation("completed-twice", "completed-once", twice(Completed)),
    Mutation("completed-never", "completed-once", drop(Completed)),
    Mutation("record-of-no-cut", "restored-once", record_of_no_cut),
    Mutation("restored-into-another-call", "call-position", lambda w, s: restored(w, s, call_index=s.call.call_index + 1)),
    Mutation("restored-into-the-sibling", "call-position", lambda w, s: restored(w, s, generation_index=s.key.generation_index + 1)),
    Mutation("restored-into-another-group", "call-position", lambda w, s: restored(w, s, group_id=f"not {s.call.group_id}")),
    Mutation("tail-miscounted", "call-position", lambda w, s: ended(w, s, tail_tokens=s.stop - s.seam + 1)),
    Mutation("tail-lost", "near-tie", lambda w, s: ended(with_row(w, s.key, splice(s.row, s.seam, s.stop, s.row, 0, 0)), s, tail_tokens=0)),
    Mutation("budget-given-again", "token-budget", lambda w, s: restored(w, s, max_tokens=s.call.max_tokens)),
    Mutation("past-a-captured-stop-token", "already-terminal", past_stop),
    Mutation("past-a-stop-token-in-both", "already-terminal", past_stop_in_both),
    Mutation("said-to-be-terminal", "already-terminal", said_terminal),
    Mutation("reward-changed", "row-exact", on_row(lambda row, s: replace(row, reward=row.reward + 0.25))),
    Mutation("rewards-permuted", "row-exact", permuted_rewards),
    Mutation("sample-mask-changed", "row-exact", on_row(lambda row, s: replace(row, sample_loss_mask=1 - row.sample_loss_mask))),
    Mutation("token-of-a-finished-row-changed", "row-exact", on_finished(lambda row: put(row, -1 + len(row.token_ids), token_ids=other_id(row.token_ids[-1])))),
    Mutation("prompt-changed", "before-cut-call", on_row(lambda row, s: put(row, 0, token_ids=other_id(row.token_ids[0])))),
    Mutation("length-changed", "dump-complete", on_row(lambda row, s: replace(row, input_length=row.input_length - 1))),
    Mutation("group-changed", "group-membership", on_finished(lambda row: replace(row, group_id=f"not {row.group_id}"), sibling=True)),
    Mutation("row-lost", "row-membership", lost),
    Mutation("row-doubled", "row-membership", row_twice),
    Mutation("row-moved-to-another-step", "row-membership", moved),
    Mutation("prefix-logprobs-zeroed", "prefix-logprobs", span("generation_logprobs", "first", "seam", zeroed)),
    Mutation("prefix-logprobs-shifted", "prefix-logprobs", span("generation_logprobs", "first", "seam", shifted)),
    Mutation("prefix-logprobs-recomputed", "prefix-logprobs", span("generation_logprobs", "first", "seam", recomputed)),
    Mutation("prefix-logprobs-not-the-captured", "prefix-logprobs", lambda w, s: with_call(w, s, logprobs=[x - 0.5 for x in s.call.logprobs])),
    Mutation("tail-logprobs-of-another-state", "tail-logprobs", span("generation_logprobs", "seam", "stop", lambda v: [x - 1.0 for x in v])),
    Mutation("logprob-nan", "dump-complete", on_row(lambda row, s: put(row, s.seam, generation_logprobs=float("nan")))),
    Mutation("logprob-null", "dump-complete", on_row(lambda row, s: put(row, s.seam, generation_logprobs=None))),
    Mutation("advantage-infinite", "dump-complete", on_row(lambda row, s: put(row, s.seam, advantages=float("inf")))),
    Mutation("no-token-trained", "dump-complete", on_row(lambda row, s: replace(row, token_loss_mask=zeroed(row.token_loss_mask)))),
    Mutation("other-weights-in-the-trainer", "policy-logprobs", other_weights),
    Mutation("tie-claimed-at-1-nat", "near-tie", tie_at(1.0)),
    Mutation("tie-claimed-at-2.5-nats", "near-tie", tie_at(2.5)),
    Mutation("tie-claimed-at-8-nats", "near-tie", tie_at(8.0)),
    Mutation("tie-without-evidence", "near-tie", tie_without(generation_top2=None)),
    Mutation("tie-with-processed-logprobs", "near-tie", tie_without(generation_logprobs=0.0, generation_top2=lambda token: [(token, 0.0), (other_id(token), float("-inf"))])),
    Mutation("tie-of-another-logprob", "near-tie", tie_without(generation_logprobs=-0.9)),
    Mutation("tie-behind-which-the-tail-stops", "tail-generated", tied_and_stopped),
    Mutation("tie-before-the-restored-call", "before-cut-call", tie_before),
    Mutation("all-cuts-set-aside", "set-aside-share", all_set_aside),
    Mutation("no-kill", "kill-happened", info("killed", exit=DEAD)),
    Mutation("still-running", "kill-happened", info("killed", exit=None)),
    Mutation("no-cut", "cut-coverage", nothing_captured),
    Mutation("other-settings", "same-setup", info("restored", setup={"model": "another", "stop_token_ids": []})),
    Mutation("constant-rewards", "reward-signal", constant_rewards),
    Mutation("nothing-trained-on", "reward-signal", none_trained),
]  # fmt: skip
