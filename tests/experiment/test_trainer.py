"""The trainer: GRPO advantages, log-probabilities at trained places only, a dump of the very tensors."""

import msgspec
import pytest
import torch
from builders import params
from transformers import AutoModelForCausalLM

from restore_parity.models import model_path
from restore_parity.records import Key, Row
from restore_parity.saved import load_run
from restore_parity.trainer import collate, dumped, group_advantages, policy_logprobs, recompute_layers, train_step

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows(pristine) -> list[Row]:
    """Four rows of two groups, of different lengths, as the workload hands them over."""
    run = load_run(pristine / "uninterrupted")
    kept = [run.only(key) for key in params().row_keys() if key.train_step == 1]
    return [msgspec.structs.replace(row, reward=reward) for row, reward in zip(kept, (0.0, 1.0, 0.5, 0.5), strict=True)]


def tiny():
    return AutoModelForCausalLM.from_pretrained(model_path("tiny-qwen3"), dtype=torch.float32).eval()


def test_advantages_compare_a_row_with_its_group_only(rows):
    assert group_advantages(rows) == pytest.approx([-1, 1, 0, 0], abs=1e-5)


def test_policy_logprobs_are_those_of_the_whole_softmax_at_trained_tokens(rows):
    model, batch = tiny(), collate(rows, [0.0] * 4, CPU)
    with torch.no_grad():
        ours, _ = policy_logprobs(model, batch)
        full = model(batch.token_ids).logits.log_softmax(-1)[:, :-1].gather(-1, batch.token_ids[:, 1:, None])[..., 0]
    expected = torch.nn.functional.pad(full, (1, 0)) * batch.token_loss_mask
    assert torch.allclose(ours, expected, atol=1e-5)


def test_the_third_witness_is_the_trainers_own_view_of_the_engines_two_candidates(rows):
    model, batch = tiny(), collate(rows, [0.0] * 4, CPU)
    with torch.no_grad():
        (own, *_), full = dumped(batch, *policy_logprobs(model, batch)), model(batch.token_ids).logits.log_softmax(-1)
    at = own.segments()[1][0]
    expected = [(token, pytest.approx(full[0, at - 1, token].item(), abs=1e-5)) for token, _ in rows[0].generation_top2[at]]
    assert own.prev_top2[at] == expected and own.prev_top2[0] is None


def test_a_step_is_one_optimiser_step_however_it_is_batched(rows):
    weights = []
    for micro_batch_rows in (1, 4):
        model = tiny()
        list(train_step(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, micro_batch_rows))
        weights.append(torch.nn.utils.parameters_to_vector(model.parameters()))
    start = torch.nn.utils.parameters_to_vector(tiny().parameters())
    assert torch.allclose(weights[0], weights[1], atol=1e-5) and not torch.allclose(weights[0], start, atol=1e-5)


def test_recomputed_layers_change_no_bit_of_a_step(rows):
    weights = []
    for recompute in (False, True):
        model = tiny()
        if recompute:
            recompute_layers(model)
        list(train_step(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, 2))
        weights.append(torch.nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(*weights)


def test_a_row_of_sample_loss_mask_0_is_not_trained_on(rows):
    masked = [msgspec.structs.replace(row, sample_loss_mask=0.0) for row in rows]
    model = tiny()
    list(train_step(model, torch.optim.SGD(model.parameters(), lr=0.1), masked, 2))
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), tiny().parameters(), strict=True))


def test_the_step_makes_rewarded_tokens_likelier(rows):
    model, batch = tiny(), collate(rows, group_advantages(rows), CPU)
    with torch.no_grad():
        before = (policy_logprobs(model, batch)[0] * batch.advantages).sum()
    list(train_step(model, torch.optim.SGD(model.parameters(), lr=0.01), rows, 2))
    with torch.no_grad():
        assert (policy_logprobs(model, batch)[0] * batch.advantages).sum() > before


def test_the_dump_is_the_tensors_with_padding_cut_off(rows):
    batch = collate(rows, [0.5] * 4, CPU)
    batch.token_ids[0, 0] = 99  # what was trained on, not what was handed over
    dump = dumped(batch, batch.token_loss_mask * -1, batch.candidates * 0.0)
    assert dump[0].token_ids[0] == 99
    assert [len(row.token_ids) for row in dump] == [row.input_length for row in rows]


def test_log_probabilities_survive_the_tensors_to_the_last_bit(rows):
    batch = collate(rows, [0.0] * 4, CPU)
    dump = dumped(batch, batch.token_loss_mask, batch.candidates * 0.0)
    assert [row.generation_logprobs for row in dump] == [row.generation_logprobs for row in rows]


def test_keys_are_kept(rows):
    batch = collate(rows, [0.0] * 4, CPU)
    dump = dumped(batch, batch.token_loss_mask, batch.candidates * 0.0)
    assert [Key(1, row.prompt_idx, row.generation_index) for row in dump] == [
        k for k in params().row_keys() if k.train_step == 1
    ]
