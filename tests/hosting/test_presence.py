"""Which gateways serve with a data folder, as `tollkeeper reload` sees it."""

import os
from pathlib import Path

from tollkeeper.hosting.presence import registered_gateway, serving_pids
from tollkeeper.settings import Settings


def test_no_other_user_can_lock_the_file_of_a_gateway(tmp_path: Path) -> None:
    """A lock on the file of a dead gateway would let `reload` signal a stranger's process."""
    settings = Settings.model_validate({"database": {"data_dir": tmp_path}})
    with registered_gateway(settings):
        assert serving_pids(settings) == [os.getpid()]
        (file,) = (tmp_path / "gateways").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
    assert serving_pids(settings) == []
