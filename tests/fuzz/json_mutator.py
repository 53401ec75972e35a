"""Changes JSON so that it stays JSON. After random changes of bytes, data is rarely still JSON."""

import json
import random
from collections.abc import Callable
from typing import Any

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 10**30, 0.5, 1e308, "", "x", "\x00"),
    *("\ud800", "é" * 10, "a" * 300, [], {}, [[]], [None], {"": None}, "null", "1"),
)
_JSON_CHANGED = 0.7  # The probability of a change to a JSON value. Otherwise, bytes are changed.


def mutated(
    data: bytes, size_max: int, seed: int, change_bytes: Callable[[bytes, int], bytes]
) -> bytes:
    """Returns the data with one changed value in one line and maybe reordered lines, or with changed bytes."""
    chance = random.Random(seed)
    if chance.random() > _JSON_CHANGED:
        return change_bytes(data, size_max)
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    try:
        value = json.loads(lines[at])
        lines[at] = json.dumps(_changed(value, chance)).encode()
    except (ValueError, RecursionError):
        return change_bytes(data, size_max)
    if len(lines) > 1 and chance.random() < 0.2:
        chance.shuffle(lines)
    found = b"\n".join(lines)
    return found if len(found) <= size_max else change_bytes(data, size_max)


def _changed(value: Any, chance: random.Random) -> Any:
    places = _places(value)
    if not places:
        return chance.choice(_VALUES)
    parent, key = chance.choice(places)
    other_parent, other_key = chance.choice(places)
    match chance.randrange(5):
        case 0:
            parent[key] = chance.choice(_VALUES)
        case 1:
            parent[key] = other_parent[other_key]
            # This raises ValueError if the value now contains itself.
            value = json.loads(json.dumps(value))
        case 2 if isinstance(parent, dict):
            del parent[key]
        case 3 if isinstance(parent, list):
            parent.insert(key, parent[key])
        case 4 if isinstance(parent, dict):
            parent[chance.choice([k for _, k in places if isinstance(k, str)])] = parent[key]
        case _:
            parent[key] = [parent[key]]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Returns every value inside of this value, as its parent and its key."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        keys = range(len(one)) if isinstance(one, list) else one if isinstance(one, dict) else ()
        for key in keys:
            found.append((one, key))
            waiting.append(one[key])
    return found
