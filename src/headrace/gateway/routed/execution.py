"""A routed request while it runs: models are tried in the plan's order, until one answers.

Nothing is sent to the client before a model's first piece is there; where a whole answer is wanted, before
all of it is. Until then a failure costs the client no more than time: the next model is tried. A stream that
breaks off later is continued by a model that can take up an answer in the middle, where there is one; nothing
that the client has seen is ever said otherwise.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable

import msgspec

from headrace.errors import HeadraceError, RequestError
from headrace.gateway.answering import Running
from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.route_report import RouteReport, money, report_headers, whole_billionths
from headrace.gateway.routed.attempt import Attempt, is_elsewhere
from headrace.gateway.routed.continuing import can_go_on, continuing
from headrace.gateway.routed.member import Member
from headrace.gateway.routed.not_now import NotNowError
from headrace.gateway.routed.route import Route
from headrace.gateway.routed.routed_run import RoutedRun
from headrace.routing.candidate import Candidate
from headrace.routing.confidence import Told

log = logging.getLogger("headrace.gateway")

Judge = Callable[[str, Told], tuple[float, float | None]]
"""Of an answer, the chance that it is good; and that the next model's would be, where that is known."""
Racer = asyncio.Task[tuple[Attempt, Exception | None]]
"""Opens an attempt beside others; gives it, and what it failed with."""

_ABANDONED = asyncio.CancelledError
"""How an attempt ends that another one overtook."""


class Execution:
    """Of one request. `start` gives what the answer is written from, `end` is called however it ends."""

    def __init__(self, route: Route, members: Callable[[str], Member], confidence: Judge):
        """`members` by name; `confidence` judges a model's answer."""
        self.route = route
        self.attempts: list[Attempt] = []
        """In the order in which they were begun."""
        self.spoken: list[Attempt] = []
        """Those whose words the client gets."""
        self.failures: list[tuple[str, Exception]] = []
        """Who could not answer, and why."""
        self.hedged = False
        self.cascaded = False
        """A cheaper model's answer was not accepted."""
        self._unsure = False
        """Such an answer was given after all, for the better models failed."""
        self._members = members
        self._confidence = confidence
        self._names = deque(route.plan.order)
        self._errors: list[Exception] = []
        self._tried_again = False
        self._run: RoutedRun | None = None
        self.complete = False
        """The whole answer was given."""
        self.broken_off: Exception | None = None
        """Why it ended in the middle."""

    @property
    def cost(self) -> float:
        """Of all attempts, by now."""
        return sum(attempt.cost for attempt in self.attempts)

    @property
    def fell_back(self) -> bool:
        """A model failed, and another was tried."""
        return bool(self._errors)

    async def start(self) -> Running:
        """Raises what the first model failed with, where none answers."""
        whole, plan = not self.route.asking.request.stream, self.route.plan
        if plan.accept is not None and plan.steps > 1:
            attempt = await self._accepted(plan.accept, plan.steps)
        elif plan.hedge_after is None:
            attempt = await self._next(self._names, whole)
        else:
            attempt = await self._race(plan.hedge_after, whole)
        self.spoken.append(attempt)
        assert attempt.running is not None
        head = attempt.running.head
        self._run = RoutedRun(self, attempt)
        self._tell_record(attempt, self._run)
        return dataclasses.replace(attempt.running, head=head, run=self._run, headers=self._headers(attempt))

    @property
    def text(self) -> str | None:
        """What the client got; None where it is not text alone."""
        return None if self._run is None else self._run.text

    @property
    def tried(self) -> list[str]:
        """The models that were asked, in that order."""
        return [attempt.name for attempt in self.attempts]

    async def end(self) -> None:
        """Ends what still runs, and settles what all of it cost."""
        for attempt in self.attempts:
            await attempt.close()

    def report(self, cost: float) -> RouteReport:
        """For the answer's usage; `cost` is what all of it has cost."""
        first = self.spoken[0]
        return RouteReport(
            policy=self.route.rule.name,
            model=first.name,
            tier=first.member.tier,
            why=self._why(first),
            cost=whole_billionths(cost),
            attempts=self.tried,
            continued_by=[attempt.name for attempt in self.spoken[1:]],
        )

    # attempts

    def _attempt(self, name: str) -> Attempt:
        """Raises RequestError where money or a limit that was met since the decision forbids it."""
        route = self.route
        self._check_limits(name)
        asking = route.asking
        record = dataclasses.replace(asking.record)  # several may run at once
        request = msgspec.structs.replace(asking.request, model=name)
        asking = dataclasses.replace(asking, record=record, request=request)
        attempt = Attempt(self._members(name), asking, route, len(self.attempts))
        attempt.reserve()
        self.attempts.append(attempt)
        return attempt

    def _check_limits(self, name: str) -> None:
        """Looks again, for much may have been sent to the model since it was chosen."""
        member, candidate = self._members(name), self.route.candidates[name]
        refusal = member.not_now(candidate.input_tokens, time.monotonic())
        if refusal is not None and refusal.wait > 0 and not refusal.last:
            raise NotNowError(name, refusal)

    async def _next(self, names: deque[str], whole: bool) -> Attempt:
        """The first of the models that answers. Raises the first one's error where none does."""
        while names:
            name = names.popleft()
            try:
                attempt = self._attempt(name)
                await attempt.open(whole)
            except Exception as error:
                self._note(name, error)
                if not names and (again := self._worth_another_try()) is not None:
                    names.append(again)
                continue
            return attempt
        raise self._errors[0]

    def _worth_another_try(self) -> str | None:
        """Once nobody is left, the first whose connection broke at once: another one may hold."""
        if self._tried_again:
            return None
        self._tried_again = True
        return next((attempt.name for attempt in self.attempts if attempt.lost_connection), None)

    def _note(self, name: str, error: Exception) -> None:
        """Keeps an error that another model may make good; raises all others."""
        self.failures.append((name, error))
        if not is_elsewhere(error):
            raise error
        self._errors.append(error)
        if isinstance(error, HeadraceError):
            log.info("%s did not answer: %s", name, error)
        else:
            log.error("%s failed within", name, exc_info=error)

    async def _race(self, hedge_after: float, whole: bool) -> Attempt:
        """The first that answers of two: the second begins where the first is late, or has failed."""
        try:
            racing = {self._begin(self._names.popleft(), whole)}
        except RequestError as refusal:
            self._note(self.route.plan.order[0], refusal)
            return await self._next(self._names, whole)
        late: float | None = hedge_after
        try:
            while True:
                done, _ = await asyncio.wait(racing, timeout=late, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    late = None
                    if self.attempts[0].first_token is None:
                        self._hedge(racing, whole)
                    continue
                for task in done:
                    racing.discard(task)
                    attempt, error = task.result()
                    if error is None:
                        return attempt
                    self._note(attempt.name, error)
                if not racing:
                    return await self._next(self._names, whole)
        finally:
            await self._abandon(racing)

    def _hedge(self, racing: set[Racer], whole: bool) -> None:
        """Begins the next one beside, unless nobody is left, or money or a limit forbids it."""
        if not self._names:
            return
        try:
            racing.add(self._begin(self._names[0], whole))
        except RequestError as error:
            log.info("%s is not asked beside: %s", self._names[0], error)
            return
        self._names.popleft()
        self.hedged = True

    def _begin(self, name: str, whole: bool) -> Racer:
        """Raises RequestError, as `_attempt` does."""
        attempt = self._attempt(name)

        async def opened() -> tuple[Attempt, Exception | None]:
            try:
                await attempt.open(whole)
            except Exception as error:
                return attempt, error
            return attempt, None

        return asyncio.create_task(opened(), name=f"ask {name}")

    @staticmethod
    async def _abandon(racing: set[Racer]) -> None:
        for task in racing:
            task.cancel()
        for ended in await asyncio.gather(*racing, return_exceptions=True):
            if not isinstance(ended, BaseException) and ended[1] is None:
                await ended[0].close(_ABANDONED())

    # cascades

    async def _accepted(self, accept: float, steps: int) -> Attempt:
        """The first answer that is likely enough to be good, else that of the last step."""
        names = list(self.route.plan.order)
        later: list[Attempt] = []
        for place, name in enumerate(names[:steps]):
            last = place == steps - 1
            try:
                attempt = self._attempt(name)
                attempt.ask_for_confidence()
                await attempt.open(whole=not last or not self.route.asking.request.stream)
            except Exception as error:
                self._note(name, error)
                continue
            if last or self._is_good_enough(attempt, self.route.candidates[names[place + 1]], accept):
                return attempt
            self.cascaded = True
            later.append(attempt)
            await attempt.close()
        try:
            return await self._next(deque(names[steps:]), not self.route.asking.request.stream)
        except Exception:
            if not later:
                raise
            self._unsure = True
            return later[-1]  # the better models failed: what was not sure is better than nothing

    def _is_good_enough(self, attempt: Attempt, following: Candidate, accept: float) -> bool:
        """Whether it is likely enough to be good, or the next model's would hardly be better."""
        good, next_good = self._confidence(attempt.name, attempt.told(following.good))
        quality = self.route.wants.quality
        if quality is not None and next_good is not None:
            accept = min(accept, quality * next_good)
        return good >= accept

    # going on

    async def go_on(self, broken: Attempt, error: Exception, text: str | None) -> Attempt:
        """Who goes on with an answer that broke off after `text`; raises the error where nobody can.

        `text` is None where it holds what cannot be taken up: a call, reasoning.
        """
        await broken.close(error)
        if not isinstance(error, HeadraceError):
            log.error("%s failed within", broken.name, exc_info=error)
        request = self.route.asking.request
        if text is None or not is_elsewhere(error) or not can_go_on(request):
            raise error
        assert isinstance(request, ChatRequest)
        for name in self.route.plan.order:
            if name == broken.name or not self._members(name).goes_on:
                continue
            try:
                attempt = self._attempt(name)
                attempt.asking = dataclasses.replace(
                    attempt.asking, request=continuing(request, name, text, self._generated)
                )
                await attempt.open(whole=False)
            except Exception as failure:
                log.info("%s does not go on with the answer: %s", name, failure)
                continue
            self.spoken.append(attempt)
            return attempt
        raise error

    @property
    def _generated(self) -> int:
        """Tokens of what the client has."""
        return sum(usage.completion_tokens for each in self.spoken if (usage := each.usage) is not None)

    # what is told

    def _why(self, attempt: Attempt) -> str:
        failed = ", ".join(dict.fromkeys(name for name, _ in self.failures))
        if self._unsure:
            return f"{failed} failed; {attempt.name} answers, though not sure enough"
        if attempt.name == self.route.plan.order[0]:
            return self.route.plan.why
        if self._errors:
            return f"{failed} failed; {attempt.name} followed"
        if self.cascaded:
            return "the answers of cheaper models were not sure enough"
        return f"{self.route.plan.order[0]} was late; {attempt.name} was sooner"

    def _headers(self, attempt: Attempt) -> list[tuple[bytes, bytes]]:
        # While the answer is on its way, its tokens are not counted for headers that do not tell its cost.
        report = self.report(self.cost if attempt.ended else 0.0)
        more = {"estimated_cost": money(attempt.candidate.cost)}
        if attempt.ended:
            more["cost"] = money(report.cost)
        return report_headers(report, **more)

    def _tell_record(self, attempt: Attempt, run: RoutedRun) -> None:
        told, known = self.route.asking.record, attempt.asking.record
        told.id, told.run, told.model = known.id, run, known.model
        told.asked, told.queue_seconds = known.asked, known.queue_seconds
