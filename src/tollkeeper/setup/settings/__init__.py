"""Reads the settings from one TOML file and the environment, and checks them as a whole."""

from tollkeeper.setup.settings.backends import IDENTITY_CREDENTIALS, BackendSettings
from tollkeeper.setup.settings.load import (
    DEFAULT_FILE,
    FILE_NAME,
    configured_path,
    load_settings,
    settings_source,
)
from tollkeeper.setup.settings.places import Place, SettingsError, SettingsSource
from tollkeeper.setup.settings.prices import PricesSettings
from tollkeeper.setup.settings.schema import (
    AlternativeSettings,
    JudgeSettings,
    ModelSettings,
    Settings,
)
from tollkeeper.setup.settings.section import built_from, shown_variable

__all__ = [
    "DEFAULT_FILE",
    "FILE_NAME",
    "IDENTITY_CREDENTIALS",
    "AlternativeSettings",
    "BackendSettings",
    "JudgeSettings",
    "ModelSettings",
    "Place",
    "PricesSettings",
    "Settings",
    "SettingsError",
    "SettingsSource",
    "built_from",
    "configured_path",
    "load_settings",
    "settings_source",
    "shown_variable",
]
