"""Which engine settings make a restore bit-identical, and what they cost: one table.

    python benchmarks/strict_restore.py [--model NAME] [--rows 48] [--tokens 256]
        [--budget-s 480] [--only NAME]... [--jobs 1] [--json FILE]

Each setting runs in a child process. Its engine generates every row three times after a warm-up
(once where it is eager), then the rows again as restored calls: prompt and the first tokens of the
first time, the rest asked for. Both ends are compared to the last bit. The restored calls run in
the same engine, so a row with the prefix cache on shows a cache at work and proves nothing. `ratio`
is the throughput over that of the first setting of the same run. With `--jobs` above 1, settings
share the device: bits do not mind, speed does, so each generates once and no speed is told.
Settings that the budget leaves no time for are listed as not run.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec import json as msgjson

from restore_parity.experiment.engine import protocol
from restore_parity.experiment.engine.build import engine_version
from restore_parity.experiment.engine.settings import engine_env
from restore_parity.experiment.engine.vllm_engine import VllmEngine
from restore_parity.experiment.models import model_path
from restore_parity.params import Params

CHILD_S = 240  # the most one setting may take
FIRST_ID, LAST_ID = 3, 250  # ids every model of this package has, none of them special
GRAPHS = {
    "enforce_eager": False,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}
COMPILED = {"enforce_eager": False}
INVARIANT = {"VLLM_BATCH_INVARIANT": "1"}
SPLIT, TWICE = {"tensor_parallel_size": 2}, {"data_parallel_size": 2}


class Setting(Struct):
    """One line of the table. `one_norm`: with strict's norm, and without its product."""

    name: str
    args: dict[str, Any] = {}
    env: dict[str, str] = {}
    params: dict[str, Any] = {}
    one_norm: bool = False

    @property
    def rounds(self) -> int:
        return 1 if self.args.get("enforce_eager", True) else 3


def chunk(tokens: int, **more) -> dict[str, Any]:
    return {"max_num_batched_tokens": tokens} | more


def invariant(name: str, tokens: int, args: dict[str, Any] | None = None, **more) -> Setting:
    return Setting(
        f"invariant, {name}, chunk {tokens}", chunk(tokens) | (args or {}), INVARIANT, **more
    )


TRITON = {"attention_backend": "TRITON_ATTN"}
CACHED = {"enable_prefix_caching": True}
QUASI_GREEDY, FLOAT32 = {"temperature": 1.0, "top_p": 1e-6}, {"dtype": "float32"}
GPU = [
    Setting("default, graphs", GRAPHS),
    Setting("strict", GRAPHS, params={"strict": True}),
    Setting("strict, eager", params={"strict": True}),
    Setting("strict, compiled with graphs", COMPILED, params={"strict": True}),
    Setting("strict, float32", GRAPHS | TRITON, params={"strict": True, "dtype": "float32"}),
    Setting(
        "strict, top_p 1e-6", GRAPHS, params={"strict": True, "temperature": 1.0, "top_p": 1e-6}
    ),
    Setting(
        "strict, first model runner", GRAPHS, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {"strict": True}
    ),
    *(invariant("graphs", tokens, args=GRAPHS) for tokens in (64, 128, 255, 256, 512, 2048)),
    *(
        invariant("graphs, TRITON_ATTN", tokens, args=GRAPHS | TRITON)
        for tokens in (64, 128, 256, 512)
    ),
    invariant("graphs, one norm kernel", 2048, args=GRAPHS, one_norm=True),
    invariant("graphs, one norm kernel, TRITON_ATTN", 2048, args=GRAPHS | TRITON, one_norm=True),
    invariant("graphs, one norm kernel, eager", 2048, one_norm=True),
    invariant(
        "graphs, one norm kernel, prefix cache on", 2048, args=GRAPHS | CACHED, one_norm=True
    ),
    invariant(
        "graphs, one norm kernel, top_p 1e-6", 2048, args=GRAPHS, params=QUASI_GREEDY, one_norm=True
    ),
    invariant(
        "graphs, one norm kernel, float32",
        2048,
        args=GRAPHS | TRITON,
        params=FLOAT32,
        one_norm=True,
    ),
    invariant("compiled with graphs", 128, args=COMPILED),
    invariant("compiled with graphs", 2048, args=COMPILED),
    invariant("eager", 128),
    Setting("default, graphs, chunk 128", chunk(128) | GRAPHS),
    Setting("default, eager"),
    Setting("default, graphs, again", GRAPHS),
    Setting("default, graphs, tensor parallel", GRAPHS | SPLIT),
    Setting("strict, tensor parallel", GRAPHS | SPLIT, params={"strict": True}),
    Setting("default, graphs, data parallel", GRAPHS | TWICE),
    Setting("strict, data parallel", GRAPHS | TWICE, params={"strict": True}),
]
UNSPLIT = {"VLLM_CPU_ATTN_SPLIT_KV": "0"}
CPU = [
    Setting("default"),
    Setting("attention not split", env=UNSPLIT),
    Setting("companion", params={"companion": True}),
    Setting("both, which is strict", env=UNSPLIT, params={"companion": True}),
    *(Setting(f"both, chunk {n}", chunk(n), UNSPLIT, {"companion": True}) for n in (64, 512)),
    Setting(
        "both, top_p 1e-6", {}, UNSPLIT, {"companion": True, "temperature": 1.0, "top_p": 1e-6}
    ),
    Setting("both, bfloat16", {}, UNSPLIT, {"companion": True, "dtype": "bfloat16"}),
    Setting("both, prefix cache on", {"enable_prefix_caching": True}, UNSPLIT, {"companion": True}),
]


def replace_norm() -> None:
    """Strict's norm in the place of vLLM 0.26's; the product stays vLLM's own."""
    from vllm.model_executor.layers import batch_invariant

    product = batch_invariant.matmul_persistent
    from restore_parity.experiment.engine import kernels  # noqa: F401  (importing it replaces both)

    batch_invariant.matmul_persistent = product


def generate(
    engine: VllmEngine, name: str, prompts: list[list[int]], limits: list[int]
) -> tuple[list, float]:
    """Every prompt's (token, log-probability) pairs, and the tokens a second of all together."""
    requests = [
        protocol.Request(
            call_id=f"{name}-{i}",
            prompt_ids=prompt,
            max_tokens=limit,
            sampling={"ignore_eos": True},
        )
        for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    start = time.perf_counter()
    answers = protocol.generate(engine, requests).values()
    took = time.perf_counter() - start
    pairs = [list(zip(answer.ids, answer.logprobs, strict=True)) for answer in answers]
    return pairs, sum(map(len, pairs)) / took


def measure(setting: Setting, options: argparse.Namespace) -> dict[str, Any]:
    """One setting, in this process."""
    model, rows, tokens, jobs = options.model, options.rows, options.tokens, options.jobs
    dice = random.Random(7)
    prompts = [
        [dice.randint(FIRST_ID, LAST_ID) for _ in range(dice.randint(40, 300))] for _ in range(rows)
    ]
    given = Params.model_validate(
        {"model": model, "dtype": "bfloat16"}
        | {"steps": 1, "prompts_per_step": 1, "list_lengths": [1], "closing_limit_tokens": [tokens]}
        | {"generations_per_prompt": rows, "engine_env": setting.env}
        | ({"dtype": "float32"} if engine_version().on_cpu else {})
        | setting.params
    )
    on_cpu = engine_version().on_cpu
    space = (
        {} if on_cpu else {"kv_cache_memory_bytes": 8 << 30, "gpu_memory_utilization": 0.9 / jobs}
    )
    given = given.model_copy(
        update={"engine_args": space | setting.args}
    )  # unvalidated: what is refused is measured too
    os.environ.update(engine_env(given))
    folder, start = model_path(model), time.perf_counter()
    if setting.one_norm:
        replace_norm()
    engine = VllmEngine(folder, given, 301 + tokens)
    if given.strict:
        engine.try_restore()
    started = time.perf_counter() - start
    generate(engine, "warm", prompts, [8] * rows)
    rounds = setting.rounds if jobs == 1 else 1
    first, *others = [
        generate(engine, f"round{i}", prompts, [tokens] * rows) for i in range(rounds)
    ]
    cuts = [dice.randrange(1, tokens - 1) for _ in prompts]
    asked = [
        prompt + [token for token, _ in whole[:cut]]
        for prompt, whole, cut in zip(prompts, first[0], cuts, strict=True)
    ]
    tails, _ = generate(engine, "restored", asked, [tokens - cut for cut in cuts])
    told = compare([whole[cut:] for whole, cut in zip(first[0], cuts, strict=True)], tails)
    if jobs > 1:
        return told
    return told | {
        "tok_s": statistics.median(speed for _, speed in [first, *others]),
        "start_s": started,
    }


def compare(expected: list, tails: list) -> dict[str, Any]:
    """Rows whose tails are equal, and equal log-probabilities up to each first difference."""
    equal, same, seen, largest = 0, 0, 0, 0.0
    for one, other in zip(expected, tails, strict=True):
        equal += [token for token, _ in one] == [token for token, _ in other]
        for (token, logprob), (again, relogprob) in zip(one, other, strict=True):
            if token != again:
                break
            seen, same = seen + 1, same + (logprob == relogprob)
            largest = max(largest, abs(logprob - relogprob))
    return {
        "rows": len(expected),
        "equal_rows": equal,
        "bit_identical": same / max(seen, 1),
        "largest_diff": largest,
    }


def run_child(setting: Setting, options: argparse.Namespace, timeout_s: float) -> dict[str, Any]:
    """A setting in a process of its own; what it found, or the reason why it found nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        found, log = Path(scratch) / "found.json", Path(scratch) / "log"
        order = msgjson.encode(setting).decode()
        same = [
            f"--{name}={getattr(options, name)}" for name in ("model", "rows", "tokens", "jobs")
        ]
        command = [sys.executable, __file__, *same, "--child", order, "--json", str(found)]
        with log.open("wb") as out:
            try:
                code = subprocess.run(command, stdout=out, stderr=out, timeout=timeout_s).returncode
            except subprocess.TimeoutExpired:
                return {"failed": f"took longer than {timeout_s:.0f} s"}
        if code or not found.exists():
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            return {"failed": lines[-1][:200] if lines else f"exit code {code}", "log": lines[-30:]}
        return json.loads(found.read_text())


def table(results: list[dict[str, Any]]) -> str:
    head = [
        "setting",
        "restored rows equal",
        "log-probabilities bit-identical",
        "largest difference, nats",
    ]
    base = next((told["tok_s"] for told in results if "tok_s" in told), None)
    lines = [head + ["tok/s", "ratio", "start s"] * bool(base)]
    lines.append(["--"] * len(lines[0]))
    for told in results:
        if "rows" not in told:
            lines.append([told["name"], told.get("failed", "not run"), *[""] * (len(lines[0]) - 2)])
            continue
        equal = f"{told['equal_rows']}/{told['rows']}"
        cells = [
            told["name"],
            equal,
            f"{100 * told['bit_identical']:.1f} %",
            f"{told['largest_diff']:.3g}",
        ]
        if base:
            cells += [
                f"{told['tok_s']:,.0f}",
                f"{told['tok_s'] / base:.2f}",
                f"{told['start_s']:.1f}",
            ]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    on_cpu = engine_version().on_cpu
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--model", default="tiny-qwen3" if on_cpu else "qwen3-1.7b-random")
    words.add_argument("--rows", type=int, default=48)
    words.add_argument("--tokens", type=int, default=256, help="generated by each row")
    words.add_argument("--budget-s", type=float, default=480)
    words.add_argument(
        "--only", action="append", help="a setting by its name; all others are left out"
    )
    words.add_argument(
        "--jobs", type=int, default=1, help="settings that share the device: for bits alone"
    )
    words.add_argument("--json", type=Path)
    words.add_argument("--child", help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.child:
        told = measure(msgjson.decode(options.child, type=Setting), options)
        options.json.write_text(json.dumps(told))
        sys.stdout.flush()
        os._exit(0)  # an engine's own threads may otherwise hold the process for seconds
    late, results = time.monotonic() + options.budget_s, []
    known = {setting.name: setting for setting in (CPU if on_cpu else GPU)}
    if unknown := set(options.only or ()) - set(known):
        words.error(f"no such setting: {', '.join(unknown)}; there are: {'; '.join(known)}")

    def run(setting: Setting) -> dict[str, Any]:
        left = late - time.monotonic()
        told = run_child(setting, options, min(left, CHILD_S)) if left > 0 else {}
        shown = {key: value for key, value in told.items() if key != "log"}
        print(f"{setting.name}: {json.dumps(shown)}", flush=True)
        return {
            "name": setting.name,
            "args": setting.args,
            "env": setting.env,
            "params": setting.params,
        } | told

    with ThreadPoolExecutor(options.jobs) as pool:
        for told in pool.map(run, (known[name] for name in options.only or known)):
            results.append(told)
            if (
                options.json
            ):  # after each: what was measured survives a budget that ends from outside
                whole = {
                    "model": options.model,
                    "rows": options.rows,
                    "tokens": options.tokens,
                    "engine": engine_version(),
                }
                options.json.write_text(json.dumps(whole | {"settings": results}, indent=1))
    size = f"{options.rows} rows of {options.tokens} tokens"
    print(f"\n{options.model}, {size}, {engine_version()}\n\n{table(results)}")


if __name__ == "__main__":
    main()
