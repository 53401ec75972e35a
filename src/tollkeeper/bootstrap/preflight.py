"""Checks the settings before the workers start, so that none fails because of them."""

from tollkeeper.bootstrap.backends import build_backends
from tollkeeper.bootstrap.catalog import build_catalog
from tollkeeper.bootstrap.telemetry import collector, import_sdk
from tollkeeper.bootstrap.webhook import alert_webhook
from tollkeeper.settings import Settings


def check_settings(settings: Settings) -> None:
    """What the schema can't find: invalid prices, missing secrets and packages. Raises SettingsError."""
    build_catalog(settings)
    build_backends(settings, None)
    alert_webhook(settings)
    if collector():
        import_sdk()
