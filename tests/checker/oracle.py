"""A second comparer, as naive as can be: no index, no shared code, every question answered by looking through all again.

It reads rows, calls and records as plain dictionaries and answers two things: the verdict, and which rows a problem names.
"""

import hashlib
import itertools
import math

LISTS = ("token_ids", "token_loss_mask", "advantages", "generation_logprobs", "prev_logprobs", "generation_top2")


def oracle(world: dict, limits: dict) -> tuple[str, set[str]]:
    """`world`: planned keys, baseline and restored [(key, row)], calls, records, infos, all plain. Keys print as 1/0/0."""
    named: set[str] = set()
    unnamed = assumption = False
    baseline, restored, calls, records = world["baseline"], world["restored"], world["calls"], world["records"]
    for key in {key for key, _ in baseline + restored} | set(world["planned"]):
        wanted = 1 if key in world["planned"] else 0
        for dump in (baseline, restored):
            if sum(1 for other, _ in dump if other == key) != wanted:
                named.add(key)
    for dump in (baseline, restored):
        for key, row in dump:
            if not sound(row):
                named.add(key)
        for (key, row), (other, another) in itertools.product(dump, dump):
            together = key.rsplit("/", 1)[0] == other.rsplit("/", 1)[0]
            if together != (row["group_id"] == another["group_id"]):
                unnamed = True
    if len({row["reward"] for _, row in baseline}) < 2 or not any(row["sample_loss_mask"] for _, row in baseline):
        assumption = True
    ended = world["infos"]["killed"]["exit"]
    if not ended or ended["signal"] != 9 or not ended["open_calls"]:
        assumption = True
    setups = [info["setup"] for info in world["infos"].values()]
    if any(setup != setups[0] for setup in setups):
        assumption = True
    for record in records:
        if not any(record["source_call_id"] == call["call_id"] for call in calls):
            unnamed = True
    aside: list[str] = []
    parted: dict[str, int] = {}
    covered = False
    steps_aside: list[int] = []
    for call in calls:
        key = call["key"]
        mine = [record for record in records if record["source_call_id"] == call["call_id"]]
        begun = [record for record in mine if record["event"] == "restored"]
        over = [record for record in mine if record["event"] != "restored"]
        bad = len(begun) != 1 or len(over) != 1
        row, there = only(restored, key), only(baseline, key)
        if not begun or not over or row is None:
            if bad:
                named.add(key)
            continue
        begun, over = begun[0], over[0]
        runs, place = [], 0
        for trained, group in itertools.groupby(row["token_loss_mask"]):
            size = len(list(group))
            if trained:
                runs.append((place, place + size))
            place += size
        first, stop = runs[call["call_index"]] if call["call_index"] < len(runs) else (place, place)
        size = begun["prefix_tokens"]
        tail = over.get("tail_tokens", 0)
        prefix = row["token_ids"][first : first + size]
        claim = (begun["group_id"], begun["generation_index"], begun["call_index"])
        true = (row["group_id"], int(key.split("/")[2]), call["call_index"])
        bad |= claim != true or size + tail != stop - first or call["group_id"] != row["group_id"]
        claim = (over["call_id"], over["prefix_tokens"], over["group_id"], over["generation_index"])
        true = (begun["call_id"], size, *true[:2])
        bad |= any(a is not None and a != b for a, b in zip(claim, true, strict=True))
        digest = hashlib.sha256(",".join(str(i) for i in prefix).encode()).hexdigest()
        bad |= begun["prefix_ids_sha256"] != digest
        bad |= row["token_ids"][: first + size] != call["prompt_ids"] + call["ids"]
        for a, b in zip(call["logprobs"], row["generation_logprobs"][first : first + size], strict=False):
            bad |= a != b
        bad |= begun["max_tokens"] != call["max_tokens"] - size or size + tail > call["max_tokens"]
        bad |= any(token in world["stop_ids"] for token in row["token_ids"][first : stop - 1])
        if over["event"] == "already_terminal":
            stopped = bool(prefix) and prefix[-1] in world["stop_ids"]
            bad |= stop - first != size or not (size == call["max_tokens"] or stopped)
        covered |= size > 0 and tail > 0
        if over["event"] == "completed":
            bad |= stop - first != call["max_tokens"] and row["token_ids"][stop - 1] not in world["stop_ids"]
        if there is not None:
            bad |= trained_runs(there) != len(runs)
        if there is not None and there["token_ids"] != row["token_ids"]:
            at = 0
            while (
                at < min(len(there["token_ids"]), len(row["token_ids"])) and there["token_ids"][at] == row["token_ids"][at]
            ):
                at += 1
            parted[key] = at
            excused = at >= first and near(there, row, at, limits["near_tie_margin"])
            bad |= not excused or row["sample_loss_mask"] != there["sample_loss_mask"]
            bad |= row["token_loss_mask"][:at] != there["token_loss_mask"][:at]
            if not bad:
                aside.append(key)
                steps_aside.append(int(key.split("/")[0]))
        if bad:
            named.add(key)
    cuts = len(calls)
    if cuts and (len(aside) == cuts or len(aside) > limits["max_set_aside"] * cuts):
        unnamed = True
    for key in {key for key, _ in baseline}:
        row, there = only(restored, key), only(baseline, key)
        if row is None or there is None:
            continue
        if (row["generation_top2"] is None) != (there["generation_top2"] is None):
            named.add(key)
        if key not in parted:
            for name in ("input_length", "token_ids", "token_loss_mask", "sample_loss_mask", "reward"):
                if row[name] != there[name]:
                    named.add(key)
        for at in range(min(len(row["token_ids"]), len(there["token_ids"]), parted.get(key, 10**9))):
            gap = abs(row["generation_logprobs"][at] - there["generation_logprobs"][at])
            if row["token_loss_mask"][at] and gap > limits["max_logprob_diff"]:
                named.add(key)
        if int(key.split("/")[0]) <= min(steps_aside, default=10**9):
            for at in range(min(len(row["token_ids"]), len(there["token_ids"]), parted.get(key, 10**9))):
                gap = abs(row["prev_logprobs"][at] - there["prev_logprobs"][at])
                if row["token_loss_mask"][at] and gap > limits["max_policy_diff"]:
                    named.add(key)
    assumption |= not covered
    if named or unnamed:
        return "FAIL", named
    return ("INCOMPLETE" if assumption else "PASS"), named


def trained_runs(row: dict) -> int:
    return sum(1 for trained, _ in itertools.groupby(row["token_loss_mask"]) if trained)


def only(dump: list, key: str) -> dict | None:
    found = [row for other, row in dump if other == key]
    return found[0] if len(found) == 1 and sound(found[0]) else None


def sound(row: dict) -> bool:
    for name in (*LISTS, "prev_top2"):
        if row[name] is not None and len(row[name]) != row["input_length"]:
            return False
    for name in ("advantages", "generation_logprobs", "prev_logprobs"):
        for value in row[name]:
            if value is None or math.isnan(value) or math.isinf(value):
                return False
    return 1 in row["token_loss_mask"] and all(mask in (0, 1) for mask in row["token_loss_mask"])


def near(there: dict, row: dict, at: int, margin: float) -> bool:
    if at >= len(there["token_ids"]) or at >= len(row["token_ids"]):
        return False
    if not there["token_loss_mask"][at] or not row["token_loss_mask"][at]:
        return False
    ours, theirs = there["token_ids"][at], row["token_ids"][at]
    for run, own, other in ((there, ours, theirs), (row, theirs, ours)):
        told = {token: logprob for token, logprob in (run["generation_top2"] or [None] * (at + 1))[at] or []}
        if own not in told or other not in told:
            return False
        if told[own] != run["generation_logprobs"][at] or not 0 <= told[own] - told[other] <= margin:
            return False
        for later in range(len(run["token_ids"])):  # a greedy run takes its likeliest token every time
            if run["token_loss_mask"][later]:
                told = {token: logprob for token, logprob in run["generation_top2"][later] or []}
                if told.get(run["token_ids"][later]) != run["generation_logprobs"][later]:
                    return False
                if max(told.values()) > run["generation_logprobs"][later]:
                    return False
    return True
