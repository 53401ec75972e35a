"""Every setting with its value and where the value comes from, for people. Secrets are not shown."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tollkeeper.backends.config import shown_url
from tollkeeper.settings.load import DEFAULT_FILE, configured_path, read_toml
from tollkeeper.settings.schema import ENV_PREFIX, Settings

_SECRET = "(secret)"  # noqa: S105 - what stands in the place of one


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    name: str
    value: str
    # default, file or environment, and which one
    origin: str
    source: str


def setting_origins(settings: Settings, config: Path | None) -> tuple[SettingOrigin, ...]:
    path = config or configured_path()
    document = read_toml(path or DEFAULT_FILE)
    variables = {name.upper() for name in os.environ}
    return tuple(_origins(settings, document, path, variables))


def _origins(
    settings: Settings, document: Mapping[str, Any], path: Path | None, variables: set[str]
) -> Iterator[SettingOrigin]:
    for section, value in settings:
        if isinstance(value, BaseModel):
            given = document.get(section, {})
            for name, _ in value:
                origin, source = _origin(section, name, given, path, variables)
                yield SettingOrigin(f"{section}.{name}", _shown(value, name), origin, source)
        elif isinstance(value, tuple):
            origin, source = _origin(section, None, document, path, variables)
            for entry in value:
                label = getattr(entry, "name", "") if section == "backends" else entry.id
                for name, _ in entry:
                    yield SettingOrigin(
                        f"{section}[{label}].{name}", _shown(entry, name), origin, source
                    )


def _origin(
    section: str,
    name: str | None,
    given: Mapping[str, Any],
    path: Path | None,
    variables: set[str],
) -> tuple[str, str]:
    whole = f"{ENV_PREFIX}{section}".upper()
    own = whole if name is None else f"{whole}__{name}".upper()
    for variable in (own, whole):
        if variable in variables:
            return "environment", variable
    if (section if name is None else name) in given and path is not None:
        return "file", str(path)
    return "default", ""


def _shown(section: BaseModel, name: str) -> str:
    value = getattr(section, name)
    field = type(section).model_fields[name]
    if not field.repr:
        return _SECRET if value else ""
    if name == "urls":
        return ", ".join(shown_url(url) for url in value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
