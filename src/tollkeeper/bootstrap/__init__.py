"""Builds the application from the settings. Only this folder chooses concrete classes."""

from tollkeeper.bootstrap.app import build_app
from tollkeeper.bootstrap.backends import build_backends
from tollkeeper.bootstrap.bridge import build_bridge, running_bridge
from tollkeeper.bootstrap.catalog import build_catalog
from tollkeeper.bootstrap.engine import build_engine, running_engine
from tollkeeper.bootstrap.judge import judge_over, running_judge
from tollkeeper.bootstrap.preflight import check_settings
from tollkeeper.bootstrap.secrets import master_secret
from tollkeeper.bootstrap.services import located_database, running_services

__all__ = [
    "build_app",
    "build_backends",
    "build_bridge",
    "build_catalog",
    "build_engine",
    "check_settings",
    "judge_over",
    "located_database",
    "master_secret",
    "running_bridge",
    "running_engine",
    "running_judge",
    "running_services",
]
