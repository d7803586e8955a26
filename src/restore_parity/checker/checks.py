"""The checks: what must hold between an uninterrupted and a restored run, and the one cut check."""

import math
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from .dumps import Run
from ..journal import Call
from .problems import Problem, progress, window
from ..params import Params
from ..records import Completed, CutResult, Key, Restored, Row, TopTwo, ids_sha256

CHECKS = (
    *("kill-happened", "cut-coverage", "same-setup", "reward-signal", "dump-complete", "row-membership"),
    *("group-membership", "restored-once", "completed-once", "tail-generated", "already-terminal", "call-position"),
    *("prefix-hash", "prefix-captured", "prefix-logprobs", "token-budget", "before-cut-call", "near-tie"),
    *("set-aside-share", "row-exact", "tail-logprobs", "policy-logprobs"),
)
ASSUMPTIONS = ("kill-happened", "cut-coverage", "same-setup", "reward-signal")  # failed: INCOMPLETE, not FAIL
LN_HALF = math.log(0.5)


class Judgement(Struct):
    """What all checks found: problems, how much each check saw, which could not run and why."""

    params: Params
    stop_ids: set[int] = field(default_factory=set)
    look: str = ""  # how the command that shows a cut goes on after its key
    text: Callable[[list[int]], str] | None = None  # decodes token ids, where a tokenizer is at hand
    problems: list[Problem] = field(default_factory=list)
    seen: Counter = field(default_factory=Counter)
    not_run: dict[str, str] = field(default_factory=dict)
    cuts: list[CutResult] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    noise: Counter = field(default_factory=Counter)  # of gaps: floor(log2(nats)), None where bit-identical
    largest: dict[str, float] = field(default_factory=dict)  # the largest difference a check saw, in nats
    mutations: list = field(default_factory=list)  # what mutations.prove found
    told: set[str] = field(default_factory=set)  # checks whose cell has said what it found

    def expect(self, check: str, holds: bool, where: str, expected: object, got: object, key: object = "") -> bool:
        """Count one comparison; a problem unless it holds."""
        self.seen[check] += 1
        if not holds:
            following = f"restore-parity cut {key} {self.look}".rstrip() if key else f"look at {where}"
            self.problems.append(Problem(check, str(key), where, str(expected), str(got), following))
        return holds

    def same(self, check: str, where: str, there: list, here: list, key: object, note: str = "") -> bool:
        """Hold two lists to be equal; a problem shows both round their first difference, token ids with their text."""
        if (at := first_difference(there, here)) is None:
            return self.expect(check, True, where, there, here, key)
        text = self.text if isinstance((there or here)[0], int) else None
        return self.expect(check, False, f"{where}[{at}]", window(there, at, text), window(here, at, text) + note, key)

    def of(self, check: str) -> list[Problem]:
        return [problem for problem in self.problems if problem.check == check]

    def status(self, check: str) -> Literal["pass", "fail", "not_run"]:
        return "fail" if self.of(check) else "not_run" if check in self.not_run else "pass"

    @property
    def set_aside(self) -> int:
        return sum(cut.status == "set_aside" for cut in self.cuts)

    @property
    def verdict(self) -> Literal["PASS", "FAIL", "INCOMPLETE"]:
        failed = {problem.check for problem in self.problems}
        return "FAIL" if failed.difference(ASSUMPTIONS) else "INCOMPLETE" if failed else "PASS"


def judge(
    uninterrupted: Run, restored: Run, killed: Run | None, params: Params, cuts: Sequence[Call] = (), **shown
) -> Judgement:
    """Apply every check. What was cut, the killed run's journal tells, or `cuts` without one. `shown`: look and text."""
    found = Judgement(params, set(restored.info.setup.get("stop_token_ids", ()) if restored.info else ()), **shown)
    opened = killed.journal.open_calls() if killed else cuts
    records, by_key = defaultdict(list), defaultdict(list)
    for record in restored.restores:
        records[record.source_call_id].append(record)
    # a call without a captured token is no cut: it starts again, and is checked only where it says it was restored
    cuts = [cut for cut in opened if cut.ids != [] or records[cut.call_id]]
    for cut in cuts:
        by_key[cut.key].append(cut)
    found.counts["started_again"] = len(opened) - len(cuts)
    check_setup(found, uninterrupted, restored, killed)
    check_dumps(found, uninterrupted, restored, {cut.key for cut in opened})
    for source in sorted(records.keys() - {cut.call_id for cut in opened}):
        found.expect("restored-once", False, "restore records", "records of cut calls only", f"one of {source}")
    rewards, groups, first_set_aside = Counter(), set(), math.inf
    for key in progress(sorted(uninterrupted.rows.keys() | restored.rows.keys() | by_key.keys()), "checks", unit="row"):
        baseline, row = uninterrupted.only(key), restored.only(key)
        results = [check_cut(found, cut, baseline, row, records[cut.call_id]) for cut in by_key[key]]
        found.cuts += results
        groups |= {key[:2] for result in results if result.prefix_tokens and result.tail_tokens}
        if baseline is None:
            continue
        rewards[baseline.reward] += baseline.sample_loss_mask > 0
        if row is None:
            continue
        columns = [side.generation_top2 is not None for side in (baseline, row)]
        found.expect("dump-complete", columns[0] == columns[1], "generation_top2", "in both runs or in none", columns, key)
        if any(result.status == "set_aside" for result in results):
            first_set_aside = min(first_set_aside, key.train_step)
        if all(result.first_difference is None for result in results):
            check_row(found, key, baseline, row)
        check_logprobs(found, key, baseline, row, results, policy=key.train_step <= first_set_aside)
        found.counts.update(rows=1, tokens=row.input_length, generated_tokens=int(sum(row.token_loss_mask)))
    there, told = len(rewards) > 1 and rewards.total() > 0, f"{dict(rewards)}, as reward: rows trained on"
    found.expect("reward-signal", there, "uninterrupted", "rewards that differ, and a row trained on", told)
    least, got = max(params.min_cut_groups, 1), f"in {len(groups)}; {len(opened)} calls were open"
    found.expect("cut-coverage", len(groups) >= least, "killed run", f"calls cut inside in {least} groups", got)
    check_share(found)
    for check, what in (("prefix-hash", "no record has a hash"), ("token-budget", "no limit is known")):
        if killed is None and found.cuts and not found.seen[check]:
            found.not_run[check] = what
    return found


def check_setup(found: Judgement, uninterrupted: Run, restored: Run, killed: Run | None) -> None:
    """The experiment took place, on one workload."""
    infos = {"uninterrupted": uninterrupted.info, "restored": restored.info}
    if killed is None:
        found.not_run["kill-happened"] = "no killed run was given, so a cut that was ignored cannot be seen"
        found.not_run |= dict.fromkeys(("prefix-captured", "prefix-logprobs"), "no journal was given")
        if not all(infos.values()):
            found.not_run["same-setup"] = "no run.json was given"
            return
    else:
        infos["killed"], end = killed.info, killed.info.exit
        got = (end.signal, end.open_calls) if end else (None, {})
        want = (signal.SIGKILL, {call.call_id: len(call.ids) for call in killed.journal.open_calls()})
        told = [f"signal {sent}, calls open: {calls or 'none'}" for sent, calls in (want, got)]
        found.expect("kill-happened", got == want and bool(want[1]), "killed/run.json, exit", *told)
    first = next(filter(None, infos.values()))
    for role, info in infos.items():
        where = f"{role}/run.json"
        if not found.expect("same-setup", info is not None, where, "the settings of this run", "no such file"):
            continue
        ended = role == "killed" or (info.exit is not None and info.exit.code == 0 and info.trained is not None)
        there = first.setup | {"phase": role, "came to its end": True}
        here = info.setup | {"phase": info.phase, "came to its end": ended}
        for name in sorted(there.keys() | here.keys()):
            one, other = there.get(name), here.get(name)
            found.expect("same-setup", one == other, f"{where}, {name}", f"{one!r}", repr(other))
    ids = sorted(info.run_id for info in infos.values() if info)
    found.expect("same-setup", len({*ids}) == len(ids), "run.json, run_id", "different runs", ids)


def check_dumps(found: Judgement, uninterrupted: Run, restored: Run, cut_rows: set[Key]) -> None:
    """Both dumps are whole and hold the same rows, those planned, in the same groups."""
    planned = uninterrupted.planned | restored.planned
    known = uninterrupted.rows.keys() | restored.rows.keys() | cut_rows
    planned = planned and planned | cut_rows
    for run in (uninterrupted, restored):
        found.problems += run.problems
        found.seen["dump-complete"] += run.lines
        together = defaultdict(set)  # a prompt's groups, and a group's prompts
        for key in sorted(known | planned):
            refs, wanted = run.rows.get(key, []), int(key in (planned or known))
            got = f"{len(refs)}: {'; '.join(ref.place for ref in refs) or 'none'}"
            found.expect("row-membership", len(refs) == wanted, f"{run.name} dump", f"{wanted} row", got, key)
            for ref in refs:
                pair = f"prompt {key.train_step}/{key.prompt_idx}", f"group {ref.group_id}"
                together[pair[0]].add(pair[1])
                together[pair[1]].add(pair[0])
        for one, others in together.items():
            found.expect(
                "group-membership", len(others) == 1, f"{run.name}, {one}", "one prompt, one group", sorted(others)
            )


def check_cut(found: Judgement, cut: Call, baseline: Row | None, row: Row | None, records: list) -> CutResult:
    """The one cut check: a captured prefix was restored once, in its place, unchanged, within its budget, to its end;
    and the row is the baseline's, or parts from it at a shown near-tie."""
    expect, before = partial(found.expect, key=cut.name), len(found.problems)
    begun = [record for record in records if isinstance(record, Restored)]
    ended = [record for record in records if not isinstance(record, Restored)]
    for check, these, what in (("restored-once", begun, "restored"), ("completed-once", ended, "completed or terminal")):
        expect(check, len(these) == 1, "restore records", f"one {what} record", [record.call_id for record in these])
    if not begun or not ended or row is None:
        return CutResult(cut.name, begun[0].prefix_tokens if begun else 0, 0, "broken", cut.max_tokens)
    start, end, captured, limit = begun[0], ended[0], cut.ids is not None, cut.max_tokens
    done, segments = isinstance(end, Completed), row.segments()
    p, tail, index = start.prefix_tokens, end.tail_tokens if done else 0, cut.call_index
    index = len(segments) - 1 if index is None else index
    first, stop = segments[index] if index < len(segments) else (row.input_length, row.input_length)
    where = f"row {cut.key}, tokens {first} to {stop}"
    place = {"call_id": start.call_id, "prefix_tokens": p, "group_id": cut.group_id, "call_index": index}
    place["generation_index"] = cut.key.generation_index
    for record in (start, end):
        said = {name: getattr(record, name) for name in place}
        if not captured:  # the origin's log says less; a record of our own that does is broken
            said = {name: place[name] if value is None else value for name, value in said.items()}
        expect("call-position", said == place, where, place, said)
    size, told = stop - first, f"{p + tail} tokens: {p} captured, {tail} generated"
    expect("call-position", size == p + tail, where, told, f"{size} in the row")
    expect("call-position", row.group_id == cut.group_id, where, f"a row of group {cut.group_id}", row.group_id)
    ids, logprobs = row.token_ids[first : first + p], row.generation_logprobs[first : first + p]
    if captured or start.prefix_ids_sha256 is not None:
        digest = ids_sha256(ids)
        expect("prefix-hash", digest == start.prefix_ids_sha256, where, start.prefix_ids_sha256, digest)
    if captured:
        both = min(len(cut.ids), p)  # that the lengths agree is prefix-captured's to say
        found.same("prefix-captured", where, cut.prompt_ids + cut.ids, row.token_ids[: first + p], cut.name)
        found.same("prefix-logprobs", where, cut.logprobs[:both], logprobs[:both], cut.name)
    if limit is not None:
        asked = start.max_tokens if captured else limit - p
        left, got = f"{limit - p} of {limit} tokens left", f"{asked} asked for, {tail} generated"
        expect("token-budget", asked == limit - p >= tail, where, left, got)
    stopped, stop_last = (bool(part) and part[-1] in found.stop_ids for part in (ids, row.token_ids[first:stop]))
    past = found.stop_ids.intersection(row.token_ids[first : stop - 1])
    expect("already-terminal", not past, where, "nothing behind a stop token", f"{past} inside")
    if not done:
        got = f"prefix {p} of {limit}, stop token: {stopped}, call of {size}"
        holds = (p == limit or stopped or limit is None) and size == p
        expect("already-terminal", holds, where, "limit used up or stop token captured, no tail", got)
    if captured and done:
        expect("tail-generated", size == limit or stop_last, where, f"a stop token last, or {limit} tokens", size)
    if captured and baseline:
        same = len(segments) == len(baseline.segments())
        expect("call-position", same, where, "as many calls as the baseline's row has", f"{len(segments)} calls")
    how = end.finish_reason if done else "already terminal"
    result = CutResult(cut.name, p, tail, "match", limit, how, segments, index)
    result = check_divergence(found, result, first, baseline, row) if baseline else result
    return replace(result, status="broken") if len(found.problems) > before or baseline is None else result


def check_divergence(found: Judgement, result: CutResult, first: int, baseline: Row, row: Row) -> CutResult:
    """Where a restored row parts from the baseline: inside or behind its restored call, at a near-tie, or not at all."""
    at, bound = first_difference(baseline.token_ids, row.token_ids), found.params.near_tie_margin
    if at is None:
        return result
    where, there, here = f"token {at}", window(baseline.token_ids, at, found.text), window(row.token_ids, at, found.text)
    masks = [(r.sample_loss_mask, r.token_loss_mask[:at]) for r in (baseline, row)]
    told = f"tokens equal before {first}, masks up to {at}: {there}"
    found.expect("before-cut-call", at >= first and masks[0] == masks[1], where, told, here, result.key)
    margins = tie_margins(baseline, row, at, bound)
    near = margins is not None and max(margins) <= bound
    told = "no evidence of one" if margins is None else "margins {:.4g} and {:.4g} nats".format(*margins)
    found.expect("near-tie", near, where, f"{there}, or a near-tie within {bound} nats", f"{here}, {told}", result.key)
    result = replace(result, status="set_aside", first_difference=at)
    if at < min(baseline.input_length, row.input_length):
        tokens = baseline.token_ids[at], row.token_ids[at]
        result = replace(result, tokens=tokens, margin_trainer=trainer_margin(baseline, at, *tokens))
    return replace(result, margin_uninterrupted=margins[0], margin_restored=margins[1]) if margins else result


def trainer_margin(baseline: Row, at: int, ours: int, theirs: int) -> float | None:
    """The third witness: how much likelier the baseline's token is in the trainer's float32 pass, in nats; under 0: less.

    The context up to `at` is the same in both rows, and so is the trainer's view of the two candidates.
    """
    seen = likely((baseline.prev_top2 or {at: None})[at])
    return seen[ours] - seen[theirs] if ours in seen and theirs in seen else None


def tie_margins(baseline: Row, row: Row, at: int, bound: float) -> tuple[float, float] | None:
    """The two candidates' distance in nats in the baseline and in the restored run at token `at`; None: no evidence.

    Evidence is both tokens among the two likeliest of both runs, each run having taken its likelier one with the
    log-probability the row records, there and at all its generated tokens. Where neither run has such a column
    (foreign dumps): the two chosen tokens' log-probabilities alone, neither over ln 0.5 by more than `bound`, as one of
    two tied candidates cannot be. An exact 0.0 is a certainty (a processed log-probability), no evidence.
    """
    if at >= min(baseline.input_length, row.input_length) or not (baseline.token_loss_mask[at] and row.token_loss_mask[at]):
        return None  # a tool's token is nobody's candidate
    logprobs = [side.generation_logprobs[at] for side in (baseline, row)]
    if baseline.generation_top2 is None and row.generation_top2 is None:
        gap = abs(logprobs[0] - logprobs[1])
        return (gap, gap) if max(logprobs) <= LN_HALF + bound and 0.0 not in logprobs else None
    if not (greedy(baseline) and greedy(row)):
        return None
    others = [likely(one.generation_top2[at]).get(other.token_ids[at]) for one, other in ((baseline, row), (row, baseline))]
    return None if None in others else (logprobs[0] - others[0], logprobs[1] - others[1])


def likely(top2: TopTwo | None) -> dict[int, float]:
    """Token id to log-probability; what was not a finite number is no candidate."""
    return {token: logprob for token, logprob in top2 or () if logprob is not None}


def greedy(row: Row) -> bool:
    """Whether every generated token is its row's likeliest, with the log-probability the row records."""
    columns = zip(row.token_ids, row.token_loss_mask, row.generation_logprobs, row.generation_top2 or (), strict=False)
    taken = [(token, logprob, likely(top2)) for token, trained, logprob, top2 in columns if trained]
    return all(top2.get(token) == logprob == max(top2.values()) for token, logprob, top2 in taken) and bool(taken)


def check_row(found: Judgement, key: Key, baseline: Row, row: Row) -> None:
    there, here = baseline.token_ids, row.token_ids
    retokenised = there != here and found.text is not None and found.text(there) == found.text(here)
    note = "; the decoded text of both rows is equal: re-tokenised" if retokenised else ""
    if found.same("row-exact", "token_ids", there, here, key, note):
        found.same("row-exact", "token_loss_mask", baseline.token_loss_mask, row.token_loss_mask, key)
    for name in ("sample_loss_mask", "reward"):
        one, other = getattr(baseline, name), getattr(row, name)
        found.expect("row-exact", one == other, name, one, other, key)


def check_logprobs(found: Judgement, key: Key, baseline: Row, row: Row, results: list[CutResult], policy: bool) -> None:
    """Log-probabilities of equal generated tokens: the engine's, and the trainer's while both were trained on the same."""
    ends = [result.first_difference for result in results if result.first_difference is not None]
    equal = [at for at in range(min([baseline.input_length, row.input_length, *ends])) if row.token_loss_mask[at]]
    columns = [("tail-logprobs", "generation_logprobs", equal, found.params.max_logprob_diff)]
    if policy:
        columns.append(("policy-logprobs", "prev_logprobs", equal, found.params.max_policy_diff))
    else:
        found.counts["rows_after_set_aside"] += 1  # trained with rightly different weights: not compared
    for check, column, places, bound in columns:
        there, here = getattr(baseline, column), getattr(row, column)
        gaps = {at: abs(there[at] - here[at]) for at in places}
        if gaps:
            worst = max(gaps, key=gaps.get)
            expected, got = f"{there[worst]} within {bound} nats", f"{here[worst]}, {gaps[worst]:.4g} away"
            found.expect(check, gaps[worst] <= bound, f"{column}[{worst}]", expected, got, key)
            found.largest[check] = max(found.largest.get(check, 0.0), gaps[worst])
        if check == "tail-logprobs":
            found.noise.update(math.floor(math.log2(gap)) if gap else None for gap in gaps.values())


def check_share(found: Judgement) -> None:
    aside, cuts, share = found.set_aside, len(found.cuts), found.params.max_set_aside
    if cuts:
        most, expected = min(share * cuts, cuts - 1), f"at most {share:.0%} of {cuts} cuts, and not all"
        found.expect("set-aside-share", aside <= most, "cuts set aside", expected, aside)


def first_difference(there: list, here: list) -> int | None:
    """The first place at which two lists differ, the shorter one's end included; None where they are equal."""
    if there == here:
        return None
    ends = min(len(there), len(here))
    return next((at for at in range(ends) if there[at] != here[at]), ends)
