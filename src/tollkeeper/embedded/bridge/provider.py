"""One backend of the bridge: a provider as the library knows it, with its key."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from any_llm import AnyLLM
from any_llm.exceptions import UnsupportedParameterError, UnsupportedProviderError
from any_llm.providers.openai.base import BaseOpenAIProvider

from tollkeeper.embedded.bridge.chat_json import UnsupportedField, library_arguments
from tollkeeper.embedded.bridge.failures import Failure, failure_of, unsupported

LIBRARY_PACKAGE = "any-llm-sdk"
_KEY_BYTES_MAX = 64 << 10
# Providers whose SDK makes no retries of its own accord, so that the library need not tell it.
_WITHOUT_RETRIES = frozenset({"mistral"})
# The argument of the SDK where the library itself does not pass the base address on.
_BASE_ARGUMENTS = {"cohere": "base_url"}


class Refused(Exception):
    """The backend cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class DeclaredBackend:
    """One backend as the handshake describes it."""

    name: str
    provider: str
    api_key: str | None = field(repr=False)
    api_key_file: str | None
    base_url: str | None


def library_version() -> str:
    try:
        return f"{LIBRARY_PACKAGE} {version(LIBRARY_PACKAGE)}"
    except PackageNotFoundError:
        return LIBRARY_PACKAGE


class Provider:
    """Makes the calls of one backend. A key in a file is read again when the file has changed."""

    def __init__(self, declared: DeclaredBackend, *, timeout_s: float) -> None:
        """Raises Refused where the library cannot serve the backend as it is declared."""
        self.declared = declared
        self._key = declared.api_key
        self._key_version: tuple[int, ...] = ()
        self._previous_key: str | None = None
        self._timeout_s = timeout_s
        self._client = self._open()
        if not self._client.SUPPORTS_COMPLETION:
            raise Refused(f"provider: {declared.provider} has no chat in the library.")

    def failure_of(self, error: Exception) -> Failure:
        """What an error of a call means. Its words have no key and no address of ours."""
        name = self.declared.provider
        if isinstance(error, UnsupportedField):
            return unsupported(error.field, name)
        kept = (self._key, self._previous_key, self.declared.base_url)
        return failure_of(error, name, tuple(secret for secret in kept if secret))

    async def complete(self, model: str, body: dict[str, Any]) -> dict[str, Any]:
        """A whole answer. Raises what the library raises, and UnsupportedField."""
        arguments = self._arguments(model, body)
        arguments.pop("stream_options", None)
        answer = await self._current_client().acompletion(**arguments)
        return _as_json(answer)

    async def stream(self, model: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The chunks of an answer. Closing the iterator ends the call at the provider."""
        arguments = self._arguments(model, body)
        chunks: Any = await self._current_client().acompletion(**arguments)
        try:
            async for chunk in chunks:
                yield _as_json(chunk)
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    def _arguments(self, model: str, body: dict[str, Any]) -> dict[str, Any]:
        speaks_chat = isinstance(self._client, BaseOpenAIProvider)
        arguments = library_arguments(body, speaks_chat=speaks_chat)
        if self._client.TIMEOUT_SUPPORT != "unsupported":
            arguments["timeout"] = self._timeout_s
        return {"model": model, **arguments}

    def _current_client(self) -> AnyLLM:
        if self.declared.api_key_file is not None:
            version = _version_of(Path(self.declared.api_key_file))
            if version != self._key_version:
                self._key_version = version
                key = _read_key(Path(self.declared.api_key_file))
                # While the file is missing or empty, as in a rotation, the last key stays in use.
                if key and key != self._key:
                    self._previous_key, self._key = self._key, key
                    self._client = self._open()
        return self._client

    def _open(self) -> AnyLLM:
        declared = self.declared
        options: dict[str, Any] = {"unified_exceptions": True}
        if declared.base_url is not None:
            argument = _BASE_ARGUMENTS.get(declared.provider, "api_base")
            options[argument] = declared.base_url
        try:
            if declared.provider in _WITHOUT_RETRIES:
                return AnyLLM.create(declared.provider, self._key, **options)
            return AnyLLM.create(declared.provider, self._key, max_retries=0, **options)
        except UnsupportedProviderError:
            known = ", ".join(AnyLLM.get_supported_providers())
            raise Refused(
                f"provider: the library has no {declared.provider}; it has: {known}."
            ) from None
        except UnsupportedParameterError:
            raise Refused(
                f"provider: the library cannot switch off the retries of {declared.provider}. "
                "A hidden retry is charged twice and reported once, so it is not used."
            ) from None
        except ImportError:
            raise Refused(
                f"provider: {declared.provider} needs a package beside the library: "
                f"pip install '{LIBRARY_PACKAGE}[{declared.provider}]'."
            ) from None
        except Exception as exc:  # noqa: BLE001 - an SDK may raise anything
            words = str(exc).replace(self._key or "\0", "[removed]").splitlines()
            reason = words[0] if words else type(exc).__name__
            raise Refused(f"provider: {declared.provider}: {reason}") from None


def _as_json(answer: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = answer.model_dump(mode="json", exclude_none=True, warnings=False)
    return dumped


def _version_of(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _read_key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return os.fsdecode(file.read(_KEY_BYTES_MAX).strip())
    except OSError:
        return ""
