"""Tests which connections are closed if there are more than the limit."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.core.runtime.connection_limit import ConnectionLimit, network_of

_YES_OR_NO = st.booleans()


class _Connection:
    def __init__(self, *, waits: bool = True) -> None:
        self.waits_for_client = waits
        self.waits_for_turn = False
        self.closed = False

    def close_if_idle(self) -> bool:
        self.closed = self.waits_for_client
        return self.closed

    def close_if_waiting(self) -> bool:
        self.closed = self.waits_for_turn
        return self.closed


def _room(size: int) -> ConnectionLimit[_Connection]:
    return ConnectionLimit(size, _Connection.close_if_idle, _Connection.close_if_waiting)


def _entered(
    room: ConnectionLimit[_Connection], network: str, number: int, *, waits: bool = True
) -> list[_Connection]:
    found = [_Connection(waits=waits) for _ in range(number)]
    for connection in found:
        assert room.enter(connection, network)
    return found


def test_one_network_has_a_part_of_the_room_and_loses_its_oldest() -> None:
    room = _room(80)
    other = _entered(room, "other", 1)
    first = _entered(room, "mine", 10)
    _entered(room, "mine", 3)
    assert [connection.closed for connection in first] == [True] * 3 + [False] * 7
    assert not other[0].closed


def test_connections_with_a_key_do_not_count_for_their_network() -> None:
    room = _room(80)
    for connection in _entered(room, "proxy", 10):
        room.recognise(connection, 1)
    assert not any(connection.closed for connection in _entered(room, "proxy", 10))


def test_connections_without_a_key_are_closed_first() -> None:
    room = _room(8)
    known = [_entered(room, str(at), 1)[0] for at in range(4)]
    for connection in known:
        room.recognise(connection, 1)
    unknown = [_entered(room, f"n{at}", 1)[0] for at in range(4)]
    _entered(room, "new", 1)
    assert [connection.closed for connection in unknown] == [True, False, False, False]
    assert not any(connection.closed for connection in known)


def test_then_those_of_the_organization_with_the_most() -> None:
    room = _room(8)
    owners = [1, 1, 2, 1, 1, 2, 1, 1]
    known = [_entered(room, str(at), 1)[0] for at in range(8)]
    for connection, owner in zip(known, owners, strict=True):
        room.recognise(connection, owner)
    _entered(room, "new", 1)
    assert [at for at, connection in enumerate(known) if connection.closed] == [0]


def test_if_none_is_idle_a_request_of_the_largest_group_makes_way() -> None:
    room = _room(16)
    known = [_entered(room, str(at), 1, waits=False)[0] for at in range(14)]
    for at, connection in enumerate(known):
        room.recognise(connection, at % 3)
    unknown = _entered(room, "without a key", 2, waits=False)
    for connection in (*known[1:], *unknown):
        connection.waits_for_turn = True
    _entered(room, "new", 1)
    # The largest organization has the connections 0, 3, 6, 9 and 12, and 0 is busy.
    assert [at for at, connection in enumerate(known) if connection.closed] == [3]
    assert not any(connection.closed for connection in unknown)


def test_without_keys_a_request_of_the_largest_network_makes_way() -> None:
    room = _room(16)
    networks = ["a", "b", "b", "c", *(f"n{at}" for at in range(12))]
    inside = [_entered(room, network, 1, waits=False)[0] for network in networks]
    for connection in inside:
        connection.waits_for_turn = True
    _entered(room, "new", 1)
    assert [at for at, connection in enumerate(inside) if connection.closed] == [1]


def test_busy_connections_are_never_closed() -> None:
    room = _room(200)
    busy = [_entered(room, str(at), 1, waits=False)[0] for at in range(200)]
    assert not room.enter(_Connection(), "new")
    assert len(room) == 200
    busy[150].waits_for_client = True
    # Each search continues at the connection where the last search ended.
    assert any(room.enter(_Connection(), "new") for _ in range(4))
    assert busy[150].closed


@pytest.mark.slow
@given(st.data())
def test_the_room_is_never_exceeded(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    room = _room(size)
    inside: list[_Connection] = []
    for _ in range(data.draw(st.integers(1, 120))):
        network = data.draw(st.sampled_from("abcdef"))
        connection = _Connection(waits=data.draw(_YES_OR_NO))
        if room.enter(connection, network):
            inside.append(connection)
        inside = [connection for connection in inside if not connection.closed]
        if data.draw(_YES_OR_NO) and inside:
            room.recognise(data.draw(st.sampled_from(inside)), data.draw(st.integers(1, 3)))
        if data.draw(st.integers(0, 3)) == 0 and inside:
            room.leave(inside.pop(data.draw(st.integers(0, len(inside) - 1))))
        assert len(room) == len(inside) <= size
        assert all(count <= max(size // 8, 1) for count in _by_network(room).values())


def _by_network(room: ConnectionLimit[_Connection]) -> Counter[str]:
    return Counter({str(name): len(group) for name, group in room._networks.items()})


@each(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("unix:", "unix:", True),
        ("192.0.2.1:80", "192.0.2.1:81", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ],
)
def test_who_has_one_address_of_a_network_has_them_all(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same
