"""Everything that `from_jax` refuses, with messages that explain where and what to do."""

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from warpmpc import ProblemError
from warpmpc.problem.from_jax import from_jax
from warpmpc.problem.jaxpr import translator


def not_translatable():
    ordered = "result jumps where the order of entries changes; use jnp.max"
    traced = "the index depends on the arguments; index with constants, or choose among all"
    yield "sort", jnp.sort, ordered
    yield "argmax", lambda x: x * jnp.argmax(x), ordered
    yield "argmin", lambda x: x * jnp.argmin(x), ordered
    yield "top_k", lambda x: lax.top_k(x, 1)[0], ordered
    yield "lgamma", lax.lgamma, "there is no rule for it; write this part with elementwise"
    yield "conv_general_dilated", lambda x: jnp.convolve(x, x), "as a matrix product"
    yield "lu", lambda x: jnp.linalg.det(jnp.outer(x, x)), "use jnp.linalg.solve"
    yield "dynamic_slice", lambda x: x[x[0].astype(int)], traced
    yield "gather", lambda x: x[x.astype(int)], traced
    yield "scatter", lambda x: x.at[x[0].astype(int)].set(0.0), traced
    yield "scatter-add", lambda x: x.at[x[0].astype(int)].add(1.0), traced
    yield (
        "dynamic_update_slice",
        lambda x: lax.dynamic_update_slice(x, x, (x[0].astype(int),)),
        traced,
    )
    yield "scatter", lambda x: x.at[0].apply(jnp.sin), r"write `x.at\[i\].set\(f\(x\[i\]\)\)`"
    yield (
        "while",
        lambda x: lax.while_loop(lambda c: c[0] > 0, jnp.sin, x),
        "number of iterations depends",
    )
    yield "and", lambda x: (x.astype(int) & 1) * x, "bits of integers that depend on the arguments"
    yield "convert_element_type", lambda x: jnp.fft.fft(x).real, "no complex numbers"
    yield (
        "custom_linear_solve",
        lambda x: jnp.linalg.solve(jnp.outer(x, jnp.arange(4)), x),
        ("its matrix is singular whatever the arguments are"),
    )


CASES = list(not_translatable())


class TestTranslation:
    @pytest.mark.parametrize(("primitive", "fn", "reason"), CASES, ids=[case[0] for case in CASES])
    def test_refused(self, primitive, fn, reason):
        with pytest.raises(
            ProblemError, match=rf"^from_jax cannot translate `{primitive}`"
        ) as info:
            from_jax(fn, 4)
        info.match(reason)

    def test_says_where(self):
        def dynamics(x):
            return x + jnp.sort(x)

        line = dynamics.__code__.co_firstlineno + 1
        place = rf"`sort` \(test_from_jax_errors\.py:{line}, in .*dynamics\): its result"
        with pytest.raises(ProblemError, match=place):
            from_jax(dynamics, 4)

    def test_says_where_jax_is_called(self):
        """JAX traces jnp.median once; the second caller is at fault all the same."""
        jnp.median(jnp.ones(4))
        from_jax(lambda x: x[0], 4)

        def first(x):
            return jnp.median(x)

        def second(x):
            return 2 * jnp.median(x)

        for fn in (first, second):
            with pytest.raises(ProblemError, match=rf"errors\.py:\d+, in .*{fn.__name__}\)"):
                from_jax(fn, 4)

    def test_what_is_not_used_is_not_refused(self):
        def cost(x):
            order = jnp.argsort(x)
            return jnp.sum(x**2), jnp.take(x, order)

        assert float(from_jax(lambda x: cost(x)[0], 3)(np.arange(3.0))) == 5

    def test_refusals_pass_through_control_flow(self):
        def looped(x):
            return lax.fori_loop(0, 2, lambda _, c: (c[0] * 2, jnp.sort(c[1])), (x, x))

        assert from_jax(lambda x: looped(x)[0], 3)(np.ones(3)).shape == (3, 1)
        for fn in (
            lambda x: looped(x)[1],
            lambda x: lax.cond(x[0] > 0, jnp.sort, jnp.sin, x),
            lambda x: lax.cond(jnp.sort(x)[0] > 0, jnp.cos, jnp.sin, x),
            lambda x: lax.while_loop(lambda c: jnp.sort(c)[0] > 0, jnp.sin, x),
            lambda x: lax.scan(lambda c, a: (c, a), 0, jnp.sort(x))[1],
            lambda x: lax.scan(lambda c, _: (c, jnp.sort(x)), 0, None, length=2)[1],
            lambda x: jnp.linalg.solve(jnp.diag(jnp.sort(x)), x),
            lambda x: jnp.logaddexp(x, jnp.sort(x)),
        ):
            with pytest.raises(ProblemError, match="cannot translate `sort`"):
                from_jax(fn, 3)

    def test_long_loops(self, monkeypatch):
        monkeypatch.setattr(translator, "MAX_ITERATIONS", 10)

        def nested(x):
            return lax.fori_loop(0, 3, lambda _, c: lax.fori_loop(0, 3, lambda _, d: d + x, c), x)

        message = (
            r"unrolls loops; `scan` \(.*, in .*nested.*\) brings them to more than 10 iterations"
        )
        with pytest.raises(ProblemError, match=message):
            from_jax(nested, ())
        with pytest.raises(ProblemError, match=r"`while` .* more than 10 iterations; shorten the"):
            from_jax(lambda x: lax.while_loop(lambda _: True, lambda c: c + x, x), ())


class TestShapes:
    @pytest.mark.parametrize(
        "shape", [-1, 2.0, (2, -1), (2.0,), "ab", None, True, (True,), ((2,),)]
    )
    def test_no_shape(self, shape):
        with pytest.raises(ProblemError, match="A shape of sin must be an integer or a tuple of"):
            from_jax(jnp.sin, shape)

    def test_many_axes(self):
        with pytest.raises(ProblemError, match=r"argument of shape \(2, 2, 2\); CasADi has matr"):
            from_jax(jnp.sum, (2, 2, 2))
        with pytest.raises(
            ProblemError, match=r"returns an array of shape \(1, 2, 2\); CasADi has"
        ):
            from_jax(lambda x: x[None], (2, 2))

    def test_number_of_shapes(self):
        def dynamics(x, u):
            return x + u

        for n in (1, 3):
            with pytest.raises(
                ProblemError, match=rf"got {n} shapes, .* dynamics\(x, u\): .* give"
            ):
                from_jax(dynamics, *[()] * n)
        with pytest.raises(ProblemError, match="has no arguments, so it is a constant"):
            from_jax(lambda: 1.0)

    def test_errors_of_the_function_are_its_own(self):
        with pytest.raises(jax.errors.TracerBoolConversionError):
            from_jax(lambda x: x if x > 0 else -x, ())


class TestArguments:
    def test_number(self):
        with pytest.raises(ProblemError, match="sin takes 1 arguments, got 2"):
            from_jax(jnp.sin, 2)(1, 2)

    @pytest.mark.parametrize("argument", [ca.SX(2, 1), ca.SX(1, 3), ca.SX(3, 3), 1.0, np.eye(3)])
    def test_size(self, argument):
        message = (
            r"Argument 0 of sin is \dx\d, but from_jax got the shape \(3,\) .* a matrix of 3x1"
        )
        with pytest.raises(ProblemError, match=message):
            from_jax(jnp.sin, 3)(argument)

    @pytest.mark.parametrize("argument", [[ca.SX(1)], None, "x", (1, 2)])
    def test_kind(self, argument):
        with pytest.raises(
            ProblemError, match=r"must be a CasADi matrix or numbers, .*ca\.vertcat"
        ):
            from_jax(jnp.sin, 1)(argument)

    def test_more_axes_than_a_matrix(self):
        with pytest.raises(ProblemError, match=r"Argument 0 of sin is 1x1x1, but from_jax got"):
            from_jax(jnp.sin, ())(np.ones((1, 1, 1)))
