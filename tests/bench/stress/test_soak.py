"""Tests that the soak test can start its gateway."""

from pathlib import Path

import pytest
from bench.gateway import write_config
from bench.stress.soak import SETTINGS

from tollkeeper.setup.settings import load_settings


def test_gateway_accepts_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The gateway of `make soak` refuses to start if a setting does not exist any more."""
    for variable, value in SETTINGS.items():
        monkeypatch.setenv(variable, value)
    assert load_settings(write_config(tmp_path, upstream_port=1)).limits.inference_deadline_s == 10
