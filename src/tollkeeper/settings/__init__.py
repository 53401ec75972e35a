"""Configuration: one TOML file and the environment, read once, checked whole. Nothing below reads it."""

from tollkeeper.settings.load import DEFAULT_FILE, SettingsError, load_settings
from tollkeeper.settings.schema import BackendSettings, JudgeSettings, ModelSettings, Settings

__all__ = [
    "DEFAULT_FILE",
    "BackendSettings",
    "JudgeSettings",
    "ModelSettings",
    "Settings",
    "SettingsError",
    "load_settings",
]
