"""A request at a model that this server's own workers compute: checked, let in, and run."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.gateway.answering import AnswerHead, Running
from headrace.gateway.asking import Asking
from headrace.gateway.prefix_access import asks_to_explain, explain_all
from headrace.gateway.prepare import prepare, sequences
from headrace.gateway.run import Run
from headrace.gateway.state import Gateway


@asynccontextmanager
async def local_answer(gateway: Gateway, asking: Asking, *, counted: bool = True) -> AsyncIterator[Running]:
    """The answer of the model that the request names, for as long as the block runs; leaving it cancels.

    Where it is not `counted`, the caller's limits have it already.
    """
    caller, record, asked = asking.caller, asking.record, asking.request
    async with gateway.use(asked.model, asking.keep_alive) as model:
        count, priority = sequences(asked), asked.priority or 0
        if counted and not asking.background:
            gateway.admission.check(caller, model.name, count, priority)
        record.id = asking.id_prefix + secrets.token_hex(12)
        record.model, record.asked = model.name, asked
        prepared = await prepare(record.id, model, asked)
        seat = gateway.admission.admit(
            caller,
            model.name,
            sequences=count,
            prompt_tokens=sum(map(len, prepared.prompts)),
            output_tokens=sum(submit.max_tokens for submit in prepared.submits),
            priority=priority,
            background=asking.background,
            counted=counted,
        )
        async with seat:
            record.queue_seconds = seat.queue_seconds
            choices = asked.n or 1
            run = record.run = Run(
                model, prepared.submits, prepared.parser, choices, seat, gateway.metrics, record.arrived
            )
            if asks_to_explain(asking.scope):
                run.prefix = await explain_all(gateway, asking.scope, model, asked, prepared.prompts)
            head = AnswerHead(
                record.id, int(time.time()), model.name, model.fingerprint, prepared.prompts, choices
            )
            async with run.started():
                yield Running(
                    head,
                    run,
                    prepared.submits[0].sampling,
                    model.prompter.token_bytes,
                    prepared.texts,
                )
