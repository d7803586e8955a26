"""The trainer: one GRPO step a train step, in torch, and the dump of what it trained on.

`python -m restore_parity.trainer FOLDER`, started by the supervisor, with overlapped starts while the engine still starts.
Reads run.json and rollouts.jsonl once they are there, writes training.jsonl (under another name until it is whole).
"""

import math
import os
import sys
from collections import defaultdict
from functools import partial
from itertools import groupby
from pathlib import Path

import msgspec
import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from .models import model_path
from ..params import Params
from ..records import Row, TopTwo
from ..checker.loading import read_info
from .supervisor import end_with_parent, wait_for


class Batch(msgspec.Struct):
    """Rows collated to padded tensors (B, T): what is trained on is what is dumped."""

    rows: list[Row]
    lengths: list[int]
    token_ids: torch.Tensor
    token_loss_mask: torch.Tensor
    advantages: torch.Tensor
    generation_logprobs: torch.Tensor
    candidates: torch.Tensor  # (B, T, 2), the engine's two likeliest tokens
    sample_loss_mask: torch.Tensor  # (B,)


class Line(msgspec.Struct):
    train_step: int
    row: Row


def group_advantages(rows: list[Row]) -> list[float]:
    """GRPO: a row's reward against its group's mean, over the group's standard deviation; (rows,)."""
    groups = defaultdict(list)
    for row in rows:
        groups[row.group_id].append(row.reward)

    def advantage(row: Row) -> float:
        rewards = groups[row.group_id]
        mean = sum(rewards) / len(rewards)
        spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
        return (row.reward - mean) / (spread + 1e-6)

    return [advantage(row) for row in rows]


def collate(rows: list[Row], advantages: list[float], device: torch.device) -> Batch:
    lengths = [row.input_length for row in rows]

    def padded(lists, dtype):
        tensor = torch.zeros(len(rows), max(lengths), dtype=dtype)
        for place, values in enumerate(lists):
            tensor[place, : len(values)] = torch.tensor(values, dtype=dtype)
        return tensor.to(device)

    mask = padded([row.token_loss_mask for row in rows], torch.float32)
    return Batch(
        rows=rows,
        lengths=lengths,
        token_ids=padded([row.token_ids for row in rows], torch.int64),
        token_loss_mask=mask,
        advantages=mask * torch.tensor(advantages, device=device)[:, None],
        # float64 holds every log-probability as the journal has it; the loss does not read them
        generation_logprobs=padded([row.generation_logprobs for row in rows], torch.float64),
        candidates=torch.stack([padded([_candidates(row, i) for row in rows], torch.int64) for i in (0, 1)], dim=-1),
        sample_loss_mask=torch.tensor([row.sample_loss_mask for row in rows], device=device),
    )


def _candidates(row: Row, place: int) -> list[int]:
    return [top2[place][0] if top2 else 0 for top2 in row.generation_top2 or [None] * row.input_length]


def policy_logprobs(model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's own log-probabilities of the trained tokens, (B, T), and of the engine's two candidates, (B, T, 2).

    0.0 elsewhere; the head runs only at trained tokens.
    """
    hidden = model.model(batch.token_ids, use_cache=False).last_hidden_state
    trained = batch.token_loss_mask[:, 1:].bool()
    logprobs = model.lm_head(hidden[:, :-1][trained]).float().log_softmax(-1)
    wanted = torch.cat([batch.token_ids[:, 1:, None], batch.candidates[:, 1:]], dim=-1)[trained]
    places = torch.nn.functional.pad(trained, (1, 0))[..., None].expand(-1, -1, 3)
    told = torch.zeros(places.shape, device=places.device).masked_scatter(places, logprobs.gather(-1, wanted))
    return told[..., 0], told[..., 1:].detach()


def train_step(model, optimizer, rows: list[Row], micro_batch_rows: int, clip: float = 0.2):
    """One optimiser step over the rows, micro-batch by micro-batch; yields each batch with the policy's log-probs."""
    device = next(model.parameters()).device
    advantages = group_advantages(rows)
    trained_tokens = sum(sum(row.token_loss_mask) * row.sample_loss_mask for row in rows)
    for place in range(0, len(rows), micro_batch_rows):
        span = slice(place, place + micro_batch_rows)
        batch = collate(rows[span], advantages[span], device)
        logprobs, prev_top2 = policy_logprobs(model, batch)
        prev_logprobs = logprobs.detach()
        ratio = (logprobs - prev_logprobs).exp()
        gain = torch.minimum(ratio * batch.advantages, ratio.clamp(1 - clip, 1 + clip) * batch.advantages)
        weight = batch.token_loss_mask * batch.sample_loss_mask[:, None]
        (-(gain * weight).sum() / max(trained_tokens, 1)).backward()
        yield batch, prev_logprobs, prev_top2
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def dumped(batch: Batch, prev_logprobs: torch.Tensor, prev_top2: torch.Tensor) -> list[Row]:
    """The rows as the tensors hold them, padding cut off."""
    return [
        msgspec.structs.replace(
            row,
            input_length=length,
            sample_loss_mask=batch.sample_loss_mask[i].item(),
            token_ids=batch.token_ids[i, :length].tolist(),
            token_loss_mask=batch.token_loss_mask[i, :length].int().tolist(),
            advantages=batch.advantages[i, :length].tolist(),
            generation_logprobs=batch.generation_logprobs[i, :length].tolist(),
            prev_logprobs=prev_logprobs[i, :length].tolist(),
            prev_top2=_top2(row, prev_top2[i, :length].tolist()),
        )
        for i, (row, length) in enumerate(zip(batch.rows, batch.lengths, strict=True))
    ]


def _top2(row: Row, logprobs: list[list[float]]) -> list[TopTwo | None] | None:
    """The trainer's log-probabilities beside the ids of the engine's two candidates."""
    if row.generation_top2 is None:
        return None
    pairs = zip(row.generation_top2, logprobs, strict=True)
    return [top2 and [(top2[0][0], own[0]), (top2[1][0], own[1])] for top2, own in pairs]


def make_deterministic(device: str, seed: int) -> None:
    """The same rows give the same log-probabilities, to the last bit, in every process on one kind of device."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when the device is first used; torch asks for it below
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # the third witness is float32
    torch.manual_seed(seed)
    if device == "cpu":
        torch.set_num_threads(os.cpu_count())


def recompute_layers(model) -> None:
    """Keep one layer's activations at a time: in float32, attention over thousands of tokens is gigabytes a layer."""
    for layer in model.model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def main(folder: Path) -> None:
    wait_for(folder / "run.json")
    info = read_info(folder)
    params = Params.model_validate(info.params)
    make_deterministic(info.setup["device"], params.seed)
    model = AutoModelForCausalLM.from_pretrained(model_path(params.model), dtype=torch.float32, use_safetensors=True)
    model = model.to(info.setup["device"]).eval()  # eval: no dropout, which would make the two runs differ
    if info.setup["device"] != "cpu":
        recompute_layers(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=params.learning_rate)
    wait_for(folder / "rollouts.jsonl")
    partial = folder / "training.jsonl.partial"
    with (folder / "rollouts.jsonl").open("rb") as stream, partial.open("wb") as out:
        lines = map(msgspec.json.Decoder(Line).decode, stream)  # in the order of their train steps
        for step, group in groupby(lines, key=lambda line: line.train_step):
            rows = [line.row for line in group]
            for chunk, batch in enumerate(train_step(model, optimizer, rows, params.micro_batch_rows)):
                line = {"train_step": step, "chunk_index": chunk, "rows": dumped(*batch)}
                out.write(msgspec.json.encode(line) + b"\n")
                out.flush()
        os.fsync(out.fileno())
    partial.rename(folder / "training.jsonl")


if __name__ == "__main__":
    end_with_parent()
    main(Path(sys.argv[1]))
