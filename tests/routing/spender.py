"""A server's budgets under 50 clients, in a process of its own: spends until its budget is used up.

It says with an empty line that it is loaded, and begins when its input ends. Each further line of its output
is a request that is about to be settled. What a request may cost and does cost follows from its name.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

from headrace.routing.budget import Budgets, OverBudget
from headrace.routing.store import Store
from headrace.routing.tables import BudgetTable

CLIENTS = 50
NOON = 20_000 * 86400 + 43200.0


def costs(request: str) -> tuple[int, int]:
    """The most that a request may cost, and what it does cost, in billionths."""
    draw = random.Random(request)
    most = draw.randint(1, 2_000_000)
    return most, draw.randint(0, most)


def main(database: str, name: str, per_day: str) -> None:
    """Ends when every client has met the budget's end."""
    print(flush=True)
    sys.stdin.read()
    with Store(Path(database)) as store:
        budgets = Budgets(BudgetTable(per_day=float(per_day)), store)

        def client(number: int) -> None:
            for count in range(100_000):
                request = f"{name}-{number}-{count}"
                most, actual = costs(request)
                try:
                    budgets.reserve(request, f"key{number}", most, NOON)
                except OverBudget:
                    return
                time.sleep(0.001)
                sys.stdout.write(f"{request}\n")
                sys.stdout.flush()
                budgets.settle(request, actual)

        clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
