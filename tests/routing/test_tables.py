"""The fleet as headrace.toml describes it, and what is wrong with a description."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.routing.tables import BudgetTable, FleetTables, RoutingTable, read_tables
from headrace.routing.wants import Wants

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path("headrace.toml")
FLEET = """
[models."smollm2-135m"]
cost_per_hour = 0.05
tier = "cpu-small"

[models.quick]
source = "smollm2-135m"
estimate-as = "smollm2-135m"

[models.gpt-4o]
url = "https://api.example.com/v1"
key-env = "EXAMPLE_KEY"
input-price = 2.5
output-price = 10
abilities = ["tools", "vision"]
"""


def read(text: str) -> FleetTables:
    return read_tables(tomllib.loads(text), FILE)


def test_models_are_local_or_remote_and_know_their_names() -> None:
    models = read(FLEET).models
    assert list(models) == ["smollm2-135m", "quick", "gpt-4o"]
    small, quick, remote = models.values()
    assert (small.remote, small.source, small.estimate_as, small.tier) == (
        False,
        "smollm2-135m",
        "smollm2-135m",
        "cpu-small",
    )
    assert (quick.source, quick.estimate_as, quick.tier) == ("smollm2-135m", "smollm2-135m", "local")
    assert (remote.remote, remote.upstream, remote.tier, remote.cached_input_price) == (
        True,
        "gpt-4o",
        "remote",
        2.5,
    )


def test_auto_is_there_where_two_models_are_and_can_be_changed() -> None:
    policy = read(FLEET).policies["auto"]
    assert policy.kind == "cheapest"
    assert policy.models == ["smollm2-135m", "quick", "gpt-4o"]
    assert policy.defaults == Wants(quality=0.95)
    changed = read(FLEET + '[policies.auto]\nkind = "cascade"\nmax-first-token-ms = 300\nmax-cost = 0.01')
    assert changed.policies["auto"].defaults == Wants(0.95, 0.3, None, 0.01)
    assert read("[models.one]").policies == {}


def test_without_tables_there_is_no_fleet() -> None:
    assert read("") == FleetTables(models={}, policies={}, budgets=BudgetTable(), routing=RoutingTable())


def test_budgets_and_routing_are_read() -> None:
    tables = read(
        "[budgets]\nper-day = 5\nkeys = { team-a = 1.5, team_a = 2 }\n"
        "[routing]\nshadow = 0\nkeep-prompts = true"
    )
    assert tables.budgets == BudgetTable(per_day=5.0, keys={"team-a": 1.5, "team_a": 2.0})
    assert tables.routing == RoutingTable(shadow=0.0, keep_prompts=True)


REMOTE = '[models.r]\nurl = "https://example.com"\ninput-price = 1\noutput-price = 1\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[models.a.5b]\ncost-per-hour = 1", "there is no table '5b' in it; a name with dots needs quotes"),
        ("[models.a]\ncost-pr-hour = 1", "there is no 'cost_pr_hour' (did you mean cost_per_hour?)"),
        ("[models.a]\ncost-per-hour = nan", "[models.a] cost_per_hour: expected a finite number, not nan"),
        ("[models.a]\ncost-per-hour = -1", "[models.a] cost_per_hour: expected `float` >= 0.0"),
        ("[models.a]\ncost-per-hour = true", "[models.a] cost_per_hour: expected `float`, got `bool`"),
        ("[models.a]\nreplicas = 0", "[models.a] replicas: expected `int` >= 1"),
        ("[models.a]\nabilities = ['tool']", "logprobs, completions, not 'tool' (did you mean tools?)"),
        (REMOTE + "api = 'opnai'", "api: expected openai, anthropic, not 'opnai' (did you mean openai?)"),
        ("[models.a]\ntier = 'a b'", "[models.a] tier: a name has up to 128 letters"),
        ("[models.'a\"b']", "[models]: a name has up to 128 letters, digits and any of . _ : / @ + -"),
        ("models = 3", "[models]: expected tables [models.NAME]"),
        ("[models]\na = 3", "[models.a]: expected a table, not 3"),
        ("[models.a]\ncost-per-hour = 1\ncost_per_hour = 2", "cost_per_hour: stands there twice"),
        ("[models.a]\nupstream = 'b'", "[models.a] upstream: not for a local model, and this one has"),
        (REMOTE + "cost-per-hour = 1", "cost_per_hour: not for a remote model, and this one has a `url`"),
        ("[models.r]\nurl = 'https://x'\noutput-price = 1", "[models.r] input_price: a remote model needs"),
        (
            "[models.r]\nurl = 'https://a.example/v1/chat/completions'",
            "[models.r] url: expected an API's base, such as https://a.example/v1, without /chat/completions",
        ),
        ("[models.r]\nurl = 'example.com/v1'", "[models.r] url: expected a URL that begins with https://"),
        ("[models.r]\nurl = 'https://'", "[models.r] url: expected a URL that begins with https://"),
        ("[models.r]\nurl = 'http://h:99999'", "[models.r] url: expected a URL that begins with https://"),
        ("[models.r]\nurl = 'https://h/a b'", "[models.r] url: expected a URL that begins with https://"),
        (REMOTE + "idle-timeout = 0", "[models.r] idle_timeout: expected `float` > 0.0"),
        ("[models.a]\n[policies.p]\nmodels = ['b', 'a']", "[policies.p] models: there is no [models.b]"),
        ("[models.a]\n[policies.p]\nmodels = ['a', 'a']", "[policies.p] models: 'a' stands there twice"),
        ("[models.a]\n[policies.p]\nmodels = []", "[policies.p] models: expected `array` of length >= 1"),
        ("[models.a]\n[policies.p]\nquality = 0", "[policies.p] quality: expected `float` > 0.0"),
        ("[models.a]\n[policies.p]\nquality = 95", "[policies.p] quality: expected `float` <= 1.0"),
        ("[models.a]\n[policies.p]\nkind = 'cascades'", "not 'cascades' (did you mean cascade?)"),
        ("[models.a]\n[policies.p]\naccept = 0.5", "[policies.p] accept: only a cascade accepts answers"),
        ("[models.a]\n[policies.p]\noptions = { a = 1 }", "[policies.p] options: only for a class of"),
        ("[models.a]\n[policies.p]\npace = true", "[policies.p] pace: only best-in-budget keeps one"),
        ("[models.a]\n[policies.p]\nkind = 'best-in-budget'\npace = true\n[budgets]\nper-request = 1",
         "[policies.p] pace: there is no budget of a day to spread; set per-day, per-key-day or keys"),
        ("[models.a]\n[policies.a]", "'a' names a model and a policy"),
        ("[models.a]\n[models.auto]", "'auto' names a model and a policy"),
        ("[policies.p]", "[policies.p]: a policy needs tables [models.NAME] to choose from"),
        ("[budgets]\nper_day = inf", "[budgets] per_day: expected a finite number, not inf"),
        ("[budgets]\nkeys = { a = nan }", "[budgets] keys a: expected a finite number, not nan"),
        ("[routing]\ngrader = 'jugde'", "[routing] grader: expected judge, agreement or a class"),
        ("[routing]\nshadow = 2", "[routing] shadow: expected `float` <= 1.0"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_the_table_and_the_key(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert str(error.value).startswith("headrace.toml: ")
    assert told in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "key = 'sk-secret'",
        "api-key = 'sk-secret'",
        "token = 'sk-secret'",
        "key-env = 'sk-secret'",
        "url = 'https://user:sk-secret@h'",
        "url = 'https://h/?key=sk-secret'",
    ],
)
def test_a_key_in_the_file_is_refused_and_never_shown(line: str) -> None:
    prices = "input-price = 1\noutput-price = 1\n"
    url = "" if line.startswith("url") else "url = 'https://h'\n"
    with pytest.raises(ConfigError) as error:
        read(f"[models.r]\n{prices}{url}{line}")
    assert "secret" not in str(error.value)
    assert "variable" in str(error.value)
