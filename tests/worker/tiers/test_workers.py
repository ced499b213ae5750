"""Worker processes and their folder of blocks: over restarts, side by side, and killed."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.backends.sampling import SamplingParams
from headrace.engine.stats import EngineStats
from headrace.worker.messages import Drain, Drained, Events, Ready, Stats, Submit, TokenEvent
from worker.test_process import CONTEXT, Peer

Answer = tuple[str, list[int]]


def request(number: int, length: int = 200) -> Submit:
    """Half of them begin alike."""
    head, tail = Random(number % 2), Random(number)
    prompt = [head.randrange(250) for _ in range(length // 2)]
    prompt += [tail.randrange(250) for _ in range(length - len(prompt))]
    sampling = SamplingParams(temperature=1.0 if number % 3 else 0.0, top_p=0.9, seed=number)
    return Submit(f"r{number}", prompt, 6, sampling, ignore_eos=True)


def ask(peer: Peer, number: int) -> Answer:
    peer.send(request(number))
    events: list[TokenEvent] = peer.events(f"r{number}")
    return "".join(event.text for event in events), [token for event in events for token in event.token_ids]


def stats(peer: Peer) -> EngineStats:
    return peer.stats()


def drain(peer: Peer) -> None:
    peer.send(Drain())
    while True:
        message = peer.receive(Events | Stats | Drained)  # type: ignore[type-var]
        if isinstance(message, Drained):
            break
    assert peer.process.wait(10) == 0


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {"cache_disk_bytes": 2**28, "cache_dir": str(tmp_path / "blocks")}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, synthetic_model: Path) -> dict[int, Answer]:
    """What a worker without any cache answers."""
    with Peer(tmp_path_factory.mktemp("plain"), synthetic_model, prefix_cache=False) as peer:
        peer.receive(Ready)
        return {number: ask(peer, number) for number in range(6)}


def test_streams_survive_evictions_restarts_and_kills(
    tmp_path: Path, synthetic_model: Path, settings: dict[str, Any], expected: dict[int, Answer]
) -> None:
    assert CONTEXT < 6 * 100, "everything would fit in the cache"
    read = 0
    for turn, end in enumerate(("drain", "kill", "drain")):
        folder = tmp_path / str(turn)
        folder.mkdir()
        with Peer(folder, synthetic_model, **settings) as peer:
            peer.receive(Ready)
            for number in Random(turn).sample(range(6), 6):
                assert ask(peer, number) == expected[number]
            now = stats(peer)
            assert now.tier_blocks_broken == 0 and now.tier_blocks_written + now.tier_blocks_read > 0
            assert now.blocks_used == 0
            read += now.tier_blocks_read
            if end == "drain":
                drain(peer)
    assert read > 12, "hardly anything came back"


def test_a_drained_worker_leaves_what_its_cache_held(
    tmp_path: Path, synthetic_model: Path, settings: dict[str, Any], expected: dict[int, Answer]
) -> None:
    for turn in range(2):
        folder = tmp_path / str(turn)
        folder.mkdir()
        with Peer(folder, synthetic_model, **settings) as peer:
            peer.receive(Ready)
            assert ask(peer, 1) == expected[1]
            assert stats(peer).tier_blocks_read == 12 * turn
            drain(peer)


def test_two_workers_share_a_folder_and_find_each_others_blocks(
    tmp_path: Path, synthetic_model: Path, settings: dict[str, Any], expected: dict[int, Answer]
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with (
        Peer(folders[0], synthetic_model, **settings) as one,
        Peer(folders[1], synthetic_model, **settings) as two,
    ):
        one.receive(Ready)
        two.receive(Ready)
        for _ in range(2):
            for number in range(6):
                one.send(request(number))
                two.send(request(5 - number))
                for peer, asked in ((one, number), (two, 5 - number)):
                    events = peer.events(f"r{asked}")
                    tokens = [token for event in events for token in event.token_ids]
                    assert tokens == expected[asked][1]
        drain(one)
        found = stats(two)
        assert found.tier_blocks_read > 0 and found.tier_blocks_broken == 0
        assert ask(two, 3) == expected[3]
