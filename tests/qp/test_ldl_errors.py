"""Every mistake a caller of `LDLSolver` can make has a clear error, before any kernel is built."""

from dataclasses import fields, replace

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from cases import PATTERNS
from ldl_cases import ENGINE_NAMES, check_solver, make_solver, solver_for, systems

from warpmpc import LDLSettings, LDLSolver, PatternError, ProblemError, SettingsError, WarpMPCError
from warpmpc._checks import check_dtype
from warpmpc.engines.ldl import launch as ldl_engine
from warpmpc.qp.ldl_solver import BACKENDS
from warpmpc.qp.linear_solvers import ldl_jax

NAME = "random_10"  # n = 10
K = PATTERNS[NAME]().K
N, NNZ = K.shape[0], K.nnz


@pytest.fixture
def no_kernels(monkeypatch):
    """Fails as soon as a kernel is made or launched, or a schedule is run by JAX."""

    def refuse(*args, **kwargs):
        pytest.fail("a kernel was built before the arguments were checked")

    for factory in ("factor_kernel", "solve_kernel", "window_kernel", "run"):
        monkeypatch.setattr(ldl_engine, factory, refuse)
    monkeypatch.setattr(ldl_jax, "_run", refuse)


def with_entries(*entries: tuple[int, int], shape: tuple[int, int] = (3, 3)) -> sp.coo_matrix:
    rows, cols = zip(*entries, strict=True)
    return sp.coo_matrix((np.ones(len(entries)), (rows, cols)), shape=shape)


DIAGONAL = ((0, 0), (1, 1), (2, 2))
BAD_PATTERNS = {
    "not sparse": (np.eye(3), "Expected a SciPy sparse matrix, got ndarray"),
    "not square": (with_entries(*DIAGONAL, shape=(3, 4)), r"must be square, got shape \(3, 4\)"),
    "empty": (sp.csc_matrix((0, 0)), "K is empty; it needs at least one row"),
    "unsymmetric": (
        with_entries(*DIAGONAL, (0, 1), (1, 0), (0, 2)),
        r"structurally unsymmetric: \(0, 2\) is stored but \(2, 0\) is not",
    ),
    "lower triangle": (
        with_entries(*DIAGONAL, (2, 0)),
        r"structurally unsymmetric: \(2, 0\) is stored but \(0, 2\) is not.*scipy\.sparse\.triu",
    ),
    "duplicate": (with_entries(*DIAGONAL, (0, 1), (0, 1)), r"Entry \(0, 1\) is given twice"),
    "duplicate diagonal": (with_entries(*DIAGONAL, (1, 1)), r"Entry \(1, 1\) is given twice"),
    "missing diagonal": (
        with_entries((0, 0), (0, 1), (2, 2)),
        r"no diagonal entry in 1 row\(s\), first 1; store an explicit value",
    ),
}


@pytest.mark.usefixtures("no_kernels")
class TestPattern:
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("which", BAD_PATTERNS)
    def test_refused(self, which, backend):
        pattern, message = BAD_PATTERNS[which]
        with pytest.raises(PatternError, match=message):
            LDLSolver(pattern, backend=backend)

    @pytest.mark.parametrize(
        "perm",
        [
            np.arange(N - 1),
            np.arange(N) + 1,
            np.zeros(N, dtype=int),
            np.arange(N)[None],
            np.full(N, np.nan),
        ],
    )
    def test_permutations(self, perm):
        with pytest.raises(PatternError, match=r"must be a permutation of 0\.\.9 with"):
            LDLSolver(K, ordering=perm)

    @pytest.mark.parametrize("stages", [np.zeros(N - 1, dtype=int), np.zeros(N), np.zeros((N, 1))])
    def test_stages(self, stages):
        with pytest.raises(PatternError, match="one integer label per row of K"):
            LDLSolver(K, ordering="stage", stages=stages)


@pytest.mark.usefixtures("no_kernels")
class TestNames:
    def test_backend(self):
        message = r"Unknown backend 'cudss'; choose one of \['dense', 'jax', 'warp'\]"
        with pytest.raises(SettingsError, match=message):
            LDLSolver(K, backend="cudss")

    def test_ordering(self):
        message = r"Unknown ordering 'metis'; choose one of \['amd', 'natural', 'stage'\]"
        with pytest.raises(SettingsError, match=message):
            LDLSolver(K, ordering="metis")

    def test_stage_ordering_without_stages(self):
        with pytest.raises(SettingsError, match='ordering="stage" needs `stages`'):
            LDLSolver(K, ordering="stage")

    @pytest.mark.parametrize(
        ("dtype", "name"),
        [
            ("float16", "float16"),
            (int, "int64"),
            ("double-ish", "double-ish"),
            (np.complex64, "complex64"),
        ],
    )
    def test_dtype(self, dtype, name):
        message = rf"dtype must be one of \('float32', 'float64'\), got '{name}'"
        with pytest.raises(SettingsError, match=message):
            LDLSolver(K, dtype=dtype)

    @pytest.mark.parametrize("dtype", [np.float64, "float64", "double", float])
    def test_dtype_names(self, dtype):
        assert check_dtype(dtype) == "float64"


class TestX64:
    @pytest.mark.usefixtures("no_kernels")
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_float64_needs_64_bit_mode(self, backend):
        with (
            jax.enable_x64(False),
            pytest.raises(SettingsError, match=r"needs 64-bit mode in JAX.*jax_enable_x64"),
        ):
            LDLSolver(K, backend=backend, dtype="float64")

    @pytest.mark.parametrize("engine", ["warp", "jax", "dense"])
    def test_float32_does_not(self, engine):
        with jax.enable_x64(False):
            check_solver(make_solver(PATTERNS[NAME](), engine, "float32"), systems(NAME, "float32"))

    @pytest.mark.parametrize("engine", ["warp", "jax", "dense"])
    def test_leaving_64_bit_mode_later(self, engine):
        solver, batch = solver_for(NAME, engine), systems(NAME)
        factor = solver.factor(batch.values)
        with jax.enable_x64(False):
            with pytest.raises(SettingsError, match="needs 64-bit mode in JAX"):
                solver.factor(batch.values)
            with pytest.raises(SettingsError, match="needs 64-bit mode in JAX"):
                solver.solve(factor, batch.rhs)


class TestValues:
    @pytest.fixture(params=["warp", "jax", "dense"])
    def solver(self, request, no_kernels):
        return LDLSolver(K, backend=request.param)

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([[1.0] * NNZ], "K_vals must be a NumPy or JAX array, got list"),
            (1.0, "K_vals must be a NumPy or JAX array, got float"),
            (None, "K_vals must be a NumPy or JAX array, got NoneType"),
            (np.full((2, NNZ), 1e39), r"K_vals contains 1e\+39, which is infinite in float32"),
            (np.ones((2, NNZ), dtype=bool), "K_vals has dtype bool but .* works in float32; pass"),
            (np.ones((2, NNZ), dtype="complex64"), "K_vals has dtype complex64"),
            (
                np.ones((2, NNZ + 1), dtype="float32"),
                rf"K_vals has shape \(2, {NNZ + 1}\); its last axis must have length {NNZ}",
            ),
            (np.ones((NNZ, 2), dtype="float32"), rf"shape \({NNZ}, 2\); its last axis"),
            (np.ones((2, 0), dtype="float32"), r"shape \(2, 0\); its last axis"),
            (np.float32(1.0), r"K_vals has shape \(\); its last axis"),
            (np.ones((0, NNZ), dtype="float32"), rf"K_vals is empty: shape \(0, {NNZ}\); pass"),
            (np.ones((3, 0, NNZ), dtype="float32"), rf"K_vals is empty: shape \(3, 0, {NNZ}\)"),
        ],
    )
    def test_factor(self, solver, values, message):
        with pytest.raises(ProblemError, match=message):
            solver.factor(values)


class TestRightHandSide:
    @pytest.mark.parametrize(
        ("rhs", "message"),
        [
            ([[1.0] * N], "rhs must be a NumPy or JAX array, got list"),
            (np.ones((3, N), dtype=complex), "rhs has dtype complex128 but .* works in float64"),
            (np.ones((3, N + 1)), r"rhs has shape \(3, 11\); its last axis must have length 10"),
            (np.ones((0, N)), r"rhs is empty: shape \(0, 10\); pass at least one"),
            (np.ones((2, N)), r"rhs has leading axes \(2,\) but the factor \(3,\)"),
            (np.ones(N), r"rhs has leading axes \(\) but the factor \(3,\); pass one right-hand"),
            (np.ones((3, 1, N)), r"rhs has leading axes \(3, 1\) but the factor \(3,\)"),
        ],
    )
    @pytest.mark.parametrize("engine", ["warp", "jax", "dense"])
    def test_refused(self, engine, rhs, message):
        solver = solver_for(NAME, engine)
        factor = solver.factor(systems(NAME).values)
        with pytest.raises(ProblemError, match=message):
            solver.solve(factor, rhs)


class TestFactor:
    @pytest.mark.parametrize("factor", [None, np.ones((3, N)), (1, 2)])
    def test_type(self, factor):
        message = rf"needs the result of factor\(\), got {type(factor).__name__}"
        with pytest.raises(ProblemError, match=message):
            solver_for(NAME).solve(factor, np.ones((3, N)))

    @pytest.mark.parametrize("engine", ["warp", "warp_tables", "warp_batch_first", "jax", "dense"])
    def test_of_another_pattern(self, engine):
        """Without the check the kernels would read past the end of the factor."""
        foreign = solver_for("random_33", engine).factor(systems("random_33").values)
        for use in (lambda s: s.solve(foreign, np.ones((3, N))), lambda s: s.factors(foreign)):
            with pytest.raises(ProblemError, match="was not made by this solver"):
                use(solver_for(NAME, engine))

    @pytest.mark.parametrize("engine", ["warp", "jax", "dense"])
    def test_of_another_dtype(self, engine):
        foreign = solver_for(NAME, engine, "float32").factor(systems(NAME, "float32").values)
        with pytest.raises(ProblemError, match="was not made by this solver"):
            solver_for(NAME, engine).solve(foreign, np.ones((3, N)))

    @pytest.mark.parametrize("engine", ["jax", "dense", "warp_batch_first"])
    def test_of_another_engine(self, engine):
        foreign = solver_for(NAME, engine).factor(systems(NAME).values)
        with pytest.raises(ProblemError, match="was not made by this solver"):
            solver_for(NAME).solve(foreign, np.ones((3, N)))

    def test_cut_out_of_a_batch(self):
        solver, batch = solver_for(NAME), systems(NAME, batch=40)
        part = jax.tree.map(lambda leaf: leaf[:3], solver.factor(batch.values))
        with pytest.raises(ProblemError, match="was not made by this solver"):
            solver.solve(part, batch.rhs[:3])


class TestValuesOf:
    def test_shape(self):
        with pytest.raises(ProblemError, match=r"matrix of shape \(10, 10\), got \(9, 9\)"):
            solver_for(NAME).values(sp.eye(9).tocsc())

    def test_entry_outside_the_pattern(self):
        solver = LDLSolver(sp.eye(3).tocsc())
        matrix = sp.csc_matrix(np.array([[1.0, 2.0, 0], [0, 1, 0], [0, 0, 1]]))
        with pytest.raises(ProblemError, match=r"Entry \(0, 1\) is not in the pattern"):
            solver.values(matrix)

    def test_duplicates(self):
        twice = sp.csc_matrix(([1.0, 1, 1, 1], [0, 0, 1, 2], [0, 2, 3, 4]), shape=(3, 3))
        with pytest.raises(PatternError, match=r"Entry \(0, 0\) is given twice"):
            LDLSolver(sp.eye(3).tocsc()).values(twice)


# A value other than the default for every field: a new field must be added here.
CHANGED = {
    "segments": 1,
    "level_scheduling": False,
    "window": False,
    "layout": "batch_first",
    "warps_per_tile": 4,
}


def launches_of(settings: LDLSettings, monkeypatch) -> list[tuple[str, list, dict]]:
    """Kernel, index tables and geometry of a factorisation and of a solve by backend "warp"."""
    case, batch, launches = PATTERNS["random_33"](), systems("random_33"), []
    solver = LDLSolver(case.K, dtype="float64", settings=settings)
    run = ldl_engine.run

    def record(source, given, outputs, **geometry):
        tables = [np.asarray(table).tolist() for table in given.values() if is_table(table)]
        launches.append((source.kernel().key, tables, geometry))
        return run(source, given, outputs, **geometry)

    def is_table(given) -> bool:
        known = not isinstance(given, jax.core.Tracer)  # the marks of tiles are not a table
        return known and getattr(given, "dtype", None) == np.int32

    with monkeypatch.context() as patch:
        patch.setattr(ldl_engine, "run", record)
        solver.solve(solver.factor(batch.values), batch.rhs)
    return launches


def program_of(backend: str, settings: LDLSettings, monkeypatch) -> list:
    """What a solver hands to the device."""
    if backend == "warp":
        return launches_of(settings, monkeypatch)
    case, batch = PATTERNS["random_33"](), systems("random_33")
    solver = LDLSolver(case.K, backend=backend, dtype="float64", settings=settings)
    factor = jax.eval_shape(solver.factor, batch.values)
    programs = [jax.make_jaxpr(solver.factor)(batch.values)]
    programs.append(jax.make_jaxpr(solver.solve)(factor, batch.rhs))
    return [str(program) for program in programs]


class TestSettings:
    def test_table_has_every_field(self):
        defaults = LDLSettings()
        assert set(CHANGED) == {field.name for field in fields(LDLSettings)}
        assert all(getattr(defaults, name) != value for name, value in CHANGED.items())

    @pytest.mark.parametrize("name", CHANGED)
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_every_setting_is_honoured_or_refused(self, backend, name, monkeypatch):
        settings = replace(LDLSettings(), **{name: CHANGED[name]})
        if name not in BACKENDS[backend].honours:
            message = f"Backend '{backend}' does not use the setting `{name}`; leave it at its def"
            with pytest.raises(SettingsError, match=message):
                LDLSolver(K, backend=backend, settings=settings)
            return
        usual = program_of(backend, LDLSettings(), monkeypatch)
        assert usual == program_of(backend, LDLSettings(), monkeypatch)
        assert usual != program_of(backend, settings, monkeypatch)

    @pytest.mark.parametrize(
        ("name", "base"),
        [
            ("segments", LDLSettings(window=True)),
            ("segments", LDLSettings(window=False)),
            ("segments", LDLSettings(layout="batch_first")),
            ("level_scheduling", LDLSettings(window=False)),
            ("level_scheduling", LDLSettings(layout="batch_first")),
        ],
    )
    def test_factor_and_solve_both_follow(self, name, base, monkeypatch):
        usual = launches_of(base, monkeypatch)
        changed = launches_of(replace(base, **{name: CHANGED[name]}), monkeypatch)
        assert len(usual) == len(changed) == 2
        for (kernel, tables, _), (same, others, _) in zip(usual, changed, strict=True):
            assert kernel == same
            assert tables != others

    def test_what_each_backend_honours(self):
        assert BACKENDS["warp"].honours == set(CHANGED)
        assert BACKENDS["jax"].honours == {"segments", "level_scheduling"}
        assert BACKENDS["dense"].honours == set()

    @pytest.mark.parametrize("segments", [0, -1, 1.5, "many"])
    def test_segments(self, segments):
        with pytest.raises(SettingsError, match="segments must be a positive integer or None, got"):
            LDLSettings(segments=segments)

    @pytest.mark.parametrize("warps", [0, -1, 33, 1.5, "all"])
    def test_warps_per_tile(self, warps):
        with pytest.raises(SettingsError, match="warps_per_tile must be an integer from 1 to 32"):
            LDLSettings(warps_per_tile=warps)

    def test_layout(self):
        message = r"layout must be one of \('tiled', 'batch_first'\), got 'columns'"
        with pytest.raises(SettingsError, match=message):
            LDLSettings(layout="columns")

    @pytest.mark.parametrize("other", [{"window": True}, {"warps_per_tile": 2}])
    def test_batch_first_has_one_thread_per_problem(self, other):
        with pytest.raises(SettingsError, match='"batch_first" works on one problem per thread'):
            LDLSettings(layout="batch_first", **other)
        LDLSettings(layout="batch_first", window=False, warps_per_tile=1)

    @pytest.mark.parametrize("warps", [1, 2, 3, 16, 32])
    def test_any_number_of_warps(self, warps):
        settings = LDLSettings(warps_per_tile=warps, window=False)
        check_solver(LDLSolver(K, dtype="float64", settings=settings), systems(NAME, batch=40))


class TestWindow:
    def test_one_that_does_not_fit_is_refused(self, monkeypatch, no_kernels):
        monkeypatch.setattr(ldl_engine, "shared_memory_limit", lambda: 6 * 1024)
        message = r"window=True needs \d+ unknowns per problem on chip.*window=None or ordering="
        with pytest.raises(SettingsError, match=message):
            LDLSolver(PATTERNS["dense"]().K, settings=LDLSettings(window=True))

    def test_none_falls_back_to_tables(self, monkeypatch):
        used = []
        tables = ldl_engine.solve_kernel

        def record(*args, **kwargs):
            used.append(args)
            return tables(*args, **kwargs)

        monkeypatch.setattr(ldl_engine, "shared_memory_limit", lambda: 6 * 1024)
        monkeypatch.setattr(ldl_engine, "solve_kernel", record)
        solver = LDLSolver(PATTERNS["dense"]().K, dtype="float64")
        check_solver(solver, systems("dense"))
        assert used

    def test_none_uses_a_window_that_fits(self, monkeypatch):
        monkeypatch.setattr(
            ldl_engine, "solve_kernel", lambda *_, **__: pytest.fail("solved by tables")
        )
        check_solver(LDLSolver(K, dtype="float64"), systems(NAME))


def test_all_errors_have_one_root():
    for error in (PatternError, ProblemError, SettingsError):
        assert issubclass(error, WarpMPCError)


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_analysis_builds_no_kernel(engine):
    make_solver(PATTERNS["cartpole_6"](), engine, "float32")
