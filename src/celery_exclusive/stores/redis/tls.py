"""TLS to a server: what a URL and the settings of Celery say of it, and what to do if it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from ssl import TLSVersion
from typing import Any
from urllib.parse import urlencode

from celery_exclusive.errors import OptionError, did_you_mean
from celery_exclusive.stores import hints

_TEXTS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_ca_data",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_ciphers",
)
_OPTIONS = (*_TEXTS, "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version")
_CHECKS = ("none", "optional", "required")
"""In the order of the numbers of `ssl.VerifyMode`."""
_NAME = "write the host of its URL as its certificate names it, or have it issued for this host"
_VALIDITY = "renew its certificate, and compare the clocks of both machines"
_FILES = (
    "correct the files that ssl_ca_certs, ssl_certfile and ssl_keyfile of its URL name, and ssl_password if "
    "its key has one"
)
_CLIENT = "name a certificate that it accepts, and its key, as ssl_certfile and ssl_keyfile in its URL"
HINTS = {
    **dict.fromkeys(("Hostname mismatch", "IP address mismatch", "doesn't match"), _NAME),
    **dict.fromkeys(("certificate has expired", "certificate is not yet valid"), _VALIDITY),
    "certificate verify failed": "name the file of the authority that issued it, as ssl_ca_certs in its URL",
    "wrong version number": "it speaks no TLS on this port: leave TLS out of its URL",
    **dict.fromkeys(("KEY_VALUES_MISMATCH", "[SSL] PEM lib", "NO_CERTIFICATE_OR_CRL_FOUND"), _FILES),
    **dict.fromkeys((" alert certificate", " alert unknown ca", " alert bad certificate"), _CLIENT),
}
"""What to do, by words of the errors of OpenSSL. The first that is found counts."""
_OF_FILES = ("No such file", "Permission denied")
_BROKEN_OFF = ("reset", "closed", "EOF", "Broken pipe")


def options(query: Mapping[str, str]) -> dict[str, str | int]:
    """Return the options of redis-py's connections.

    Raises:
        OptionError: one is wrong, or not known; a connection without it may be less safe than was meant.
    """
    for name in query:
        if name.startswith("ssl_") and name not in _OPTIONS:
            raise OptionError(f"exclusive_store: there is no option {name}{did_you_mean(name, _OPTIONS)}")
    given: dict[str, str | int] = {name: query[name] for name in _TEXTS if name in query}
    check = query.get("ssl_cert_reqs", "required").lower().removeprefix("cert_")
    if check not in _CHECKS:
        raise OptionError(f"exclusive_store: ssl_cert_reqs is one of {', '.join(_CHECKS)}")
    if "ssl_keyfile" in given and "ssl_certfile" not in given:
        raise OptionError("exclusive_store: ssl_keyfile needs ssl_certfile, the certificate of this key")
    if "ssl_certfile" in given:
        given.setdefault("ssl_password", "")  # else OpenSSL asks for that of the key on the terminal
    given["ssl_cert_reqs"] = check
    named = query.get("ssl_check_hostname", str(check != "none"))  # redis-py 5 checks no name by itself
    given["ssl_check_hostname"] = named.lower() in ("1", "true", "yes", "on")
    if "ssl_min_version" in query:
        given["ssl_min_version"] = _version(query["ssl_min_version"])
    return given


def with_settings(url: str, settings: Any) -> str:
    """Return a URL of Redis with what `broker_use_ssl` or `redis_backend_use_ssl` says beside it.

    As in Celery their dictionary makes it one of TLS, and what the URL says itself counts.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in ("redis", "rediss") or not (settings and isinstance(settings, Mapping)):
        return url
    place, _, query = rest.partition("?")
    return f"rediss://{place}?{'&'.join(part for part in (urlencode(of_settings(settings)), query) if part)}"


def of_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `broker_use_ssl` or `redis_backend_use_ssl` says, as the query of a URL says it."""
    given = {name: value for name, value in settings.items() if name.startswith("ssl_") and value}
    if "ssl_cert_reqs" in settings:
        given["ssl_cert_reqs"] = _check(settings["ssl_cert_reqs"])
    if "ssl_check_hostname" in settings:
        given["ssl_check_hostname"] = settings["ssl_check_hostname"]
    if "ssl_min_version" in given:
        given["ssl_min_version"] = int(given["ssl_min_version"])
    return given


def next_step(text: str, *, is_tls: bool, begin: str) -> str:
    """Say what to do about a server to which no connection was made, for a reason that names none itself.

    `begin` is what to do if it speaks TLS and we do not.
    """
    if is_tls and any(word in text for word in _OF_FILES):
        return _FILES
    if is_tls and any(word in text for word in (*_BROKEN_OFF, "imeout")):
        return (
            f"{hints.ALIVE}, that this port speaks TLS, and, if it asks clients for certificates, {_CLIENT}"
        )
    if any(word in text for word in _BROKEN_OFF):
        return f"{hints.ALIVE}; if it speaks TLS, {begin}"
    return hints.ALIVE


def _check(value: object) -> str:
    if isinstance(value, int) and 0 <= value < len(_CHECKS):
        return _CHECKS[value]
    return str(value or "none")


def _version(text: str) -> int:
    """Return a version of TLS by its number, as 772, or its name, as TLSv1_3."""
    try:
        return TLSVersion[text] if text in TLSVersion.__members__ else TLSVersion(int(text))
    except ValueError:
        raise OptionError(
            "exclusive_store: ssl_min_version is the name of a version of TLS, as TLSv1_3"
        ) from None
