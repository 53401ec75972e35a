"""Finds wrong settings before a worker is started that would fail on them."""

from tollkeeper.bootstrap.backends import build_backends
from tollkeeper.bootstrap.catalog import build_catalog
from tollkeeper.bootstrap.telemetry import collector, import_sdk
from tollkeeper.bootstrap.webhook import alert_webhook
from tollkeeper.settings import Settings


def check_settings(settings: Settings) -> None:
    """Raises SettingsError for what the settings themselves do not show: prices that cannot be
    read, secrets that are not there, packages that are not installed."""
    build_catalog(settings)
    build_backends(settings, None)
    alert_webhook(settings)
    if collector():
        import_sdk()
