"""Lists every setting with its value and where it comes from: a line, a variable, a preset or the default.
Secrets aren't shown."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tollkeeper.providers.config import shown_url
from tollkeeper.providers.presets import PRESETS
from tollkeeper.setup.settings.backends import BackendSettings
from tollkeeper.setup.settings.load import settings_source
from tollkeeper.setup.settings.places import Place, SettingsSource
from tollkeeper.setup.settings.schema import Settings
from tollkeeper.setup.settings.wording import toml_value

_SECRET = "(secret)"  # noqa: S105 - shown instead of a secret


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    name: str
    # In TOML; empty: none.
    value: str
    # "default", "file", "environment" or "preset".
    origin: str
    # The line, the variable or the preset; empty for a default.
    source: str


def setting_origins(settings: Settings, config: Path | None) -> tuple[SettingOrigin, ...]:
    return tuple(_origins(settings, settings_source(config)))


def _origins(settings: Settings, source: SettingsSource) -> Iterator[SettingOrigin]:
    for section, value in settings:
        if isinstance(value, BaseModel):
            yield from _section_origins(value, section, (section,), source)
        elif isinstance(value, tuple):
            for position, entry in enumerate(value):
                label = entry.name if isinstance(entry, BackendSettings) else entry.id
                yield from _section_origins(
                    entry, f"{section}[{label}]", (section, position), source
                )


def _section_origins(
    section: BaseModel, title: str, at: Place, source: SettingsSource
) -> Iterator[SettingOrigin]:
    for name, _ in section:
        origin, where = source.origin((*at, name))
        if origin == "default" and _comes_from_preset(section, name):
            origin, where = "preset", getattr(section, "preset", "")
        yield SettingOrigin(f"{title}.{name}", _shown(section, name), origin, where)


def _comes_from_preset(section: BaseModel, name: str) -> bool:
    if not isinstance(section, BackendSettings) or section.preset not in PRESETS:
        return False
    if name not in ("api_key_env", *PRESETS[section.preset].settings()):
        return False
    return bool(getattr(section, name) != BackendSettings.model_fields[name].default)


def _shown(section: BaseModel, name: str) -> str:
    value = getattr(section, name)
    if value in (None, "", (), {}):
        return ""
    if not type(section).model_fields[name].repr:
        return _SECRET
    return toml([shown_url(url) for url in value] if name == "urls" else value)


def toml(value: Any) -> str:
    match value:
        case BaseModel():
            text_by_name = {name: _shown(value, name) for name, _ in value}
            return _table({name: text for name, text in text_by_name.items() if text})
        case Mapping():
            # From JSON in a variable; TOML has no null.
            return _table({str(k): toml(v) for k, v in value.items() if v is not None})
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
        case bool():
            return str(value).lower()
        case int() | float():
            return toml_value(value)
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
    # A JSON string is a TOML string too, but TOML wants an escape for U+007F.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _table(entries: Mapping[str, str]) -> str:
    keys = {key: key if re.fullmatch(r"[\w-]+", key, re.ASCII) else toml(key) for key in entries}
    return f"{{ {', '.join(f'{keys[key]} = {text}' for key, text in entries.items())} }}"
