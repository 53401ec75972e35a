"""Who is signed in: signed sessions that expire, tokens in forms, and a bound on attempts."""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import struct
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from tollkeeper.services.clock import Clock
from tollkeeper.services.ended_sessions import EndedSessions
from tollkeeper.services.vault import Vault

COOKIE = "tollkeeper_console"
TOKEN_PREFIX = "tko_"  # noqa: S105 - the beginning of every token
_SESSION = struct.Struct(">q16s")
_FORM_TOKEN_BYTES = 16
# How long a sign-in is valid.
SESSION_S = 8 * 3600
# Wrong tokens that one address, and all addresses together, may present in a window of time.
_WINDOW_S = 300
_WRONG_MAX = 10
_WRONG_MAX_IN_ALL = 100
_ADDRESSES_MAX = 10_000
_REMEMBERED_MAX = 20_000


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """What the settings hold. A token has 256 random bits, so a plain digest cannot be reversed."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Session:
    id: bytes
    expires_at: int

    @property
    def name(self) -> str:
        """Names the session in the audit. The id cannot be found from it, so a reader of the audit cannot
        use the session."""
        return f"session {hashlib.sha256(self.id).hexdigest()[:8]}"


class NewestValues:
    """A set that drops its oldest value when it has more than `most`."""

    def __init__(self, most: int = _REMEMBERED_MAX) -> None:
        self._most = most
        self._values: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, value: bytes) -> bool:
        return value in self._values

    def add(self, value: bytes) -> None:
        self._values[value] = None
        if len(self._values) > self._most:
            self._values.popitem(last=False)


class Sessions:
    """Sessions are signed and not stored; only those that were ended are."""

    def __init__(
        self,
        vault: Vault,
        token_sha256: str,
        clock: Clock,
        ended: EndedSessions,
    ) -> None:
        self._vault = vault
        self._token_sha256 = token_sha256
        self._clock = clock
        self._ended = ended
        self._sent_forms = NewestValues()

    def token_is_right(self, presented: str) -> bool:
        return hmac.compare_digest(token_digest(presented), self._token_sha256)

    def begin(self) -> str:
        """The value of a new session's cookie."""
        payload = _SESSION.pack(self._clock() + SESSION_S, os.urandom(16))
        return base64.urlsafe_b64encode(self._vault.sign(payload, *self._purpose)).decode()

    async def read(self, cookie: str) -> Session | None:
        """None if the cookie is not ours, its session has ended, or the token is another now. Raises
        Unavailable if the database cannot say whether it was ended."""
        try:
            signed = base64.urlsafe_b64decode(cookie)
        except (binascii.Error, ValueError):
            return None
        payload = self._vault.verify(signed, *self._purpose)
        if payload is None or len(payload) != _SESSION.size:
            return None
        expires_at, identity = _SESSION.unpack(payload)
        if expires_at <= self._clock() or await self._ended.has(identity):
            return None
        return Session(identity, expires_at)

    async def end(self, session: Session) -> None:
        await self._ended.add(session.id, session.expires_at)

    def form_token(self, session: Session) -> str:
        """What every form of the session carries. Other sites cannot know it."""
        return self._vault.derive("console-form", session.id)[:_FORM_TOKEN_BYTES].hex()

    def form_is_ours(self, session: Session, presented: str) -> bool:
        return hmac.compare_digest(presented.encode(), self.form_token(session).encode())

    def sent_before(self, once: str) -> bool:
        """Whether this very form was sent before: a second click, or a page that is loaded again.
        From now on it was."""
        known = once.encode() in self._sent_forms
        self._sent_forms.add(once.encode())
        return known

    @property
    def _purpose(self) -> tuple[str, bytes]:
        return "console-session", self._token_sha256.encode()


@dataclass(slots=True)
class SignInAttempts:
    """Limits wrong tokens by address. The right token is never refused: guessing it, with its 256
    random bits, is hopeless at any rate, and others at the same address must not lock it out."""

    clock: Clock
    _wrong: OrderedDict[str, deque[int]] = field(default_factory=OrderedDict)
    _wrong_in_all: deque[int] = field(default_factory=deque)

    def _wait_s(self, address: str) -> int:
        """How long the address must wait before its next wrong token; 0: not at all."""
        now = self.clock()
        own = self._wrong.get(address, deque())
        for attempts, most in ((own, _WRONG_MAX), (self._wrong_in_all, _WRONG_MAX_IN_ALL)):
            while attempts and attempts[0] <= now - _WINDOW_S:
                attempts.popleft()
            if len(attempts) >= most:
                return attempts[0] + _WINDOW_S - now
        return 0

    def was_wrong(self, address: str) -> int:
        """Counts a wrong token, and returns how long the address must wait before the next; a token
        that came too early does not count."""
        wait_s = self._wait_s(address)
        if wait_s:
            return wait_s
        self._wrong.setdefault(address, deque()).append(self.clock())
        self._wrong.move_to_end(address)
        self._wrong_in_all.append(self.clock())
        if len(self._wrong) > _ADDRESSES_MAX:
            self._wrong.popitem(last=False)
        return 0
