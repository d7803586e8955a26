"""The trainer: GRPO advantages, log-probabilities at trained places, a dump of the very tensors."""

import msgspec
import pytest
import torch
from builders import params
from transformers import AutoModelForCausalLM

from restore_parity.checker.loading import load_run
from restore_parity.experiment.models import model_path
from restore_parity.experiment.trainer import (
    PolicyLogprobs,
    collate,
    dumped,
    group_advantages,
    policy_logprobs,
    recompute_layers,
    train_step,
)
from restore_parity.records import Row

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows(pristine) -> list[Row]:
    """Four rows of two groups, of different lengths, as the workload hands them over."""
    run = load_run(pristine / "uninterrupted")
    kept = [run.only(key) for key in params().row_keys() if key.train_step == 1]
    rewards = (0.0, 1.0, 0.5, 0.5)
    return [
        msgspec.structs.replace(row, reward=reward)
        for row, reward in zip(kept, rewards, strict=True)
    ]


@pytest.fixture
def batch(rows):
    return collate(rows, [0.0] * 4, CPU)


def tiny():
    model = AutoModelForCausalLM.from_pretrained(model_path("tiny-qwen3"), dtype=torch.float32)
    return model.eval()


def weights(model) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def after_one_step(model, rows, micro_batch_rows=2, lr=0.1) -> torch.Tensor:
    """The model's weights when one step of plain descent was taken on the rows."""
    list(train_step(model, torch.optim.SGD(model.parameters(), lr=lr), rows, micro_batch_rows))
    return weights(model)


def test_advantages_compare_a_row_with_its_group_only(rows):
    assert group_advantages(rows) == pytest.approx([-1, 1, 0, 0], abs=1e-5)


def test_policy_logprobs_are_those_of_the_whole_softmax_at_trained_tokens(batch):
    model = tiny()
    with torch.no_grad():
        policy = policy_logprobs(model, batch)
        full = model(batch.token_ids).logits.log_softmax(-1)[:, :-1]
    chosen = full.gather(-1, batch.token_ids[:, 1:, None])[..., 0]
    expected = torch.nn.functional.pad(chosen, (1, 0)) * batch.token_loss_mask
    assert torch.allclose(policy.chosen, expected, atol=1e-5)


def test_the_third_witness_is_the_trainers_own_view_of_the_engines_likeliest_tokens(rows, batch):
    model = tiny()
    with torch.no_grad():
        own = dumped(batch, policy_logprobs(model, batch))[0]
        full = model(batch.token_ids).logits.log_softmax(-1)
    at = own.segments()[1][0]
    expected = [
        (token, pytest.approx(full[0, at - 1, token].item(), abs=1e-5))
        for token, _ in rows[0].generation_top_logprobs[at]
    ]
    assert own.prev_top_logprobs[at] == expected
    assert own.prev_top_logprobs[0] is None


def test_the_trainer_scores_every_token_that_the_engine_recorded_however_many(rows):
    """Of one place five, of the others two: none is dropped, none is made up."""
    at = rows[0].segments()[0][0]
    column = list(rows[0].generation_top_logprobs)
    column[at] = [(token, -1.0 - token) for token in (50, 51, 52, 53, 54)]
    wider = msgspec.structs.replace(rows[0], generation_top_logprobs=column)
    batch = collate([wider, rows[1]], [0.0] * 2, CPU)
    model = tiny()
    with torch.no_grad():
        own = dumped(batch, policy_logprobs(model, batch))[0].prev_top_logprobs
        full = model(batch.token_ids).logits.log_softmax(-1)
    scored = [full[0, at - 1, token].item() for token in (50, 51, 52, 53, 54)]
    assert [token for token, _ in own[at]] == [50, 51, 52, 53, 54]
    assert [logprob for _, logprob in own[at]] == pytest.approx(scored, abs=1e-5)
    assert len(own[at + 1]) == 2


def test_rows_without_likeliest_tokens_are_trained_on_all_the_same(rows):
    bare = [msgspec.structs.replace(row, generation_top_logprobs=None) for row in rows]
    batch = collate(bare, [0.0] * 4, CPU)
    with torch.no_grad():
        own = dumped(batch, policy_logprobs(tiny(), batch))[0]
    assert own.prev_top_logprobs is None
    assert any(own.prev_logprobs)


def test_a_step_is_one_optimiser_step_however_it_is_batched(rows):
    one_by_one = after_one_step(tiny(), rows, micro_batch_rows=1)
    at_once = after_one_step(tiny(), rows, micro_batch_rows=4)
    assert torch.allclose(one_by_one, at_once, atol=1e-5)
    assert not torch.allclose(one_by_one, weights(tiny()), atol=1e-5)


def test_recomputed_layers_change_no_bit_of_a_step(rows):
    recomputed = tiny()
    recompute_layers(recomputed)
    assert torch.equal(after_one_step(recomputed, rows), after_one_step(tiny(), rows))


def test_a_row_of_sample_loss_mask_0_is_not_trained_on(rows):
    masked = [msgspec.structs.replace(row, sample_loss_mask=0.0) for row in rows]
    assert torch.equal(after_one_step(tiny(), masked), weights(tiny()))


def test_the_step_makes_rewarded_tokens_likelier(rows):
    model = tiny()
    batch = collate(rows, group_advantages(rows), CPU)
    with torch.no_grad():
        before = (policy_logprobs(model, batch).chosen * batch.advantages).sum()
    after_one_step(model, rows, lr=0.01)
    with torch.no_grad():
        after = (policy_logprobs(model, batch).chosen * batch.advantages).sum()
    assert after > before


def dump_of(batch) -> list[Row]:
    """The rows of a batch with made-up log-probabilities of the trainer's."""
    made_up = PolicyLogprobs(chosen=batch.token_loss_mask, candidates=batch.candidates * 0.0)
    return dumped(batch, made_up)


def test_the_dump_is_the_tensors_not_what_was_handed_over(batch):
    batch.token_ids[0, 0] = 99
    assert dump_of(batch)[0].token_ids[0] == 99


def test_the_dump_has_no_padding(rows, batch):
    lengths = [len(row.token_ids) for row in dump_of(batch)]
    assert lengths == [row.input_length for row in rows]


def test_log_probabilities_survive_the_tensors_to_the_last_bit(rows, batch):
    given = [row.generation_logprobs for row in rows]
    assert [row.generation_logprobs for row in dump_of(batch)] == given


def test_who_a_row_is_survives_the_tensors(rows, batch):
    given = [(row.group_id, row.prompt_idx, row.generation_index) for row in rows]
    dump = [(row.group_id, row.prompt_idx, row.generation_index) for row in dump_of(batch)]
    assert dump == given
