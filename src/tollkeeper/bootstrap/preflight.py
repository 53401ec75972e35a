"""Checks the settings before the workers start, so that no worker fails because of invalid settings."""

from tollkeeper.bootstrap.backends import build_backends
from tollkeeper.bootstrap.catalog import build_catalog
from tollkeeper.bootstrap.telemetry import collector, import_sdk
from tollkeeper.bootstrap.webhook import alert_webhook
from tollkeeper.settings import Settings


def check_settings(settings: Settings) -> None:
    """Raises SettingsError for errors that the settings' schema cannot find: invalid prices, missing
    secrets, and packages that are not installed."""
    build_catalog(settings)
    build_backends(settings, None)
    alert_webhook(settings)
    if collector():
        import_sdk()
