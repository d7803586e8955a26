"""One cut run again with the engine: its prefix prefilled, and decoded as if it was never cut.

`python -m restore_parity.experiment.rerun FOLDER`, started by run_again. FOLDER holds task.json;
again.json comes into it. Importing this module imports neither torch nor vLLM.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import IncompleteError
from ..journal import Call
from ..params import Params
from ..records import CallView, Rerun, Row, TopLogprobs
from ..runs import RunInfo, written_whole
from .engine.build import engine_version
from .engine.protocol import Answer, Engine, Request, generate
from .engine.settings import compile_caches
from .models import model_path, stop_token_ids, weights_sha256
from .processes import Child, run_as_child

PROCESSOR = "restore_parity.experiment.engine.forced_decode:Forced"


class RerunTask(Struct, frozen=True, kw_only=True):
    """What is wanted of the child (task.json): one of the calls open at the kill, run again."""

    cut: str  # the call's name
    calls: list[Call]  # all that were open at the kill
    info: RunInfo  # of the killed run
    uninterrupted: CallView | None  # the call as saved
    restored: CallView | None


def run_again(folder: Path, task: RerunTask) -> None:
    """Run a cut in a child process, with its run's parameters and environment.

    Raises IncompleteError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "again.json").unlink(missing_ok=True)
    (folder / "task.json").write_bytes(msgspec.json.encode(task))
    Child("rerun", folder).wait(task.info.params["timeout_s"])


def read_rerun(folder: Path) -> Rerun | None:
    """What the last run_again left; None where there was none."""
    file = folder / "again.json"
    if not file.is_file():
        return None
    return msgspec.json.decode(file.read_bytes(), type=Rerun)


def main(folder: Path) -> None:
    """Run one cut both ways, score the call with torch, and write again.json.

    Raises UsageError where this machine lacks the model, or cannot run its engine's settings,
    IncompleteError where the run does not tell them.
    """
    from .engine.vllm_engine import VllmEngine

    task = msgspec.json.decode((folder / "task.json").read_bytes(), type=RerunTask)
    setup = task.info.setup
    for name in ("engine_args", "engine_env"):
        if name not in setup:
            raise IncompleteError(f"run.json: setup has no {name}; the call cannot run as it did")
    params = _with_forced_decode(Params.model_validate(task.info.params))
    # Forced decode is written for vLLM's V1 model runner; a run that chose a runner itself keeps it
    runner = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    os.environ.update(compile_caches(params) | runner | setup["engine_env"])
    model = model_path(params.model)
    engine = VllmEngine(model, params, _longest_tokens(task))
    prefill = prefilled(engine, task, stop_token_ids(model))
    decode = forced(engine, task)
    uninterrupted = task.uninterrupted or decode
    restored = task.restored or decode
    result = Rerun(
        prefill=prefill,
        decode=decode,
        torch=score(model, decode.before, uninterrupted.ids, restored.ids),
        changed=_changed(setup, model, engine.device),
    )
    with written_whole(folder / "again.json") as stream:
        stream.write(msgspec.json.encode(result))


def _with_forced_decode(params: Params) -> Params:
    processors = [*params.engine_args.get("logits_processors", []), PROCESSOR]
    args = params.engine_args | {"logits_processors": processors}
    return params.model_copy(update={"engine_args": args})


def _longest_tokens(task: RerunTask) -> int:
    """The run's own length, unless its companion would end before both ways have."""
    longest_call = max(call.max_tokens for call in task.calls)
    return max(int(task.info.setup["engine_args"]["max_model_len"]), 2 * longest_call + 2)


def prefilled(engine: Engine, task: RerunTask, stop_ids: Collection[int]) -> CallView:
    """The cut's call to its end, its prefix prefilled, among all others that were open.

    The others keep its batches what they were.
    """
    requests = []
    for call in _in_order(task):
        left_tokens = call.max_tokens - len(call.ids)
        if left_tokens and not (call.ids and call.ids[-1] in stop_ids):
            request = Request(
                call_id=call.name,
                prompt_ids=call.prompt_ids + call.ids,
                max_tokens=left_tokens,
            )
            requests.append(request)
    answers = generate(engine, requests)
    cut = _cut(task)
    tail = answers.get(cut.name, Answer())  # none of a call that is already terminal
    return CallView(
        before=cut.prompt_ids,
        ids=cut.ids + tail.ids,
        logprobs=cut.logprobs + tail.logprobs,
        top_logprobs=[*cut.top_logprobs, *tail.top_logprobs],
    )


def forced(engine: Engine, task: RerunTask) -> CallView:
    """The cut's call to its end, its prefix decoded token by token, among all others."""
    requests = [
        Request(
            call_id=call.name,
            prompt_ids=call.prompt_ids,
            max_tokens=call.max_tokens,
            sampling={"extra_args": {"forced_ids": call.ids}},
        )
        for call in _in_order(task)
    ]
    answer = generate(engine, requests)[task.cut]
    return CallView(
        before=_cut(task).prompt_ids,
        ids=answer.ids,
        logprobs=answer.logprobs,
        top_logprobs=[*answer.top_logprobs],
    )


def _in_order(task: RerunTask) -> list[Call]:
    return sorted(task.calls, key=lambda call: call.key)


def _cut(task: RerunTask) -> Call:
    return next(call for call in task.calls if call.name == task.cut)


def _changed(setup: dict[str, Any], model: Path, device: str) -> list[str]:
    """In what this machine differs from the saved run's, a text each."""
    now = {
        "weights_sha256": weights_sha256(model),
        "engine": str(engine_version()),
        "device": device,
    }
    changed = []
    for name, value in now.items():
        if setup.get(name) != value:
            changed.append(f"{name}: {setup.get(name)} then, {value} now")
    return changed


def score(model: Path, before: list[int], ids: list[int], other_ids: list[int]) -> CallView:
    """The trainer's forward pass over a call, in float32 on the CPU.

    Each token's second candidate is the other call's token at its place, as far as that goes.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from .trainer import collate, dumped, policy_logprobs

    start = len(before)
    size = start + len(ids)
    candidates: list[TopLogprobs | None] = [None] * start
    for token, other in zip(ids, other_ids + ids[len(other_ids) :], strict=False):
        candidates.append([(token, 0.0), (other, 0.0)])
    row = Row(
        group_id="",
        prompt_idx=0,
        generation_index=0,
        input_length=size,
        sample_loss_mask=1.0,
        reward=0.0,
        token_ids=before + ids,
        token_loss_mask=[0.0] * start + [1.0] * len(ids),
        advantages=[0.0] * size,
        generation_logprobs=[0.0] * size,
        prev_logprobs=[0.0] * size,
        generation_top_logprobs=candidates,
    )
    scorer: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, use_safetensors=True
    )
    scorer.eval()
    with torch.no_grad():
        batch = collate([row], [0.0], torch.device("cpu"))
        (scored,) = dumped(batch, policy_logprobs(scorer, batch))
    return CallView(
        before=before,
        ids=ids,
        logprobs=scored.prev_logprobs[start:],
        top_logprobs=(scored.prev_top_logprobs or [])[start:],
    )


if __name__ == "__main__":
    run_as_child(main)
