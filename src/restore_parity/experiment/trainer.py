"""The trainer: one GRPO step a train step, in torch, and the dump of what it trained on.

`python -m restore_parity.experiment.trainer FOLDER`, started by the supervisor, with overlapped
starts while the engine still starts. Reads run.json and rollouts.jsonl once they are there, writes
training.jsonl (under another name until it is whole).
"""

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from ..journal import lines
from ..params import Params
from ..records import Row, TopLogprobs
from ..runs import read_info, written_whole
from .models import model_path
from .processes import run_as_child, wait_for

CLIP = 0.2  # how far a ratio may leave 1


class Batch(msgspec.Struct, kw_only=True):
    """Rows collated to padded tensors (B, T): what is trained on is what is dumped."""

    rows: list[Row]
    token_ids: torch.Tensor
    token_loss_mask: torch.Tensor
    advantages: torch.Tensor
    generation_logprobs: torch.Tensor
    candidates: torch.Tensor  # (B, T, N), the engine's likeliest tokens
    sample_loss_mask: torch.Tensor  # (B,)


class PolicyLogprobs(NamedTuple):
    """The model's own log-probabilities in nats; 0.0 where nothing is trained."""

    chosen: torch.Tensor  # (B, T), of the trained tokens
    candidates: torch.Tensor  # (B, T, N), of the engine's likeliest tokens


class TrainRow(msgspec.Struct):
    """A line of rollouts.jsonl."""

    train_step: int
    row: Row


def group_advantages(rows: list[Row]) -> list[float]:
    """GRPO: a row's reward against its group's mean, over the group's deviation; (rows,)."""
    rewards = defaultdict(list)
    for row in rows:
        rewards[row.group_id].append(row.reward)
    return [_advantage(row.reward, rewards[row.group_id]) for row in rows]


def _advantage(reward: float, rewards: list[float]) -> float:
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in rewards) / len(rewards))
    return (reward - mean) / (deviation + 1e-6)


def collate(rows: list[Row], advantages: list[float], device: torch.device) -> Batch:
    """Rows and their advantages (rows,) as one batch on a device."""
    longest = max(row.input_length for row in rows)

    def padded(columns: Iterable[list[Any]], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.zeros(len(rows), longest, dtype=dtype)
        for place, values in enumerate(columns):
            tensor[place, : len(values)] = torch.tensor(values, dtype=dtype)
        return tensor.to(device)

    mask = padded((row.token_loss_mask for row in rows), torch.float32)
    most = max((_most_candidates(row) for row in rows), default=0)
    ranks = [padded((_candidates(row, rank) for row in rows), torch.int64) for rank in range(most)]
    # float64 holds every log-probability as the journal has it; the loss does not read them
    logprobs = padded((row.generation_logprobs for row in rows), torch.float64)
    return Batch(
        rows=rows,
        token_ids=padded((row.token_ids for row in rows), torch.int64),
        token_loss_mask=mask,
        advantages=mask * torch.tensor(advantages, device=device)[:, None],
        generation_logprobs=logprobs,
        candidates=torch.stack(ranks, dim=-1) if ranks else mask.new_zeros((*mask.shape, 0)).long(),
        sample_loss_mask=torch.tensor([row.sample_loss_mask for row in rows], device=device),
    )


def _most_candidates(row: Row) -> int:
    """The largest number of likeliest tokens that the engine gave at a place of a row."""
    return max((len(top) for top in row.generation_top_logprobs or () if top), default=0)


def _candidates(row: Row, rank: int) -> list[int]:
    """The engine's token of that rank at each place of a row; 0 where there is none."""
    tops = row.generation_top_logprobs or [None] * row.input_length
    return [top[rank][0] if top and rank < len(top) else 0 for top in tops]


def policy_logprobs(model: Any, batch: Batch) -> PolicyLogprobs:
    """The model's own log-probabilities of a batch; the head runs only at trained tokens."""
    hidden = model.model(batch.token_ids, use_cache=False).last_hidden_state
    trained = batch.token_loss_mask[:, 1:].bool()
    logprobs = model.lm_head(hidden[:, :-1][trained]).float().log_softmax(-1)
    tokens = torch.cat([batch.token_ids[:, 1:, None], batch.candidates[:, 1:]], dim=-1)[trained]
    places = torch.nn.functional.pad(trained, (1, 0))[..., None].expand(-1, -1, tokens.shape[-1])
    zeros = torch.zeros(places.shape, device=places.device)
    found = zeros.masked_scatter(places, logprobs.gather(-1, tokens))
    return PolicyLogprobs(chosen=found[..., 0], candidates=found[..., 1:].detach())


def train_step(
    model: Any, optimizer: torch.optim.Optimizer, rows: list[Row], micro_batch_rows: int
) -> Iterator[tuple[Batch, PolicyLogprobs]]:
    """One optimiser step over the rows.

    Yields each micro-batch as it is trained on, with the policy's log-probabilities before the
    step; the step is taken behind the last one.
    """
    device = next(model.parameters()).device
    advantages = group_advantages(rows)
    trained_tokens = sum(sum(row.token_loss_mask) * row.sample_loss_mask for row in rows)
    for start in range(0, len(rows), micro_batch_rows):
        stop = start + micro_batch_rows
        batch = collate(rows[start:stop], advantages[start:stop], device)
        policy = policy_logprobs(model, batch)
        loss = -_gain(batch, policy.chosen) / max(trained_tokens, 1)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        yield batch, policy._replace(chosen=policy.chosen.detach())
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _gain(batch: Batch, logprobs: torch.Tensor) -> torch.Tensor:
    """GRPO's clipped objective, summed over the batch's trained tokens."""
    ratio = (logprobs - logprobs.detach()).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    gain = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    weight = batch.token_loss_mask * batch.sample_loss_mask[:, None]
    return (gain * weight).sum()


def dumped(batch: Batch, policy: PolicyLogprobs) -> list[Row]:
    """The rows as the tensors hold them, padding cut off."""
    return [_dumped_row(batch, policy, place) for place in range(len(batch.rows))]


def _dumped_row(batch: Batch, policy: PolicyLogprobs, place: int) -> Row:
    row = batch.rows[place]
    length = row.input_length

    def column(tensor: torch.Tensor) -> list[Any]:
        return list(tensor[place, :length].tolist())

    return msgspec.structs.replace(
        row,
        sample_loss_mask=batch.sample_loss_mask[place].item(),
        token_ids=column(batch.token_ids),
        token_loss_mask=column(batch.token_loss_mask.int()),
        advantages=column(batch.advantages),
        generation_logprobs=column(batch.generation_logprobs),
        prev_logprobs=column(policy.chosen),
        prev_top_logprobs=_policy_top(row, column(policy.candidates)),
    )


def _policy_top(row: Row, logprobs: list[list[float]]) -> list[TopLogprobs | None] | None:
    """The trainer's log-probabilities (T, N) beside the ids of the engine's likeliest tokens."""
    if row.generation_top_logprobs is None:
        return None
    tops: list[TopLogprobs | None] = []
    for top, own in zip(row.generation_top_logprobs, logprobs, strict=True):
        pairs = zip(top or (), own, strict=False)  # fewer tokens than the batch's most at a place
        tops.append([(token, logprob) for (token, _), logprob in pairs] if top else None)
    return tops


def make_deterministic(device: str, seed: int) -> None:
    """The same rows give the same bits in every process on one kind of device."""
    # read when the device is first used; torch asks for it below
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False  # the third witness is float32
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(seed)
    if device == "cpu":
        torch.set_num_threads(os.cpu_count() or 1)


def recompute_layers(model: Any) -> None:
    """Keep one layer's activations at a time.

    In float32, attention over thousands of tokens is gigabytes a layer.
    """
    for layer in model.model.layers:
        layer.forward = partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
        )


def load_model(params: Params, device: str) -> Any:
    """The checkpoint in float32 on a device, ready to be trained."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        model_path(params.model), dtype=torch.float32, use_safetensors=True
    )
    model.to(device).eval()  # eval: no dropout, which would make the two runs differ
    if device != "cpu":
        recompute_layers(model)
    return model


def read_rows(file: Path) -> Iterator[TrainRow]:
    """The rows to train on, in the order of their train steps."""
    decode = msgspec.json.Decoder(TrainRow).decode
    with file.open("rb") as stream:
        for line in lines(stream):
            yield decode(line.content)


def main(folder: Path) -> None:
    """Train on the rows of one run, and dump them."""
    wait_for(folder / "run.json")
    info = read_info(folder)
    params = Params.model_validate(info.params)
    device = info.setup["device"]
    make_deterministic(device, params.seed)
    model = load_model(params, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=params.learning_rate)
    wait_for(folder / "rollouts.jsonl")
    with written_whole(folder / "training.jsonl") as out:
        steps = groupby(read_rows(folder / "rollouts.jsonl"), key=lambda line: line.train_step)
        for step, of_step in steps:
            rows = [line.row for line in of_step]
            batches = train_step(model, optimizer, rows, params.micro_batch_rows)
            for chunk, (batch, policy) in enumerate(batches):
                line = {"train_step": step, "chunk_index": chunk, "rows": dumped(batch, policy)}
                out.write(msgspec.json.encode(line) + b"\n")
                out.flush()  # the supervisor shows what is there


if __name__ == "__main__":
    run_as_child(main)
