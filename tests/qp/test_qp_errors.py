"""Everything that `QPSolver` and `ADMMSettings` refuse, with messages that explain what to do."""

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

    @pytest.mark.parametrize("settings", [{}, [], 0, False, "default", ADMMSettings])
    def test_settings_of_another_type(self, settings):
        """Also what counts as false: only None stands for the defaults."""
        with pytest.raises(SettingsError, match="settings must be ADMMSettings, got "):
            QPSolver(EYE, ROWS, settings)

    def test_every_format_and_the_full_matrix_are_taken(self):
        full = sp.csr_array(np.ones((3, 3)))
        assert QPSolver(full, ROWS.tocoo()).P_pattern.nnz == 9
        assert QPSolver(sp.triu(full), ROWS).P_pattern.nnz == 6

    @pytest.mark.parametrize(
        ("classes", "message"),
        [
            ([0], r"one RowClass per row of A: 2 integers; got shape \(1,\), dtype int"),
            (np.zeros((2, 1), dtype=int), r"2 integers; got shape \(2, 1\)"),
            ([0.0, 1.0], "2 integers; .* dtype float64"),
            ([True, False], "2 integers; .* dtype bool"),
            (["equality", "free"], "2 integers; .* dtype <U8"),
            ("equality", r"2 integers; got shape \(\)"),
            ([0, 7], r"row_classes\[1\] is 7; use RowClass.EQUALITY, RowClass.INEQUALITY or RowC"),
        ],
    )
    def test_row_classes(self, classes, message):
        with pytest.raises(ProblemError, match=message):
            QPSolver(EYE, ROWS, row_classes=classes)

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
        ("q", "message"),
        [
            (np.zeros((33, 8), dtype=bool), "q has dtype bool but the solver works in float64"),
            (np.zeros((33, 8), dtype=complex), "in float64; pass an array of real numbers"),
            (np.ma.masked_array(np.zeros((33, 8))), "q is a masked array, whose mask would be"),
            ([[0.0] * 8] * 33, "q must be a NumPy or JAX array, got list"),
            (0.0, "q must be a NumPy or JAX array, got float"),
        ],
    )
    def test_wrong_dtype(self, solver, q, message):
        args = list(ring(33).args)
        args[1] = q
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
        with pytest.raises(ProblemError, match=r"P_vals is empty: shape \(2, 0, 16\); pass at"):
            solver.solve(*(array[None, :0].repeat(2, axis=0) for array in ring(33).args))

    @pytest.mark.parametrize(("part", "size"), [("x", 8), ("s", 12), ("y", 12)])
    def test_warm_start(self, solver, part, size):
        given = ring(33)
        parts = {"x": given.q, "s": given.lower, "y": given.lower}
        wrong = QPWarmStart(**{**parts, part: parts[part][:, 1:]})
        message = rf"warm_start\.{part} has shape \(33, {size - 1}\).*length {size}"
        with pytest.raises(ProblemError, match=message):
            solver.solve(*given.args, warm_start=wrong)
        wrong = QPWarmStart(**{**parts, part: parts[part] > 0})
        with pytest.raises(ProblemError, match=rf"warm_start\.{part} has dtype bool but"):
            solver.solve(*given.args, warm_start=wrong)
        wrong = QPWarmStart(**{**parts, part: parts[part][:5]})
        with pytest.raises(ProblemError, match=r"same leading axes, got \[\(5,\), \(33,\)\]"):
            solver.solve(*given.args, warm_start=wrong)

    def test_checks_run_while_tracing(self, solver):
        given = ring(33)
        with pytest.raises(ProblemError, match="upper has shape"):
            jax.jit(solver.solve)(*given.args[:4], given.q)


# What each setting is called when it is refused, and values of the right type out of its range.
REALS = {
    **dict.fromkeys(("rho", "rho_equality", "sigma"), ("a positive finite number", [0.0, -1, 0])),
    **dict.fromkeys(("eps_prim_inf", "eps_dual_inf"), ("a finite number, at least 0", [-1e-3, -1])),
    **dict.fromkeys(("eps_abs", "eps_rel"), ("a finite number, at least 0, or None", [-1e-3, -1])),
    "relaxation": ("a number between 0 and 2", [0, 2, 2.0, -0.5]),
    "adaptive_rho_tolerance": ("a finite number, at least 1", [0.5, 0]),
}
COUNTS = {
    "max_iter": ("an integer, at least 1", [0, -1]),
    **dict.fromkeys(
        ("check_every", "adaptive_rho_every", "scaling"), ("an integer, at least 0", [-1, -5])
    ),
    "max_batch": ("an integer, at least 32", [0, 31, -32]),
}
NO_NUMBERS = [True, False, np.True_, "1", None, [1], 1j, np.nan, np.inf, -np.inf, np.array(1.0)]
NO_INTEGERS = [*NO_NUMBERS, 1.0, 2.5, np.float64(1)]


def refusals():
    for name, (what, values) in REALS.items():
        wrong = [v for v in NO_NUMBERS if not (what.endswith("or None") and v is None)]
        yield from ((name, what, value) for value in [*values, *wrong])
    for name, (what, values) in COUNTS.items():
        wrong = [v for v in NO_INTEGERS if not (name == "max_batch" and v is None)]
        yield from ((name, what, value) for value in [*values, *wrong])


class TestSettings:
    def test_tables_have_every_field(self):
        others = {"sensitivity", "check_dualgap", "polish"}
        assert {field.name for field in fields(ADMMSettings)} == {*REALS, *COUNTS, *others}

    @pytest.mark.parametrize(("name", "what", "value"), list(refusals()))
    def test_refused(self, name, what, value):
        with pytest.raises(SettingsError, match=f"^{name} must be {what}, got ") as caught:
            ADMMSettings(**{name: value})
        assert repr(value) in str(caught.value)

    @pytest.mark.parametrize("name", REALS)
    @pytest.mark.parametrize("kind", [float, int, np.float64, np.float32, np.float16, np.int64])
    def test_real_numbers_are_taken(self, name, kind):
        value = getattr(ADMMSettings(**{name: kind(1)}), name)
        assert type(value) is float
        assert value == 1

    @pytest.mark.parametrize("name", COUNTS)
    @pytest.mark.parametrize("kind", [int, np.int32, np.int64, np.uint8])
    def test_integers_are_taken(self, name, kind):
        value = getattr(ADMMSettings(**{"adaptive_rho_every": 100, name: kind(100)}), name)
        assert type(value) is int
        assert value == 100

    @pytest.mark.parametrize("value", ["ift", "KKT", None, 1, ["kkt"]])
    def test_sensitivity(self, value):
        with pytest.raises(SettingsError, match='sensitivity must be "kkt" or "lsq", got '):
            ADMMSettings(sensitivity=value)

    def test_check_and_adaptation_must_fit(self):
        message = r"adaptive_rho_every \(50\) must be a multiple of check_every \(20\): rho is"
        with pytest.raises(SettingsError, match=message):
            ADMMSettings(check_every=20)

    def test_max_batch_says_what_none_means(self):
        with pytest.raises(SettingsError, match="got 5; None: what the memory holds"):
            ADMMSettings(max_batch=5)

    def test_defaults_are_osqps(self):
        """Apart from the adaptation of rho, which OSQP ties to time."""
        settings = ADMMSettings()
        assert (settings.rho, settings.sigma, settings.relaxation) == (0.1, 1e-6, 1.6)
        resolved = settings.resolved()
        assert (settings.eps_abs, settings.eps_rel) == (None, None)
        assert (resolved.eps_abs, resolved.eps_rel) == (1e-3, 1e-3)
        assert settings.absolute_tolerance == settings.relative_tolerance == 1e-3
        assert (settings.eps_prim_inf, settings.eps_dual_inf) == (1e-4, 1e-4)
        assert (settings.max_iter, settings.check_every, settings.scaling) == (4000, 25, 10)

    def test_hashable_and_frozen(self):
        assert hash(ADMMSettings()) == hash(ADMMSettings())
        with pytest.raises(AttributeError):
            ADMMSettings().rho = 1.0


def test_status_names():
    names = "SOLVED MAX_ITER PRIMAL_INFEASIBLE DUAL_INFEASIBLE NON_FINITE INVALID_BOUNDS"
    assert [status.name for status in Status] == [*names.split(), "NON_CONVEX"]
    assert Status.SOLVED == 0


@pytest.mark.parametrize("stages", [3, "a", None])
def test_stages_of_a_qp_without_rows(stages):
    """Such a QP gets a row, which has a stage as well."""
    eye, nothing = sp.identity(2, format="csc"), sp.csc_matrix((0, 2))
    with pytest.raises((PatternError, SettingsError), match="`stages`"):
        QPSolver(eye, nothing, engine="staged", stages=stages)


@pytest.mark.parametrize("settings", [{}, 0, "fast"])
def test_settings_are_settings(settings):
    message = f"settings must be ADMMSettings, got {type(settings).__name__}"
    with pytest.raises(SettingsError, match=message):
        QPSolver(sp.eye(2, format="csc"), sp.eye(2, format="csc"), settings)


@pytest.mark.parametrize("which", [0, 1])
def test_complex_patterns(which):
    matrices = [sp.eye(2, format="csc"), sp.eye(2, format="csc")]
    matrices[which] = 1j * matrices[which]
    with pytest.raises(PatternError, match="matrix of real numbers, got dtype complex128"):
        QPSolver(*matrices)
