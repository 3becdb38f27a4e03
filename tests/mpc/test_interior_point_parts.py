"""Parts of the interior-point method on their own: the pool, steps to the boundary, the filter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.mpc.interior_point.filter import Acceptance, Filter, Measures
from warpmpc.mpc.interior_point.iteration import RUNNING
from warpmpc.mpc.interior_point.pool import Job, Pool
from warpmpc.mpc.interior_point.sides import Elastic, Side, longest_step
from warpmpc.mpc.parameters import Parameters, ParameterSplit

LANES = 32


def tiles(rows):
    """Rows of 32 instances as a tile."""
    return jnp.asarray(rows, dtype=float).reshape(LANES, -1).T[None]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Countdown:
    left: jax.Array
    done: jax.Array
    status: jax.Array


class TestPool:
    @staticmethod
    def run(lengths):
        """Counts down from `lengths`, and how many iterations of a tile that took."""
        calls = []

        def begin(job, p):
            status = jnp.full(job.z.shape, RUNNING, dtype=jnp.int32)
            return Countdown(job.z, jnp.zeros_like(job.z) + p.own, status)

        def iterate(now, p):
            del p
            jax.debug.callback(lambda: calls.append(1))
            running = now.status == RUNNING
            left = jnp.where(running, now.left - 1, now.left)
            status = jnp.where(running & (left <= 0), 0, now.status).astype(jnp.int32)
            return replace(now, left=left, done=now.done + running, status=status)

        z = jnp.asarray(lengths, dtype=float).reshape(-1, LANES, 1).transpose(0, 2, 1)
        own = jnp.arange(len(lengths), dtype=float).reshape(-1, LANES, 1).transpose(0, 2, 1)
        p = Parameters(own, None, ParameterSplit(np.arange(1), np.zeros(0, dtype=int)))
        pool = Pool(begin, iterate, lambda state: (state.done, state.status))
        done, status = jax.jit(pool.run)(Job(z, z, z > 0), p)
        jax.effects_barrier()
        flat = np.asarray(done).transpose(0, 2, 1).ravel()
        assert (np.asarray(status) == 0).all()
        return flat, len(calls)

    def test_every_instance_gets_its_iterations(self):
        lengths = np.random.default_rng(0).integers(1, 30, 5 * LANES)
        done, _ = self.run(lengths)
        np.testing.assert_array_equal(done, np.arange(done.size) + lengths)

    def test_a_slow_instance_does_not_hold_up_the_others(self):
        """Ten times the iterations of the others cost at most 1.3 times the batch without."""
        lengths = np.full(1024, 10)
        _, without = self.run(lengths)
        lengths[500] = 100
        _, one_slow = self.run(lengths)
        assert one_slow <= 1.3 * without

    def test_the_mean_sets_the_pace(self):
        lengths = np.random.default_rng(1).integers(1, 40, 1024)
        _, calls = self.run(lengths)
        assert calls <= 1.25 * lengths.sum() / LANES


def test_longest_step_leaves_a_share_of_everything():
    v = tiles(np.tile([1.0, 2.0, 3.0], (LANES, 1)))
    dv = tiles(np.tile([-0.5, -4.0, 1.0], (LANES, 1)))
    tau = jnp.full((1, 1, LANES), 0.99)
    alpha = longest_step([(v, dv)], tau)
    np.testing.assert_allclose(alpha, 0.99 * 2 / 4)
    np.testing.assert_allclose(((v + alpha * dv) / v).min(), 0.01)
    np.testing.assert_array_equal(longest_step([(v, jnp.abs(dv))], tau), 1.0)


def test_step_of_a_soft_side_is_that_of_the_whole_newton_system():
    """Elastic variables are eliminated by hand; here they are not."""
    rng = np.random.default_rng(2)
    s, z, e, w, ds = rng.uniform(0.5, 2, (5, LANES, 1))
    linear, quadratic, bound, mu = 3.0, 0.7, 0.2, 0.1
    soft = jnp.ones((1, 1, LANES))
    weights = (tiles(np.full((LANES, 1), weight)) for weight in (linear, quadratic))
    elastic = Elastic(tiles(e), tiles(w), *weights, soft)
    side = Side(tiles(z), soft, tiles(np.full((LANES, 1), bound)), elastic, 0, 1, upper=False)
    step = side.step(tiles(s), tiles(ds), jnp.full((1, 1, LANES), mu))
    for i in range(LANES):
        room = s[i, 0] - bound + e[i, 0]
        # Unknowns dz, de, dw: complementarity of both pairs, stationarity of the elastic variable.
        matrix = [[room, z[i, 0], 0], [0, w[i, 0], e[i, 0]], [-1, quadratic, -1]]
        right = [
            mu - z[i, 0] * room - z[i, 0] * ds[i, 0],
            mu - e[i, 0] * w[i, 0],
            -(linear + quadratic * e[i, 0] - z[i, 0] - w[i, 0]),
        ]
        assert step.e is not None
        assert step.w is not None
        found = [float(a[0, 0, i]) for a in (step.z, step.e, step.w)]
        np.testing.assert_allclose(found, np.linalg.solve(matrix, right), rtol=1e-10)


def test_filter_refuses_what_it_remembers():
    one = jnp.ones((1, 1, LANES))
    known = Filter.empty(one).remembering(0.5 * one, -1.0 * one, 0 * one.astype(int), one > 0)
    here = Measures(0.4 * one, 1.0 * one)
    accepts = Acceptance(here, 0.1 * one, 10 * one, known)

    def accepted(theta, phi):
        return bool(accepts(one, Measures(theta * one, phi * one))[0].all())

    assert accepted(0.3, 5.0)  # less violated
    assert not accepted(0.6, 0.5)  # cheaper than the iterate, but the filter knows better
    assert not accepted(0.4, 1.1)  # neither
    assert not accepted(11.0, -5.0)  # too far away
    assert not accepted(np.nan, -5.0)
