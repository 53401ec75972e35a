"""Checks the settings before the workers start, so that none fails because of them."""

from tollkeeper.setup.backends import build_backends
from tollkeeper.setup.catalog import build_catalog
from tollkeeper.setup.settings import Settings
from tollkeeper.setup.telemetry import collector, import_sdk
from tollkeeper.setup.webhook import alert_webhook


def check_settings(settings: Settings) -> None:
    """What the schema can't find: invalid prices, missing secrets and packages. Raises SettingsError."""
    build_catalog(settings)
    build_backends(settings, None)
    alert_webhook(settings)
    if collector():
        import_sdk()
