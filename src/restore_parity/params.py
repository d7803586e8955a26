"""Parameters: read from YAML or the notebook's namespace, validated, hashed."""

import difflib
import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, field_validator, model_validator

from .errors import UsageError
from .records import Key

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "restore_parity.ipynb"
Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Stores of keys and values that outlive a process: they would hand the restored run the killed run's own state.
SHARED_CACHES = ("kv_transfer_config", "kv_offloading_size", "kv_offloading_backend", "kv_events_config")
OWN_ARGS = ("model", "dtype", "seed", "logprobs_mode", "trust_remote_code", "skip_tokenizer_init")
QUASI_GREEDY_TOP_P = 1e-6
MANY = 1_000_000


class Params(BaseModel):
    """Everything that can be set; the notebook's parameters cell says what each is and in which unit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: str = "runs/smoke"
    reuse: bool = False

    model: str = "smollm2-135m"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    engine_args: dict[str, Any] = {}
    engine_env: dict[str, str] = {}
    companion: bool = False
    strict: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    steps: Count = 2
    prompts_per_step: Count = 2
    generations_per_prompt: Count = 2
    closing: str = "count from 1 to {n}"
    list_lengths: list[Count] = [16, 16]
    tool_limit_tokens: Count = 64
    closing_limit_tokens: list[Count] = [64, 30]
    fsync_ms: Size = 20.0

    cut_tokens: dict[str, StrictInt | str] = {}
    kill_after_tokens: Count = 200
    overlap_starts: bool = False
    timeout_s: Count = 1800

    learning_rate: Size = 1e-6
    micro_batch_rows: Count = 2

    near_tie_margin: Size = 0.3
    max_set_aside: Share = 0.5
    max_logprob_diff: Size = 0.3
    max_policy_diff: Size = 1e-3
    min_cut_groups: Annotated[int, Field(ge=0)] = 0
    thresholds_from: str = "NeMo RL #4507: log-probabilities of equal tokens moved by up to 0.30 nats"

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value, info):
        if isinstance(value, bool) and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError("true or false is no number")
        return value

    @model_validator(mode="after")
    def _agree(self):
        greedy = self.temperature == 0 or (self.temperature == 1 and 0 < self.top_p <= QUASI_GREEDY_TOP_P)
        if not greedy:
            raise ValueError(
                f"temperature {self.temperature} with top_p {self.top_p} samples, and parity of samples is undefined: "
                "use temperature 0, or temperature 1 with top_p 1.0e-6"
            )
        for name in ("list_lengths", "closing_limit_tokens"):
            if len(getattr(self, name)) != self.prompts_per_step:
                raise ValueError(f"{name} needs {self.prompts_per_step} entries, one for each prompt of a step")
        try:
            json.dumps(self.engine_args)
        except (TypeError, ValueError):
            raise ValueError("engine_args: only what JSON can hold: numbers, texts, true, false, lists, mappings") from None
        if any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in self.runs):
            raise ValueError(f"runs: {self.runs!r} is no name of a folder")
        if self.steps * self.prompts_per_step * self.generations_per_prompt > MANY:
            raise ValueError(f"more than {MANY} rows: steps x prompts_per_step x generations_per_prompt")
        for name in self.engine_args:
            if name in OWN_ARGS:
                raise ValueError(f"engine_args.{name}: set by the parameters themselves; leave it out")
            if name in SHARED_CACHES or (name == "enable_prefix_caching" and self.engine_args[name]):
                raise ValueError(
                    f"engine_args.{name}: a cache could serve the restored run tokens that another run computed, "
                    "and nothing would be restored; leave it out"
                )
        for name in self.cut_tokens:
            self.cut_limit(name)
            if not 1 <= self.planned_tokens(name) <= self.cut_limit(name):
                raise ValueError(f"cut_tokens[{name}]: between 1 and the call's limit of {self.cut_limit(name)} tokens")
        if len({name.split("#")[0] for name in self.cut_tokens}) < len(self.cut_tokens):
            raise ValueError("cut_tokens: a rollout has one open call at a time; two cuts name the same row")
        return self

    def row_keys(self) -> list[Key]:
        """The keys of all rows, in order."""
        steps, prompts = range(1, self.steps + 1), range(self.prompts_per_step)
        return [Key(s, p, g) for s in steps for p in prompts for g in range(self.generations_per_prompt)]

    def limit_tokens(self, key: Key, call_index: int) -> int:
        """A call's original limit: prefix and tail together."""
        return self.closing_limit_tokens[key.prompt_idx] if call_index else self.tool_limit_tokens

    def cut_limit(self, name: str) -> int:
        match = re.fullmatch(r"(\d{1,9}/\d{1,9}/\d{1,9})#([01])", name)
        sizes = (self.steps + 1, self.prompts_per_step, self.generations_per_prompt)
        key = Key.parse(match[1]) if match else None
        if key is None or key.train_step < 1 or any(there >= size for there, size in zip(key, sizes, strict=True)):
            raise ValueError(f"cut_tokens[{name}]: no such call; write step/prompt/generation#call, as 1/0/1#1")
        return self.limit_tokens(Key.parse(match[1]), int(match[2]))

    def planned_tokens(self, name: str) -> int:
        """How many tokens of the call `name` the journal is to keep."""
        tokens, limit = self.cut_tokens[name], self.cut_limit(name)
        if isinstance(tokens, int):
            return tokens
        if not (match := re.fullmatch(r"limit(?:-(\d+))?", tokens)):
            raise ValueError(f"cut_tokens[{name}]: a number of tokens, 'limit' or 'limit-1', not {tokens!r}")
        return limit - int(match[1] or 0)

    @property
    def folder(self) -> Path:
        """Where the runs lie; a relative `runs` counts from the project's folder."""
        return ROOT / self.runs

    def workload(self) -> dict[str, Any]:
        """What decides the rows: everything but where they lie, when their engines start and how they are judged."""
        return self.model_dump(exclude=JUDGING)

    def sha256(self) -> str:
        """SHA-256 of the workload, by which a saved run is known to be of these parameters."""
        return hashlib.sha256(json.dumps(self.workload(), sort_keys=True).encode()).hexdigest()


JUDGING = {
    *("runs", "reuse", "overlap_starts", "timeout_s", "min_cut_groups", "thresholds_from"),
    *("near_tie_margin", "max_set_aside", "max_logprob_diff", "max_policy_diff"),
}


def validate(values: dict[str, Any], source: str) -> Params:
    """Raises UsageError, naming `source`, the parameter, and the nearest right one where it is misspelt."""
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        raise UsageError("\n".join(f"{source}: {_told(e)}" for e in error.errors())) from None


def _told(error) -> str:
    place = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(place, Params.model_fields, n=1)
        return f"unknown parameter {place!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message}, not {error['input']!r}" if place else message


def read_params(file: Path) -> Params:
    """Read a YAML file that holds what differs from the defaults. Raises UsageError."""
    return validate(read_yaml(file), str(file))


class OnceLoader(yaml.SafeLoader):
    """YAML's safe loader, but for a key given twice, of which the first value would be lost without a word."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {key!r} is given twice")
        return super().construct_mapping(node, deep)


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        values = yaml.load(file.read_text(), Loader=OnceLoader)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}", "give a file such as params/smoke.yaml") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    if values is not None and not isinstance(values, dict):
        raise UsageError(f"{file}: a mapping of parameters is wanted, not a {type(values).__name__}")
    return values or {}


def from_notebook(shell) -> Params:
    """The parameters of a running notebook: every plain value its user namespace holds at the first cell.

    Reading all of them, not only the known names, is what tells a misspelt override: papermill only warns.
    """
    plain = (str, int, float, bool, list, dict)
    names = {
        name: value
        for name, value in shell.user_ns.items()
        if not name.startswith("_") and name not in shell.user_ns_hidden and isinstance(value, plain)
    }
    return validate({name: value for name, value in names.items() if name not in ("In", "Out")}, "parameters")
