"""Reads the settings from one TOML file and the environment, and checks them as a whole."""

from tollkeeper.settings.backends import IDENTITY_CREDENTIALS, BackendSettings
from tollkeeper.settings.load import (
    DEFAULT_FILE,
    FILE_NAME,
    configured_path,
    load_settings,
    settings_source,
)
from tollkeeper.settings.places import Place, SettingsError, SettingsSource
from tollkeeper.settings.prices import PricesSettings
from tollkeeper.settings.schema import AlternativeSettings, JudgeSettings, ModelSettings, Settings
from tollkeeper.settings.section import built_from, shown_variable

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
