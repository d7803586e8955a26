"""Every check applied to the runs of one comparison, in one pass over their rows."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from ..journal import Call
from ..params import Params
from ..records import CutResult, Key, RestoreRecord
from ..tokens import Decode
from .cut_check import broken_cut, check_cut
from .cuts import Cut, cuts_of_calls
from .dumps import Run, Runs
from .judgement import Judgement
from .parting import KeyRows, RowPair, find_parting
from .progress import progress
from .row_checks import Tally, check_gaps, compare_rows, flush_advantages
from .run_checks import check_dumps, check_setup


def judge(
    runs: Runs,
    params: Params,
    *,
    cuts: Sequence[Cut] = (),
    cut_options: str = "",
    decode: Decode | None = None,
) -> Judgement:
    """Apply every check by the thresholds of `params`.

    What was cut, the killed run's journal says; without one, `cuts`. `cut_options` go behind the
    command that shows a cut, `decode` adds text to messages.
    """
    journal = runs.killed.journal if runs.killed else None
    info = runs.restored.info or runs.uninterrupted.info
    judgement = Judgement(
        params=params,
        stop_ids=info.stop_token_ids if info else set(),
        workload=runs.restored.params or runs.uninterrupted.params,
        vocabulary=params.vocabulary_tokens or (info.vocabulary_tokens if info else None),
        has_journal=journal is not None,
        cut_options=cut_options,
        decode=decode,
    )
    opened = cuts_of_calls(journal.open_calls()) if journal else list(cuts)
    records = records_by_source(runs.restored)
    check_setup(judgement, runs)
    check_dumps(judgement, runs, cut_rows={cut.key for cut in opened if cut.key})
    check_sources(judgement, records, opened)
    tally = check_rows(judgement, runs, _with_prefix(judgement, opened, records), records)
    check_coverage(judgement, tally, opened)
    check_gaps(judgement, tally)
    check_share(judgement, tally)
    note_what_could_not_run(judgement, runs)
    return judgement


def records_by_source(run: Run) -> dict[str, list[RestoreRecord]]:
    """The restore records by the call of the killed run that they continue."""
    records = defaultdict(list)
    for record in run.restores:
        records[record.source_call_id].append(record)
    return records


def _with_prefix(
    judgement: Judgement, opened: list[Cut], records: dict[str, list[RestoreRecord]]
) -> list[Cut]:
    """The open calls to check: those with a captured token, or with a restore record.

    The others are counted as started again: nothing of them was there to be restored.
    """
    cuts = [
        cut
        for cut in opened
        if cut.captured is None or cut.captured.ids or records.get(cut.call_id)
    ]
    judgement.counts["started_again"] = len(opened) - len(cuts)
    return cuts


def check_sources(
    judgement: Judgement, records: dict[str, list[RestoreRecord]], opened: list[Cut]
) -> None:
    """No call was restored that was not cut."""
    for source in sorted(records.keys() - {cut.call_id for cut in opened}):
        judgement.expect(
            "restored-once",
            False,
            "records of cut calls only",
            f"one of {source}",
            where="restore records",
        )


def check_rows(
    judgement: Judgement,
    runs: Runs,
    cuts: Sequence[Cut],
    records: dict[str, list[RestoreRecord]],
) -> Tally:
    """Every cut, and every row that both dumps hold; each row is read once."""
    tally = Tally()
    cuts_of_row = _by_row(judgement, cuts)
    calls_of_row = _captured_calls(runs)
    keys = runs.uninterrupted.rows.keys() | runs.restored.rows.keys() | cuts_of_row.keys()
    for key in progress(sorted(keys), "checks", "row"):
        rows = KeyRows(runs.uninterrupted.only(key), runs.restored.only(key))
        pair, parting = None, None
        if rows.baseline and rows.restored:
            pair = RowPair(
                key=key,
                baseline=rows.baseline,
                restored=rows.restored,
                calls=calls_of_row.get(key, []),
            )
            parting = find_parting(judgement, pair)
        results = [
            check_cut(judgement, cut, records.get(cut.call_id, []), rows, parting)
            for cut in cuts_of_row.get(key, [])
        ]
        if any(result.prefix_tokens and result.tail_tokens for result in results):
            tally.cut_groups.add(key.group)
        if rows.baseline:
            # 0 is added too: a reward that no trained row has is still one of the rewards
            tally.rewards[rows.baseline.reward] += int(rows.baseline.sample_loss_mask > 0)
        if pair:
            compare_rows(judgement, tally, pair, results, parting)
        judgement.cuts += results
    flush_advantages(tally)
    judgement.cuts = [_final(judgement, result) for result in judgement.cuts]
    return tally


def _by_row(judgement: Judgement, cuts: Sequence[Cut]) -> dict[Key, list[Cut]]:
    """The cuts by their rows; one whose row the restored dump lacks is a problem."""
    found = defaultdict(list)
    for cut in cuts:
        if cut.key:
            found[cut.key].append(cut)
            continue
        judgement.expect(
            "row-membership",
            False,
            "the row of this cut",
            "none",
            where="restored dump",
            key=cut.name,
        )
        judgement.cuts.append(broken_cut(cut, prefix_tokens=cut.prefix_tokens or 0))
    return found


def _captured_calls(runs: Runs) -> dict[Key, list[Call]]:
    """What the killed run's journal holds, by row."""
    found = defaultdict(list)
    journal = runs.killed.journal if runs.killed else None
    for call in journal.calls.values() if journal else ():
        found[call.key].append(call)
    return found


def _final(judgement: Judgement, result: CutResult) -> CutResult:
    """A cut is broken wherever its row has a problem."""
    row = result.key.partition("#")[0]
    if {row, result.key} & judgement.failed_keys:
        return replace(result, status="broken")
    return result


def check_coverage(judgement: Judgement, tally: Tally, opened: list[Cut]) -> None:
    """Rewards differ, and calls were cut inside, so that parity is not parity of nothing."""
    rewards = tally.rewards
    judgement.expect(
        "reward-signal",
        len(rewards) > 1 and rewards.total() > 0,
        "rewards that differ, and a row trained on",
        f"{dict(rewards)}, as reward: rows trained on",
        where="uninterrupted",
    )
    least, groups = max(judgement.params.min_cut_groups, 1), len(tally.cut_groups)
    judgement.expect(
        "cut-coverage",
        groups >= least,
        f"calls cut inside in {least} groups",
        f"in {groups}; {len(opened)} calls were open",
        where="killed run",
    )


def check_share(judgement: Judgement, tally: Tally) -> None:
    """No more cuts with a tail are set aside than allowed, and not all; nor of the other rows."""
    share = judgement.params.max_set_aside
    live = [cut for cut in judgement.cuts if cut.tail_tokens]
    expect = partial(judgement.expect, "set-aside-share")
    if live:
        aside = sum(cut.status == "set_aside" for cut in live)
        expect(
            aside <= min(share * len(live), len(live) - 1),
            f"at most {share:.0%} of {len(live)} cuts with a tail, and not all",
            aside,
            where="cuts set aside",
        )
    if judgement.rows:
        expect(
            len(judgement.rows) <= share * tally.uncut_rows,
            f"at most {share:.0%} of {tally.uncut_rows} rows without a cut",
            len(judgement.rows),
            where="rows set aside",
        )


def note_what_could_not_run(judgement: Judgement, runs: Runs) -> None:
    """Without the killed run some checks have no evidence: say which, and what they lack."""
    if runs.killed is None:
        why = "no killed run was given, so a cut that was ignored cannot be seen"
        judgement.not_run["kill-happened"] = why
    if not judgement.has_journal:
        why = "no journal was given"
        judgement.not_run["prefix-logprobs"] = judgement.not_run["finished-captured"] = why
