"""Other QP solvers on the same instances, where their packages are present.

OSQP runs the same 25 iterations on one core.  The others solve to a tolerance; their rows say
which, and are judged by the objective and by how far bounds are violated.  Add an entry to
`BASELINES`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from warpmpc.systems import linear_mpc
from warpmpc_bench.common.baseline import Baseline, needs, on_one_core
from warpmpc_bench.common.timing import Measured, build, measure
from warpmpc_bench.qp.case import SETTINGS, QPCase

OSQP_BATCH, OSQP_GRADIENT_BATCH = 128, 16
OSQP_FIXED = {
    "rho": SETTINGS.rho,
    "sigma": SETTINGS.sigma,
    "alpha": SETTINGS.relaxation,
    "max_iter": SETTINGS.max_iter,
    "scaling": 0,
    "adaptive_rho": 0,
    "check_termination": 0,
    "polishing": False,
    # An iterate that looks infeasible by the end would be replaced by NaN.
    "eps_prim_inf": 1e-15,
    "eps_dual_inf": 1e-15,
}
OSQP_TOLERANCE = {"eps_abs": 1e-3, "eps_rel": 1e-3, "max_iter": 4000, "check_termination": 25,
                  "polishing": False}  # fmt: skip
# Tolerances of the objective, relative, and of the bounds.  Residuals below 1e-3, where these
# solvers stop, still leaves up to 2 % of the objective (seen with jaxopt at a short horizon).
TOLERANCE_LIMIT = 5e-2
QPAX_SHIFT = 1e-4


class _OSQP:
    """OSQP on the instances of a case, one after the other."""

    def __init__(self, case: QPCase, options: dict[str, Any]):
        P, q, A, lower, upper = (np.asarray(array, dtype=np.float64) for array in case.args)
        self._case, self._options = case, options
        self._numbers = list(zip(P, q, A, lower, upper, strict=True))
        self._solver = self._set_up(self._numbers[0])
        self.x, self.y = np.zeros_like(q), np.zeros_like(lower)

    def _set_up(self, numbers: tuple[np.ndarray, ...]) -> Any:
        import osqp

        P, q, A, lower, upper = numbers
        of = self._case.problem
        matrices = (
            sp.csc_matrix((values, pattern.indices, pattern.indptr), shape=pattern.shape)
            for values, pattern in ((P, of.P), (A, of.A))
        )
        solver = osqp.OSQP()
        solver.setup(next(matrices), q, next(matrices), lower, upper, verbose=False,
                     **self._options)  # fmt: skip
        return solver

    def _keep(self, b: int, solver: Any) -> None:
        result = solver.solve(raise_error=False)
        self.x[b], self.y[b] = result.x, result.y

    def set_up(self) -> None:
        """A new solver for each instance: ordering, factorisation, iterations."""
        for b, numbers in enumerate(self._numbers):
            self._keep(b, self._set_up(numbers))

    def refactor(self) -> None:
        """One solver; every instance factorises its own matrix."""
        for b, (P, q, A, lower, upper) in enumerate(self._numbers):
            self._solver.update(Px=P, Ax=A, q=q, l=lower, u=upper)
            self._from_zero(b)

    def share(self) -> None:
        """One solver and one factor for all instances."""
        for b, (_, q, _, lower, upper) in enumerate(self._numbers):
            self._solver.update(q=q, l=lower, u=upper)
            self._from_zero(b)

    def _from_zero(self, b: int) -> None:
        self._solver.warm_start(x=np.zeros(self.x.shape[1]), y=np.zeros(self.y.shape[1]))
        self._keep(b, self._solver)

    def differentiate(self) -> None:
        """Solves to the tolerance, then all gradients from cotangents of x and y."""
        bars = zip(*(np.asarray(bar, dtype=np.float64) for bar in self._case.cotangents),
                   strict=True)  # fmt: skip
        for b, (numbers, (x_bar, y_bar)) in enumerate(zip(self._numbers, bars, strict=True)):
            solver = self._set_up(numbers)
            self._keep(b, solver)
            solver.adjoint_derivative_compute(dx=x_bar, dy=y_bar)
            solver.adjoint_derivative_get_mat()
            solver.adjoint_derivative_get_vec()


def measure_osqp(mode: str, case: QPCase, repeats: int) -> Measured:
    """The same iterations by OSQP; `mode` is a method of `_OSQP`."""
    start = time.perf_counter()
    solver = _OSQP(case, OSQP_FIXED)
    call = getattr(solver, mode)
    call()
    first = time.perf_counter() - start
    timing = measure(call, repeats=repeats, first_call_s=first)
    settings = {"engine": "osqp", "mode": mode, **OSQP_FIXED}
    return Measured({"solve": timing}, settings, case.iterates(solver.x, solver.y))


def measure_osqp_gradient(case: QPCase, repeats: int) -> Measured:
    """Solution to a tolerance and gradients by OSQP."""
    start = time.perf_counter()
    solver = _OSQP(case, OSQP_TOLERANCE)
    solver.differentiate()
    first = time.perf_counter() - start
    timing = measure(solver.differentiate, repeats=repeats, first_call_s=first)
    settings = {"engine": "osqp", "mode": "set up, solve, differentiate", **OSQP_TOLERANCE}
    return Measured({"gradient": timing}, settings, case.optimality(solver.x, TOLERANCE_LIMIT))


def _measure_dense(
    solve: Callable[..., jax.Array], settings: dict[str, Any], case: QPCase, repeats: int
) -> Measured:
    """Times a solver of dense problems, mapped over the batch; P and A are shared."""
    P = jnp.asarray(case.instances[0].full_P.toarray(), dtype=case.dtype)
    A = jnp.asarray(case.problem.A.toarray(), dtype=case.dtype)
    args = (P, A, case.args[1], case.args[3], case.args[4])
    program, x = build(jax.vmap(solve, in_axes=(None, None, 0, 0, 0)), *args)
    accuracy = case.optimality(x, TOLERANCE_LIMIT)
    timing = measure(program.call, *args, repeats=repeats, first_call_s=program.first_call_s)
    return Measured({"solve": timing}, settings, accuracy)


def measure_jaxopt(case: QPCase, repeats: int) -> Measured:
    """BoxOSQP of jaxopt with dense matrices and LU, its defaults otherwise."""
    from jaxopt import BoxOSQP  # pyright: ignore[reportMissingImports]

    settings = {"tol": 1e-3, "maxiter": 4000, "eq_qp_solve": "lu"}
    solver = BoxOSQP(**settings)

    def solve(P: jax.Array, A: jax.Array, q: jax.Array, lower: jax.Array, upper: jax.Array):
        return solver.run(None, (P, q), A, (lower, upper)).params.primal[0]

    return _measure_dense(solve, {"engine": "jaxopt.BoxOSQP", **settings}, case, repeats)


def measure_mpax(case: QPCase, repeats: int) -> Measured:
    """MPAX's raPDHG: dynamics as equalities, bounds on the variables."""
    from mpax import create_qp, raPDHG  # pyright: ignore[reportMissingImports]

    settings = {"eps_abs": 1e-5, "eps_rel": 1e-5}
    solver, fixed = raPDHG(verbose=False, **settings), _equality_rows(case)
    P, (_, q, _, lower, upper) = case.instances[0].full_P.toarray(), case.args
    dense = case.problem.A.toarray()[:fixed]
    nothing = (np.zeros((0, dense.shape[1])), np.zeros(0))
    given = (P, q[0], dense, lower[0, :fixed], *nothing, lower[0, fixed:], upper[0, fixed:])
    # Checks of `create_qp` cannot be traced: only the initial state changes afterwards.
    problem = create_qp(*(jnp.asarray(a, dtype=case.dtype) for a in given), use_sparse_matrix=False)

    def solve(P: jax.Array, A: jax.Array, q: jax.Array, lower: jax.Array, upper: jax.Array):
        del q, upper
        given = {"objective_matrix": P, "constraint_matrix": A[:fixed]}
        one = replace(problem, right_hand_side=lower[:fixed], **given)
        return solver.optimize(one).primal_solution

    return _measure_dense(solve, {"engine": "mpax.raPDHG", **settings}, case, repeats)


def measure_qpax(case: QPCase, repeats: int) -> Measured:
    """Interior point of qpax; it needs a positive definite P, so P is shifted."""
    import qpax  # pyright: ignore[reportMissingImports]

    fixed, of = _equality_rows(case), case.problem
    below = fixed + np.flatnonzero(np.isfinite(of.lower[fixed:]))
    above = fixed + np.flatnonzero(np.isfinite(of.upper[fixed:]))
    settings = {"solver_tol": 1e-3, "shift_of_P": QPAX_SHIFT}

    def solve(P: jax.Array, A: jax.Array, q: jax.Array, lower: jax.Array, upper: jax.Array):
        P = P + QPAX_SHIFT * jnp.eye(q.size, dtype=q.dtype)
        G, h = (
            jnp.concatenate([-A[below], A[above]]),
            jnp.concatenate([-lower[below], upper[above]]),
        )
        return qpax.solve_qp(P, q, A[:fixed], lower[:fixed], G, h, solver_tol=1e-3)[0]

    return _measure_dense(solve, {"engine": "qpax", **settings}, case, repeats)


def _equality_rows(case: QPCase) -> int:
    """The first rows are the equalities."""
    return linear_mpc.N_X * (case.horizon + 1)


def _on_core(label: str, call: Callable[[QPCase, int], Measured], batch: int) -> Baseline:
    return on_one_core(label, call, "osqp", batch, 10**6)


def _dense(
    label: str, call: Callable[[QPCase, int], Measured], package: str, largest: dict[str, int]
) -> Baseline:
    """A solver that holds a few full matrices per instance."""
    entries = sum(linear_mpc.build().A.shape) ** 2
    return Baseline(
        label, call, needs(package, package), largest, lambda itemsize: 8 * itemsize * entries
    )


BASELINES: dict[str, Baseline] = {
    "osqp": _on_core("OSQP, own factor, one core", partial(measure_osqp, "refactor"), OSQP_BATCH),
    "osqp_setup": _on_core(
        "OSQP, new solver each, one core", partial(measure_osqp, "set_up"), OSQP_BATCH
    ),
    "osqp_shared": _on_core(
        "OSQP, shared factor, one core", partial(measure_osqp, "share"), OSQP_BATCH
    ),
    "osqp_gradient": _on_core(
        "OSQP with gradient, one core", measure_osqp_gradient, OSQP_GRADIENT_BATCH
    ),
    "jaxopt": _dense("jaxopt BoxOSQP, dense", measure_jaxopt, "jaxopt", {"gpu": 128, "cpu": 1}),
    "mpax": _dense("MPAX", measure_mpax, "mpax", {"gpu": 2048, "cpu": 4}),
    "qpax": _dense("qpax, dense", measure_qpax, "qpax", {"gpu": 128, "cpu": 2}),
}
