"""A request's bits are the same whether its prompt was computed, or came back from a slower tier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.backends.sampling import SamplingParams
from headrace.errors import ConfigError
from headrace.models.vocabulary import Vocabulary
from headrace.worker.generator import Generator
from headrace.worker.handoff.exchange import Exchange
from headrace.worker.loader import LoadedModel, load, open_model
from headrace.worker.messages import Prefill, Prefilled, Submit, TokenEvent, encode
from headrace.worker.settings import WorkerSettings
from headrace.worker.tiers.counters import Speeds
from headrace.worker.tiers.tiers import Tiers

CONTEXT = 400


@contextmanager
def running(
    model: Path, folder: Path | None = None, **changes: Any
) -> Iterator[tuple[Generator, LoadedModel]]:
    """A model with a disk tier in the folder, which is asked for whatever it has; without one if None."""
    tier = {} if folder is None else {"cache_disk_bytes": 2**30, "cache_dir": str(folder)}
    usual = {"model": str(model), "threads": 1, "cache_tokens": CONTEXT, "max_batch_tokens": 64}
    settings = WorkerSettings(**usual | tier | changes)
    opened = open_model(settings.model)
    with closing(load(opened, settings)) as loaded:
        yield Generator(loaded, Vocabulary(opened.weights.metadata)), loaded


@pytest.fixture(autouse=True)
def _always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing with so small a model is as fast as a disk."""
    monkeypatch.setattr(Speeds, "worth_fetching", lambda *_: True)


def request(number: int, length: int = 300, **changes: Any) -> Submit:
    """Every third one has the same first 200 tokens."""
    head, tail = Random(number % 3), Random(number)
    prompt = [head.randrange(250) for _ in range(min(length, 200))]
    prompt += [tail.randrange(250) for _ in range(length - len(prompt))]
    temperature = 1.1 if number % 2 else 0.0
    sampling = SamplingParams(temperature=temperature, top_p=0.95, seed=number, repetition_penalty=1.1)
    return Submit(f"r{number}", prompt, 5, sampling, ignore_eos=True, top_logprobs=2, **changes)


def keep_on_disk(model: Path, folder: Path, asked: Submit) -> None:
    """A worker answers, and leaves what it has cached in the folder."""
    with running(model, folder) as (generator, _):
        answers(generator, asked)
        generator.save()


def answers(generator: Generator, *requests: Submit) -> dict[str, tuple[object, ...]]:
    """Text, tokens and log-probabilities of each request."""
    for submit in requests:
        generator.submit(submit)
    events: dict[str, list[TokenEvent]] = {submit.id: [] for submit in requests}
    while generator.begin():
        for event in generator.complete():
            events[event.id].append(event)
    return {
        name: (
            "".join(event.text for event in of_one),
            [token for event in of_one for token in event.token_ids],
            [entry for event in of_one for entry in event.logprobs],
        )
        for name, of_one in events.items()
    }


_plain: dict[tuple[str, bytes], dict[str, tuple[object, ...]]] = {}


def plain(model: Path, *requests: Submit, kv_dtype: str = "f16") -> dict[str, tuple[object, ...]]:
    """Each alone, nothing reused; computed once."""
    missing = {key: submit for submit in requests if (key := (kv_dtype, encode(submit))) not in _plain}
    if missing:
        with running(model, prefix_cache=False, kv_dtype=kv_dtype) as (generator, _):
            for key, submit in missing.items():
                _plain[key] = answers(generator, submit)
    return {submit.id: _plain[kv_dtype, encode(submit)][submit.id] for submit in requests}


def settle(loaded: LoadedModel) -> Tiers:
    """Wait for what was evicted to be written."""
    assert loaded.tiers is not None
    loaded.tiers._writer.flush()
    return loaded.tiers


@pytest.mark.parametrize(
    ("together", "changes"),
    [(1, {}), (3, {}), (3, {"speculate": "prompt-lookup"}), (3, {"kv_dtype": "int8"})],
)
def test_streams_are_the_same_while_blocks_go_to_disk_and_come_back(
    synthetic_model: Path, tmp_path: Path, together: int, changes: dict[str, str]
) -> None:
    requests = [request(number, 150 + 25 * (number % 7)) for number in range(9)]
    expected = plain(synthetic_model, *requests, kv_dtype=changes.get("kv_dtype", "f16"))
    with running(synthetic_model, tmp_path, **changes) as (generator, loaded):
        for turn in range(2):
            order = Random(turn).sample(requests, len(requests))
            for start in range(0, len(order), together):
                part = order[start : start + together]
                assert answers(generator, *part) == {submit.id: expected[submit.id] for submit in part}
                tiers = settle(loaded)
        stats = generator.stats()
        assert min(stats.tier_blocks_written, stats.tier_bytes_read, stats.tier_seconds_saved) > 0
        assert stats.tier_blocks_read > 40 and stats.tier_blocks_broken == stats.tier_blocks_dropped == 0
        assert stats.imported_tokens == 16 * stats.tier_blocks_read
        assert stats.blocks_used == 0 and generator.idle
        assert tiers.counters.written_blocks == len([*tmp_path.rglob("*.block")])


def test_a_conversation_comes_back_after_a_restart(synthetic_model: Path, tmp_path: Path) -> None:
    asked = request(1)
    expected = plain(synthetic_model, asked)
    with running(synthetic_model, tmp_path) as (generator, _):
        assert answers(generator, asked) == expected
        generator.save()
    with running(synthetic_model, tmp_path) as (generator, loaded):
        generator.submit(asked)
        events = []
        while generator.begin():
            events += generator.complete()
        assert events[0].cached_tokens == 288
        assert [token for event in events for token in event.token_ids] == expected["r1"][1]
        stats = generator.stats()
        assert (stats.tier_blocks_read, stats.cached_tokens, stats.imported_tokens) == (18, 0, 288)
        assert stats.computed_tokens == 300 - 288 + 4
        assert loaded.tiers is not None
        text = "".join(event.text for event in events)
        assert text == expected["r1"][0]
        longer = Submit("r9", [*asked.prompt, *expected["r1"][1]], 5, asked.sampling, ignore_eos=True)
        assert answers(generator, longer)["r9"] == plain(synthetic_model, longer)["r9"]


def test_requests_that_share_what_is_fetched_fetch_it_once(synthetic_model: Path, tmp_path: Path) -> None:
    requests = [request(number) for number in (0, 3, 6)]
    expected = plain(synthetic_model, *requests)
    with running(synthetic_model, tmp_path) as (generator, _):
        answers(generator, requests[0])
        generator.save()
    with running(synthetic_model, tmp_path, cache_tokens=1200) as (generator, _):
        assert answers(generator, *requests) == expected
        assert generator.stats().tier_blocks_read == 18
        assert generator.stats().computed_tokens < 3 * (100 + 16 + 12)


def test_a_prompt_that_is_computed_for_another_worker_comes_from_disk_too(
    synthetic_model: Path, tmp_path: Path
) -> None:
    asked = request(1)
    keep_on_disk(synthetic_model, tmp_path, asked)
    with running(synthetic_model, tmp_path) as (generator, loaded):
        generator.exchange = Exchange(loaded, generator.loans, "tcp:127.0.0.1:0", b"s" * 32)
        with closing(generator.exchange):
            generator.prefill(Prefill("p", asked.prompt))
            while not (messages := generator.take_messages()):
                if generator.try_begin():
                    generator.complete()
                else:
                    generator.loans.wait()
            assert [type(message) for message in messages] == [Prefilled]
            stats = generator.stats()
            assert (stats.tier_blocks_read, stats.computed_tokens) == (18, 300 - 288)
            assert stats.blocks_used == 19, "they wait to be given out"


@pytest.mark.parametrize("damage", ["cut", "changed", "removed", "all gone"])
def test_what_is_broken_on_disk_is_computed_anew(synthetic_model: Path, tmp_path: Path, damage: str) -> None:
    asked = request(1)
    expected = plain(synthetic_model, asked)
    keep_on_disk(synthetic_model, tmp_path, asked)
    with running(synthetic_model, tmp_path) as (generator, loaded):
        files = [*tmp_path.rglob("*.block")]
        for path in files[: len(files) if damage == "all gone" else 3]:
            data = path.read_bytes()
            if damage == "cut":
                path.write_bytes(data[: len(data) // 2])
            elif damage == "changed":
                path.write_bytes(data[:99] + bytes([data[99] ^ 8]) + data[100:])
            else:
                path.unlink()
        assert answers(generator, asked) == expected
        stats = generator.stats()
        assert stats.tier_blocks_broken == (damage in ("cut", "changed"))
        assert stats.tier_blocks_read < 18
        generator.save()  # puts whole ones in their place
    with running(synthetic_model, tmp_path) as (generator, loaded):
        assert answers(generator, asked) == expected
        assert loaded.tiers is not None


def test_a_cancelled_request_stops_its_fetch_and_leaves_no_block_behind(
    synthetic_model: Path, tmp_path: Path
) -> None:
    asked = request(1)
    keep_on_disk(synthetic_model, tmp_path, asked)
    with running(synthetic_model, tmp_path) as (generator, loaded):
        for turn in range(8):
            generator.submit(asked)
            if turn % 2:
                generator.try_begin()
                loaded.engine.collect() if loaded.engine._in_flight else None
            generator.cancel(asked.id)
            while generator.begin():
                generator.complete()
            assert generator.idle and generator.stats().blocks_used == 0
        assert answers(generator, asked) == plain(synthetic_model, asked)


@pytest.mark.parametrize("room", [1, 20_000])
def test_a_disk_with_next_to_no_room_does_no_harm(synthetic_model: Path, tmp_path: Path, room: int) -> None:
    requests = [request(number) for number in range(4)]
    expected = plain(synthetic_model, *requests)
    with running(synthetic_model, tmp_path, cache_disk_bytes=room) as (generator, loaded):
        for _ in range(2):
            assert answers(generator, *requests) == expected
            settle(loaded)
            assert sum(path.stat().st_size for path in tmp_path.rglob("*.block")) <= room
        generator.save()
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.block")) <= room


def test_a_folder_that_vanishes_does_no_harm(synthetic_model: Path, tmp_path: Path) -> None:
    requests = [request(number) for number in range(4)]
    expected = plain(synthetic_model, *requests)
    folder = tmp_path / "blocks"
    with running(synthetic_model, folder) as (generator, loaded):
        answers(generator, *requests)
        settle(loaded)
        folder.rename(tmp_path / "elsewhere")
        folder.write_text("no folder any more")
        assert answers(generator, *requests) == expected
        settle(loaded)
        generator.save()
        assert generator.stats().tier_blocks_dropped > 0


def test_a_folder_that_cannot_be_used_is_refused_by_name(synthetic_model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cache-dir: .*file"), running(synthetic_model, tmp_path / "file"):
        pass


def test_salts_and_requests_without_the_cache_are_kept_apart(synthetic_model: Path, tmp_path: Path) -> None:
    with running(synthetic_model, tmp_path) as (generator, _):
        answers(generator, request(1, salt="mine"))
        generator.save()
    for changes in ({}, {"salt": "yours"}, {"salt": "mine", "use_prefix_cache": False}):
        with running(synthetic_model, tmp_path) as (generator, _):
            answers(generator, request(1, **changes))
            assert generator.stats().tier_blocks_read == 0
