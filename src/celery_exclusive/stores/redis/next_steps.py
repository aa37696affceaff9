"""The next steps of a user after errors of a Redis server, of TLS, and of missing rights."""

from __future__ import annotations

import re

from celery_exclusive.errors import docs_page
from celery_exclusive.stores import hints

_NAME = "write the host of its URL as its certificate names it, or have it issued for this host"
_VALIDITY = "renew its certificate, and compare the clocks of both machines"
_FILES = (
    "correct the files that ssl_ca_certs, ssl_certfile and ssl_keyfile of its URL name, and ssl_password if "
    "its key has one"
)
_CLIENT = "name a certificate that it accepts, and its key, as ssl_certfile and ssl_keyfile in its URL"
_OF_FILES = ("No such file", "Permission denied")
_BROKEN_OFF = ("reset", "closed", "EOF", "Broken pipe")
CLUSTER = "it is a Redis Cluster: name it redis+cluster:// in exclusive_store, rediss+cluster:// with TLS"
HINTS = {
    **dict.fromkeys(("NOPERM", "ACL failure in script", "executing the script can't"), ""),
    "LOADING": "it is still reading its data: try again in a moment",
    "READONLY": hints.REPLICA,
    "MASTERDOWN": "it is a replica without its primary: point exclusive_store to the primary",
    "NOREPLICAS": "fewer replicas follow it than its min-replicas-to-write: look for them",
    "OOM": "its memory is full: raise its maxmemory, or give the locks a server of their own",
    **dict.fromkeys(("NOAUTH", "unauthenticated"), hints.LOGIN),
    "WRONGPASS": hints.LOGIN,
    "max number of clients": "it serves as many as its maxclients allows: raise that, or see CLIENT LIST",
    "busy running": "SCRIPT KILL ends a script that runs on and on, but none that has written: wait for that",
    "MISCONF": "it cannot write its data to disk: read its log",
    "MOVED": CLUSTER,
    "CLUSTERDOWN": CLUSTER,
    "DB index": "name a database that the server has, 0 in a Redis Cluster",
    "unknown command": "check that it is a Redis server and allows this command",
    **dict.fromkeys(("Hostname mismatch", "IP address mismatch", "doesn't match"), _NAME),
    **dict.fromkeys(("certificate has expired", "certificate is not yet valid"), _VALIDITY),
    "certificate verify failed": "name the file of the authority that issued it, as ssl_ca_certs in its URL",
    "wrong version number": "it speaks no TLS on this port: leave TLS out of its URL",
    **dict.fromkeys(("KEY_VALUES_MISMATCH", "[SSL] PEM lib", "NO_CERTIFICATE_OR_CRL_FOUND"), _FILES),
    **dict.fromkeys((" alert certificate", " alert unknown ca", " alert bad certificate"), _CLIENT),
}
"""The next steps, by words of errors. The first word that is found counts. Empty: `to_grant` makes it."""


def to_grant(text: str, user: str) -> str:
    """Return the next step after an error about a missing right."""
    as_shown = f"as the ACL line in {docs_page('how-to/security')} does"
    if command := re.search(r"run the '([^']+)' command", text):
        return f"grant its user this command, {as_shown}: ACL SETUSER {user} +{command[1]}"
    if re.search(r"\bkeys?\b", text):
        own = "~cx2:* (for the prefix cx)"
        return f"grant its user the keys of exclusive_prefix, {as_shown}: ACL SETUSER {user} {own}"
    return f"grant its user all rights on exclusive_prefix, {as_shown}; ACL LOG shows which one is missing"


def to_reach(text: str, *, is_tls: bool, begin: str) -> str:
    """Return the next step after a failed connection whose error names none.

    `begin`: the next step if the server speaks TLS and the store does not.
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
