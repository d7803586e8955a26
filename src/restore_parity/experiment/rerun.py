"""One cut run again with the engine: restored by prefill, and by forced decode as if it had never been cut.

`python -m restore_parity.again FOLDER`, started by run_again. FOLDER holds task.json; again.json comes into it.
"""

import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from .engine.vllm_engine import VllmEngine, compile_caches, engine_version
from ..errors import UsageError
from ..journal import Call
from .models import model_path, weights_sha256
from ..params import Params
from ..records import Row, TopTwo
from ..checker.loading import RunInfo
from .supervisor import Child, end_with_parent
from .workload import stop_token_ids

FORCED = "restore_parity.forced:Forced"


class View(Struct, frozen=True):
    """One way's whole answer to a call, and the tokens before it; lists are (tokens,), log-probabilities in nats."""

    before: list[int]
    ids: list[int]
    logprobs: list[float]
    top2: list[TopTwo | None]


class Again(Struct, frozen=True):
    """A cut's call run again. `torch` scores the uninterrupted call; its top2 holds both calls' tokens."""

    prefill: View
    decode: View
    torch: View
    changed: list[str] = []  # in what this machine is not the saved run's


class Order(Struct):
    """What is wanted of the child (task.json): one of the calls open at the kill, as in the run of `info`; it as saved."""

    cut: str
    calls: list[Call]
    info: RunInfo
    ours: View | None
    theirs: View | None


def view_of(row: Row | None, call_index: int) -> View | None:
    """A saved row's call; None where there is no such row or call."""
    segments = row.segments() if row else []
    if call_index >= len(segments):
        return None
    call = slice(*segments[call_index])
    top2 = (row.generation_top2 or [None] * row.input_length)[call]
    return View(row.token_ids[: call.start], row.token_ids[call], row.generation_logprobs[call], top2)


def run_again(folder: Path, order: Order) -> None:
    """Run a cut in a child process, with its run's parameters and environment. Raises IncompleteError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "again.json").unlink(missing_ok=True)
    (folder / "task.json").write_bytes(msgspec.json.encode(order))
    Child("again", folder).watch(lambda: False, order.info.params["timeout_s"])


def read_again(folder: Path) -> Again | None:
    """What the last run_again left; None where there was none."""
    file = folder / "again.json"
    return msgspec.json.decode(file.read_bytes(), type=Again) if file.is_file() else None


def main(folder: Path) -> None:
    order = msgspec.json.decode((folder / "task.json").read_bytes(), type=Order)
    setup, longest = order.info.setup, max(call.max_tokens for call in order.calls)
    params = Params.model_validate(order.info.params)
    # `forced` is written for vLLM's V1 model runner; a run that chose a runner itself keeps it
    os.environ.update(compile_caches(params) | {"VLLM_USE_V2_MODEL_RUNNER": "0"} | setup["engine_env"])
    processors = [*params.engine_args.get("logits_processors", []), FORCED]
    params = params.model_copy(update={"engine_args": params.engine_args | {"logits_processors": processors}})
    model = model_path(params.model)
    # the run's own length, unless its companion would end before both ways have
    engine = VllmEngine(model, params, max(setup["engine_args"]["max_model_len"], 2 * longest + 2), tried=False)
    prefill, decode = (_generate(engine, order, {*stop_token_ids(model)}, forced) for forced in (False, True))
    here = {"weights_sha256": weights_sha256(model), "engine": "{}=={}".format(*engine_version()), "device": engine.device}
    changed = [f"{name}: {setup.get(name)} then, {now} now" for name, now in here.items() if setup.get(name) != now]
    witness = _score(model, decode.before, (order.ours or decode).ids, (order.theirs or decode).ids)
    (folder / "again.json").write_bytes(msgspec.json.encode(Again(prefill, decode, witness, changed)))


def _generate(engine: VllmEngine, order: Order, stop_ids: set[int], forced: bool) -> View:
    """The cut's call to its end, its prefix prefilled or forced, among all others that were open: so its batch was."""
    views = {}
    for call in sorted(order.calls, key=lambda call: call.key):
        prefix = ([], [], []) if forced else ([*call.ids], [*call.logprobs], [*call.top2])
        view = views[call.name] = View(call.prompt_ids, *prefix)
        left, sampling = call.max_tokens - len(view.ids), {"extra_args": {"forced_ids": call.ids}} if forced else {}
        if left and not stop_ids.intersection(view.ids[-1:]):  # else it is already terminal
            engine.add(call.name, view.before + view.ids, left, **sampling)
    while engine.busy():
        for output in engine.step():
            view = views[output.call_id]
            view.ids.extend(output.ids)
            view.logprobs.extend(output.logprobs)
            view.top2.extend(output.top2)
    return views[order.cut]


def _score(model: Path, before: list[int], ids: list[int], others: list[int]) -> View:
    """The trainer's forward pass over a call, float32 on the CPU; the second candidate is the other call's token."""
    import torch
    from transformers import AutoModelForCausalLM

    from .trainer import collate, dumped, policy_logprobs

    first, size = len(before), len(before) + len(ids)
    pairs = zip(ids, others + ids[len(others) :], strict=False)
    top2 = [None] * first + [[(one, 0.0), (other, 0.0)] for one, other in pairs]
    mask, zeros = [0.0] * first + [1.0] * len(ids), [0.0] * size
    row = Row("", 0, 0, size, 1.0, 0.0, before + ids, mask, zeros, zeros, zeros, generation_top2=top2)
    scorer = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, use_safetensors=True).eval()
    with torch.no_grad():
        batch = collate([row], [0.0], torch.device("cpu"))
        (told,) = dumped(batch, *policy_logprobs(scorer, batch))
    return View(before, ids, told.prev_logprobs[first:], told.prev_top2[first:])


if __name__ == "__main__":
    end_with_parent()
    try:
        main(Path(sys.argv[1]))
    except UsageError as error:
        sys.exit(f"{error}")
    sys.stdout.flush()
    os._exit(0)  # an engine's own threads may otherwise hold the process for seconds
