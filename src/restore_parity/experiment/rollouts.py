"""Rollouts: call, tool, closing call; journaled as they grow, and taken up again from another run's journal."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable

from msgspec import Struct

from .engine.vllm_engine import Engine
from ..journal import Call, Delta, End, Journal, JsonlWriter, Start
from ..params import Params
from ..records import AlreadyTerminal, Completed, Key, Restored, Row, cut_name, ids_sha256
from .workload import Codec, Task, reward, run_tool


class Rollout(Struct):
    """One trajectory: a calendar call, the tool's answer, the closing call."""

    task: Task
    group_id: str
    prompt_ids: list[int]
    calls: list[Call]

    @property
    def done(self) -> bool:
        return len(self.calls) == 2 and not self.calls[1].is_open

    def next_prompt_ids(self) -> list[int]:
        """Prompt and all earlier calls and tool results, as token ids: nothing is rendered twice."""
        ids = list(self.prompt_ids)
        for call in self.calls:
            ids += call.ids + (call.tool_ids or [])
        return ids


class Generation:
    """One run's rollouts over an engine.

    `source` is the journal of a killed run to restore from; `restores` takes the restore records. `holds` maps a cut's
    name to the tokens the journal may keep of that call: the rest of the call is generated but lost, as it is with a
    system that snapshots now and then.
    """

    def __init__(
        self,
        params: Params,
        run_id: str,
        codec: Codec,
        engine: Engine,
        journal: JsonlWriter,
        source: Journal | None = None,
        restores: JsonlWriter | None = None,
        holds: dict[str, int] | None = None,
    ):
        self._params, self._run_id, self._codec, self._engine = params, run_id, codec, engine
        self._journal, self._restores, self._holds = journal, restores, holds or {}
        self._captured: dict[Key, list[Call]] = defaultdict(list)
        for call in source.calls.values() if source else ():
            self._captured[call.key].append(call)
        # Counted apart from the captured results: a tool that runs again after a restore then answers otherwise.
        self._tool_runs = Counter(source.tool_runs if source else {})
        self._running: dict[str, tuple[Rollout, Call]] = {}
        self._restored: dict[str, tuple[Restored, Call]] = {}

    def run(self, tasks: Iterable[Task], prompts: Iterable[list[int]]) -> list[Rollout]:
        """Generate every rollout to its end; with holds, wait with the held calls open until killed.

        Raises OSError when the journal cannot be written.
        """
        rollouts = [self._begin(task, ids) for task, ids in zip(tasks, prompts, strict=True)]
        for rollout in rollouts:
            self._advance(rollout)
        self._journal.commit(now=True)
        while self._engine.busy():
            for output in self._engine.step():
                self._take(output)
            self._journal.commit()
            if self._restores:
                self._restores.commit()
        self._journal.commit(now=True)
        while self._running:
            time.sleep(0.05)
        return rollouts

    def _begin(self, task: Task, prompt_ids: list[int]) -> Rollout:
        """A new rollout, or one as the source journal captured it, its open call last."""
        calls = sorted(self._captured[task.key], key=lambda call: call.call_index)
        step, prompt, _ = task.key
        return Rollout(task, calls[0].group_id if calls else f"{self._run_id}-s{step}p{prompt}", prompt_ids, calls)

    def _advance(self, rollout: Rollout) -> None:
        """Do what comes next in a rollout: restore its open call, start its next one, or nothing."""
        last = rollout.calls[-1] if rollout.calls else None
        if last and last.is_open and last.ids:
            self._restore(rollout, last)
        elif last and last.is_open:  # nothing of it was captured: it starts again, and is no cut
            self._request(rollout, last.call_index, last.prompt_ids)
        elif len(rollout.calls) < 2:
            self._request(rollout, len(rollout.calls), rollout.next_prompt_ids())

    def _finish(self, rollout: Rollout, call: Call, reason: str) -> None:
        """End a call: run the tool for its text if it is the calendar call, journal both, go on."""
        call.finish_reason = reason
        if call.call_index == 0:
            result = run_tool(self._codec.text(call.ids), self._tool_runs[call.key])
            self._tool_runs[call.key] += 1
            call.tool_ids = self._codec.tool_ids(rollout.task.messages(), call.ids[-1], result)
        self._journal.append(End(call.call_id, reason, time.time(), call.tool_ids))
        self._advance(rollout)

    def _request(self, rollout: Rollout, index: int, prompt_ids: list[int], prefix: Call | None = None) -> Call:
        """Start a call, or start it again behind its captured prefix with what is left of its limit."""
        key, now = rollout.task.key, time.time()
        call_id = f"{self._run_id}:{cut_name(key, index)}"
        limit = prefix.max_tokens if prefix else self._params.limit_tokens(key, index)
        call = Call(call_id, key, index, rollout.group_id, prompt_ids, limit, started=now)
        if prefix:
            call.extend(prefix.ids, prefix.logprobs, prefix.top2)
        self._journal.append(Start(call_id, str(key), index, rollout.group_id, prompt_ids, limit, now, len(call.ids)))
        rollout.calls[index:] = [call]
        if prefix is None or not self._terminal(prefix):
            self._running[call_id] = (rollout, call)
            self._engine.add(call_id, prompt_ids + call.ids, limit - len(call.ids))
        return call

    def _terminal(self, call: Call) -> str | None:
        if call.ids and call.ids[-1] in self._codec.stop_ids:
            return "stop"
        return "length" if len(call.ids) == call.max_tokens else None

    def _restore(self, rollout: Rollout, cut: Call) -> None:
        call = self._request(rollout, cut.call_index, cut.prompt_ids, prefix=cut)
        place = {
            "call_id": call.call_id,
            "source_call_id": cut.call_id,
            "group_id": rollout.group_id,
            "generation_index": rollout.task.key.generation_index,
            "call_index": cut.call_index,
            "prefix_tokens": len(cut.ids),
        }
        left = cut.max_tokens - len(cut.ids)
        record = Restored(prefix_ids_sha256=ids_sha256(cut.ids), max_tokens=left, **place)
        self._restores.append(record)
        if reason := self._terminal(cut):
            self._restores.append(AlreadyTerminal(reason=reason, **place))
            self._finish(rollout, call, reason)
        else:
            self._restored[call.call_id] = (record, cut)

    def _take(self, output) -> None:
        """Journal what a step gave a call, up to its hold, and go on with the rollout when the call has ended."""
        rollout, call = self._running[output.call_id]
        hold = self._holds.get(cut_name(rollout.task.key, call.call_index))
        keep = len(output.ids) if hold is None else max(0, min(len(output.ids), hold - len(call.ids)))
        if keep:
            now, kept = time.time(), (output.ids[:keep], output.logprobs[:keep], output.top2[:keep])
            call.extend(*kept)
            self._journal.append(Delta(call.call_id, *kept, now))
        if output.finish_reason is None or (hold is not None and len(call.ids) == hold):
            return
        del self._running[call.call_id]
        if call.call_id in self._restored:
            record, cut = self._restored[call.call_id]
            self._restores.append(
                Completed(
                    call_id=call.call_id,
                    source_call_id=cut.call_id,
                    group_id=record.group_id,
                    generation_index=record.generation_index,
                    call_index=record.call_index,
                    prefix_tokens=record.prefix_tokens,
                    tail_tokens=len(call.ids) - record.prefix_tokens,
                    finish_reason=output.finish_reason,
                )
            )
        self._finish(rollout, call, output.finish_reason)

    def row(self, rollout: Rollout) -> Row:
        """A finished rollout as a row; the trainer's own columns are still empty."""
        first, last = rollout.calls
        parts = [(rollout.prompt_ids, None), (first.ids, first), (first.tool_ids, None), (last.ids, last)]
        ids, mask, logprobs, top2 = [], [], [], []
        for part, call in parts:
            ids += part
            mask += [1.0 if call else 0.0] * len(part)
            logprobs += call.logprobs if call else [0.0] * len(part)
            top2 += call.top2 if call else [None] * len(part)
        key: Key = rollout.task.key
        return Row(
            sample_id=f"{rollout.group_id}_g{key.generation_index}",
            group_id=rollout.group_id,
            prompt_idx=key.prompt_idx,
            generation_index=key.generation_index,
            input_length=len(ids),
            sample_loss_mask=1.0,
            reward=reward(rollout.task, self._codec.text(first.ids), self._codec.text(last.ids)),
            token_ids=ids,
            token_loss_mask=mask,
            advantages=[],
            generation_logprobs=logprobs,
            prev_logprobs=[],
            generation_top2=top2,
        )
