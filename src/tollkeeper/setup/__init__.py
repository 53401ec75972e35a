"""Builds the application from the settings. Only here is decided which classes implement other packages'
interfaces. A command needs few of the modules, so each is imported when one of its names is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tollkeeper.setup.app import build_app
    from tollkeeper.setup.backends import build_backends
    from tollkeeper.setup.catalog import build_catalog
    from tollkeeper.setup.database import located_database
    from tollkeeper.setup.engine import build_engine, running_engine
    from tollkeeper.setup.judge import judge_with_engine, running_judge
    from tollkeeper.setup.payments import signature_check
    from tollkeeper.setup.preflight import check_settings
    from tollkeeper.setup.secrets import master_secret
    from tollkeeper.setup.services import Services, command_services, running_services

__all__ = [
    "Services",
    "build_app",
    "build_backends",
    "build_catalog",
    "build_engine",
    "check_settings",
    "command_services",
    "judge_with_engine",
    "located_database",
    "master_secret",
    "running_engine",
    "running_judge",
    "running_services",
    "signature_check",
]

_MODULES = {
    "Services": "services",
    "build_app": "app",
    "build_backends": "backends",
    "build_catalog": "catalog",
    "command_services": "services",
    "build_engine": "engine",
    "running_engine": "engine",
    "judge_with_engine": "judge",
    "running_judge": "judge",
    "located_database": "database",
    "check_settings": "preflight",
    "master_secret": "secrets",
    "running_services": "services",
    "signature_check": "payments",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
