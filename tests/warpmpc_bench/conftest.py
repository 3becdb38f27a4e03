"""What tests of all benchmarks share."""

import pytest

from warpmpc_bench.common import runner


@pytest.fixture(autouse=True, scope="module")
def small_copy():
    """A quick measurement of the copy bandwidth."""
    with pytest.MonkeyPatch.context() as patch:
        real = runner.copy_bandwidth
        patch.setattr(runner, "copy_bandwidth", lambda: real(1 << 22))
        yield
