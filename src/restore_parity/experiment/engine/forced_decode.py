"""Teacher forcing inside vLLM: a request's first tokens are given, one at a decode step each.

vLLM loads the processor below by its name, which is `PROCESSOR` in experiment/rerun.py.
"""

from collections.abc import Callable
from functools import partial

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

Process = Callable[[list[int], torch.Tensor], torch.Tensor]


class Forced(AdapterLogitsProcessor):
    """Takes `forced_ids` of a request's `extra_args`.

    Raw log-probabilities stay the model's own, as they are taken before any processor.
    """

    def is_argmax_invariant(self) -> bool:
        """It is not: forcing changes which token is the likeliest."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Process | None:
        """What forces one request's tokens; None where it has none to be forced."""
        ids = (params.extra_args or {}).get("forced_ids")
        return partial(_force, ids) if ids else None


def _force(forced_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Of a step's logits (vocabulary,) leave the next given token's only, while one is given."""
    if len(output_ids) >= len(forced_ids):
        return logits
    only = torch.full_like(logits, -torch.inf)
    only[forced_ids[len(output_ids)]] = 0.0
    return only
