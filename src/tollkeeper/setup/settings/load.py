"""Finds and reads the settings, and explains wrong ones."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError as SourceError

from tollkeeper.setup.settings.places import SettingsError, SettingsSource, unfinished_line
from tollkeeper.setup.settings.schema import ENV_PREFIX, Settings
from tollkeeper.setup.settings.wording import (
    INVALID_KEY,
    explanation,
    toml_hint,
    toml_value,
    unknown_section,
)

FILE_NAME = "tollkeeper.toml"
# Used without a settings file. `tollkeeper init` writes a copy.
DEFAULT_FILE = Path(__file__).parent / "default.toml"
_SHOWN_LENGTH_MAX = 80


def load_settings(config: Path | None) -> Settings:
    """The file is `config`, otherwise $TOLLKEEPER_CONFIG, ./tollkeeper.toml, or the packaged one. The
    environment overrides it."""
    path = config or configured_path()
    settings = check_settings(path, *_read(path or DEFAULT_FILE))
    # Relative to the settings file, so that commands work from any folder.
    base = Path.cwd() if path is None else path.resolve().parent
    return _with_absolute_paths(settings, base)


def check_settings(path: Path | None, text: str, document: dict[str, Any]) -> Settings:
    """The environment overrides the file. Relative paths stay relative. Raises SettingsError."""
    _refuse_unknown_variables()
    try:
        return Settings(**document)
    except ValidationError as exc:
        raise SettingsError(_explain(exc, SettingsSource(path, text, document))) from None
    except SourceError as exc:  # A variable for a list or table does not contain valid JSON.
        raise SettingsError(_explain_source(exc)) from None


def _refuse_unknown_variables() -> None:
    """pydantic-settings would ignore variables of unknown sections. Those without `__` may belong to others:
    Kubernetes sets TOLLKEEPER_SERVICE_HOST."""
    sections = list(Settings.model_fields)
    for variable in sorted(os.environ):
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        section, delimiter, _ = variable.lower()[len(ENV_PREFIX) :].partition("__")
        if delimiter and section not in sections:
            raise SettingsError(f"{variable}: {unknown_section(section, sections)}")


def _with_absolute_paths(settings: Settings, base: Path) -> Settings:
    console = settings.console
    webhook = settings.alerts.webhook
    payment_secrets = settings.payments.webhook_secrets
    changed_sections: dict[str, dict[str, Any]] = {
        "database": {"data_dir": base / settings.database.data_dir},
        "secrets": {"master_key": _joined_source(base, settings.secrets.master_key)},
        "alerts": {
            "webhook": webhook.model_copy(update={"secret": _joined_source(base, webhook.secret)})
        },
        "payments": {
            "webhook_secrets": payment_secrets.model_copy(
                update={
                    mode: tuple(_joined_source(base, source) for source in sources)
                    for mode, sources in payment_secrets
                }
            )
        },
        "embedded": {"model_path": _joined(base, settings.embedded.model_path)},
        "console": {
            "tls_files": tuple(_joined(base, name) for name in console.tls_files),
            "sign_in": console.sign_in.model_copy(
                update={"client_secret": _joined_source(base, console.sign_in.client_secret)}
            ),
        },
    }
    updates: dict[str, Any] = {
        name: getattr(settings, name).model_copy(update=paths)
        for name, paths in changed_sections.items()
    }
    updates["backends"] = tuple(
        backend.model_copy(
            update={
                "api_key_file": _joined(base, backend.api_key_file),
                "tls_ca_file": _joined(base, backend.tls_ca_file),
                "identity": backend.identity.model_copy(
                    update={
                        "file": _joined(base, backend.identity.file),
                        "secret": _joined_source(base, backend.identity.secret),
                    }
                ),
            }
        )
        for backend in settings.backends
    )
    return settings.model_copy(update=updates)


def _joined(base: Path, path: str) -> str:
    return str(base / path) if path else ""


def _joined_source(base: Path, source: str) -> str:
    kind, _, path = source.partition(":")
    return f"file:{base / path}" if kind == "file" else source


def configured_path() -> Path | None:
    """Without `--config`; None: the packaged one."""
    path = os.environ.get("TOLLKEEPER_CONFIG")
    if path:
        return Path(path)
    in_current_folder = Path(FILE_NAME)
    return in_current_folder if in_current_folder.exists() else None


def settings_source(config: Path | None) -> SettingsSource:
    """Of what `load_settings` reads, to find the line or variable of a setting."""
    path = config or configured_path()
    text, document = _read(path or DEFAULT_FILE)
    return SettingsSource(path, text, document)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_bytes().decode()
        return text, tomllib.loads(text)
    except OSError as exc:
        raise SettingsError(f"The settings file {path} cannot be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        raise SettingsError(
            f"The settings file {path} is not TOML: line {line} is not UTF-8; save the file as UTF-8."
        ) from exc
    except tomllib.TOMLDecodeError as exc:
        place = f"at line {unfinished_line(text)}"
        reason = str(exc).replace("at end of document", place) + toml_hint(str(exc))
        raise SettingsError(f"The settings file {path} is not TOML: {reason}") from exc


def _explain(exc: ValidationError, source: SettingsSource) -> str:
    return "\n".join(_explain_one(error, source) for error in exc.errors(include_url=False))


def _explain_one(error: ErrorDetails, source: SettingsSource) -> str:
    at = (*error["loc"], *error.get("ctx", {}).get("at", ()))
    # Pydantic reports an invalid key as the value. The location names it already.
    value = "" if at[-1] == INVALID_KEY else _shown_value(error)
    words = explanation(
        error,
        known_names=_names_in_same_section(at),
        value=value,
        other_sections=_sections_with(str(at[-1])),
    )
    at = tuple(part for part in at if part != INVALID_KEY)
    return source.explain(at, words, f" = {value}" if value else "")


def _explain_source(exc: SourceError) -> str:
    match = re.search(r'field "(\w+)"', str(exc))
    name = match[1] if match else "settings"
    return f"{name}: the environment variable TOLLKEEPER_{name.upper()} must hold JSON"


def _names_in_same_section(location: tuple[int | str, ...]) -> list[str]:
    section: type[BaseModel] = Settings
    for part in location[:-1]:
        field = None if isinstance(part, int) else section.model_fields.get(part)
        section = (field and _section_of(field.annotation)) or section
    return list(section.model_fields)


def _sections_with(name: str) -> list[str]:
    """Returns the TOML headers of all sections that have a setting with this name."""
    return [
        f"[[{section}]]" if section in ("backends", "models") else f"[{section}]"
        for section, field in Settings.model_fields.items()
        if name in getattr(_section_of(field.annotation), "model_fields", ())
    ]


def _shown_value(error: ErrorDetails) -> str:
    """Returns the invalid value in TOML, or "" if it may be secret. The value of a section or of an
    unknown setting may be secret, for example a password under a wrong name."""
    value = error["input"]
    field = _field_at(error["loc"])
    if field is None or not field.repr or not isinstance(value, str | int | float):
        return ""
    shown = toml_value(value)
    return shown if len(shown) <= _SHOWN_LENGTH_MAX else shown[:_SHOWN_LENGTH_MAX] + "..."


def _field_at(location: tuple[int | str, ...]) -> FieldInfo | None:
    """Of the setting at or around `location`; None for a section or an unknown one."""
    section: type[BaseModel] = Settings
    for part in location:
        if isinstance(part, int):
            continue
        field = section.model_fields.get(part)
        inner = None if field is None else _section_of(field.annotation)
        if inner is None:
            return field
        section = inner
    return None


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Also an optional one, or one in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    sections = (_section_of(inner) for inner in get_args(annotation))
    return next((section for section in sections if section is not None), None)
