"""`LDLSolver`: accuracy on every pattern and engine, L and D against qdldl, batches, inputs."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from cases import (
    PATTERN_NAMES,
    PATTERNS,
    PROPERTY,
    STRUCTURE_NAMES,
    KCase,
    kkt_of,
    quasi_definite,
    random_case,
    random_cases,
)
from hypothesis import example, given, settings
from ldl_cases import (
    DTYPES,
    ENGINE_NAMES,
    WARP_ENGINES,
    Batch,
    check_solver,
    make_solver,
    solver_for,
    systems,
)
from oracles import dense_ldl, dense_symmetric, qdldl_factors, relative_residuals

from warpmpc import LDLSolver, SettingsError

FEWER_PATTERNS = {
    engine: ["one_column", "diagonal", "random_33", "dense", "cartpole_6"]
    for engine in WARP_ENGINES
} | {
    # Every segment is compiled on its own: seconds per pattern.
    "jax": ["one_column", "diagonal", "arrow_first", "random_10", "cartpole_6"],
    "jax_columns": ["one_column", "diagonal", "random_10", "random_33"],
    "dense": ["one_column", "random_33", "cartpole_6"],
}
FEWER = [(engine, name) for engine in ENGINE_NAMES[1:] for name in FEWER_PATTERNS[engine]]
# The symbolic tests compare the pattern of L on all of them.
QDLDL_PATTERNS = ["diagonal", "arrow_first", "dense", "random_2", "random_120", "quadrotor_4"]
BATCHES = [1, 31, 32, 33, 1000]
L_TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


class TestResiduals:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("name", PATTERN_NAMES)
    def test_every_pattern(self, name, dtype):
        check_solver(solver_for(name, "warp", dtype), systems(name, dtype))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(("engine", "name"), FEWER)
    def test_every_engine(self, engine, name, dtype):
        check_solver(solver_for(name, engine, dtype), systems(name, dtype))

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", DTYPES)
    @settings(PROPERTY, max_examples=25)
    @given(case=random_cases(max_entries=300**2))
    @example(case=random_case(300, 1.0, 0))
    def test_random_patterns(self, dtype, case: KCase):
        check_solver(make_solver(case, "warp", dtype), systems(case, dtype, batch=2))

    @pytest.mark.parametrize("ordering", ["amd", "stage"])
    @pytest.mark.parametrize("name", STRUCTURE_NAMES)
    def test_benchmark_systems(self, name, ordering):
        structure, kkt = kkt_of(name)
        signs = np.repeat([1, -1], [structure.var_stage.size, structure.con_stage.size])
        case = KCase(kkt.K_pattern.to_scipy(), signs, structure.stages)
        solver = make_solver(case, "warp", "float64", ordering=ordering, stages=structure.stages)
        check_solver(solver, systems(case))

    @pytest.mark.parametrize("ordering", ["natural", "stage", "permutation"])
    @pytest.mark.parametrize("engine", ["warp", "warp_tables"])
    def test_orderings(self, engine, ordering):
        case = PATTERNS["cartpole_6"]()
        if ordering == "permutation":
            ordering = np.random.default_rng(0).permutation(case.n)
        solver = make_solver(case, engine, "float64", ordering=ordering, stages=case.stages)
        check_solver(solver, systems(case))


def sorted_entries(L: sp.csc_matrix) -> sp.csc_matrix:
    L = sp.csc_matrix(L)
    L.sort_indices()
    return L


@pytest.mark.oracle
class TestFactors:
    @pytest.mark.parametrize("name", QDLDL_PATTERNS)
    def test_qdldl(self, name):
        K, values = quasi_definite(name, seed=2)
        L, D, perm = qdldl_factors(K, values[0])
        L = sorted_entries(L)
        solver = LDLSolver(K, ordering=perm, dtype="float64")
        assert solver.nnz_L == L.nnz
        ours_L, ours_D = solver.factors(solver.factor(values[0]))
        pattern = solver.elimination.L_pattern
        np.testing.assert_array_equal(pattern.row_idx, L.indices)
        np.testing.assert_array_equal(pattern.col_ptr, L.indptr)
        np.testing.assert_allclose(ours_L, L.data, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(ours_D, D, rtol=1e-12)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("engine", [name for name in ENGINE_NAMES if name != "dense"])
    def test_dense_elimination(self, engine, dtype):
        name = small(engine)
        solver, batch = solver_for(name, engine, dtype), systems(name, dtype)
        L, D = solver.factors(solver.factor(batch.values))
        assert L.shape == (3, solver.nnz_L)
        assert D.shape == (3, solver.n)
        perm, pattern = solver.elimination.perm, solver.elimination.L_pattern
        for b, full in enumerate(dense_symmetric(batch.K, batch.values)):
            dense_L, dense_D = dense_ldl(full[np.ix_(perm, perm)])
            wanted = dense_L[pattern.row_idx, pattern.col_idx]
            tolerance = L_TOLERANCE[dtype]
            np.testing.assert_allclose(L[b], wanted, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(D[b], dense_D, rtol=tolerance)

    def test_leading_axes(self):
        solver, batch = solver_for("random_10"), systems("random_10", batch=6)
        L, D = solver.factors(solver.factor(batch.values))
        again_L, again_D = solver.factors(solver.factor(batch.values.reshape(2, 3, -1)))
        np.testing.assert_array_equal(again_L, L.reshape(2, 3, -1))
        np.testing.assert_array_equal(again_D, D.reshape(2, 3, -1))

    def test_dense_backend_has_none(self):
        solver = solver_for("random_10", "dense")
        factor = solver.factor(systems("random_10").values)
        with pytest.raises(SettingsError, match='"dense" has no L and D; use backend "warp"'):
            solver.factors(factor)


def small(engine: str) -> str:
    """A pattern that an engine compiles fast."""
    return "random_10" if engine == "jax" else "random_33"


def solve(solver: LDLSolver, values, rhs) -> np.ndarray:
    return np.asarray(solver.solve(solver.factor(values), rhs))


class TestBatch:
    @pytest.mark.parametrize("batch", BATCHES)
    @pytest.mark.parametrize(
        ("engine", "dtype"),
        [
            ("warp", "float32"),
            ("warp", "float64"),
            ("warp_tables", "float32"),
            ("warp_batch_first", "float64"),
            ("jax", "float32"),
            ("dense", "float64"),
        ],
    )
    def test_sizes(self, engine, batch, dtype):
        check_solver(solver_for(small(engine), engine, dtype), systems(small(engine), dtype, batch))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("engine", WARP_ENGINES)
    def test_permuting_the_batch_permutes_every_bit(self, engine, dtype):
        solver, batch = solver_for("cartpole_6", engine, dtype), systems("cartpole_6", dtype, 100)
        order = np.random.default_rng(3).permutation(100)
        straight = solve(solver, batch.values, batch.rhs)
        np.testing.assert_array_equal(
            solve(solver, batch.values[order], batch.rhs[order]), straight[order]
        )

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("engine", WARP_ENGINES)
    def test_one_instance_equals_its_place_in_a_batch(self, engine, dtype):
        solver, batch = solver_for("cartpole_6", engine, dtype), systems("cartpole_6", dtype, 100)
        together = solve(solver, batch.values, batch.rhs)
        for b in (0, 17, 31, 32, 99):
            at = slice(b, b + 1)
            np.testing.assert_array_equal(
                solve(solver, batch.values[at], batch.rhs[at]), together[at]
            )

    @pytest.mark.parametrize("engine", WARP_ENGINES)
    def test_repeated_runs_agree_in_every_bit(self, engine):
        solver, batch = solver_for("cartpole_6", engine), systems("cartpole_6", batch=40)
        first = solve(solver, batch.values, batch.rhs)
        np.testing.assert_array_equal(solve(solver, batch.values, batch.rhs), first)

    @pytest.mark.parametrize("engine", ["warp", "warp_batch_first", "jax", "dense"])
    def test_no_batch_axis(self, engine):
        solver, batch = solver_for(small(engine), engine), systems(small(engine), batch=1)
        factor = solver.factor(batch.values[0])
        assert factor.status.shape == ()
        solution = np.asarray(solver.solve(factor, batch.rhs[0]))
        assert solution.shape == (solver.n,)
        np.testing.assert_array_equal(solution, solve(solver, batch.values, batch.rhs)[0])

    @pytest.mark.parametrize("engine", ["warp", "warp_batch_first", "jax", "dense"])
    def test_several_leading_axes(self, engine):
        solver, batch = solver_for(small(engine), engine), systems(small(engine), batch=42)
        values, rhs = batch.values.reshape(2, 3, 7, -1), batch.rhs.reshape(2, 3, 7, -1)
        factor = solver.factor(values)
        assert factor.status.shape == (2, 3, 7)
        solution = np.asarray(solver.solve(factor, rhs))
        assert solution.shape == rhs.shape
        flat = solve(solver, batch.values, batch.rhs)
        np.testing.assert_array_equal(solution.reshape(42, -1), flat)

    @pytest.mark.parametrize("engine", ["warp", "warp_tables", "jax", "dense"])
    def test_several_right_hand_sides(self, engine):
        solver, batch = solver_for(small(engine), engine), systems(small(engine), batch=5)
        factor = solver.factor(batch.values)
        for scale in (1.0, -2.0, 1e3):
            rhs = scale * np.roll(batch.rhs, 1, axis=1)
            solution = np.asarray(solver.solve(factor, rhs))
            assert relative_residuals(batch.K, batch.values, solution, rhs).max() < 1e-12

    @pytest.mark.parametrize("engine", ["warp", "jax", "dense"])
    def test_zero_right_hand_side(self, engine):
        solver, batch = solver_for(small(engine), engine), systems(small(engine), batch=2)
        np.testing.assert_array_equal(solve(solver, batch.values, 0 * batch.rhs), 0)


def in_full(batch: Batch, lower: float | None = None) -> tuple[sp.csc_matrix, np.ndarray]:
    """Full pattern and values in its column-major order; `lower` replaces the lower triangle."""
    full = sp.csc_matrix(sp.triu(batch.K) + sp.triu(batch.K, 1).T)
    full.sort_indices()
    rows, cols = full.indices, np.repeat(np.arange(full.shape[1]), np.diff(full.indptr))
    values = dense_symmetric(batch.K, batch.values)[:, rows, cols].astype(batch.values.dtype)
    if lower is not None:
        values[:, rows > cols] = lower
    return full, values


class TestInput:
    @pytest.mark.parametrize("lower", [None, 7.0, np.nan])
    @pytest.mark.parametrize("engine", ["warp", "warp_tables", "warp_batch_first", "jax", "dense"])
    def test_full_matrix_equals_its_upper_triangle(self, engine, lower):
        batch = systems("random_10", batch=4)
        K, values = in_full(batch, lower)
        case = PATTERNS["random_10"]()
        full = make_solver(KCase(K, case.signs), engine, "float64")
        upper = solver_for("random_10", engine)
        assert full.nnz == 2 * upper.nnz - upper.n
        assert full.nnz_L == upper.nnz_L
        np.testing.assert_array_equal(
            solve(full, values, batch.rhs), solve(upper, batch.values, batch.rhs)
        )

    @pytest.mark.parametrize("form", [sp.csc_matrix, sp.csr_matrix, sp.coo_matrix, sp.csc_array])
    def test_any_scipy_format(self, form):
        batch = systems("random_10")
        solver = LDLSolver(form(batch.K), dtype="float64")
        check_solver(solver, batch)

    def test_explicit_zeros_count_as_entries(self):
        K = sp.csc_matrix(np.triu(np.ones((3, 3))))
        K.data[:] = 0
        solver = LDLSolver(K, dtype="float64")
        assert (solver.nnz, solver.nnz_L) == (6, 3)

    @pytest.mark.parametrize("convert", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
    @pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "float32", jnp.float32])
    def test_arrays_and_dtypes(self, dtype, convert):
        batch = systems("random_10", "float32")
        solver = LDLSolver(batch.K, dtype=dtype)
        assert solver.dtype == "float32"
        given = Batch(batch.K, convert(batch.values), convert(batch.rhs))
        check_solver(solver, given)

    def test_arrays_that_are_not_contiguous(self):
        solver, batch = solver_for("random_10"), systems("random_10", batch=8)
        wanted = solve(solver, batch.values[::2], batch.rhs[::2])
        values, rhs = np.asfortranarray(batch.values)[::2], np.asfortranarray(batch.rhs)[::2]
        np.testing.assert_array_equal(solve(solver, values, rhs), wanted)

    def test_arguments_are_left_alone(self):
        solver, batch = solver_for("random_10"), systems("random_10", batch=32)
        values, rhs = batch.values.copy(), batch.rhs.copy()
        factor = solver.factor(values)
        kept = np.asarray(factor.values).copy()
        solver.solve(factor, rhs).block_until_ready()
        np.testing.assert_array_equal(values, batch.values)
        np.testing.assert_array_equal(rhs, batch.rhs)
        np.testing.assert_array_equal(factor.values, kept)

    def test_values_of_a_matrix(self):
        solver, batch = solver_for("random_10"), systems("random_10")
        for b in range(3):
            K = sp.csc_matrix((batch.values[b], batch.K.indices, batch.K.indptr))
            np.testing.assert_array_equal(solver.values(K), batch.values[b])
            np.testing.assert_array_equal(solver.values(K.tocsr()), batch.values[b])
            np.testing.assert_array_equal(solver.values(sp.coo_array(K)), batch.values[b])

    def test_values_of_absent_entries_are_zero(self):
        solver = LDLSolver(sp.csc_matrix(np.triu(np.ones((3, 3)))))
        values = solver.values(sp.csc_matrix(np.diag([1.0, 2.0, 3.0])))
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, [1, 0, 2, 0, 0, 3])

    def test_values_of_unsorted_columns(self):
        K = sp.csc_matrix(([1.0, 3.0, 2.0], [0, 1, 0], [0, 1, 3]), shape=(2, 2))
        solver = LDLSolver(sp.csc_matrix(np.triu(np.ones((2, 2)))), dtype="float64")
        np.testing.assert_array_equal(solver.values(K), [1, 2, 3])

    def test_sizes_of_a_solver(self):
        case = PATTERNS["random_33"]()
        solver = solver_for("random_33")
        assert solver.n == case.n
        assert solver.nnz == case.pattern.nnz
        assert solver.nnz_L == solver.elimination.L_pattern.nnz
        assert (solver.backend, solver.dtype) == ("warp", "float64")
