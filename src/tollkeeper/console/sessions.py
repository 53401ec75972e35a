"""Manages the console's sessions, the tokens that protect its forms, and the limit on sign-in
attempts."""

import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from tollkeeper.console.session_store import StoredSession
from tollkeeper.console.stored_sessions import ConsoleSessions
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.tenants.people import Person, Role

COOKIE = "tollkeeper_console"
TOKEN_PREFIX = "tko_"  # noqa: S105 - the beginning of every token
_FORM_TOKEN_BYTES = 16
# The number of wrong attempts that one network may make in `_WINDOW_S` seconds.
_WINDOW_S = 300
_WRONG_MAX = 10
# The number of wrong tokens that all networks together may send in this time.
WRONG_TOKENS_MAX = 100
# The maximum numbers of networks and of sent forms that are kept in memory.
_NETWORKS_MAX = 10_000
_SENT_FORMS_MAX = 20_000


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """Returns the digest of an operator token. The settings contain the digest, not the token. A
    SHA-256 without salt suffices, because a token has 256 random bits and cannot be guessed."""
    return hashlib.sha256(token.encode()).hexdigest()


# The user of a session that began with the operator token. The token does not identify a person.
TOKEN_HOLDER = Person("", "Operator token", Role.OWNER)


@dataclass(frozen=True, slots=True)
class Session:
    # The SHA-256 of the cookie.
    digest: bytes
    # Identifies how the session began: a value that is derived from the operator token's digest, or
    # from the settings of the identity provider.
    credential: bytes
    person: Person

    @property
    def actor(self) -> str:
        """Returns the user's name for the audit. For a session with the operator token, returns an
        id of the session, from which the cookie cannot be derived."""
        person = self.person
        if not person.subject:
            return f"session {self.digest.hex()[:8]}"
        return (
            person.subject if person.name == person.subject else f"{person.name} ({person.subject})"
        )


class NewestValues:
    """Represents a set that drops its oldest value when it has more than `size_max` values."""

    def __init__(self, size_max: int = _SENT_FORMS_MAX) -> None:
        self._size_max = size_max
        self._values: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, value: bytes) -> bool:
        return value in self._values

    def add(self, value: bytes) -> None:
        self._values[value] = None
        if len(self._values) > self._size_max:
            self._values.popitem(last=False)


class Sessions:
    """Begins, finds and ends sessions. The cookie is a random value, and the database contains only
    the cookie's digest. A session becomes invalid if the credential with which it began changes:
    the operator token, or the settings of the identity provider."""

    def __init__(
        self, vault: Vault, stored: ConsoleSessions, *, token_sha256: str, sign_in: bytes
    ) -> None:
        """Derives the valid credentials. `sign_in` contains every setting on which roles depend; it
        is empty without an identity provider."""
        self._vault = vault
        self._stored = stored
        self._token_sha256 = token_sha256
        self.token_credential = vault.derive("console-token", token_sha256.encode())
        self.sign_in_credential = vault.derive("console-sign-in", sign_in) if sign_in else None
        self._sent_forms = NewestValues()

    def token_is_right(self, presented: str) -> bool:
        return hmac.compare_digest(token_digest(presented), self._token_sha256)

    async def begin(self, person: Person, credential: bytes, before: Session | None) -> str:
        """Creates a session and returns its cookie. The new session replaces `before`, the previous
        session of the browser."""
        cookie = secrets.token_urlsafe(32)
        await self._stored.console_session_begin(
            _digest(cookie), credential, person, replaces=None if before is None else before.digest
        )
        return cookie

    async def read(self, cookie: str, *, used: bool = True) -> Session | None:
        """Returns the session with this cookie; None if the session has ended or its credential has
        changed. `used` means that the request counts as use, which postpones the end of an idle
        session. Raises Unavailable if the database does not answer."""
        if not cookie:
            return None
        found = await self._stored.console_session_find(_digest(cookie), used=used)
        if found is None or found.credential not in (
            self.token_credential,
            self.sign_in_credential,
        ):
            return None
        return Session(found.digest, found.credential, found.person)

    async def list(self, *, limit: int) -> Sequence[StoredSession]:
        return await self._stored.console_session_list(limit=limit)

    async def end(self, session: Session) -> None:
        await self._stored.console_session_end(session.digest)

    async def end_all(self, credential: bytes, subject: str) -> None:
        await self._stored.console_session_end_all(credential, subject)

    def form_token(self, session: Session) -> str:
        """Returns the token that every HTML form of the session contains. Other web sites cannot
        know this token, so they cannot submit forms in the user's name."""
        return self._vault.derive("console-form", session.digest)[:_FORM_TOKEN_BYTES].hex()

    def form_token_is_right(self, session: Session, presented: str) -> bool:
        return hmac.compare_digest(presented.encode(), self.form_token(session).encode())

    def was_sent_before(self, once: str) -> bool:
        """Tells whether the form with the id `once` was sent before, for example by a second click
        or a reload. Records the form as sent."""
        was_sent = once.encode() in self._sent_forms
        self._sent_forms.add(once.encode())
        return was_sent


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogateescape")).digest()


@dataclass(slots=True)
class WrongAttempts:
    """Limits the wrong attempts to sign in from each network and, with `total_max`, from all
    networks together."""

    clock: Clock
    total_max: int | None = None
    _wrong: OrderedDict[Hashable, deque[int]] = field(default_factory=OrderedDict)
    _wrong_total: deque[int] = field(default_factory=deque)

    def wait_s(self, network: Hashable) -> int:
        """Returns the seconds that the network has to wait before its next attempt; 0 if it need
        not wait."""
        now = self.clock()
        of_network = self._wrong.get(network, deque())
        for attempts, attempts_max in (
            (of_network, _WRONG_MAX),
            (self._wrong_total, self.total_max),
        ):
            while attempts and attempts[0] <= now - _WINDOW_S:
                attempts.popleft()
            if attempts_max is not None and len(attempts) >= attempts_max:
                return attempts[0] + _WINDOW_S - now
        return 0

    def count(self, network: Hashable) -> int:
        """Counts a wrong attempt and returns 0. If the network had to wait before this attempt,
        returns the remaining seconds and does not count the attempt."""
        wait_s = self.wait_s(network)
        if wait_s:
            return wait_s
        self._wrong.setdefault(network, deque()).append(self.clock())
        self._wrong.move_to_end(network)
        if self.total_max is not None:
            self._wrong_total.append(self.clock())
        if len(self._wrong) > _NETWORKS_MAX:
            self._wrong.popitem(last=False)
        return 0
