"""PyTorch tensors in and out; where torch is missing, a stand-in that speaks DLPack."""

from __future__ import annotations

import sys
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sqp_cases import fixed_solver, points

from warpmpc import ProblemError
from warpmpc.mpc import parameters

BATCH = 10


class Tensor:
    """What the bridge may rely on: DLPack, `contiguous`, `requires_grad`, `detach`."""

    def __init__(self, array, requires_grad=False, owner=None):
        self.array, self.requires_grad = array, requires_grad
        self.owner = array if owner is None else owner

    def __dlpack__(self, **kwargs):
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if not self.array.flags.c_contiguous:
            raise BufferError("only contiguous memory is exported")
        return self.owner.__dlpack__(**kwargs)  # NumPy does not pass on what it may only read

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def contiguous(self):
        if self.array.flags.c_contiguous:
            return self
        return Tensor(np.ascontiguousarray(self.array), self.requires_grad)

    def detach(self):
        return Tensor(self.array)

    def numpy(self):
        return self.array


def stand_in():
    module = ModuleType("torch")
    module.Tensor = Tensor
    module.from_dlpack = lambda array: Tensor(np.from_dlpack(array), owner=array)
    module.from_numpy = Tensor
    return module


@pytest.fixture(params=["stand-in", "torch"])
def torch(request, monkeypatch):
    """The real torch where it is installed, otherwise a stand-in."""
    if request.param == "torch":
        return pytest.importorskip("torch")
    module = stand_in()
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.fixture(scope="module")
def case():
    """A solver, its arguments and its answers in JAX."""
    solver = fixed_solver("mixed")
    z, p = points(solver.problem, BATCH)
    n = solver.problem.n_x0
    x0, params = p[:, :n].copy(), p[:, n:].copy()
    return solver, z, x0, params, solver.solve(x0, params, warm_start=z)


def same(found, wanted, torch):
    """Tensors with the bits of arrays, in the same structure."""
    leaves = jax.tree.leaves(found)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for mine, theirs in zip(leaves, jax.tree.leaves(wanted), strict=True):
        assert mine.numpy().dtype == theirs.dtype
        np.testing.assert_array_equal(mine.numpy(), theirs)


class TestCalls:
    """All arguments are tensors wherever possible: another mixture is another program of JAX."""

    def test_solve(self, torch, case):
        solver, z, x0, params, wanted = case
        tensors = [torch.from_numpy(array) for array in (x0, params, z)]
        solution = solver.solve(*tensors)
        same(solution, wanted, torch)
        assert isinstance(solution.warm_start.qp.y, torch.Tensor)
        shifted = solver.solve(*tensors[:2], solution.warm_start, shift=True)
        same(shifted, solver.solve(x0, params, wanted.warm_start, shift=True), torch)

    def test_by_name(self, torch, case):
        """Tensors inside a dict, x0 among them."""
        solver, z, x0, params, wanted = case
        rows = solver.problem.param_names
        named = {n: torch.from_numpy(params[:, r - 2].copy()) for n, r in rows.items()}
        named["x0"] = torch.from_numpy(x0)
        same(solver.solve(None, named, torch.from_numpy(z)), wanted, torch)

    def test_step(self, torch, case):
        solver, z, x0, params, _ = case
        tensors = [torch.from_numpy(array) for array in (z, params, x0)]
        result, state = solver.step(tensors[0], tensors[1], x0=tensors[2])
        wanted, memory = solver.step(z, params, x0=x0)
        same(result, wanted, torch)
        result, _ = solver.step(result.z, tensors[1], state, x0=tensors[2])
        same(result, solver.step(wanted.z, params, memory, x0=x0)[0], torch)

    def test_one_tensor_that_is_not_contiguous(self, torch, case):
        solver, z, x0, params, wanted = case
        wide = torch.from_numpy(np.repeat(z, 2, axis=1))
        strided = Tensor(wide.array[:, ::2]) if isinstance(wide, Tensor) else wide[:, ::2]
        same(solver.solve(x0, params, strided), wanted, torch)

    def test_gradients_are_refused(self, torch, case):
        solver, z, x0, params, _ = case
        tracked = torch.from_numpy(x0)
        tracked.requires_grad = True
        message = r"A tensor requires gradients, .* pass `tensor.detach\(\)`, or differentiate in J"
        with pytest.raises(ProblemError, match=message):
            solver.solve(tracked, params, z)
        with pytest.raises(ProblemError, match=message):
            solver.step(z, params, x0=tracked)
        rest = [torch.from_numpy(array) for array in (params, z)]
        assert isinstance(solver.solve(tracked.detach(), *rest).z, torch.Tensor)

    def test_refusals_speak_of_the_tensor(self, torch, case):
        solver, _, x0, params, _ = case
        with pytest.raises(ProblemError, match="x0 has dtype bool but the solver works in"):
            solver.solve(torch.from_numpy(x0 > 0), params)


class TestMemory:
    def test_out_without_a_copy(self, torch):
        array = jnp.arange(1000.0)
        found = parameters.to_torch({"a": array})["a"].numpy()
        assert found.ctypes.data == array.unsafe_buffer_pointer()

    def test_in_without_a_copy(self, torch):
        """XLA needs memory that begins at a multiple of 64 bytes, as torch allocates it."""
        raw = np.zeros(1000 + 8)
        begin = (-raw.ctypes.data % 64) // 8
        given = raw[begin : begin + 1000]
        found = parameters.to_jax([torch.from_numpy(given), None, "x"])
        assert found[1:] == [None, "x"]
        assert found[0].unsafe_buffer_pointer() == given.ctypes.data


def test_torch_is_not_imported_for_arrays(case):
    solver, z, x0, params, _ = case
    before = "torch" in sys.modules
    assert isinstance(solver.solve(x0, params, z).z, jax.Array)
    assert ("torch" in sys.modules) == before
    assert before or not parameters.has_tensors([x0, params])
