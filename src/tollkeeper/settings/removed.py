"""The settings that were removed, and what an operator uses instead."""

from typing import Any, Final

# By the name of a section, of a setting, or of a setting and its value.
_REPLACEMENTS: Final = {
    "library": "backends with a preset reach providers without a library: docs/providers.md",
    "backends.kind = library": (
        'use kind = "openai" with a preset or a protocol that the provider speaks: docs/providers.md'
    ),
    "backends.identity.authority": "set the variable AZURE_AUTHORITY_HOST",
    "backends.identity.role": "set the variable AWS_ROLE_ARN, or use profile",
    "backends.identity.source": "name a file, a secret or a profile, or let the library search",
    "backends.identity.token_file": (
        "set AWS_WEB_IDENTITY_TOKEN_FILE or AZURE_FEDERATED_TOKEN_FILE, or use profile or file"
    ),
    "backends.provider": "use preset, which names the provider: docs/providers.md",
}


def replacement(location: tuple[int | str, ...], value: Any = None) -> str:
    """Says what replaced a removed setting or value; empty if the name was never a setting."""
    name = ".".join(part for part in location if isinstance(part, str))
    found = _REPLACEMENTS.get(f"{name} = {value}") or _REPLACEMENTS.get(name)
    return f"was removed; {found}" if found else ""
