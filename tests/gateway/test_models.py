"""Which models are listed, and to whom, with the clients of three dialects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import anthropic
import ollama
import openai
import pytest

from gateway.running import RunningGateway, running
from headrace.gateway.callers import Callers
from headrace.gateway.catalogue import Catalogue
from synthetic import write_synthetic

ALL, FEW = "a-key-for-all-models", "a-key-for-few-models"
EVERY = ["fake", "first", "second", "third"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with a loaded model and three in files, and a key that may ask two of them."""
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    for seed, name in enumerate(EVERY[1:]):
        write_synthetic(home / "models" / f"{name}.gguf", seed=seed)
    keys: Path = home / "keys.toml"
    keys.write_text(f"[keys.all]\nkey = '{ALL}'\n[keys.few]\nkey = '{FEW}'\nmodels = ['fake', 'second']\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_HOME", str(home))
        with running(callers=Callers(keys), catalogue=Catalogue(None, (), on_demand=True)) as server:
            yield server


def with_openai(server: RunningGateway, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def with_anthropic(server: RunningGateway, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)


def with_ollama(server: RunningGateway, key: str) -> ollama.Client:
    return ollama.Client(server.url, headers={"Authorization": f"Bearer {key}"})


def listed_by_openai(server: RunningGateway, key: str) -> list[str]:
    with with_openai(server, key) as client:
        return [model.id for model in client.models.list()]


def listed_by_anthropic(server: RunningGateway, key: str) -> list[str]:
    with with_anthropic(server, key) as client:
        return [model.id for model in client.models.list()]


@pytest.mark.parametrize("listed", [listed_by_openai, listed_by_anthropic])
def test_a_key_sees_the_models_that_it_may_ask(
    guarded: RunningGateway, listed: Callable[[RunningGateway, str], list[str]]
) -> None:
    assert listed(guarded, ALL) == EVERY
    assert listed(guarded, FEW) == ["fake", "second"]


def test_ollamas_pages_tell_a_key_of_no_other_models(guarded: RunningGateway) -> None:
    def tags(client: ollama.Client) -> list[str | None]:
        return [model.model for model in client.list().models]

    few = with_ollama(guarded, FEW)
    assert tags(with_ollama(guarded, ALL)) == ["first:latest", "second:latest", "third:latest"]
    assert tags(few) == ["second:latest"]
    assert few.show("second").details is not None
    for ask in (few.show, few.pull, few.delete):
        with pytest.raises(ollama.ResponseError, match="may not use it") as error:
            ask("third")
        assert error.value.status_code == 404


def test_a_model_is_described_to_those_who_may_ask_it(guarded: RunningGateway) -> None:
    with with_openai(guarded, FEW) as client:
        assert client.models.retrieve("second").id == "second"
        with pytest.raises(openai.NotFoundError, match="may not use it"):
            client.models.retrieve("third")
    with with_anthropic(guarded, FEW) as other:
        told = other.models.retrieve("second")
        assert (told.id, told.type, told.display_name) == ("second", "model", "second")
        assert told.created_at.year >= 2024
        with pytest.raises(anthropic.NotFoundError, match="may not use it") as error:
            other.models.retrieve("third")
        assert error.value.type == "not_found_error"


def test_anthropics_client_goes_through_pages_in_both_directions(guarded: RunningGateway) -> None:
    with with_anthropic(guarded, ALL) as client:
        page = client.models.list(limit=3)
        assert [model.id for model in page.data] == EVERY[:3]
        assert (page.has_more, page.first_id, page.last_id) == (True, "fake", "second")
        assert [model.id for model in client.models.list(limit=1)] == EVERY
        before = client.models.list(limit=2, before_id="third")
        assert [model.id for model in before.data] == ["first", "second"] and before.has_more
        last = client.models.list(after_id="third")
        assert (last.data, last.has_more, last.first_id) == ([], False, None)


@pytest.mark.parametrize(
    "asked", [{"limit": 0}, {"limit": 1001}, {"after_id": "nope"}, {"before_id": "nope"}]
)
def test_a_page_that_cannot_be_is_refused_by_name(guarded: RunningGateway, asked: dict[str, object]) -> None:
    with with_anthropic(guarded, ALL) as client, pytest.raises(anthropic.BadRequestError) as error:
        client.models.list(**asked)  # type: ignore[arg-type]
    assert next(iter(asked)) in str(error.value)


def test_tokens_are_counted_for_those_who_may_ask_the_model(guarded: RunningGateway) -> None:
    hello: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Hi"}]
    with with_anthropic(guarded, FEW) as client, pytest.raises(anthropic.NotFoundError, match="may not use"):
        client.messages.count_tokens(model="third", messages=hello)


def test_a_server_of_fixed_models_never_lets_one_go_for_a_request() -> None:
    with running() as server:
        client = ollama.Client(server.url)
        assert client.chat("fake", messages=[], keep_alive=0).done_reason == "load"
        for _ in range(3):
            assert client.generate("fake", prompt="Hi", options={"num_predict": 2}, keep_alive=0).response
        assert server.chat().status_code == 200
        assert [model.model for model in client.ps().models] == ["fake:latest"]
        for ask in (client.pull, client.delete):
            with pytest.raises(ollama.ResponseError, match="--load-on-demand") as error:
                ask("fake")
            assert error.value.status_code == 403


def test_what_was_put_there_by_hand_is_not_a_clients_to_delete(guarded: RunningGateway) -> None:
    client = with_ollama(guarded, ALL)
    with pytest.raises(ollama.ResponseError, match="by hand") as error:
        client.delete("third")
    assert error.value.status_code == 403
    assert "third:latest" in [model.model for model in client.list().models]


@pytest.mark.parametrize("size", [64, 1_000_000])
def test_any_size_of_context_is_taken_and_the_model_has_its_own(server: RunningGateway, size: int) -> None:
    client = ollama.Client(server.url)
    answer = client.generate("fake", prompt="y" * 200, options={"num_ctx": size, "num_predict": 3})
    assert answer.response == "Wat"
    with pytest.raises(ollama.ResponseError, match="512"):
        client.generate("fake", prompt="y" * 600, options={"num_ctx": size})
