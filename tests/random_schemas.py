"""Random JSON schemas, of what llguidance supports (its docs/json_schema.md)."""

from __future__ import annotations

from random import Random
from typing import Any

Schema = dict[str, Any]
_NAMES = ("name", "age", "id", "tags", "x", "größe", "a b", 'quo"ted', "city", "zip")
_WORDS = ("red", "green", "blue", 'a "b"', "", "ünï", "line\nbreak", "12")
_PATTERNS = (r"^[a-f0-9]{4}$", r"^(yes|no|maybe)$", r"^[A-Z][a-z]{0,6}$", r"^\d{3}-\d{2}$")
_FORMATS = ("date", "time", "uuid", "ipv4", "date-time")


def random_schema(random: Random) -> Schema:
    """An object or an array, sometimes of parts that are defined apart, or of itself."""
    schema = _container(random, 3)
    if random.random() < 0.25:
        schema["$defs"] = {"part": _any(random, 1)}
        _put(schema, {"$ref": "#/$defs/part"})
    elif random.random() < 0.1:
        _put(schema, {"anyOf": [{"type": "null"}, {"$ref": "#"}]})
    return schema


def _put(schema: Schema, part: Schema) -> None:
    """Make a part of a container something else."""
    if schema["type"] == "array":
        schema["items"] = part
    else:
        schema["properties"]["part"] = part


def _any(random: Random, depth: int) -> Schema:
    if depth and random.random() < 0.35:
        return _container(random, depth - 1)
    kinds = _string, _string, _integer, _number, _choice, _simple, _union
    return random.choice(kinds)(random)


def _container(random: Random, depth: int) -> Schema:
    return random.choice((_object, _object, _array))(random, depth)


def _object(random: Random, depth: int) -> Schema:
    names = random.sample(_NAMES, random.randint(0, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: _any(random, depth) for name in names},
        "required": random.sample(names, random.randint(0, len(names))),
        "additionalProperties": False,
    }
    if random.random() < 0.15:
        schema["additionalProperties"] = _integer(random)
    return schema


def _array(random: Random, depth: int) -> Schema:
    least = random.randint(0, 2)
    schema: Schema = {"type": "array", "minItems": least, "maxItems": least + random.randint(0, 3)}
    if random.random() < 0.2:
        schema["prefixItems"] = [_any(random, depth) for _ in range(random.randint(1, 2))]
    schema["items"] = _any(random, depth)
    return schema


def _string(random: Random) -> Schema:
    least = random.randint(0, 4)
    return {
        "type": "string",
        **random.choice(
            (
                {},
                {"maxLength": 12},
                {"minLength": least, "maxLength": least + random.randint(0, 9)},
                {"pattern": random.choice(_PATTERNS)},
                {"format": random.choice(_FORMATS)},
            )
        ),
    }


def _integer(random: Random) -> Schema:
    least = random.randint(-2000, 2000)
    bounds = (
        {"minimum": least},
        {"exclusiveMaximum": least},
        {"minimum": least, "maximum": least + random.randint(0, 500)},
        {"minimum": 0, "maximum": 1000, "multipleOf": random.choice((2, 5, 7))},
    )
    return {"type": "integer", **random.choice(bounds)}


def _number(random: Random) -> Schema:
    least = random.randint(-50, 50) / 4
    return {"type": "number", "minimum": least, "maximum": least + random.randint(1, 100) / 2}


def _choice(random: Random) -> Schema:
    if random.random() < 0.3:
        return {"const": random.choice((*_WORDS, 7, None, True, [1, "a"], {"k": []}))}
    return {"enum": random.sample((*_WORDS, 1, -2, None, False), random.randint(1, 4))}


def _simple(random: Random) -> Schema:
    return random.choice(({"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}))


def _union(random: Random) -> Schema:
    return {"anyOf": [_simple(random), _choice(random), _integer(random)][: random.randint(1, 3)]}
