"""Tests how `tollkeeper reload` finds the gateways that serve with a data folder."""

import os
from pathlib import Path

from tollkeeper.entry.presence import registered_gateway, serving_pids
from tollkeeper.setup.settings import Settings


def test_no_other_user_can_lock_the_file_of_a_gateway(tmp_path: Path) -> None:
    """If another user locks a dead gateway's file, `reload` would send a signal to an unrelated process."""
    settings = Settings.model_validate({"database": {"data_dir": tmp_path}})
    with registered_gateway(settings):
        assert serving_pids(settings) == [os.getpid()]
        (file,) = (tmp_path / "gateways").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
    assert serving_pids(settings) == []
