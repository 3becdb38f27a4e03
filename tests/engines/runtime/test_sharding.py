"""Which batches can be spread over devices; solves of spread batches are in `test_sqp_devices`."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from warpmpc import ProblemError
from warpmpc.engines.runtime.batching import check_divisible, everywhere, with_auto_axes

MESH = AbstractMesh((4, 2), ("a", "b"))


@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec(None), PartitionSpec("a")])
def test_batches_that_fit(spec):
    check_divisible((36,), NamedSharding(MESH, spec))


def test_other_batches():
    over_both = NamedSharding(MESH, PartitionSpec(("a", "b")))
    check_divisible((16, 3), over_both)
    with pytest.raises(
        ProblemError, match=r"A batch of 36 cannot .* 8 devices; fill it up to a mul"
    ):
        check_divisible((36,), over_both)
    with pytest.raises(ProblemError, match="A problem without batch axis cannot be spread"):
        check_divisible((), NamedSharding(MESH, PartitionSpec("b")))


def test_place_of_what_all_share():
    device, sharding = jax.devices()[0], NamedSharding(MESH, PartitionSpec("a"))
    assert everywhere(device) is device
    assert everywhere(sharding).is_fully_replicated


def test_meshes_without_explicit_axes():
    devices, spec = np.array(jax.devices()[:1]), PartitionSpec("a")
    automatic = NamedSharding(Mesh(devices, ("a",), axis_types=(AxisType.Auto,)), spec)
    assert with_auto_axes(automatic) is automatic
    explicit = NamedSharding(Mesh(devices, ("a",), axis_types=(AxisType.Explicit,)), spec)
    assert with_auto_axes(explicit) == automatic
