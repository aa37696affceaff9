"""The URL of a Redis Cluster."""

from __future__ import annotations

import pytest

from celery_exclusive.errors import OptionError
from celery_exclusive.stores.base import knows
from celery_exclusive.stores.redis.address import parse_cluster
from celery_exclusive.stores.redis.nodes import read_slots


@pytest.mark.proves("cluster round trips")
@pytest.mark.parametrize(
    ("url", "shown", "places"),
    [
        ("redis+cluster://a:7000", "redis+cluster://a:7000", [("a", 7000)]),
        ("redis+cluster://a:7000;b:7001/0", "redis+cluster://a:7000;b:7001", [("a", 7000), ("b", 7001)]),
        ("rediss+cluster://a", "rediss+cluster://a:6379", [("a", 6379)]),
        ("valkey+cluster://[::1]:7000", "valkey+cluster://[::1]:7000", [("::1", 7000)]),
        ("redis+cluster://me:geheim@a;b", "redis+cluster://me:**@a:6379;b:6379", [("a", 6379), ("b", 6379)]),
        ("redis+cluster://:geheim@a?socket_timeout=2", "redis+cluster://:**@a:6379", [("a", 6379)]),
    ],
)
def test_the_url_of_a_cluster_names_its_nodes_and_does_not_show_its_password(
    url: str, shown: str, places: list[tuple[str, int]]
) -> None:
    assert knows(url)
    found, nodes = parse_cluster(url)
    assert (found, [node.host_and_port for node in nodes]) == (shown, places)
    assert "geheim" not in repr(nodes)


@pytest.mark.proves("cluster round trips")
def test_other_nodes_are_reached_as_the_first_ones_are() -> None:
    _, (first, _) = parse_cluster(
        "rediss+cluster://me:a%2Fb@a:7000;b:7001?ssl_ca_certs=/ca.pem&socket_timeout=2"
    )
    for host in ("c", "::1"):
        node = first.of_node(host, 1)
        assert node.is_tls
        assert node.options == {**first.options, "host": host, "port": 1}
        assert {
            "username": "me",
            "password": "a/b",
            "ssl_ca_certs": "/ca.pem",
        }.items() <= node.options.items()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+cluster://a/1", "a Redis Cluster has no database but 0"),
        ("redis+cluster://a?virtual_host=2", "a Redis Cluster has no database but 0"),
        ("redis+cluster://a:7000,b:7001", "give port and timeouts as numbers"),
        ("redis+cluster://me:gehe/im@a", "percent-encode what is special in its password"),
        ("redis+cluster:/a", "is like redis+cluster://a:7000;b:7001"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_a_part_of_it(url: str, words: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_cluster(url)
    assert words in str(refused.value)
    assert "gehe" not in str(refused.value)


def test_a_node_that_does_not_know_its_own_host_is_the_one_that_was_asked() -> None:
    members = [[b"", 7000, b"id"], [None, 7003, b"id"]]
    owners, places = read_slots(
        [[0, 16_383, *members, [b"b", 7001, b"id", [b"hostname", b"x"]]]], "a", [1, 16_383]
    )
    assert owners == {1: ("a", 7000), 16_383: ("a", 7000)}
    assert places == {("a", 7000), ("a", 7003), ("b", 7001)}
    assert read_slots([], "a", [1]) == ({}, set())
