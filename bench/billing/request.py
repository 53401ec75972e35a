"""Defines the request that a client sends to a gateway."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    url: str
    headers: dict[str, str]
    body: dict[str, Any]
