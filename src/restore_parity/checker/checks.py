"""Every check applied to the runs of one comparison, in one pass over their rows."""

from collections import defaultdict
from collections.abc import Sequence

from ..params import Params
from ..records import RestoreRecord
from ..tokens import Decode
from .cut_check import check_cut
from .cuts import Cut, cuts_of_calls
from .dumps import Run, Runs
from .judgement import Judgement
from .progress import progress
from .row_checks import RowPair, Tally, compare_rows
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
    restored = runs.restored
    stop_ids = restored.info.stop_token_ids if restored.info else set()
    judgement = Judgement(params=params, stop_ids=stop_ids, cut_options=cut_options, decode=decode)
    opened = cuts_of_calls(runs.killed.journal.open_calls()) if runs.killed else list(cuts)
    records = records_by_source(restored)
    check_setup(judgement, runs)
    check_dumps(judgement, runs, cut_rows={cut.key for cut in opened})
    check_sources(judgement, records, opened)
    tally = check_rows(judgement, runs, _with_prefix(judgement, opened, records), records)
    check_coverage(judgement, tally, opened)
    check_share(judgement)
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
    cuts_of_row = defaultdict(list)
    for cut in cuts:
        cuts_of_row[cut.key].append(cut)
    keys = runs.uninterrupted.rows.keys() | runs.restored.rows.keys() | cuts_of_row.keys()
    for key in progress(sorted(keys), "checks", "row"):
        baseline, restored = runs.uninterrupted.only(key), runs.restored.only(key)
        results = [
            check_cut(judgement, cut, records.get(cut.call_id, []), baseline, restored)
            for cut in cuts_of_row[key]
        ]
        judgement.cuts += results
        if any(result.prefix_tokens and result.tail_tokens for result in results):
            tally.cut_groups.add(key.group)
        if baseline:
            # 0 is added too: a reward that no trained row has is still one of the rewards
            tally.rewards[baseline.reward] += int(baseline.sample_loss_mask > 0)
        if baseline and restored:
            compare_rows(judgement, tally, RowPair(key, baseline, restored), results)
    return tally


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


def check_share(judgement: Judgement) -> None:
    """No more cuts are set aside than allowed, and not all."""
    cuts, share = len(judgement.cuts), judgement.params.max_set_aside
    if cuts:
        judgement.expect(
            "set-aside-share",
            judgement.set_aside <= min(share * cuts, cuts - 1),
            f"at most {share:.0%} of {cuts} cuts, and not all",
            judgement.set_aside,
            where="cuts set aside",
        )


def note_what_could_not_run(judgement: Judgement, runs: Runs) -> None:
    """Without the killed run some checks have no evidence: say which, and what they lack."""
    if runs.killed:
        return
    lacking = {
        "kill-happened": "no killed run was given, so a cut that was ignored cannot be seen",
        "prefix-captured": "no journal was given",
        "prefix-logprobs": "no journal was given",
    }
    if judgement.cuts and not judgement.seen["prefix-hash"]:
        lacking["prefix-hash"] = "no record has a hash"
    if judgement.cuts and not judgement.seen["token-budget"]:
        lacking["token-budget"] = "no limit is known"
    judgement.not_run |= lacking
