"""The fleet, with real worker processes that run a small model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from fleet.joining import PATIENCE
from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError, WorkerDiedError, WorkerUnavailableError
from headrace.fleet import Fleet, RestartPolicy, State, Stream
from headrace.worker.messages import Submit, TokenEvent
from headrace.worker.settings import WorkerSettings

QUICK = RestartPolicy(first_delay=0.05, load_attempts=2)
CONTEXT = 400


def settings(model: Path) -> WorkerSettings:
    return WorkerSettings(
        model=str(model),
        threads=1,
        max_batch_tokens=64,
        cache_tokens=2 * CONTEXT,
        context_length=CONTEXT,
    )


def request(request_id: str, *, prompt: int = 20, tokens: int = 8, stop: list[str] | None = None) -> Submit:
    return Submit(
        id=request_id,
        prompt=[(7 * i + 3) % 250 for i in range(prompt)],
        max_tokens=tokens,
        sampling=SamplingParams(temperature=0),
        stop=stop or [],
        ignore_eos=True,
    )


async def events(stream: Stream) -> list[TokenEvent]:
    return [event async for event in stream]


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


@pytest.fixture
def with_fleet(synthetic_model: Path) -> Callable[[Callable[[Fleet], Awaitable[None]]], None]:
    """Runs a test's coroutine on a fleet of one worker."""

    def run(test: Callable[[Fleet], Awaitable[None]]) -> None:
        async def body() -> None:
            async with Fleet(settings(synthetic_model), policy=QUICK) as fleet:
                await asyncio.wait_for(test(fleet), 60)

        asyncio.run(body())

    return run


WithFleet = Callable[[Callable[[Fleet], Awaitable[None]]], None]


def test_requests_are_answered_together(with_fleet: WithFleet, synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        streams = [fleet.submit(request(f"r{i}", prompt=10 + i, tokens=5 + i)) for i in range(6)]
        answers = await asyncio.gather(*(events(stream) for stream in streams))
        for i, answer in enumerate(answers):
            assert sum(len(event.token_ids) for event in answer) == 5 + i
            assert answer[-1].finish_reason == "length"
            assert all(event.finish_reason is None for event in answer[:-1])
        assert fleet.facts.context_length == CONTEXT
        (health,) = fleet.health()
        assert health.state is State.READY
        assert health.pid == fleet.facts.pid != os.getpid()
        assert health.model == fleet.facts.model == synthetic_model.stem
        assert health.fingerprint == fleet.facts.fingerprint.digest()

    with_fleet(test)


def test_a_request_that_cannot_run_is_rejected_and_the_next_one_runs(with_fleet: WithFleet) -> None:
    async def test(fleet: Fleet) -> None:
        with pytest.raises(RequestError, match=f"context of {CONTEXT}"):
            await events(fleet.submit(request("long", prompt=CONTEXT)))
        with pytest.raises(RequestError, match="at least one token"):
            await events(fleet.submit(request("empty", prompt=0)))
        last = await events(fleet.submit(request("full", prompt=CONTEXT - 1, tokens=100)))
        assert [len(event.token_ids) for event in last] == [1]

    with_fleet(test)


def test_a_stop_string_ends_the_request_wherever_tokens_divide_it(with_fleet: WithFleet) -> None:
    async def test(fleet: Fleet) -> None:
        plain = await events(fleet.submit(request("plain", tokens=24)))
        text = "".join(event.text for event in plain)
        # From the middle of one event's text to the middle of another's.
        at = next(i for i in range(4, len(text) - 4) if text.find(text[i : i + 4]) == i)
        stopped = await events(fleet.submit(request("stopped", tokens=24, stop=[text[at : at + 4]])))
        assert "".join(event.text for event in stopped) == text[:at]
        assert stopped[-1].finish_reason == "stop"
        generated = (await fleet.stats(PATIENCE))["worker-0"].generated_tokens
        assert generated == 24 + sum(len(event.token_ids) for event in stopped)

    with_fleet(test)


def test_leaving_a_stream_cancels_its_request_and_frees_its_blocks(with_fleet: WithFleet) -> None:
    async def left(fleet: Fleet, name: str) -> int:
        """How many blocks it held when it was left."""
        before = (await fleet.stats(PATIENCE))["worker-0"].generated_tokens
        async with aclosing(fleet.submit(request(name, prompt=100, tokens=300))) as stream:
            await anext(stream)
            held = (await fleet.stats(PATIENCE))["worker-0"].blocks_used
        after = (await fleet.stats(PATIENCE))["worker-0"]
        assert (after.running, after.waiting, after.blocks_used) == (0, 0, 0)
        assert not held or after.generated_tokens - before < 300
        return held

    async def test(fleet: Fleet) -> None:
        # The worker may be sooner than the test, on a busy machine: then it has ended, and holds nothing.
        held = 0
        for number in range(20):
            held = held or await left(fleet, f"left {number}")
        assert held >= 7

    with_fleet(test)


def test_what_a_killed_worker_leaves_goes_on_at_the_next_as_if_nothing_had_happened(
    with_fleet: WithFleet,
) -> None:
    async def test(fleet: Fleet) -> None:
        asked = request("whole", tokens=120, stop=["never met"])
        asked = msgspec.structs.replace(
            asked, sampling=SamplingParams(temperature=1.0, seed=5), top_logprobs=1
        )
        whole = await events(fleet.submit(asked))
        stream = fleet.submit(msgspec.structs.replace(asked, id="cut"))
        began = [await anext(stream) for _ in range(20)]
        pid = fleet.health()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: fleet.health()[0].state is State.RESTARTING)
        meanwhile = fleet.submit(msgspec.structs.replace(asked, id="asked while no worker ran"))
        cut = began + await events(stream)
        for found in (cut, await events(meanwhile)):
            assert [told(event) for event in found] == [told(event) for event in whole]
        health = fleet.health()[0]
        assert health.pid not in (None, pid)
        assert (health.restarts, health.reason) == (1, "the worker was killed by SIGKILL")
        assert (await fleet.stats(PATIENCE))["worker-0"].blocks_used == 0

    with_fleet(test)


def test_what_a_worker_that_hangs_had_goes_on_at_the_next(synthetic_model: Path) -> None:
    async def body() -> None:
        policy = RestartPolicy(first_delay=0.05, silence=0.5)
        async with Fleet(settings(synthetic_model), policy=policy) as fleet:
            whole = await events(fleet.submit(request("whole", tokens=300)))
            stream = fleet.submit(request("cut", tokens=300))
            began = [await anext(stream) for _ in range(10)]
            pid = fleet.health()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            cut = began + await asyncio.wait_for(events(stream), 30)
            assert [told(event) for event in cut] == [told(event) for event in whole]
            # A worker that was sooner than the test had nothing more to say, and hangs all the same.
            await until(lambda: "answered nothing for 0.5 s" in fleet.health()[0].reason)

    asyncio.run(body())


def told(event: TokenEvent) -> tuple[object, ...]:
    return event.text, event.token_ids, event.logprobs, event.finish_reason


def test_a_request_that_waits_for_a_worker_can_be_left(with_fleet: WithFleet) -> None:
    async def test(fleet: Fleet) -> None:
        pid = fleet.health()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: fleet.health()[0].state is State.RESTARTING)
        async with aclosing(fleet.submit(request("left"))):
            pass
        await until(lambda: fleet.health()[0].state is State.READY)
        assert (await fleet.stats(PATIENCE))["worker-0"].prompt_tokens == 0

    with_fleet(test)


def test_a_request_during_which_one_worker_after_another_ends_is_given_up(with_fleet: WithFleet) -> None:
    async def test(fleet: Fleet) -> None:
        pids = set()
        blocker = fleet.submit(request("long", prompt=CONTEXT - 10))
        for _ in range(4):
            await until(lambda: fleet.health()[0].pid not in {None, *pids})
            pid = fleet.health()[0].pid
            assert pid is not None
            pids.add(pid)
            await until(lambda: fleet.health()[0].state is State.READY)
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="4 workers in turn"):
            await events(blocker)

    with_fleet(test)


def test_draining_finishes_what_was_accepted_and_takes_no_more(with_fleet: WithFleet) -> None:
    async def test(fleet: Fleet) -> None:
        streams = [fleet.submit(request(f"r{i}", tokens=40)) for i in range(3)]
        answers = asyncio.gather(*(events(stream) for stream in streams))
        draining = asyncio.create_task(fleet.drain(timeout=30))
        await asyncio.sleep(0)
        with pytest.raises(WorkerUnavailableError, match="draining"):
            fleet.submit(request("late"))
        assert await draining
        assert [len(answer) for answer in await answers] == [40, 40, 40]
        assert fleet.health()[0].state is State.STOPPED
        assert fleet.health()[0].reason == "the worker ended with status 0"

    with_fleet(test)


def test_draining_that_takes_too_long_ends_the_worker(with_fleet: WithFleet) -> None:
    async def test(fleet: Fleet) -> None:
        answer = asyncio.create_task(events(fleet.submit(request("long", tokens=CONTEXT))))
        assert not await fleet.drain(timeout=0.01)
        with pytest.raises(WorkerDiedError, match="server stopped"):
            await answer

    with_fleet(test)


def test_signals_meant_for_the_gateway_do_not_end_a_worker(with_fleet: WithFleet) -> None:
    async def test(fleet: Fleet) -> None:
        pid = fleet.health()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        assert len(await events(fleet.submit(request("after")))) == 8
        assert fleet.health()[0].pid == pid

    with_fleet(test)


def test_the_socket_lies_in_a_folder_that_only_this_user_can_enter(with_fleet: WithFleet) -> None:
    async def test(fleet: Fleet) -> None:
        channel = fleet._channel
        assert channel is not None
        folder = Path(channel.address.removeprefix("ipc://")).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        await fleet.close()
        assert not folder.exists()

    with_fleet(test)


def test_a_broken_model_is_refused_with_the_workers_own_words(synthetic_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(synthetic_model.read_bytes()[:5000])

    async def start() -> None:
        await asyncio.wait_for(Fleet(settings(broken), policy=QUICK).start(), 30)

    with pytest.raises(WorkerUnavailableError, match=r"broken\.gguf"):
        asyncio.run(start())


def test_a_worker_ends_and_tidies_up_when_its_parent_is_killed(synthetic_model: Path, tmp_path: Path) -> None:
    program = f"""
import asyncio, msgspec
from headrace.fleet import Fleet
from headrace.worker.settings import WorkerSettings
async def main():
    settings = msgspec.json.decode({encoded(settings(synthetic_model))!r}, type=WorkerSettings)
    async with Fleet(settings) as fleet:
        print(fleet.facts.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 5
    while is_running(worker):
        assert time.monotonic() < deadline, "the worker lives on"
        time.sleep(0.01)
    assert not list(tmp_path.iterdir())


def encoded(value: WorkerSettings) -> bytes:
    return msgspec.json.encode(value)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may end between opening and reading
        return False
    return state != "Z"


def test_prompts_are_embedded_beside_requests(with_fleet: WithFleet) -> None:
    async def test(fleet: Fleet) -> None:
        stream = fleet.submit(request("r", tokens=30))
        first, second, again = await asyncio.gather(
            fleet.embed([1, 2, 3]), fleet.embed([4] * 100), fleet.embed([1, 2, 3])
        )
        assert first == pytest.approx(again, abs=1e-5) != second
        assert sum(x * x for x in first) == pytest.approx(1)
        with pytest.raises(RequestError, match="room for"):
            await fleet.embed([1] * (CONTEXT + 1))
        left = asyncio.create_task(fleet.embed([1] * CONTEXT))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert len([event async for event in stream]) == 30

    with_fleet(test)
