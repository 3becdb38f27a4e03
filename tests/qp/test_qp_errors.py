"""Everything `QPSolver` and `ADMMSettings` refuse, and that they say what to do."""

import logging
from dataclasses import fields

import jax
import numpy as np
import pytest
import scipy.sparse as sp

from qp_cases import ring, solver_for
from warpmpc import (
    ADMMSettings,
    PatternError,
    ProblemError,
    QPSolver,
    QPWarmStart,
    SettingsError,
    Status,
)

EYE = sp.identity(3, format="csc")
ROWS = sp.csc_matrix(np.ones((2, 3)))


class TestPatterns:
    @pytest.mark.parametrize(
        ("P", "A", "message"),
        [
            (ROWS, ROWS, r"P must be square, got shape \(2, 3\)"),
            (sp.csc_matrix(np.tri(3)), ROWS, "P is structurally unsymmetric; pass its upper"),
            (EYE, sp.csc_matrix(np.ones((2, 4))), "A has 4 columns but P has 3; they must match"),
            (np.eye(3), ROWS, "Expected a SciPy sparse matrix, got ndarray"),
            (EYE, np.ones((2, 3)), "Expected a SciPy sparse matrix, got ndarray"),
        ],
    )
    def test_refused(self, P, A, message):
        with pytest.raises(PatternError, match=message):
            QPSolver(P, A)

    def test_every_format_and_the_full_matrix_are_taken(self):
        full = sp.csr_array(np.ones((3, 3)))
        assert QPSolver(full, ROWS.tocoo()).P_pattern.nnz == 9
        assert QPSolver(sp.triu(full), ROWS).P_pattern.nnz == 6

    @pytest.mark.parametrize(
        "nominal",
        [
            (np.ones(2), np.ones(3), np.ones(6)),
            (np.ones(3), np.ones((1, 3)), np.ones(6)),
            (np.ones(3), np.ones(3), np.full(6, np.nan)),
        ],
    )
    def test_nominal_values(self, nominal):
        message = r"nominal needs finite values of one instance: P_vals \(3\), q \(3\) and A_vals"
        with pytest.raises(ProblemError, match=message):
            QPSolver(EYE, ROWS, nominal=nominal)


class TestEngineAndDtype:
    def test_unknown_engine(self):
        message = "Unknown engine 'cholesky'; choose one of .*'auto', 'dense', 'pcg', 'sparse'"
        with pytest.raises(SettingsError, match=message):
            QPSolver(EYE, ROWS, engine="cholesky")

    def test_unknown_dtype(self):
        with pytest.raises(SettingsError, match=r"dtype must be one of .*'float16'"):
            QPSolver(EYE, ROWS, dtype="float16")

    def test_auto_says_why(self, caplog):
        with caplog.at_level(logging.INFO, logger="warpmpc"):
            assert QPSolver(EYE, ROWS).engine == "sparse"
        assert "engine auto: sparse, because" in caplog.text


class TestData:
    @pytest.fixture
    def solver(self):
        return solver_for(ring(33))

    @pytest.mark.parametrize("position", range(5))
    def test_wrong_length(self, solver, position):
        args, name = list(ring(33).args), ("P_vals", "q", "A_vals", "lower", "upper")[position]
        size = args[position].shape[1]
        args[position] = args[position][:, 1:]
        message = rf"{name} has shape \(33, {size - 1}\); its last axis must have length {size}"
        with pytest.raises(ProblemError, match=message):
            solver.solve(*args)

    @pytest.mark.parametrize(
        ("q", "got"),
        [
            (np.zeros((33, 8), dtype="float32"), "float32"),
            (np.zeros((33, 8), dtype="int64"), "int64"),
            ([[0.0] * 8] * 33, "list"),
            (0.0, "float"),
        ],
    )
    def test_wrong_dtype(self, solver, q, got):
        args = list(ring(33).args)
        args[1] = q
        message = rf'q must be an array of float64, got {got}; cast it with `.astype\("float64"\)`'
        with pytest.raises(ProblemError, match=message):
            solver.solve(*args)

    def test_scalar(self, solver):
        args = list(ring(33).args)
        args[1] = np.float64(0)
        with pytest.raises(ProblemError, match=r"q has shape \(\); its last axis must have length"):
            solver.solve(*args)

    def test_leading_axes(self, solver):
        args = list(ring(33).args)
        args[0] = args[0][0]
        with pytest.raises(ProblemError, match=r"same leading axes, got \[\(\), \(33,\)\]"):
            solver.solve(*args)

    def test_empty_batch(self, solver):
        with pytest.raises(ProblemError, match=r"The batch is empty: leading axes \(2, 0\)"):
            solver.solve(*(array[None, :0].repeat(2, axis=0) for array in ring(33).args))

    @pytest.mark.parametrize(("part", "size"), [("x", 8), ("s", 12), ("y", 12)])
    def test_warm_start(self, solver, part, size):
        given = ring(33)
        parts = {"x": given.q, "s": given.lower, "y": given.lower}
        wrong = QPWarmStart(**{**parts, part: parts[part][:, 1:]})
        message = rf"warm_start\.{part} has shape \(33, {size - 1}\).*length {size}"
        with pytest.raises(ProblemError, match=message):
            solver.solve(*given.args, warm_start=wrong)
        wrong = QPWarmStart(**{**parts, part: parts[part].astype("float32")})
        with pytest.raises(ProblemError, match=rf"warm_start\.{part} must be an array of float64"):
            solver.solve(*given.args, warm_start=wrong)
        wrong = QPWarmStart(**{**parts, part: parts[part][:5]})
        with pytest.raises(ProblemError, match=r"same leading axes, got \[\(5,\), \(33,\)\]"):
            solver.solve(*given.args, warm_start=wrong)

    def test_checks_run_while_tracing(self, solver):
        given = ring(33)
        with pytest.raises(ProblemError, match="upper has shape"):
            jax.jit(solver.solve)(*given.args[:4], given.q)


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"rho": 0.0}, "rho must be positive and finite, got 0.0"),
            ({"rho": np.nan}, "rho must be positive and finite, got nan"),
            ({"rho_equality": -1.0}, "rho_equality must be positive and finite, got -1.0"),
            ({"sigma": np.inf}, "sigma must be positive and finite, got inf"),
            ({"eps_abs": -1e-3}, "eps_abs must be finite and at least 0, got -0.001"),
            ({"eps_rel": np.inf}, "eps_rel must be finite and at least 0, got inf"),
            ({"eps_prim_inf": np.nan}, "eps_prim_inf must be finite and at least 0, got nan"),
            ({"eps_dual_inf": -1.0}, "eps_dual_inf must be finite and at least 0, got -1.0"),
            ({"max_iter": 0}, "max_iter must be an integer >= 1, got 0"),
            ({"max_iter": 10.0}, "max_iter must be an integer >= 1, got 10.0"),
            ({"check_every": -1}, "check_every must be an integer >= 0, got -1"),
            ({"check_every": 2.5}, "check_every must be an integer >= 0, got 2.5"),
            ({"adaptive_rho_every": -5}, "adaptive_rho_every must be an integer >= 0, got -5"),
            ({"scaling": 1.5}, "scaling must be an integer >= 0, got 1.5"),
            ({"relaxation": 2.0}, "relaxation must be between 0 and 2, got 2.0"),
            ({"relaxation": 0.0}, "relaxation must be between 0 and 2, got 0.0"),
            ({"adaptive_rho_tolerance": 0.5}, "adaptive_rho_tolerance must be at least 1, got 0.5"),
            ({"sensitivity": "ift"}, 'sensitivity must be "kkt" or "lsq", got \'ift\''),
            (
                {"check_every": 20},
                r"adaptive_rho_every \(50\) must be a multiple of check_every \(20\)",
            ),
        ],
    )
    def test_refused(self, changes, message):
        with pytest.raises(SettingsError, match=message):
            ADMMSettings(**changes)

    def test_defaults_are_osqps(self):
        """Apart from the adaptation of rho, which OSQP ties to time."""
        settings = ADMMSettings()
        assert (settings.rho, settings.sigma, settings.relaxation) == (0.1, 1e-6, 1.6)
        assert (settings.eps_abs, settings.eps_rel) == (1e-3, 1e-3)
        assert (settings.eps_prim_inf, settings.eps_dual_inf) == (1e-4, 1e-4)
        assert (settings.max_iter, settings.check_every, settings.scaling) == (4000, 25, 10)

    def test_hashable_and_frozen(self):
        assert hash(ADMMSettings()) == hash(ADMMSettings())
        with pytest.raises(AttributeError):
            ADMMSettings().rho = 1.0
        assert len(fields(ADMMSettings)) == 14


def test_status_names():
    names = "SOLVED MAX_ITER PRIMAL_INFEASIBLE DUAL_INFEASIBLE NON_FINITE INVALID_BOUNDS"
    assert [status.name for status in Status] == names.split()
    assert Status.SOLVED == 0
