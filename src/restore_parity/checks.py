"""The checks: what must hold between an uninterrupted and a restored run, and the one cut check."""

import math
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from .index import Run
from .journal import Call
from .params import Params
from .records import Completed, CutResult, Key, MutationResult, Problem, Restored, RestoreRecord, Row, cut_name, ids_sha256

CHECKS = (
    *("kill-happened", "cut-coverage", "same-setup", "reward-signal", "dump-complete", "row-membership"),
    *("group-membership", "restored-once", "completed-once", "already-terminal", "call-position"),
    *("prefix-hash", "prefix-captured", "prefix-logprobs", "token-budget", "before-cut-call", "near-tie"),
    *("set-aside-share", "row-exact", "tail-logprobs", "policy-logprobs"),
)
ASSUMPTIONS = ("kill-happened", "cut-coverage", "same-setup", "reward-signal")  # failed: INCOMPLETE, not FAIL
EXACT = ("input_length", "token_ids", "token_loss_mask", "sample_loss_mask", "reward")
AROUND = 2  # tokens a message shows on each side of a place
LN_HALF = math.log(0.5)


class Cut(Struct, frozen=True):
    """A call that was open at the kill. `captured` and `limit_tokens` are None where no journal tells them."""

    key: Key
    call_index: int | None  # None: the row's last call
    source_call_id: str
    captured: Call | None = None
    limit_tokens: int | None = None

    @property
    def name(self) -> str:
        return str(self.key) if self.call_index is None else cut_name(self.key, self.call_index)


class Judgement(Struct):
    """What all checks found: problems, how much each check saw, which could not run and why."""

    look: str = ""  # how the command that shows a cut goes on after its key
    text: Callable[[list[int]], str] | None = None  # decodes token ids, where a tokenizer is at hand
    problems: list[Problem] = field(default_factory=list)
    seen: Counter = field(default_factory=Counter)
    not_run: dict[str, str] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)  # checks whose cell has said what it found
    cuts: list[CutResult] = field(default_factory=list)
    mutations: list[MutationResult] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    noise: Counter = field(default_factory=Counter)  # of gaps: floor(log2(nats)), None where bit-identical
    largest: dict[str, float] = field(default_factory=dict)  # the largest difference a check saw, in nats

    def expect(self, check: str, holds: bool, where: str, expected: object, got: object, key: object = "") -> bool:
        """Count one comparison; a problem unless it holds."""
        self.seen[check] += 1
        if not holds:
            following = f"restore-parity cut {key} {self.look}".rstrip() if key else f"look at {where}"
            self.problems.append(Problem(check, str(key), where, str(expected), str(got), following))
        return holds

    def tokens(self, ids: list[int], at: int | None) -> str:
        """A window of token ids, their decoded text beside them."""
        first = max(0, (at or 0) - AROUND)
        text = f"  {self.text(ids[first : (at or 0) + AROUND + 1])!r}" if self.text else ""
        return window(ids, at) + text

    def of(self, check: str) -> list[Problem]:
        return [problem for problem in self.problems if problem.check == check]

    def status(self, check: str) -> Literal["pass", "fail", "not_run"]:
        if self.of(check):
            return "fail"
        return "not_run" if check in self.not_run else "pass"

    @property
    def verdict(self) -> Literal["PASS", "FAIL", "INCOMPLETE"]:
        failed = {problem.check for problem in self.problems}
        if failed - set(ASSUMPTIONS):
            return "FAIL"
        return "INCOMPLETE" if failed else "PASS"


def judge(
    uninterrupted: Run,
    restored: Run,
    killed: Run | None,
    params: Params,
    cuts: list[Cut] | None = None,
    records: list[RestoreRecord] | None = None,
    look: str = "",
    text: Callable[[list[int]], str] | None = None,
) -> Judgement:
    """Apply every check. `cuts` and `records` stand in for the killed run's journal and restores.jsonl (foreign runs)."""
    found = Judgement(look=look, text=text)
    records = (restored.restores or []) if records is None else records
    opened = find_cuts(killed, restored, records) if cuts is None else cuts
    by_source = defaultdict(list)
    sources = {record.call_id: record.source_call_id for record in records if isinstance(record, Restored)}
    for record in records:
        by_source[record.source_call_id or sources.get(record.call_id)].append(record)
    # a call without a captured token is no cut: it starts again, and is checked only where it says it was restored
    cuts = [cut for cut in opened if cut.captured is None or cut.captured.ids or by_source[cut.source_call_id]]
    found.counts["started_again"] = len(opened) - len(cuts)
    check_setup(found, uninterrupted, restored, killed)
    check_dumps(found, uninterrupted, restored, {cut.key for cut in opened})
    check_coverage(found, opened, params)
    strays = by_source.keys() - {cut.source_call_id for cut in opened} if opened else set()
    for source in strays:
        got = _ids(by_source[source])
        found.expect("restored-once", False, "restore records", f"records of cut calls only, not of {source}", got)
    by_key = defaultdict(list)
    for cut in cuts:
        by_key[cut.key].append(cut)
    stop_ids = set(restored.info.stop_token_ids if restored.info else ())
    first_set_aside = math.inf
    for key in sorted(uninterrupted.rows.keys() | restored.rows.keys() | by_key.keys()):
        baseline, row = uninterrupted.only(key), restored.only(key)
        results = [
            check_cut(found, cut, baseline, row, by_source[cut.source_call_id], stop_ids, params) for cut in by_key[key]
        ]
        found.cuts += results
        if baseline is None or row is None:
            continue
        columns = [side.generation_top2 is not None for side in (baseline, row)]
        found.expect("dump-complete", columns[0] == columns[1], "generation_top2", "in both runs or in none", columns, key)
        parted = any(result.first_difference is not None for result in results)
        if any(result.status == "set_aside" for result in results):
            first_set_aside = min(first_set_aside, key.train_step)
        if not parted:
            check_row(found, key, baseline, row)
        check_logprobs(found, key, baseline, row, results, params)
        if key.train_step <= first_set_aside:
            check_policy(found, key, baseline, row, results, params)
        else:
            found.counts["rows_after_set_aside"] += 1  # trained with rightly different weights: not compared
        found.counts.update(rows=1, tokens=row.input_length, generated_tokens=int(sum(row.token_loss_mask)))
    check_share(found, params)
    for check, what in (("prefix-hash", "no record has a hash"), ("token-budget", "no limit is known")):
        if killed is None and found.cuts and not found.seen[check]:
            found.not_run[check] = what
    return found


def find_cuts(killed: Run | None, restored: Run, records: Iterable[RestoreRecord]) -> list[Cut]:
    """The calls open at the kill, from the killed run's journal; without one, what the restore records say."""
    if killed is not None:
        calls = killed.journal.open_calls()
        return [Cut(Key.parse(c.key), c.call_index, c.call_id, c, c.max_tokens) for c in calls]
    places = {(ref.group_id, key.generation_index): key for key, refs in restored.rows.items() for ref in refs}
    cuts = {}
    for record in records:
        key = places.get((record.group_id, record.generation_index))
        if isinstance(record, Restored) and key is not None:
            cuts.setdefault(record.source_call_id, Cut(key, record.call_index, record.source_call_id))
    return list(cuts.values())


def check_setup(found: Judgement, uninterrupted: Run, restored: Run, killed: Run | None) -> None:
    """The experiment took place, on one workload."""
    if killed is None:
        found.not_run["kill-happened"] = "no killed run was given, so a cut that was ignored cannot be seen"
        found.not_run |= dict.fromkeys(("prefix-captured", "prefix-logprobs"), "no journal was given")
    else:
        end, where = killed.info.exit, "killed/run.json, exit"
        opened = {call.call_id: call.tokens for call in end.open_calls} if end else {}
        journaled = {call.call_id: len(call.ids) for call in killed.journal.open_calls()}
        how = "none" if end is None else f"signal {end.signal}, {len(opened)} calls open"
        died = end is not None and end.signal == signal.SIGKILL and bool(opened)
        found.expect("kill-happened", died, where, "signal 9 with calls open", how)
        found.expect("kill-happened", opened == journaled, where, f"open in journal.jsonl: {journaled}", opened)
    runs = {"uninterrupted": uninterrupted, "killed": killed, "restored": restored}
    infos = {role: run.info for role, run in runs.items() if run is not None}
    if killed is None and not all(infos.values()):
        found.not_run["same-setup"] = "no run.json was given"
        return
    first = next(filter(None, infos.values()))
    for role, info in infos.items():
        where = f"{role}/run.json"
        if not found.expect("same-setup", info is not None, where, "the settings of this run", "no such file"):
            continue
        found.expect("same-setup", info.phase == role, f"{where}, phase", role, info.phase)
        if role != "killed":
            done = info.exit is not None and info.exit.code == 0 and info.trained is not None
            found.expect("same-setup", done, f"{where}, exit and trained", "generated and trained to its end", info.exit)
        sides = [i.setup | {"stop_token_ids": i.stop_token_ids, "params": i.params_sha256} for i in (first, info)]
        for name in sorted(sides[0].keys() | sides[1].keys()):
            there, here = sides[0].get(name), sides[1].get(name)
            found.expect("same-setup", there == here, f"{where}, {name}", f"{there!r}, as {first.phase}", repr(here))
    ids = [info.run_id for info in infos.values() if info]
    found.expect("same-setup", len(set(ids)) == len(ids), "run.json, run_id", "different runs", ids)


def check_dumps(found: Judgement, uninterrupted: Run, restored: Run, cut_rows: set[Key]) -> None:
    """Both dumps are whole and hold the same rows in the same groups, with a reward to train on."""
    dumps = (uninterrupted, restored)
    planned = uninterrupted.planned | restored.planned
    known = uninterrupted.rows.keys() | restored.rows.keys() | cut_rows
    for run in dumps:
        found.problems += run.problems
        found.seen["dump-complete"] += run.lines
        groups, members = defaultdict(set), defaultdict(set)
        for key in sorted(known | planned):
            refs, wanted = run.rows.get(key, []), int(key in (planned or known))
            got = f"{len(refs)}: {'; '.join(str(ref.place) for ref in refs) or 'none'}"
            found.expect("row-membership", len(refs) == wanted, f"{run.name} dump", f"{wanted} row", got, key)
            for ref in refs:
                groups[f"{key.train_step}/{key.prompt_idx}"].add(ref.group_id)
                members[ref.group_id].add(f"{key.train_step}/{key.prompt_idx}")
        for prompt, ids in groups.items():
            found.expect("group-membership", len(ids) == 1, f"{run.name}, prompt {prompt}", "one group_id", sorted(ids))
        for group, prompts in members.items():
            found.expect("group-membership", len(prompts) == 1, f"{run.name}, {group}", "one prompt", sorted(prompts))
    refs = [ref for refs in uninterrupted.rows.values() for ref in refs]
    rewards, trained = {ref.reward for ref in refs}, any(ref.sample_loss_mask for ref in refs)
    where = "uninterrupted, {}"
    found.expect("reward-signal", len(rewards) > 1, where.format("reward"), "rewards that differ", f"only {rewards}")
    found.expect("reward-signal", trained, where.format("sample_loss_mask"), "a row trained on", "0 in every row")


def check_coverage(found: Judgement, cuts: list[Cut], params: Params) -> None:
    """Something was cut, in as many groups as asked."""
    real = [cut for cut in cuts if cut.captured is None or cut.captured.ids]
    got = f"{len(real)} of {len(cuts)} open calls"
    found.expect("cut-coverage", bool(real), "killed run", "calls cut behind a captured token", got)
    groups, least = {cut.key[:2] for cut in real}, params.min_cut_groups
    found.expect("cut-coverage", len(groups) >= least, "killed run", f"cuts in {least} groups", f"in {len(groups)}")


def check_cut(
    found: Judgement,
    cut: Cut,
    baseline: Row | None,
    row: Row | None,
    records: list[RestoreRecord],
    stop_ids: set[int],
    params: Params,
) -> CutResult:
    """The one cut check: a captured prefix was restored once, in its place, unchanged, within its budget, to its end;
    and the row is the baseline's, or parts from it at a shown near-tie."""
    expect, before = partial(found.expect, key=cut.name), len(found.problems)
    log = "the log" if cut.captured is None else "restores.jsonl"
    begun = [record for record in records if isinstance(record, Restored)]
    ended = [record for record in records if not isinstance(record, Restored)]
    expect("restored-once", len(begun) == 1, log, "one restored record", _ids(begun))
    expect("completed-once", len(ended) == 1, log, "one completed or already_terminal record", _ids(ended))
    if not begun or not ended or row is None:
        return CutResult(cut.name, begun[0].prefix_tokens if begun else 0, 0, "broken", cut.limit_tokens)
    start, end, p, limit, captured = begun[0], ended[0], begun[0].prefix_tokens, cut.limit_tokens, cut.captured
    said = (end.call_id, end.prefix_tokens, end.group_id, end.generation_index)
    true = (start.call_id, p, row.group_id, cut.key.generation_index)
    agree = all(one in (None, other) for one, other in zip(said, true, strict=True))
    expect("completed-once", agree, log, f"call, prefix, group, generation: {true}", said)
    tail = end.tail_tokens if isinstance(end, Completed) else 0
    segments = row.segments()
    index = len(segments) - 1 if cut.call_index is None else cut.call_index
    first, stop = segments[index] if index < len(segments) else (row.input_length, row.input_length)
    ids, logprobs = row.token_ids[first : first + p], row.generation_logprobs[first : first + p]
    where = f"row {cut.key}, tokens {first} to {stop}"
    group = row.group_id if captured is None or captured.group_id == row.group_id else f"not {captured.group_id}"
    place = (group, cut.key.generation_index, index, stop - first)
    said = (start.group_id, start.generation_index, start.call_index, p + tail)
    if captured is None:  # an older foreign log says less; a record of our own that does is broken
        said = tuple(there if one is None else one for one, there in zip(said, place, strict=True))
    told = "group, generation, call, its tokens: {}, {}, {}, {}"
    expect("call-position", said == place, where, told.format(*said), told.format(*place))
    if captured is not None or start.prefix_ids_sha256 is not None:
        digest = ids_sha256(ids)
        expect("prefix-hash", digest == start.prefix_ids_sha256, where, start.prefix_ids_sha256, digest)
    if captured is not None:
        both = min(len(captured.ids), p)  # that the lengths agree is prefix-captured's to say
        asked, seen = captured.prompt_ids + captured.ids, row.token_ids[: first + p]
        pairs = ("captured", asked, seen), ("logprobs", captured.logprobs[:both], logprobs[:both])
        for check, there, here in pairs:
            at, shown = first_difference(there, here), found.tokens if check == "captured" else window
            expect(f"prefix-{check}", at is None, f"{where}: {check} {at}", shown(there, at), shown(here, at))
    if limit is not None:
        asked = limit - p if captured is None else start.max_tokens
        left = f"{limit - p} of {limit} tokens left"
        expect("token-budget", asked == limit - p >= tail, where, left, f"{asked} asked for, {tail} generated")
    stopped, past = bool(ids) and ids[-1] in stop_ids, stop_ids.intersection(row.token_ids[first : stop - 1])
    expect("already-terminal", not past, where, "nothing behind a stop token", f"{past} inside")
    if not isinstance(end, Completed):
        ok = (p == limit or stopped or limit is None) and stop - first == p
        got = f"prefix {p} of {limit}, stop token: {stopped}, call of {stop - first}"
        expect("already-terminal", ok, where, "limit used up or stop token captured, no tail", got)
    result = CutResult(cut.name, p, tail, "match", limit, (first, stop), spans=spans(row, segments, index, p))
    result = check_divergence(found, expect, result, baseline, row, params) if baseline else result
    return replace(result, status="broken") if len(found.problems) > before or baseline is None else result


def check_divergence(found: Judgement, expect, result: CutResult, baseline: Row, row: Row, params: Params) -> CutResult:
    """Where a restored row parts from the baseline: inside or behind its restored call, at a near-tie, or not at all."""
    at = first_difference(baseline.token_ids, row.token_ids)
    if at is None:
        return result
    where, there, here = f"token {at}", found.tokens(baseline.token_ids, at), found.tokens(row.token_ids, at)
    first, bound = result.segment[0], params.near_tie_margin
    masks = [(r.sample_loss_mask, r.token_loss_mask[:at]) for r in (baseline, row)]
    expect("before-cut-call", at >= first, where, f"equal before token {first}: {there}", here)
    expect("before-cut-call", masks[0] == masks[1], where, "masks equal up to there", "token_loss_mask or sample_loss_mask")
    margins = tie_margins(baseline, row, at, bound)
    near = margins is not None and all(margin <= bound for margin in margins)  # a NaN is within no bound
    told = "no evidence of one" if margins is None else "margins {:.4g} and {:.4g} nats".format(*margins)
    expect("near-tie", near, where, f"{there}, or a near-tie within {bound} nats", f"{here}, {told}")
    both = at < min(baseline.input_length, row.input_length)
    return replace(
        result,
        status="set_aside",
        first_difference=at,
        tokens=(baseline.token_ids[at], row.token_ids[at]) if both else None,
        margin_uninterrupted=margins[0] if margins else None,
        margin_restored=margins[1] if margins else None,
        margin_trainer=trainer_margin(baseline, row, at) if both else None,
    )


def trainer_margin(baseline: Row, row: Row, at: int) -> float | None:
    """The third witness: how much likelier the baseline's token is in the trainer's float32 pass, in nats; under 0: less.

    The context up to `at` is the same in both rows, and so is the trainer's view of the two candidates.
    """
    seen = dict((baseline.prev_top2 and baseline.prev_top2[at]) or ())
    there, here = seen.get(baseline.token_ids[at]), seen.get(row.token_ids[at])
    return None if there is None or here is None else there - here


def tie_margins(baseline: Row, row: Row, at: int, bound: float) -> tuple[float, float] | None:
    """The two candidates' distance in nats in the baseline and in the restored run at token `at`; None: no evidence.

    Evidence is both tokens among the two likeliest of both runs, each run having taken its likelier one with the
    log-probability the row records, there and at all its generated tokens. Where neither run has such a column
    (foreign dumps): the two chosen tokens' log-probabilities alone, neither over ln 0.5 by more than `bound`, as one of
    two tied candidates cannot be. An exact 0.0 is a certainty (a processed log-probability), no evidence.
    """
    if at >= min(baseline.input_length, row.input_length):
        return None
    chosen = [(r.token_ids[at], r.generation_logprobs[at]) for r in (baseline, row)]
    if baseline.generation_top2 is None and row.generation_top2 is None:
        logprobs = [logprob for _, logprob in chosen]
        gap = abs(logprobs[0] - logprobs[1])
        return (gap, gap) if max(logprobs) <= LN_HALF + bound and 0.0 not in logprobs else None
    if not (greedy(baseline) and greedy(row)):
        return None
    margins = []
    for side, own, other in ((baseline, *chosen), (row, *chosen[::-1])):
        likely = dict(side.generation_top2[at] or ())
        if own[0] not in likely or other[0] not in likely:
            return None
        margins.append(own[1] - likely[other[0]])
    return margins[0], margins[1]


def greedy(row: Row) -> bool:
    """Whether every generated token is its row's likeliest, with the log-probability the row records."""
    columns = zip(row.token_ids, row.token_loss_mask, row.generation_logprobs, row.generation_top2 or (), strict=False)
    taken = [(token, logprob, dict(top2 or ())) for token, trained, logprob, top2 in columns if trained]
    return all(top2.get(token) == logprob == max(top2.values()) for token, logprob, top2 in taken) and bool(taken)


def check_row(found: Judgement, key: Key, baseline: Row, row: Row) -> None:
    for name in EXACT:
        there, here = getattr(baseline, name), getattr(row, name)
        if there == here:
            continue
        at = first_difference(there, here) if isinstance(there, list) else None
        shown = found.tokens if name == "token_ids" else window
        told = (there, here) if at is None else (shown(there, at), shown(here, at))
        if name == "token_ids" and found.text and found.text(there) == found.text(here):
            told = (told[0], f"{told[1]}; the decoded text of both rows is equal: re-tokenised")
        found.expect("row-exact", False, name if at is None else f"{name}[{at}]", *told, key)
        return
    found.expect("row-exact", True, "", "", "")


def check_logprobs(found: Judgement, key: Key, baseline: Row, row: Row, results: list[CutResult], params: Params) -> None:
    """Log-probabilities of equal generated tokens outside the prefixes, which prefix-logprobs holds to the journal's."""
    end = next((r.first_difference for r in results if r.first_difference is not None), row.input_length)
    inside = [(r.segment[0], r.segment[0] + r.prefix_tokens) for r in results if r.segment]
    gaps = _largest(found, "tail-logprobs", key, "generation_logprobs", baseline, row, end, inside, params.max_logprob_diff)
    found.noise.update(math.floor(math.log2(gap)) if gap else None for gap in gaps)


def check_policy(found: Judgement, key: Key, baseline: Row, row: Row, results: list[CutResult], params: Params) -> None:
    end = next((r.first_difference for r in results if r.first_difference is not None), row.input_length)
    _largest(found, "policy-logprobs", key, "prev_logprobs", baseline, row, end, [], params.max_policy_diff)


def _largest(found, check, key, column, baseline, row, end, without, bound) -> list[float]:
    """Hold the largest difference of a column to `bound`; returns all differences.

    Compared are generated tokens before `end`, outside the half-open spans `without`.
    """
    there, here = getattr(baseline, column), getattr(row, column)
    places = [
        at
        for at in range(min(end, baseline.input_length, row.input_length))
        if row.token_loss_mask[at] and not any(first <= at < stop for first, stop in without)
    ]
    gaps = [abs(there[at] - here[at]) for at in places]
    if gaps:
        gap, worst = max(gaps), places[gaps.index(max(gaps))]
        expected, got = f"{there[worst]} within {bound} nats", f"{here[worst]}, {gap:.4g} away"
        found.expect(check, gap <= bound, f"{column}[{worst}]", expected, got, key)
        found.largest[check] = max(found.largest.get(check, 0.0), gap)
    return gaps


def check_share(found: Judgement, params: Params) -> None:
    aside = sum(cut.status == "set_aside" for cut in found.cuts)
    if found.cuts:
        most = min(params.max_set_aside * len(found.cuts), len(found.cuts) - 1)
        expected = f"at most {params.max_set_aside:.0%} of {len(found.cuts)} cuts, and not all"
        found.expect("set-aside-share", aside <= most, "cuts set aside", expected, aside)


def first_difference(there: list, here: list) -> int | None:
    """The first place at which two lists differ, the shorter one's end included; None where they are equal."""
    if there == here:
        return None
    ends = min(len(there), len(here))
    return next((at for at in range(ends) if there[at] != here[at]), ends)


def window(values: list, at: int | None, width: int = AROUND) -> str:
    """The values round a place, that place in brackets; `end` where the list is over."""
    at = 0 if at is None else at
    shown = [str(value) for value in values[max(0, at - width) : at + width + 1]]
    middle = min(at, width)
    shown[middle : middle + 1] = [f"[{shown[middle] if middle < len(shown) else 'end'}]"]
    return ("… " if at > width else "") + ", ".join(shown) + (" …" if at + width + 1 < len(values) else "")


def spans(row: Row, segments: list[tuple[int, int]], index: int, prefix_tokens: int) -> list[tuple[str, int, int]]:
    """What the tokens of a restored row are, from its start to its end, as (kind, start, stop)."""
    parts, place = [], 0
    for number, (first, stop) in enumerate(segments):
        parts.append(("tool result" if number else "prompt", place, first))
        if number == index:
            cut = min(first + prefix_tokens, stop)
            parts += [("prefix", first, cut), ("tail", cut, stop)]
        else:
            parts.append(("earlier call" if number < index else "later call", first, stop))
        place = stop
    return [part for part in parts if part[1] < part[2]]


def _ids(records: list[RestoreRecord]) -> str:
    return f"{len(records)}: {', '.join(record.call_id for record in records)}" if records else "none"
