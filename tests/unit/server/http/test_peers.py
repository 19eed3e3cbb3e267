"""Who may connect, and who has to make room."""

from __future__ import annotations

from dataclasses import replace

from fairway.server.http.limits import ADDRESS_CROWDED, CROWDED, HttpLimits
from fairway.server.http.peers import Peer, Peers
from fairway.server.http.read_turns import Standing


class House:
    """Connections of some addresses, and those that were asked to leave."""

    def __init__(self, **limits: int) -> None:
        self.peers = Peers(HttpLimits(**limits))
        self.gone: list[Peer] = []

    def come(self, address: str = "a") -> tuple[Peer, object]:
        peer = Peer(self.peers, address, lambda: None)
        refusal, goes = self.peers.enter(peer)
        if goes is not None:
            self.gone.append(goes)
            self.peers.leave(goes)
        return peer, refusal


def test_strangers_never_have_the_last_places_and_the_eldest_goes_first() -> None:
    house = House(connections_max=10, connections_reserved=4)
    strangers = [house.come()[0] for _ in range(6)]
    assert not house.gone
    house.come()
    house.come()
    assert house.gone == strangers[:2]
    assert house.peers.strangers == 6


def test_a_known_one_stays_and_a_full_house_of_them_refuses() -> None:
    house = House(connections_max=4, connections_reserved=2)
    for number in range(4):
        peer, refusal = house.come(f"a{number}")
        assert refusal is None
        assert peer.show("key")
    _, refusal = house.come("late")
    assert refusal is CROWDED
    assert not house.gone


def test_whoever_was_asked_to_go_is_asked_once() -> None:
    house = House(connections_max=4, connections_reserved=2)
    eldest, _ = house.come()
    known, _ = house.come()
    known.show("key")
    house.come()
    peer = Peer(house.peers, "a", lambda: None)
    assert house.peers.enter(peer)[1] is eldest
    another = Peer(house.peers, "a", lambda: None)
    assert house.peers.enter(another)[1] is not eldest


def test_of_many_who_come_before_anybody_has_gone_each_finds_a_place() -> None:
    """Those who were asked to go take a moment to do so; their places are taken already."""
    peers = Peers(HttpLimits(connections_max=4, connections_reserved=2))
    known = Peer(peers, "a", lambda: None)
    peers.enter(known)
    known.show("key")
    going = []
    for _ in range(10):
        refusal, goes = peers.enter(Peer(peers, "a", lambda: None))
        assert refusal is None
        going += [] if goes is None else [goes]
    assert (len(peers), peers.strangers, len(going)) == (3, 2, 8)
    for peer in going:
        peers.leave(peer)
    assert len(peers) == 3


def test_an_address_has_its_bound_and_others_have_theirs() -> None:
    house = House(connections_max=10, connections_per_address=2)
    first, _ = house.come("a")
    assert house.come("a")[1] is None
    over, refusal = house.come("a")
    assert refusal == replace(ADDRESS_CROWDED, maximum=2)
    assert house.come("b")[1] is None
    house.peers.leave(over)
    house.peers.leave(first)
    assert house.come("a")[1] is None


def test_a_key_has_its_bound_and_a_connection_may_change_its_key() -> None:
    house = House(connections_max=10, connections_per_key=1)
    first, second = house.come()[0], house.come()[0]
    assert first.show("ann")
    assert first.show("ann")
    assert not second.show("ann")
    assert second.standing is Standing.NEW
    assert first.show("bob")
    assert second.show("ann")
    house.peers.leave(first)
    house.peers.leave(second)
    assert len(house.peers) == house.peers.strangers == 0


def test_showing_no_key_makes_a_stranger_only_of_whoever_was_never_known() -> None:
    peer, _ = House().come()
    peer.seems_strange()
    assert peer.standing is Standing.STRANGER
    peer.show("ann")
    peer.seems_strange()
    assert peer.standing is Standing.KNOWN
