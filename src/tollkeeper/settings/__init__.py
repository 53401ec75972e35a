"""Configuration: one TOML file and the environment, read once, checked whole. Nothing below reads it."""

from tollkeeper.settings.backends import IDENTITY_CREDENTIALS, BackendSettings
from tollkeeper.settings.load import DEFAULT_FILE, SettingsError, load_settings
from tollkeeper.settings.prices import PricesSettings
from tollkeeper.settings.schema import AlternativeSettings, JudgeSettings, ModelSettings, Settings
from tollkeeper.settings.secrecy import shown_variable

__all__ = [
    "DEFAULT_FILE",
    "IDENTITY_CREDENTIALS",
    "AlternativeSettings",
    "BackendSettings",
    "JudgeSettings",
    "ModelSettings",
    "PricesSettings",
    "Settings",
    "SettingsError",
    "load_settings",
    "shown_variable",
]
