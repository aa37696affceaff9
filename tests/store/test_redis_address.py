"""What a Redis URL means, as Celery reads it, and what of it may be shown."""

from __future__ import annotations

import subprocess
import sys
from ssl import TLSVersion

import pytest

from celery_exclusive.errors import OptionError
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.redis import sentinel
from celery_exclusive.stores.redis.address import Address, parse

URLS = {
    "redis://": "redis://localhost:6379/0",
    "redis://example.org": "redis://example.org:6379/0",
    "redis://example.org:6380/2": "redis://example.org:6380/2",
    "redis://example.org//": "redis://example.org:6379/0",
    "redis://example.org?db=4": "redis://example.org:6379/4",
    "redis://:s%40cret@example.org/2": "redis://:**@example.org:6379/2",
    "redis://me:s%40cret@example.org/2?ssl_password=x": "redis://me:**@example.org:6379/2",
    "redis://example.org/2?password=secret": "redis://:**@example.org:6379/2",
    "redis://example.org/2?username=me&password=p@ss": "redis://me:**@example.org:6379/2",
    "redis://secret@example.org/2": "redis://**@example.org:6379/2",
    "redis+socket:///run/a@b.sock": "redis+socket:///run/a@b.sock?virtual_host=0",
    "redis+socket:///run/a%0Ab.sock": r"redis+socket:///run/a\x0ab.sock?virtual_host=0",
    "valkey://[::1]:7000/1": "valkey://[::1]:7000/1",
    "rediss://example.org/1?ssl_cert_reqs=CERT_NONE": "rediss://example.org:6379/1",
    "valkeys://example.org": "valkeys://example.org:6379/0",
    "redis+socket:///run/redis.sock": "redis+socket:///run/redis.sock?virtual_host=0",
    "redis+socket://:pw@/run/redis.sock?virtual_host=2": "redis+socket://:**@/run/redis.sock?virtual_host=2",
    "valkey+socket:///run/my%20redis.sock?db=1": "valkey+socket:///run/my redis.sock?virtual_host=1",
}


@pytest.mark.proves("passwords")
@pytest.mark.parametrize(("url", "shown"), URLS.items())
def test_a_url_is_shown_whole_but_for_its_password(url: str, shown: str) -> None:
    assert parse(url).shown == shown
    assert open_store(url).url == shown


def options(url: str) -> dict[str, object]:
    return {name: value for name, value in parse(url).options.items() if value is not None}


def test_host_database_and_credentials_are_taken_from_the_url() -> None:
    assert options("redis://me:s%40cret@example.org:6380/2") == {
        "host": "example.org",
        "port": 6380,
        "db": 2,
        "username": "me",
        "password": "s@cret",
        "socket_timeout": 5.0,
        "socket_connect_timeout": 5.0,
    }


def test_time_outs_may_be_given() -> None:
    given = options(
        "redis://h?socket_timeout=1.5&socket_connect_timeout=2&visibility_timeout=3&max_connections=9"
    )
    assert (given["socket_timeout"], given["socket_connect_timeout"]) == (1.5, 2.0)
    assert not given.keys() & {"visibility_timeout", "max_connections"}


@pytest.mark.proves("TLS")
@pytest.mark.parametrize("value", ["CERT_OPTIONAL", "optional"])
def test_tls_is_configured_as_celery_does(value: str) -> None:
    given = options(f"rediss://h?ssl_cert_reqs={value}&ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false")
    assert given["ssl_cert_reqs"] == "optional"
    assert given["ssl_ca_certs"] == "/etc/ca.pem"
    assert given["ssl_check_hostname"] is False


@pytest.mark.proves("TLS options")
@pytest.mark.parametrize("version", ["TLSv1_3", "772"])
def test_the_oldest_version_of_tls_has_its_number_or_its_name(version: str) -> None:
    assert options(f"rediss://h?ssl_min_version={version}")["ssl_min_version"] == TLSVersion.TLSv1_3


def test_tls_checks_certificates_unless_the_url_says_otherwise() -> None:
    assert options("rediss://h")["ssl_cert_reqs"] == "required"


@pytest.mark.proves("TLS")
def test_the_host_is_compared_with_the_certificate_whatever_the_version_of_redis_py() -> None:
    assert options("rediss://h")["ssl_check_hostname"] is True
    assert options("rediss://h?ssl_cert_reqs=none")["ssl_check_hostname"] is False


def test_a_socket_has_a_path() -> None:
    address = parse("redis+socket:///run/redis.sock?virtual_host=2")
    assert address.is_socket
    assert (address.options["path"], address.options["db"]) == ("/run/redis.sock", 2)


@pytest.mark.promise(
    "A time-out in a Redis URL that no socket can have is named; `locked()` of a damaged key raises on "
    "memcached, too",
    name="impossible time-outs",
    broke="red before: bare ValueError, OverflowError; not held",
)
@pytest.mark.proves("replicas in the URL", "TLS options")
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://:secret@h/first", "database of a Redis URL is a number"),
        ("redis://:secret@h:port/1", "redis:// URL"),
        ("redis://:secret@h?socket_timeout=long", "redis:// URL"),
        (
            "redis://:secret@h?socket_timeout=-1",
            "socket_timeout=-1 .* a number of seconds above 0, at most 86400",
        ),
        ("redis://:secret@h?socket_timeout=0", "socket_timeout=0 of a Redis URL must be"),
        ("redis://:secret@h?socket_timeout=nan", "socket_timeout=nan of a Redis URL must be"),
        ("redis://:secret@h?socket_connect_timeout=1e300", "socket_connect_timeout=1e300 of a Redis URL"),
        ("rediss://:secret@h?ssl_cert_reqs=maybe", "none, optional, required"),
        ("rediss://:secret@h?ssl_keyfile=/k", "ssl_keyfile needs ssl_certfile"),
        ("rediss://:secret@h?ssl_ca_cert=/k", "no option ssl_ca_cert: did you mean 'ssl_ca_certs'"),
        ("rediss://:secret@h?ssl_min_version=1.3", "ssl_min_version is the name of a version of TLS"),
        ("redis+socket://:secret@", "name the socket file"),
        ("redis://:secret@h?replica=1", "no option replica: did you mean 'replicas'"),
        ("redis://:secret@h?socket_timeouts=1", "no option socket_timeouts: did you mean 'socket_timeout'"),
    ],
)
def test_a_url_that_cannot_be_understood_is_an_option_error_without_password(url: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        parse(url)
    assert "secret" not in str(refused.value)
    assert str(refused.value).count("exclusive_store") == 1


def test_an_address_knows_its_kind_of_connection() -> None:
    assert kind(parse("rediss://h")) == kind(parse("valkeys://h")) == (False, True)
    assert kind(parse("redis+socket:///s")) == kind(parse("valkey+socket:///s")) == (True, False)
    assert kind(parse("redis://h")) == kind(parse("valkey://h")) == (False, False)


def kind(address: Address) -> tuple[bool, bool]:
    return address.is_socket, address.is_tls


def test_a_missing_driver_is_named_with_the_command_that_installs_it() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from celery_exclusive.stores.base import open_store\n"
        "from celery_exclusive.errors import OptionError\n"
        "try: open_store('redis://')\n"
        "except OptionError as error: assert \"pip install 'celery-exclusive[redis]'\" in str(error)\n"
        "else: raise SystemExit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.proves("sentinel settings")
@pytest.mark.parametrize(
    ("url", "shown", "hosts", "database", "login"),
    [
        (
            "sentinel://:se%2Fcret@a:1;sentinel://b/2?master_name=m",
            "sentinel://:**@a:1;b:26379/2?master_name=m",
            [("a", 1), ("b", 26379)],
            2,
            (None, "se/cret"),
        ),
        (
            "sentinel://me:secret@a;b:3;c/0?socket_timeout=2&master_name=m",
            "sentinel://me:**@a:26379;b:3;c:26379/0?master_name=m",
            [("a", 26379), ("b", 3), ("c", 26379)],
            0,
            ("me", "secret"),
        ),
    ],
)
def test_sentinels_are_read_as_celery_reads_them(
    url: str, shown: str, hosts: list[tuple[str, int]], database: int, login: tuple[str | None, str]
) -> None:
    sentinels = sentinel.parse(url)
    assert (sentinels.shown, sentinels.hosts, sentinels.name) == (shown, hosts, "m")
    given = options(sentinels.servers)
    assert (given["db"], (given.get("username"), given["password"])) == (database, login)
    assert "secret" not in repr(sentinels)


@pytest.mark.proves("sentinel with TLS")
@pytest.mark.parametrize("query", ["ssl_cert_reqs=none", "ssl_ca_certs=/ca.pem"])
def test_servers_behind_sentinel_have_tls_if_the_url_says_something_of_it(query: str) -> None:
    sentinels = sentinel.parse(f"sentinel://me:secret@a:1;sentinel://b:2/3?master_name=m&{query}")
    assert parse(sentinels.servers).is_tls
    assert sentinels.shown == "sentinel://me:**@a:1;b:2/3?master_name=m"
    assert not parse(sentinel.parse("sentinel://a?master_name=m").servers).is_tls


@pytest.mark.proves("sentinel settings")
@pytest.mark.parametrize(
    "url",
    [
        "sentinel://:secret@a:port;sentinel://b?master_name=m",
        "sentinel://a/secret?master_name=m",
        "sentinel://a?master_name=m&sentinel_kwargs=secret",
        "sentinel://a?master_name=m&replicas=secret",
        "sentinel://:12#secret@a?master_name=m",
        "sentinel://a?master_name=m&sentinel_kwargs=5&secret=1",
        "sentinel://a?master_name=m&ssl_pasword=secret",
        "sentinel://a?master_name=m&min_other_sentinels=secret",
        'sentinel://a?master_name=m&sentinel_kwargs={"passwort":"secret"}',
    ],
)
def test_a_url_of_sentinels_that_cannot_be_understood_shows_no_part_of_it(url: str) -> None:
    with pytest.raises(OptionError) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_how_many_replicas_have_to_confirm_is_in_the_url() -> None:
    assert (parse("redis://h?replicas=2").replicas, parse("redis://h").replicas) == (2, 0)
    with pytest.raises(OptionError, match=r"replicas= of a Redis URL is a number, as in \?replicas=1"):
        parse("redis://h?replicas=-1")


def test_a_client_key_without_its_password_does_not_prompt() -> None:
    assert parse("rediss://h?ssl_certfile=a&ssl_keyfile=b").options["ssl_password"] == ""


def test_a_cluster_refuses_an_option_that_it_would_not_keep() -> None:
    with pytest.raises(OptionError, match=r"a Redis Cluster knows no replicas=: leave it out of the URL"):
        open_store("redis+cluster://a:7000;b:7001?replicas=1")
