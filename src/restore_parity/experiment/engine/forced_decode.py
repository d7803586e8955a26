"""Teacher forcing inside vLLM: a request's first tokens are given, one at a decode step each. Loaded by the engine."""

from collections.abc import Callable
from functools import partial

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class Forced(AdapterLogitsProcessor):
    """Takes `forced_ids` of a request's `extra_args`; raw log-probabilities stay the model's own, as they come before."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable | None:
        ids = (params.extra_args or {}).get("forced_ids")
        return partial(_force, ids) if ids else None


def _force(forced_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Of a step's logits (vocabulary,) only the next given token's is left, as long as one is given."""
    if len(output_ids) >= len(forced_ids):
        return logits
    only = torch.full_like(logits, -torch.inf)
    only[forced_ids[len(output_ids)]] = 0.0
    return only
