"""The tuner: what it tries, keeps and finds again.  Seconds come from functions, not from a GPU."""

import logging
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import CodegenError, MPCSolver, PatternError, QPSolver, SettingsError
from warpmpc.codegen.cache import CACHE_VARIABLE, cache_folder
from warpmpc.engines.staged import launch as staged_variants
from warpmpc.engines.staged.launch import (
    StagedKernels,
    StagedShape,
    StagedVariants,
    loop_shape,
    mailbox_fits,
    sides_for,
)
from warpmpc.engines.staged.tuning import (
    LoopTimer,
    ShapeStore,
    search,
    synthetic_loop,
)
from warpmpc.qp.loops.kernels import KernelLoop
from warpmpc.symbolic.pattern import SparsePattern, build_kkt
from warpmpc.symbolic.stage_elimination import build_stage_elimination, build_two_sided_elimination
from warpmpc.systems import patterns, pendulum

NONE = np.zeros(0, dtype=int)
START = StagedShape(registers=255, block=64, prefetch=True, sides=1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path


@cache
def kernels(sides: int, dtype: str = "float32", horizon: int = 4) -> StagedKernels:
    structure = patterns.cartpole(horizon)
    kkt = build_kkt(SparsePattern.from_scipy(structure.P), SparsePattern.from_scipy(structure.A))
    build = build_two_sided_elimination if sides == 2 else build_stage_elimination
    return StagedKernels(build(kkt, structure.stages, NONE), kkt.n_vars, dtype)


class Fake:
    """Seconds by a rule; remembers what was asked."""

    def __init__(self, rule):
        self.rule, self.asked = rule, []

    def __call__(self, given: StagedKernels, tiles: int) -> float:
        shape = given.shape(tiles)
        self.asked.append(shape)
        return self.rule(shape)


def two_sides_and_128(shape: StagedShape) -> float:
    return 1.0 + (shape.sides == 1) + (shape.registers != 128) + 0.5 * shape.prefetch


class TestSearch:
    def test_fields_are_varied_one_after_the_other(self):
        starts = [START, replace(START, sides=2)]
        found = search(starts, "float32", {}, two_sides_and_128)
        assert found[-1].shape == StagedShape(128, 64, prefetch=False, sides=2)
        assert found[-1].seconds == 1.0
        shapes = [one.shape for one in found]
        assert len(set(shapes)) == len(shapes) < 10
        assert {shape.block for shape in shapes if shape.sides == 2} == {64}

    def test_blocks_of_one_side(self):
        found = search([START], "float32", {}, lambda s: 1.0 / s.block)
        assert found[-1].shape.block == 128

    def test_what_is_given_is_not_varied(self):
        given = {"registers": 255, "block": 64}
        found = search([START], "float64", given, two_sides_and_128)
        assert {(one.shape.registers, one.shape.block) for one in found} == {(255, 64)}
        assert {one.shape.prefetch for one in found} == {True, False}

    def test_noise_changes_nothing(self):
        found = search([START], "float32", {}, lambda s: 1.0 if s == START else 0.99)
        assert found[-1].shape == START

    def test_a_shape_that_cannot_run_is_left_out(self, caplog):
        def measure(shape: StagedShape) -> float:
            if shape.registers == 64:
                raise RuntimeError("out of memory")
            return 1.0

        with caplog.at_level(logging.WARNING, "warpmpc"):
            found = search([START], "float32", {}, measure)
        assert all(one.shape.registers != 64 for one in found)
        assert "cannot be measured: out of memory" in caplog.text

    def test_what_is_measured_is_compiled_together_before(self):
        compiled, batches = set(), []

        def prepare(shapes: list[StagedShape]) -> None:
            compiled.update(shapes)
            batches.append(len(shapes))

        def measure(shape: StagedShape) -> float:
            assert shape in compiled
            return two_sides_and_128(shape)

        found = search([START, replace(START, sides=2)], "float32", {}, measure, prepare)
        assert found == search([START, replace(START, sides=2)], "float32", {}, two_sides_and_128)
        # Nothing is compiled twice; fields are varied one after the other.
        assert sum(batches) == len(compiled) == len(found)
        assert batches == [2, 2, 1]

    def test_a_shape_that_cannot_be_compiled_stops_no_other(self, caplog):
        def prepare(shapes: list[StagedShape]) -> None:
            raise CodegenError("no such registers")

        with caplog.at_level(logging.INFO, "warpmpc"):
            found = search([START], "float32", {}, two_sides_and_128, prepare)
        assert found[-1].shape.registers == 128
        assert "compiled one by one, because of: no such registers" in caplog.text

    def test_none_can_run(self):
        def measure(shape: StagedShape) -> float:
            raise CodegenError("no")

        with pytest.raises(CodegenError, match="No shape of the kernels could be measured"):
            search([START], "float32", {}, measure)


class TestStore:
    def test_found_again_up_to_the_power_of_two(self):
        ShapeStore("text", "H200").put(5, START)
        again = ShapeStore("text", "H200")
        for tiles in (5, 8):
            assert again.get(tiles) == START
        for tiles in (1, 4, 9, 16):
            assert again.get(tiles) is None

    def test_ranges_do_not_disturb_each_other(self):
        store, other = ShapeStore("text", "H200"), replace(START, registers=64)
        store.put(1, START)
        store.put(1000, other)
        assert (store.get(1), store.get(1024)) == (START, other)
        store.put(1, other)
        assert (store.get(1), store.get(1024)) == (other, other)

    @pytest.mark.parametrize("key", [("text", "B200"), ("other", "H200")])
    def test_other_programs_and_devices_find_nothing(self, key):
        ShapeStore("text", "H200").put(5, START)
        assert ShapeStore(*key).get(5) is None

    @pytest.mark.parametrize(
        "damage",
        [lambda b: b[:-90], lambda b: b.replace(b"255", b"64"), lambda _: b"\xff\xfe\x00"],
        ids=["cut", "changed", "no_text"],
    )
    def test_a_damaged_file(self, damage):
        store = ShapeStore("text", "H200")
        store.put(5, START)
        (path,) = cache_folder().glob("tuned_*")
        path.write_bytes(damage(path.read_bytes()))
        store = ShapeStore("text", "H200")
        with pytest.warns(RuntimeWarning, match="shapes are chosen by the model"):
            assert store.get(5) is None
        with pytest.warns(RuntimeWarning, match="shapes are chosen by the model"):
            store.put(5, START)
        assert store.get(5) == START

    def test_a_file_of_another_kind(self, monkeypatch):
        store = ShapeStore("text", "H200")
        monkeypatch.setattr("warpmpc.engines.staged.tuning.load_text", lambda *_, **__: '{"a": 1}')
        with pytest.warns(RuntimeWarning, match="cannot be understood .* the model chooses"):
            assert store.get(5) is None

    def test_a_folder_that_cannot_be_written(self, own_cache, monkeypatch):
        (own_cache / "file").write_text("")
        monkeypatch.setenv(CACHE_VARIABLE, str(own_cache / "file"))
        store = ShapeStore("text", "H200")
        with pytest.warns(RuntimeWarning, match="cannot be written .* lost afterwards"):
            store.put(5, START)
        assert store.get(5) == START
        assert ShapeStore("text", "H200").get(5) is None


class TestVariants:
    def variants(self, measure=None, tune=None, horizon=4, **given) -> StagedVariants:
        build = partial(kernels, horizon=horizon)
        return StagedVariants(build, given, tune=tune, measure=measure)

    def test_tuned_once_and_found_by_others(self):
        fake = Fake(two_sides_and_128)
        found = self.variants(fake).tune(40)
        assert found[-1].shape == StagedShape(128, 64, prefetch=False, sides=2)
        count = len(fake.asked)
        for one in (self.variants(fake), self.variants(fake, tune=True)):
            assert one.at(33).shape(33) == found[-1].shape
            assert one.at(33).program.sides == 2
        assert len(fake.asked) == count

    def test_nothing_is_measured_unless_asked(self):
        fake = Fake(two_sides_and_128)
        model = self.variants(fake).at(40).shape(40)
        assert model == loop_shape(kernels(1).program, 40, "float32")
        assert self.variants(fake, tune=False).at(40).shape(40) == model
        assert not fake.asked
        assert self.variants(fake, tune=True).at(40).shape(40).registers == 128
        assert fake.asked

    def test_the_model_alone(self):
        fake = Fake(two_sides_and_128)
        self.variants(fake).tune(40)
        assert self.variants(fake, tune=False).at(40).shape(40).registers == 255

    def test_what_is_given_is_kept(self):
        fake = Fake(two_sides_and_128)
        found = self.variants(fake, sides=1, registers=96).tune(40)
        assert {(one.shape.sides, one.shape.registers) for one in found} == {(1, 96)}
        at = self.variants(fake, sides=1, registers=96).at(40)
        assert (at.program.sides, at.shape(40).registers) == (1, 96)
        assert self.variants(fake).at(40).shape(40).registers == 255  # another question

    def test_a_block_of_another_size_has_one_side(self):
        fake = Fake(two_sides_and_128)
        found = self.variants(fake, block=128).tune(40)
        assert {(one.shape.sides, one.shape.block) for one in found} == {(1, 128)}

    @pytest.mark.parametrize("fused", [None, False])
    def test_the_loop_that_will_run_is_measured(self, fused):
        """Fused iterations know the kinds of their rows: their loop is another one."""
        texts = set()

        def measure(given: StagedKernels, tiles: int) -> float:
            texts.add(given.content)
            return two_sides_and_128(given.shape(tiles))

        system = pendulum.make(3)
        solver = MPCSolver(system.problem, replace(system.settings, fused=fused))
        variants = solver.qp.loop._variants
        variants._measure = measure
        found = solver.tune(40)
        plain = {variants._kernels(sides).content for sides in (1, 2)}
        assert len(texts) == 2
        assert texts.isdisjoint(plain) == (fused is None)
        # What is found is found for both.
        assert solver.qp.loop.kernels_at(2).shape(2) == found[-1].shape

    def test_the_cpu_has_nothing_to_tune(self, caplog):
        with pytest.raises(SettingsError, match="Nothing to tune on the CPU"):
            self.variants().tune(40)
        with caplog.at_level(logging.INFO, "warpmpc"):
            shape = self.variants(tune=True).at(40).shape(40)
        assert "tune=True has no effect on the CPU" in caplog.text
        assert shape == loop_shape(kernels(1).program, 40, "float32")

    def test_two_sides_where_the_model_wants_them(self, monkeypatch):
        monkeypatch.setattr(staged_variants, "_on_gpu", lambda: True)
        many = 100_000
        assert (sides_for(1), sides_for(many)) == (2, 1)
        assert self.variants().at(1).program.sides == 2
        assert self.variants().at(many).program.sides == 1
        assert self.variants(sides=1).at(1).program.sides == 1
        assert self.variants(sides=2).at(many).program.sides == 2
        assert self.variants(block=32).at(1).program.sides == 1

    def test_too_few_stages_for_two_sides(self, monkeypatch, caplog):
        monkeypatch.setattr(staged_variants, "_on_gpu", lambda: True)
        with caplog.at_level(logging.INFO, "warpmpc"):
            assert self.variants(horizon=1).at(1).program.sides == 1
        assert "one side: Two sides need at least 3 stages" in caplog.text
        with pytest.raises(PatternError, match="Two sides need at least 3 stages"):
            self.variants(horizon=1, sides=2)

    def test_too_much_to_share(self, monkeypatch):
        monkeypatch.setattr(staged_variants, "mailbox_fits", lambda *_: False)
        with pytest.raises(PatternError, match="too many for the shared memory of a block"):
            self.variants(sides=2)

    def test_too_much_code(self, monkeypatch):
        monkeypatch.setattr(staged_variants, "_on_gpu", lambda: True)
        monkeypatch.setattr(staged_variants, "_LARGEST_CODE", 10)
        assert self.variants().at(1).program.sides == 1
        assert self.variants(sides=2).at(1).program.sides == 2


class TestModel:
    def test_threads(self):
        assert replace(START, sides=2).threads(3) == 3 * 64
        assert replace(START, block=128).threads(3) == 128

    def test_two_sides_have_twice_the_warps(self):
        one, two = (loop_shape(kernels(sides).program, 500, "float32") for sides in (1, 2))
        assert (one.sides, two.sides, two.block) == (1, 2, 64)
        assert one.registers == 255
        one, two = (loop_shape(kernels(sides).program, 1500, "float32") for sides in (1, 2))
        assert two.registers < one.registers

    def test_the_mailbox(self):
        assert mailbox_fits(384, "float32")
        assert not mailbox_fits(385, "float32")
        assert not mailbox_fits(193, "float64")


class TestTimer:
    def test_the_fastest_call_counts(self):
        ticks = iter([0.0, 5.0, 10.0, 12.0, 20.0, 23.0])
        timer = LoopTimer(iterations=2, repeats=3, clock=lambda: next(ticks))
        assert timer(kernels(1), 2) == 2.0

    def test_inside_a_trace(self):
        """Measured at once, with nothing of it in the traced program."""
        timer, seen = LoopTimer(iterations=2, repeats=1), []

        @jax.jit
        def traced(x: jax.Array) -> jax.Array:
            seen.append(timer(kernels(1), 1))
            return 2 * x

        assert traced(jnp.ones(3)).sum() == 6
        assert seen[0] > 0
        assert len(traced.trace(jnp.ones(3)).jaxpr.eqns) == 1

    @pytest.mark.parametrize("sides", [1, 2])
    def test_numbers_that_mean_nothing_are_finite(self, sides):
        one = kernels(sides)
        data, R, state = synthetic_loop(one, 2)
        factor = np.asarray(one.factor(data.K))
        assert np.isfinite(factor).all()
        is_row = one.program.node_order >= patterns.cartpole(4).var_stage.size
        np.testing.assert_array_equal(factor[0, one.program.n_L :, 0] < 0, is_row)
        assert state.X.shape == data.Q.shape == R.shape


@pytest.mark.gpu
def test_on_the_device():
    """What is measured first is the model's choice; what is kept is found by another solver."""
    problem = patterns.cartpole(20)
    labels = problem.stages
    one = QPSolver(problem.P, problem.A, stages=labels)
    found = one.tune(100)
    assert {measured.shape.sides for measured in found} == {1, 2}
    assert found[-1].seconds <= 1.02 * min(measured.seconds for measured in found)
    assert all(measured.seconds > 0 for measured in found)
    again = QPSolver(problem.P, problem.A, stages=labels)
    assert isinstance(again.loop, KernelLoop)
    used = again.loop.kernels_at(4)
    assert isinstance(used, StagedKernels)
    assert used.shape(4) == found[-1].shape
