"""The fleet that requests are routed over, and what is kept of what became of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np

from headrace.errors import ConfigError, HeadraceError, RequestError
from headrace.gateway.answering import Running
from headrace.gateway.asking import Asking
from headrace.gateway.callers import Caller
from headrace.gateway.errors import unavailable
from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.routed.decider import Decider
from headrace.gateway.routed.embedding import RemoteEmbeddings
from headrace.gateway.routed.execution import Execution
from headrace.gateway.routed.local_member import LocalMember
from headrace.gateway.routed.member import Member
from headrace.gateway.routed.need import need_of
from headrace.gateway.routed.records import decision_of
from headrace.gateway.routed.refused import RefusedError
from headrace.gateway.routed.remote_member import RemoteMember
from headrace.gateway.routed.route import Route
from headrace.gateway.routed.route_metrics import RouteMetrics
from headrace.gateway.routed.rule import Named, Rule
from headrace.gateway.routed.shadowing import ask_in_the_shadow, given_of, sample_of
from headrace.gateway.shadow.feedback import Recent
from headrace.gateway.shadow.graders import grader_of
from headrace.gateway.shadow.sample import Answered
from headrace.gateway.shadow.shadow import Shadow
from headrace.gateway.state import Gateway
from headrace.routing import artefact
from headrace.routing.budget import Budgets
from headrace.routing.confidence import Confidence, Told
from headrace.routing.policies import policy_of
from headrace.routing.pricing import LocalPrice
from headrace.routing.quality import Quality
from headrace.routing.store import Store
from headrace.routing.tables import FleetTables, PolicyTable
from headrace.routing.watch import Watch
from headrace.routing.watched import fingerprint

log = logging.getLogger("headrace.gateway")

_USUAL_SIZE = 10**9
"""Bytes of a model's weights, where no file says it."""
_USUAL_REQUEST = (500, 200)
"""Tokens of prompt and answer by which models are put into the order of their costs."""


class Routes:
    """Answers requests that name a policy or a model of the tables. Lives in one event loop."""

    def __init__(
        self,
        tables: FleetTables,
        gateway: Gateway,
        store: Store,
        *,
        environment: Mapping[str, str],
        workers: Mapping[str, int],
    ):
        """`environment` holds the remotes' keys; `workers`: of each local model, how many its cost pays for.

        Raises ConfigError that names what cannot be used.
        """
        self._gateway = gateway
        self.store = store
        self.members: dict[str, Member] = {}
        sizes = {file.name: file.size for file in gateway.catalogue.available()}
        prices: list[LocalPrice] = []
        for name, table in tables.models.items():
            if table.remote:
                key = key_of(name, table.key_env, environment)
                self.members[name] = RemoteMember(name, table, gateway, key)
            else:
                self.members[name] = LocalMember(
                    name,
                    table,
                    gateway,
                    workers=workers.get(name, 1),
                    weights_bytes=sizes.get(name, _USUAL_SIZE),
                    prices=prices,
                )
        self.quality = self._quality(tables)
        self.rules = self._rules(tables)
        self.metrics = RouteMetrics(
            gateway.metrics.registry, self.rules, self.members, lambda: self.shadow.dropped
        )
        self._confidences = confidences_of(tables.routing.confidence)
        self._budgets = Budgets(tables.budgets, store)
        self._decider = Decider(self.members, self.quality, self._budgets)
        self.embeddings = RemoteEmbeddings(self.members, tables.policies, self._budgets, self.metrics)
        self.recent = Recent()
        self.shadow = Shadow(
            self._ask,
            grader_of(tables.routing.grader),
            keep=store.scored,
            learnt=self._keep,
            busy=lambda: gateway.admission.draining or gateway.admission.waiting > 0,
        )

    def _quality(self, tables: FleetTables) -> Quality:
        router = None if tables.routing.router is None else artefact.load(Path(tables.routing.router))
        aliases = {name: table.estimate_as for name, table in tables.models.items()}
        return Quality(router, aliases, self._by_cost(list(self.members)))

    def _rules(self, tables: FleetTables) -> dict[str, Rule]:
        rules = {
            name: Rule(name, alone, Named(alone), [name])
            for name in tables.models
            for alone in [PolicyTable(models=[name])]
        }
        for name, table in tables.policies.items():
            models = table.models or list(tables.models)
            watch = self._watch(name, table, tables)
            columns = {} if watch is None else _columns(watch, models, tables)
            rules[name] = Rule(name, table, policy_of(table), models, watch, columns)
        return rules

    def _watch(self, name: str, table: PolicyTable, tables: FleetTables) -> Watch | None:
        """None where the models have one estimate in common: then there is nothing to choose by quality."""
        models = table.models or list(tables.models)
        names = {tables.models[model].estimate_as: model for model in reversed(self._by_cost(models))}
        if len(names) < 2:
            return None
        alike = list(reversed(names.values()))
        best = names[tables.models[self.quality.best(models)].estimate_as]
        watch = Watch(
            alike,
            best,
            table.quality,
            slack=self.quality.slack(table.quality, models),
            learnt="" if self.quality.router is None else fingerprint(self.quality.router),
            shadow=tables.routing.shadow,
            exploration=tables.routing.exploration_budget,
        )
        if (known := self.store.recall(_state_name(name))) is not None:
            watch.load(known)
        return watch

    def _by_cost(self, names: Sequence[str]) -> list[str]:
        """The cheapest first, for a request as most are."""

        def usual_cost(name: str) -> float:
            prompt, answer = _USUAL_REQUEST
            return self.members[name].price_now().cost(prompt, 0, answer)

        return sorted(names, key=usual_cost)

    # the gateway's side

    def covers(self, name: str) -> bool:
        """Whether requests for this name are routed."""
        return name in self.rules

    def check(self, caller: Caller, name: str) -> None:
        """Raises RequestError, 404, where the caller may ask none of the models."""
        if not self._may_name(caller, name):
            caller.check_model(name)

    def open_to(self, caller: Caller) -> Sequence[str]:
        """The policies and models that the caller may name."""
        return [name for name in self.rules if self._may_name(caller, name)]

    def _may_name(self, caller: Caller, name: str) -> bool:
        return caller.may_ask(name) or any(map(caller.may_ask, self.rules[name].models))

    def tokens(self, request: ChatRequest) -> int:
        """Of a prompt, as the model with the most makes of its length."""
        need = need_of(request)
        return max(self.members[name].tokens(need) for name in self.rules[request.model].models)

    def names(self) -> Sequence[str]:
        """Policies, and models that are served elsewhere."""
        remote = [name for name, member in self.members.items() if isinstance(member, RemoteMember)]
        return [*(name for name in self.rules if name not in self.members), *remote]

    async def decide(self, asking: Asking) -> Route:
        """Raises RequestError: what is asked for cannot be had, or not now."""
        return await self._decider.decide(asking, self.rules[asking.request.model])

    @asynccontextmanager
    async def answer(self, asking: Asking) -> AsyncIterator[Running]:
        """The answer, for as long as the block runs; leaving it cancels what still runs."""
        if not self.rules[asking.request.model].named:
            asking.record.policy = asking.request.model
        began = time.perf_counter()
        route = await self.decide(asking)
        # What the answer need not wait for is done while it waits for the model, or for the client.
        later = asyncio.get_running_loop().call_soon
        later(self.metrics.decided, route.rule.name, time.perf_counter() - began)
        execution = Execution(route, self.members.__getitem__, self._chance)
        status = ""
        try:
            with self._gateway.admission.kept_open():
                running = await execution.start()
                later(self._begun, execution)
                yield running
            status = _status(execution)
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        except RequestError as error:
            status = error.code or str(error.status)
            if execution.spoken:
                raise
            raise RefusedError(error, execution.tried, execution.failures) from error
        except HeadraceError as error:
            status = type(error).__name__
            if execution.spoken:
                raise
            raise RefusedError(unavailable(error), execution.tried, execution.failures) from error
        except BaseException as error:
            status = type(error).__name__
            raise
        finally:
            await execution.end()
            self._ended(execution, status)

    def _chance(self, name: str, told: Told) -> tuple[float, float | None]:
        """That this model's answer is good, and that the next one's would be.

        Without any learnt, it is how likely its tokens were to the model; without those, the estimate.
        """
        learnt = self._confidences.get(name)
        if learnt is not None and told.logprobs:
            return learnt.chance(told), learnt.next_chance(told)
        return (float(np.exp(np.mean(told.logprobs))) if told.logprobs else told.good), None

    def _begun(self, execution: Execution) -> None:
        """The client may score its answer the moment that it has it."""
        asking, watch = execution.route.asking, execution.route.rule.watch
        if watch is not None:
            given = given_of(execution, watch)
            self.recent.add(given, asking.caller.name, asking.record.id, asking.record.request_id)

    def _ended(self, execution: Execution, status: str) -> None:
        route = execution.route
        self.metrics.ended(execution, status)
        if not execution.spoken:
            return
        decision = decision_of(execution, status, time.time())
        self.store.decided(decision)
        self.store.keep_prompt(decision.answer, route.need.text, decision.time)
        watch = route.rule.watch
        if watch is None or status != "ok":
            return
        watch.earned(execution.cost)
        if (sample := sample_of(execution, watch)) is not None:
            self.shadow.offer(sample)

    async def _ask(self, name: str, request: ChatRequest) -> Answered:
        return await ask_in_the_shadow(self.members[name], request, self._budgets)

    def _keep(self, watch: Watch) -> None:
        for name, rule in self.rules.items():
            if rule.watch is watch:
                self.store.remember(_state_name(name), watch.save())

    async def close(self) -> None:
        """Ends what goes on in the shadow, lets go of remotes, and keeps what was learnt."""
        await self.shadow.__aexit__(None, None, None)
        for rule in self.rules.values():
            if rule.watch is not None:
                self._keep(rule.watch)
        for member in self.members.values():
            await member.close()


def _columns(watch: Watch, models: Sequence[str], tables: FleetTables) -> Mapping[str, int]:
    places = {tables.models[name].estimate_as: place for place, name in enumerate(watch.models)}
    return {name: places[tables.models[name].estimate_as] for name in models}


def _status(execution: Execution) -> str:
    """How an answer went whose request raised nothing."""
    if execution.complete:
        return "ok"
    error = execution.broken_off
    if error is None:
        return "timeout"
    return (isinstance(error, RequestError) and error.code) or type(error).__name__


def _state_name(policy: str) -> str:
    return f"watch {policy}"


def key_of(name: str, variable: str | None, environment: Mapping[str, str]) -> str | None:
    """A remote's key, from the variable of that name. Raises ConfigError where that is empty."""
    if variable is None:
        return None
    key = environment.get(variable)
    if not key:
        raise ConfigError(f"[models.{name}] key_env: the environment has no {variable}")
    return key


def confidences_of(file: str | None) -> Mapping[str, Confidence]:
    """By model, from a file of `headrace route confidence`."""
    if file is None:
        return {}
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Confidence])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{file}: holds no confidences: {error}") from None
