"""Kernels on the QPs of the humanoid: panels, chunked programs, and whole iterations against SciPy.

Nothing of the oracle is translated: CasADi differentiates, SciPy factorises.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from humanoid_oracle import admm, quadratic_program

from warpmpc import MPCSolver, QPSolver
from warpmpc.codegen.emit_native import CHUNK_LENGTH, plan_chunks
from warpmpc.codegen.from_casadi import translate
from warpmpc.engines.panels.launch import PanelKernels, PanelLDL
from warpmpc.engines.runtime.batching import from_tiles, to_tiles
from warpmpc.engines.runtime.stage_kernels import StageCase, StageKernels
from warpmpc.problem.evaluation import initial_guess
from warpmpc.symbolic.derivatives.stage_model import HessianRule, StageModel
from warpmpc.systems import humanoid

pytest.importorskip("mujoco")

ACCURATE, CLOSE = 1e-8, 1e-3  # float64 against SciPy; float32, relative to the largest entry
EXACT = replace(humanoid.settings().qp, scaling=0)


@pytest.fixture(scope="module")
def short():
    return humanoid.build(7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_panel_loop(short, dtype):
    """The loop reads tables and keeps live values in shared memory; the QP is CasADi's."""
    qp = quadratic_program(short, *humanoid.nominal(short))
    wanted, _ = admm(qp, EXACT)
    upper = sp.triu(qp.P, format="csc")
    stages = np.concatenate([short.var_stage, short.con_stage])
    solver = QPSolver(upper, qp.A, EXACT, dtype, engine="staged", stages=stages)
    kernels = solver.loop._kernels
    assert isinstance(kernels, PanelKernels)
    assert isinstance(kernels._ldl, PanelLDL)
    arrays = (upper.data, qp.q, qp.A.data, qp.lower, qp.upper)
    found = solver.solve(*(jnp.asarray(a, dtype=dtype) for a in arrays))
    error = ACCURATE if dtype == "float64" else CLOSE * np.abs(wanted).max()
    np.testing.assert_allclose(found.x, wanted, atol=error, rtol=0)


def test_derivative_program_in_chunks(short):
    """The last stage, whose program is the shortest, against CasADi."""
    model = StageModel.build(short, short.stages[-1], HessianRule())
    function = model.linearize("linearize", ["q", "A", "lower"])
    program = translate(function)
    assert len(plan_chunks(program, CHUNK_LENGTH).chunks) > 5
    rows = [np.arange(size)[None] for size in (*program.input_sizes, *program.output_sizes)]
    case = StageCase(program, np.array([0]), tuple(rows[:2]), tuple(rows[2:]))
    sizes = dict(zip(("q", "A", "lower"), program.output_sizes, strict=True))
    kernels = StageKernels("humanoid", [case], ["z", "p"], sizes, "float64")
    rng = np.random.default_rng(0)
    z = np.concatenate([humanoid.HOME, np.zeros(24)]) + 0.1 * rng.normal(size=(40, 48))
    p = rng.uniform(size=(40, program.input_sizes[1]))
    outputs = kernels(to_tiles(jnp.asarray(z)), to_tiles(jnp.asarray(p)))
    for j, output in enumerate(outputs):
        wanted = [function(z[b], p[b])[j].nonzeros() for b in range(40)]
        np.testing.assert_allclose(from_tiles(output, 40), wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
class TestIterations:
    def test_whole_iteration(self):
        """The step of every instance is that of ADMM on its QP."""
        whole = humanoid.build()
        solver = MPCSolver(
            whole, replace(humanoid.settings(), qp=EXACT), dtype="float64", engine="staged"
        )
        x0 = humanoid.sample(3)
        found = solver.solve(x0)
        for b in range(len(x0)):
            params = whole.defaults.copy()
            params[: humanoid.N_STATE] = x0[b]
            z = initial_guess(whole, params)
            d, y = admm(quadratic_program(whole, z, params), EXACT)
            step = float(found.step_length[b])
            np.testing.assert_allclose(found.z[b], z + step * d, atol=ACCURATE * np.abs(d).max())
            np.testing.assert_allclose(found.y[b], y, atol=10 * ACCURATE * np.abs(y).max())

    def test_engines_agree(self):
        """On a short horizon with the scaling of the benchmark; "dense" factorises K as a whole."""
        problem = humanoid.build(4)
        x0 = humanoid.sample(2)
        z = [
            MPCSolver(
                problem,
                humanoid.settings(),
                dtype="float64",
                engine=engine,
                nominal=humanoid.nominal(problem),
            )
            .solve(x0)
            .z
            for engine in ("staged", "dense")
        ]
        np.testing.assert_allclose(z[0], z[1], atol=ACCURATE * np.abs(z[1]).max(), rtol=0)
