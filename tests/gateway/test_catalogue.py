"""Models loaded on demand, with real workers: tiny models on the reference backend."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.gateway.catalogue import Budget, Catalogue
from headrace.gateway.errors import UnavailableError
from headrace.gateway.loading import ModelLoader
from headrace.gateway.served import ServedModel
from headrace.models.local import local_file
from headrace.worker.messages import Submit
from headrace.worker.settings import WorkerSettings
from synthetic import write_synthetic

CONTEXT = 256
CACHE_BYTES = 2 * CONTEXT * 2 * 2 * 64 * 2 * 4
"""Tokens, layers, heads, their width, keys and values, float32."""

Test = Callable[[Catalogue], Awaitable[None]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with three models, and one that is broken."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "models").mkdir()
    for seed, name in enumerate(("first", "second", "third")):
        write_synthetic(folder / "models" / f"{name}.gguf", seed=seed, context=CONTEXT)
    whole = (folder / "models" / "first.gguf").read_bytes()
    (folder / "models" / "broken.gguf").write_bytes(whole[: len(whole) // 2])
    return folder


@pytest.fixture
def with_catalogue(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a test's coroutine on a catalogue whose first model is loaded."""
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")

    def run(test: Test, *, models: float = 3, keep_alive: float = 60.0, on_demand: bool = True) -> None:
        path = home / "models" / "first.gguf"
        size = path.stat().st_size + CACHE_BYTES
        settings = WorkerSettings(
            model=str(path),
            backend="reference",
            threads=1,
            max_batch_tokens=64,
            cache_tokens=2 * CONTEXT,
            context_length=CONTEXT,
        )

        async def body() -> None:
            async with Catalogue(
                ModelLoader(settings, budgeted=True),
                [local_file(str(path))],
                on_demand=on_demand,
                budget=Budget(int(models * size), keep_alive),
            ) as catalogue:
                await asyncio.wait_for(test(catalogue), 60)

        asyncio.run(body())

    return run


async def answer(model: ServedModel, request_id: str, tokens: int = 4) -> list[int]:
    message = Submit(
        id=request_id,
        prompt=list(range(20)),
        max_tokens=tokens,
        sampling=SamplingParams(temperature=0),
        ignore_eos=True,
    )
    return [token async for event in model.engine.submit(message) for token in event.token_ids]


def loaded(catalogue: Catalogue) -> list[str]:
    return sorted(resident.name for resident in catalogue.residents())


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def test_a_model_is_loaded_once_for_all_who_ask_at_the_same_time(with_catalogue: Callable[..., None]) -> None:
    async def test(catalogue: Catalogue) -> None:
        assert loaded(catalogue) == ["first"]

        async def ask(number: int) -> tuple[int, list[int]]:
            async with catalogue.use("second") as model:
                return id(model), await answer(model, f"r{number}")

        answers = await asyncio.gather(*(ask(number) for number in range(4)))
        assert all(each == answers[0] for each in answers)
        assert loaded(catalogue) == ["first", "second"]
        async with catalogue.use("first") as first:
            assert await answer(first, "other") != answers[0][1]

    with_catalogue(test)


def test_an_idle_model_goes_after_its_time_and_the_first_one_stays(
    with_catalogue: Callable[..., None],
) -> None:
    async def test(catalogue: Catalogue) -> None:
        async with catalogue.use("second", keep_alive=1.0) as model:
            await asyncio.sleep(1.2)  # in use, it does not go
            assert await answer(model, "a")
        (second,) = (r for r in catalogue.residents() if r.name == "second")
        assert second.expires_at is not None and 0 < second.expires_at - time.time() <= 1
        await until(lambda: loaded(catalogue) == ["first"])
        async with catalogue.use("second", keep_alive=0):
            pass
        await asyncio.sleep(0)
        await until(lambda: loaded(catalogue) == ["first"])
        async with catalogue.use("first"):
            pass
        assert catalogue.residents()[0].expires_at is None

    with_catalogue(test, keep_alive=0.1)


def test_the_model_idle_for_longest_makes_room(with_catalogue: Callable[..., None]) -> None:
    async def test(catalogue: Catalogue) -> None:
        async with catalogue.use("second"):
            pass
        async with catalogue.use("third"):  # `first` is to stay for good, so it is not the one to go
            assert loaded(catalogue) == ["first", "third"]
            async with catalogue.use("first"):
                with pytest.raises(
                    UnavailableError, match=r"hold the rest: 'first' \(.* MiB\), 'third'"
                ) as error:
                    async with catalogue.use("second"):
                        pass
                assert (error.value.status, error.value.retry_after) == (503, 10)
            async with catalogue.use("second"):  # now it is, where nothing else can
                assert loaded(catalogue) == ["second", "third"]

    with_catalogue(test, models=2.1)


def test_loads_at_the_same_time_share_the_budget(with_catalogue: Callable[..., None]) -> None:
    async def test(catalogue: Catalogue) -> None:
        async def ask(name: str, number: int) -> list[int]:
            while True:
                with suppress(UnavailableError):
                    async with catalogue.use(name) as model:
                        assert len(loaded(catalogue)) <= 2
                        return await answer(model, f"{name}-{number}")
                await asyncio.sleep(0.05)

        names = ["first", "second", "third"] * 3
        answers = await asyncio.gather(*(ask(name, number) for number, name in enumerate(names)))
        for number, name in enumerate(names):
            assert answers[number] == answers[names.index(name)]

    with_catalogue(test, models=2.1)


def test_a_model_larger_than_the_budget_is_refused_for_good(
    with_catalogue: Callable[..., None], home: Path
) -> None:
    write_synthetic(home / "models" / "large.gguf", layers=6, context=CONTEXT)

    async def test(catalogue: Catalogue) -> None:
        with pytest.raises(RequestError) as error:
            async with catalogue.use("large"):
                pass
        assert (error.value.status, error.value.field) == (400, "model")
        assert loaded(catalogue) == ["first"]

    try:
        with_catalogue(test, models=1.2)
    finally:
        (home / "models" / "large.gguf").unlink()


def test_what_cannot_be_loaded_says_why_and_is_tried_again(
    with_catalogue: Callable[..., None], home: Path
) -> None:
    async def test(catalogue: Catalogue) -> None:
        async def ask() -> None:
            async with catalogue.use("broken"):
                pass

        results = await asyncio.gather(*(ask() for _ in range(3)), return_exceptions=True)
        for error in results:
            assert isinstance(error, RequestError) and error.status == 400
            assert "broken.gguf" in str(error) and "truncated" in str(error)
        with pytest.raises(RequestError, match=r"'unknown' does not exist. Served: .*'second'") as unknown:
            async with catalogue.use("unknown"):
                pass
        assert unknown.value.status == 404
        broken = home / "models" / "broken.gguf"
        cut = broken.read_bytes()
        broken.write_bytes((home / "models" / "second.gguf").read_bytes())
        try:
            await ask()
        finally:
            broken.write_bytes(cut)

    with_catalogue(test)


def test_a_route_is_not_taken_for_a_model_that_does_not_exist(with_catalogue: Callable[..., None]) -> None:
    async def test(catalogue: Catalogue) -> None:
        catalogue.elsewhere = ["auto"]
        with pytest.raises(RequestError, match=r"runs here, not 'auto'. Here are: 'first'\."):
            catalogue.find("auto")
        with pytest.raises(RequestError, match=r"'atuo' does not exist. Served: 'first', 'auto'\."):
            catalogue.find("atuo")

    with_catalogue(test, on_demand=False)


def test_without_on_demand_only_the_named_models_are_offered(with_catalogue: Callable[..., None]) -> None:
    async def test(catalogue: Catalogue) -> None:
        assert [file.name for file in catalogue.available()] == ["first"]
        with pytest.raises(RequestError, match=r"does not exist. Served: 'first'"):
            async with catalogue.use("second"):
                pass
        with pytest.raises(RequestError, match="--load-on-demand") as error:
            async with aclosing(catalogue.pull("smollm2-135m")) as pull:
                await anext(pull)
        assert error.value.status == 403

    with_catalogue(test, on_demand=False)


def test_a_model_that_was_named_at_the_start_stays_whatever_a_request_says(
    with_catalogue: Callable[..., None],
) -> None:
    async def test(catalogue: Catalogue) -> None:
        async with catalogue.use("first", keep_alive=0):
            pass
        await asyncio.sleep(0.05)
        assert loaded(catalogue) == ["first"]

    with_catalogue(test, on_demand=False)


def test_a_waiter_that_goes_away_does_not_end_the_load(with_catalogue: Callable[..., None]) -> None:
    async def test(catalogue: Catalogue) -> None:
        async def ask() -> list[int]:
            async with catalogue.use("second") as model:
                return await answer(model, "stays")

        async def leave() -> None:
            async with catalogue.use("second"):
                raise AssertionError("it was cancelled before")

        leaving = asyncio.create_task(leave())
        await asyncio.sleep(0.05)
        staying = asyncio.create_task(ask())
        await asyncio.sleep(0)
        leaving.cancel()
        assert len(await staying) == 4

    with_catalogue(test)


def test_unloading_a_model_in_use_waits_for_its_last_user(with_catalogue: Callable[..., None]) -> None:
    async def test(catalogue: Catalogue) -> None:
        async with catalogue.use("second") as model:
            running = asyncio.create_task(answer(model, "long", tokens=60))
            await asyncio.sleep(0.05)
            assert not await catalogue.unload("second")
            assert len(await running) == 60
        await until(lambda: loaded(catalogue) == ["first"])
        assert await catalogue.unload("first")
        assert loaded(catalogue) == []
        async with catalogue.use("first") as first:
            assert await answer(first, "again")

    with_catalogue(test)


def test_the_workers_of_all_models_end_and_loads_are_given_up(with_catalogue: Callable[..., None]) -> None:
    async def test(catalogue: Catalogue) -> None:
        async with catalogue.use("second"):
            pass
        pids = [r.fleet.facts.pid for r in catalogue.residents() if r.fleet is not None]

        async def wait() -> None:
            async with catalogue.use("third"):
                pass

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.1)
        await catalogue.drain(1.0)
        with pytest.raises(UnavailableError, match="shutting down"):
            await waiting
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        with pytest.raises(UnavailableError, match="shutting down"):
            await wait()

    with_catalogue(test)


def test_a_worker_that_dies_is_started_again_under_the_same_name(with_catalogue: Callable[..., None]) -> None:
    async def test(catalogue: Catalogue) -> None:
        async with catalogue.use("second") as model:
            before = await answer(model, "before")
            (second,) = (r for r in catalogue.residents() if r.name == "second")
            assert second.fleet is not None
            os.kill(second.fleet.facts.pid, signal.SIGKILL)
            await until(lambda: second.fleet.health()[0].restarts == 1)  # type: ignore[union-attr]
            await until(lambda: second.fleet.health()[0].state.value == "ready")  # type: ignore[union-attr]
            assert await answer(model, "after") == before

    with_catalogue(test)


def test_what_a_file_says_of_itself_is_listed(with_catalogue: Callable[..., None]) -> None:
    async def test(catalogue: Catalogue) -> None:
        assert [file.name for file in catalogue.available()] == ["broken", "first", "second", "third"]
        details = await catalogue.details(catalogue.find("second"))
        assert details.architecture == "llama"
        assert details.context_length == CONTEXT
        assert details.chats and not details.tools
        assert details.parameter_size.endswith("M")
        assert "tokenizer.ggml.tokens" not in details.metadata

    with_catalogue(test)
