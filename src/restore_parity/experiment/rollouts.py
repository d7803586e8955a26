"""Rollouts: call, tool, closing call; journaled as they grow, and taken up from another journal."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from ..journal import Call, Delta, End, Journal, JsonlWriter, Start
from ..params import Params
from ..records import AlreadyTerminal, Completed, CutKey, Key, Restored, Row, TopLogprobs
from ..tokens import ids_sha256
from .engine.protocol import Engine, FinishReason, Output
from .workload import Codec, Task, reward, run_tool

CALLS = 2  # of a rollout: the calendar call, the closing call
WAIT_S = 0.05  # between two looks of a run that waits to be killed


class Rollout(Struct):
    """One trajectory: a calendar call, the tool's answer, the closing call."""

    task: Task
    group_id: str
    prompt_ids: list[int]
    calls: list[Call]

    def next_prompt_ids(self) -> list[int]:
        """Prompt and all earlier calls and tool results: nothing is rendered twice."""
        ids = list(self.prompt_ids)
        for call in self.calls:
            ids += call.ids + (call.tool_ids or [])
        return ids


@dataclass
class Generation:
    """One run's rollouts over an engine.

    `source` is the journal of a killed run to restore from; `restores` takes the restore records.
    `holds` maps a cut's name to the tokens the journal may keep of that call: the rest of the call
    is generated but lost, as it is with a system that snapshots now and then.
    """

    params: Params
    run_id: str
    codec: Codec
    engine: Engine
    journal: JsonlWriter
    source: Journal | None = None
    restores: JsonlWriter | None = None
    holds: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._captured: dict[Key, list[Call]] = defaultdict(list)
        # Counted apart from the captured results: a tool that runs again after a restore then
        # answers otherwise.
        self._tool_runs: Counter[Key] = Counter()
        if self.source:
            self._tool_runs.update(self.source.tool_runs)
            for call in self.source.calls.values():
                self._captured[call.key].append(call)
        self._running: dict[str, tuple[Rollout, Call]] = {}
        self._restored: dict[str, Restored] = {}  # by call id; not completed yet

    def run(self, tasks: Iterable[Task], prompts: Iterable[list[int]]) -> list[Rollout]:
        """Generate every rollout to its end; with holds, wait to be killed, those calls open.

        Raises OSError when the journal cannot be written.
        """
        rollouts = [self._begin(task, ids) for task, ids in zip(tasks, prompts, strict=True)]
        for rollout in rollouts:
            self._advance(rollout)
        self.journal.commit(now=True)
        while self.engine.busy():
            for output in self.engine.step():
                self._take(output)
            self.journal.commit()
            if self.restores:
                self.restores.commit()
        self.journal.commit(now=True)
        while self._running:
            time.sleep(WAIT_S)
        return rollouts

    def _begin(self, task: Task, prompt_ids: list[int]) -> Rollout:
        """A new rollout, or one as the source journal captured it, its open call last."""
        calls = sorted(self._captured[task.key], key=lambda call: call.call_index)
        group_id = f"{self.run_id}-s{task.key.train_step}p{task.key.prompt_idx}"
        if calls:
            group_id = calls[0].group_id
        return Rollout(task=task, group_id=group_id, prompt_ids=prompt_ids, calls=calls)

    def _advance(self, rollout: Rollout) -> None:
        """Do what comes next: restore the open call, start the next one, or nothing."""
        last = rollout.calls[-1] if rollout.calls else None
        if last is None or not last.is_open:
            if len(rollout.calls) < CALLS:
                self._start(rollout, rollout.next_prompt_ids())
            return
        rollout.calls.pop()  # the killed run's; a call of this run takes its place
        if last.ids:
            self._restore(rollout, last)
        else:  # nothing of it was captured: it starts again, and is no cut
            self._start(rollout, last.prompt_ids)

    def _start(self, rollout: Rollout, prompt_ids: list[int]) -> None:
        """Start a rollout's next call."""
        limit_tokens = self.params.limit_tokens(rollout.task.key, len(rollout.calls))
        call = self._next_call(rollout, prompt_ids, limit_tokens)
        self._journal_start(call)
        self._request(rollout, call)

    def _restore(self, rollout: Rollout, cut: Call) -> None:
        """Take up a cut call behind its captured prefix, with what is left of its limit."""
        call = self._next_call(rollout, cut.prompt_ids, cut.max_tokens)
        call.extend(cut.ids, cut.logprobs, cut.top_logprobs)
        self._journal_start(call)
        record = Restored(
            call_id=call.call_id,
            source_call_id=cut.call_id,
            group_id=rollout.group_id,
            generation_index=call.key.generation_index,
            call_index=call.call_index,
            prefix_tokens=len(cut.ids),
            prefix_ids_sha256=ids_sha256(cut.ids),
            max_tokens=cut.max_tokens - len(cut.ids),
        )
        self._log(record)
        reason = self._ended(call)
        if reason is None:
            self._restored[call.call_id] = record
            self._request(rollout, call)
            return
        self._log(
            AlreadyTerminal(
                call_id=record.call_id,
                source_call_id=record.source_call_id,
                group_id=record.group_id,
                generation_index=record.generation_index,
                call_index=record.call_index,
                prefix_tokens=record.prefix_tokens,
                reason=reason,
            )
        )
        self._finish(rollout, call, reason)

    def _next_call(self, rollout: Rollout, prompt_ids: list[int], max_tokens: int) -> Call:
        """A rollout's next call, without a token yet."""
        key = rollout.task.key
        index = len(rollout.calls)
        call = Call(
            call_id=f"{self.run_id}:{CutKey(key, index)}",
            key=key,
            call_index=index,
            group_id=rollout.group_id,
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            started=time.time(),
        )
        rollout.calls.append(call)
        return call

    def _journal_start(self, call: Call) -> None:
        start = Start(
            call_id=call.call_id,
            key=str(call.key),
            call_index=call.call_index,
            group_id=call.group_id,
            prompt_ids=call.prompt_ids,
            max_tokens=call.max_tokens,
            t=call.started,
            prefix_tokens=len(call.ids),
        )
        self.journal.append(start)

    def _request(self, rollout: Rollout, call: Call) -> None:
        """Ask the engine for what is left of a call."""
        self._running[call.call_id] = (rollout, call)
        left_tokens = call.max_tokens - len(call.ids)
        self.engine.add(call.call_id, call.prompt_ids + call.ids, left_tokens)

    def _ended(self, call: Call) -> FinishReason | None:
        """By what a call with these tokens has ended."""
        if call.ids and call.ids[-1] in self.codec.stop_ids:
            return "stop"
        return "length" if len(call.ids) == call.max_tokens else None

    def _log(self, record: Restored | Completed | AlreadyTerminal) -> None:
        if self.restores:
            self.restores.append(record)

    def _take(self, output: Output) -> None:
        """Journal what a step gave a call, and go on with its rollout when it has ended."""
        rollout, call = self._running[output.call_id]
        hold = self.holds.get(call.name)
        kept_tokens = len(output.ids)
        if hold is not None:
            kept_tokens = max(0, min(kept_tokens, hold - len(call.ids)))
        if kept_tokens:
            self._keep(call, output, kept_tokens)
        is_held = hold is not None and len(call.ids) == hold
        if output.finish_reason is None or is_held:
            return  # a held call stays open, even one the engine has ended: the kill finds it so
        del self._running[call.call_id]
        if call.call_id in self._restored:
            self._complete(call, output.finish_reason)
        self._finish(rollout, call, output.finish_reason)

    def _keep(self, call: Call, output: Output, kept_tokens: int) -> None:
        """Take the first tokens of an output into a call and the journal."""
        delta = Delta(
            call_id=call.call_id,
            ids=output.ids[:kept_tokens],
            logprobs=output.logprobs[:kept_tokens],
            top_logprobs=output.top_logprobs[:kept_tokens],
            t=time.time(),
        )
        call.extend(delta.ids, delta.logprobs, delta.top_logprobs)
        self.journal.append(delta)

    def _complete(self, call: Call, reason: FinishReason) -> None:
        """Log that a restored call has ended."""
        record = self._restored.pop(call.call_id)
        self._log(
            Completed(
                call_id=record.call_id,
                source_call_id=record.source_call_id,
                group_id=record.group_id,
                generation_index=record.generation_index,
                call_index=record.call_index,
                prefix_tokens=record.prefix_tokens,
                tail_tokens=len(call.ids) - record.prefix_tokens,
                finish_reason=reason,
            )
        )

    def _finish(self, rollout: Rollout, call: Call, reason: FinishReason) -> None:
        """End a call: run the tool for its text if it is the calendar call, journal both, go on."""
        call.finish_reason = reason
        if call.call_index == 0:
            result = run_tool(self.codec.text(call.ids), self._tool_runs[call.key])
            self._tool_runs[call.key] += 1
            messages = rollout.task.messages()
            call.tool_ids = self.codec.tool_ids(messages, call.ids[-1], result)
        end = End(call_id=call.call_id, finish_reason=reason, t=time.time(), tool_ids=call.tool_ids)
        self.journal.append(end)
        self._advance(rollout)

    def row(self, rollout: Rollout) -> Row:
        """A finished rollout as a row; the trainer's own columns are still empty."""
        first, last = rollout.calls
        columns = Columns()
        columns.add_untrained(rollout.prompt_ids)
        columns.add_call(first)
        columns.add_untrained(first.tool_ids or [])
        columns.add_call(last)
        key = rollout.task.key
        return Row(
            sample_id=f"{rollout.group_id}_g{key.generation_index}",
            group_id=rollout.group_id,
            prompt_idx=key.prompt_idx,
            generation_index=key.generation_index,
            input_length=len(columns.ids),
            sample_loss_mask=1.0,
            reward=reward(rollout.task, self.codec.text(first.ids), self.codec.text(last.ids)),
            token_ids=columns.ids,
            token_loss_mask=columns.mask,
            advantages=[],
            generation_logprobs=columns.logprobs,
            prev_logprobs=[],
            generation_top_logprobs=columns.top_logprobs,
        )


@dataclass
class Columns:
    """A row's columns as they grow; lists are (T,)."""

    ids: list[int] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs | None] = field(default_factory=list)

    def add_untrained(self, ids: list[int]) -> None:
        """Tokens that no call generated: the prompt, or a tool's result."""
        self.ids += ids
        self.mask += [0.0] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.top_logprobs += [None] * len(ids)

    def add_call(self, call: Call) -> None:
        """The tokens of one call."""
        self.ids += call.ids
        self.mask += [1.0] * len(call.ids)
        self.logprobs += call.logprobs
        self.top_logprobs += call.top_logprobs
