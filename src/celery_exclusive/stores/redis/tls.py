"""TLS to a server: its options in a URL and in Celery's settings."""

from __future__ import annotations

from collections.abc import Mapping
from ssl import TLSVersion
from typing import Any
from urllib.parse import urlencode

from celery_exclusive.errors import OptionError, did_you_mean

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
_FLAGS = ("ssl_cert_reqs", "ssl_check_hostname")
"""The options of Celery's settings whose false values count, too."""
_CHECKS = ("none", "optional", "required")
"""In the order of the numbers of `ssl.VerifyMode`."""


def options(query: Mapping[str, str]) -> dict[str, str | int]:
    """Return the options of redis-py's connections.

    Raises:
        OptionError: an option is wrong or unknown. A connection without it may be less safe than intended.
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
        given.setdefault("ssl_password", "")  # else OpenSSL asks for the password of the key on the terminal
    given["ssl_cert_reqs"] = check
    named = query.get("ssl_check_hostname", str(check != "none"))  # redis-py 5 checks no name by itself
    given["ssl_check_hostname"] = named.lower() in ("1", "true", "yes", "on")
    if "ssl_min_version" in query:
        given["ssl_min_version"] = _version(query["ssl_min_version"])
    return given


def with_settings(url: str, settings: Any) -> str:
    """Return a URL of Redis with the options of `broker_use_ssl` or `redis_backend_use_ssl`.

    As in Celery their dictionary switches TLS on, and an option of the URL itself goes before.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in ("redis", "rediss") or not (settings and isinstance(settings, Mapping)):
        return url
    place, _, query = rest.partition("?")
    return f"rediss://{place}?{'&'.join(part for part in (urlencode(of_settings(settings)), query) if part)}"


def of_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `broker_use_ssl` or `redis_backend_use_ssl`, as the query of a URL has them."""
    given = {
        name: value
        for name, value in settings.items()
        if name.startswith("ssl_") and (value or name in _FLAGS)
    }
    if "ssl_cert_reqs" in given:
        check = given["ssl_cert_reqs"]
        given["ssl_cert_reqs"] = _CHECKS[check] if check in range(len(_CHECKS)) else str(check or "none")
    if "ssl_min_version" in given:
        given["ssl_min_version"] = int(given["ssl_min_version"])
    return given


def _version(text: str) -> int:
    """Return a version of TLS by its number, as 772, or its name, as TLSv1_3."""
    try:
        return TLSVersion[text] if text in TLSVersion.__members__ else TLSVersion(int(text))
    except ValueError:
        raise OptionError(
            "exclusive_store: ssl_min_version is the name of a version of TLS, as TLSv1_3"
        ) from None
