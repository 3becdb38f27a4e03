"""Settings of `MPCSolver`: every field is checked, documented, and changes something."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, replace

import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import ADMMSettings, LineSearchSettings, MPCSolver, SettingsError, SQPSettings
from warpmpc.mpc.line_search import Trial, choose
from warpmpc.mpc.stage_evaluation import Evaluation
from warpmpc.systems import pendulum

BOTH = [LineSearchSettings, SQPSettings]
POSITIVE_OR_NONE = ("a positive finite number, or None", [0, -1e-3], True)
SHARE = ("a number between 0 and 1", [0, 1, -0.1, 1.5], False)
# What each number is called when it is refused, values out of its range, whether None is fine.
REALS = {
    LineSearchSettings: {
        "decay": SHARE,
        "gamma": SHARE,
        "armijo": SHARE,
        "step_min": ("a number above 0, at most 1", [0, -0.1, 1.01], False),
        "scale": ("a positive finite number", [0, -1], False),
        "theta_max": ("a positive finite number", [0, -1], False),
        "theta_min": POSITIVE_OR_NONE,
        "merit_margin": ("a finite number, at least 1", [0.99, 0], False),
        "rounding": ("a finite number, at least 0, or None", [-1e-9], True),
    },
    SQPSettings: {
        "tol_step": POSITIVE_OR_NONE,
        "tol_kkt": POSITIVE_OR_NONE,
        "tol_violation": POSITIVE_OR_NONE,
        "regularization": ("a finite number, at least 0", [-1e-9, -1], False),
    },
}
# Words that each choice takes, and whether None is fine.
CHOICES = {
    LineSearchSettings: {
        "kind": (["filter", "merit", "full"], False),
        "fallback": (["smallest", "stay"], True),
    },
    SQPSettings: {
        "mode": (["converge", "fixed"], False),
        "method": (["sqp", "interior_point"], False),
        "hessian": (["gauss_newton", "exact"], True),
        "convexify": (["project", "gershgorin"], False),
        "scaling": (["auto", "none"], True),
        "qp_start": (["last", "multipliers"], True),
    },
}
OTHERS = {
    "max_iter": ("an integer, at least 1", [0, -1, 1.0, True, "5", np.nan]),
    "record": ("True or False", [1, 0, None, "yes"]),
    "fused": ("True or False", [1, 0, "yes"]),
    "line_search": ("LineSearchSettings", ["filter", None, SQPSettings()]),
    "qp": ("ADMMSettings or None", ["exact", LineSearchSettings(), 5]),
}
NO_NUMBERS = [True, np.True_, "1", [1], 1j, np.nan, np.inf, -np.inf, np.array(1.0)]


def refusals():
    for kind in BOTH:
        for name, (what, values, or_none) in REALS[kind].items():
            wrong = [*values, *NO_NUMBERS, *([] if or_none else [None])]
            yield from ((kind, name, what, value) for value in wrong)
        for name, (words, or_none) in CHOICES[kind].items():
            listed = ", ".join(f'"{w}"' for w in words[:-1]) + f' or "{words[-1]}"'
            wrong = ["", words[0].upper(), 1, True, [words[0]], *([] if or_none else [None])]
            yield from ((kind, name, listed, value) for value in wrong)
    for name, (what, wrong) in OTHERS.items():
        yield from ((SQPSettings, name, what, value) for value in wrong)


class TestChecks:
    @pytest.mark.parametrize("kind", BOTH)
    def test_tables_have_every_field(self, kind):
        others = set(OTHERS) if kind is SQPSettings else set()
        assert {f.name for f in fields(kind)} == {*REALS[kind], *CHOICES[kind], *others}

    @pytest.mark.parametrize(("kind", "name", "what", "value"), list(refusals()))
    def test_refused(self, kind, name, what, value):
        with pytest.raises(SettingsError, match=f"^{name} must be {re.escape(what)}, got "):
            kind(**{name: value})

    @pytest.mark.parametrize("kind", BOTH)
    def test_numbers_become_pythons(self, kind):
        """A NumPy float64 would turn the arithmetic of a float32 solver into float64."""
        for name in REALS[kind]:
            values = (np.float32(0.5), np.float64(0.5), np.float16(0.5))
            values = values if name != "merit_margin" else (np.float32(2), 2, np.int64(2))
            for value in values:
                found = getattr(kind(**{name: value}), name)
                assert type(found) is float
                assert found == value
        assert type(SQPSettings(max_iter=np.int64(3)).max_iter) is int

    @pytest.mark.parametrize("kind", BOTH)
    def test_none_and_every_word_are_taken(self, kind):
        for name, (words, or_none) in CHOICES[kind].items():
            for word in [*words, *([None] if or_none else [])]:
                assert getattr(kind(**{name: word}), name) == word
        for name, (_, _, or_none) in REALS[kind].items():
            assert not or_none or getattr(kind(**{name: None}), name) is None

    @pytest.mark.parametrize("kind", BOTH)
    def test_every_field_has_a_default_and_a_description(self, kind):
        described = re.findall(r"^        (\w+):", kind.__doc__ or "", re.MULTILINE)
        assert described == [f.name for f in fields(kind)]
        for f in fields(kind):
            assert f.default is not MISSING or f.default_factory is not MISSING
        assert hash(kind()) == hash(kind())
        with pytest.raises(AttributeError):
            setattr(kind(), fields(kind)[0].name, None)


class TestDefaultsByMode:
    def test_fixed_mode_is_as_published(self):
        settings = SQPSettings(mode="fixed")
        assert (settings.theta_min, settings.rounding) == (1e-3, 0.0)
        assert (settings.fallback, settings.restarts_qp) == ("smallest", False)
        assert settings.hessian_kind == "gauss_newton"
        line_search = settings.line_search
        assert (line_search.theta_max, line_search.gamma, line_search.armijo) == (1e-1, 1e-3, 1e-4)
        assert (line_search.decay, line_search.scale, line_search.kind) == (0.5, 0.1, "filter")
        assert settings.qp_settings("float64") == ADMMSettings(
            max_iter=25,
            check_every=0,
            adaptive_rho_every=0,
            scaling=0,
            eps_abs=1e-3,
            eps_rel=1e-3,
        )

    def test_convergent_mode(self):
        settings = SQPSettings()
        assert settings.fallback == "stay"
        assert settings.restarts_qp
        assert settings.hessian_kind == "exact"

    def test_tolerances_of_the_dtype(self):
        single, double = (SQPSettings().tolerances(dtype) for dtype in ("float32", "float64"))
        assert (double.step, double.kkt, double.violation) == (1e-6, 1e-6, 1e-6)
        assert (single.step, single.kkt, single.violation) == (1e-3, 1e-3, 1e-4)
        given = SQPSettings(tol_step=0.5, tol_kkt=0.25, tol_violation=0.125)
        found = given.tolerances("float32")
        assert (found.step, found.kkt, found.violation) == (0.5, 0.25, 0.125)

    def test_quadratic_programs_are_more_accurate_than_the_problem(self):
        for dtype in ("float32", "float64"):
            settings = SQPSettings()
            qp, kkt = settings.qp_settings(dtype), settings.tolerances(dtype).kkt
            assert qp.eps_abs < kkt
            assert qp.eps_rel < kkt
        own = ADMMSettings(eps_abs=0.5, eps_rel=0.25)
        assert SQPSettings(qp=own).qp_settings("float64") == own

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_other_settings_of_the_qps_leave_their_tolerances(self, dtype):
        """A larger number of iterations once loosened them to 1e-3."""
        found = SQPSettings(qp=ADMMSettings(max_iter=10_000), tol_kkt=1e-5).qp_settings(dtype)
        default = SQPSettings(tol_kkt=1e-5).qp_settings(dtype)
        assert (found.eps_abs, found.eps_rel) == (default.eps_abs, default.eps_rel)
        assert found.eps_abs == pytest.approx(1e-6)
        assert found.max_iter == 10_000
        one = SQPSettings(qp=ADMMSettings(eps_rel=0.5)).qp_settings(dtype)
        assert (one.eps_abs, one.eps_rel) == (SQPSettings().qp_settings(dtype).eps_abs, 0.5)

    @pytest.mark.parametrize("mode", ["converge", "fixed"])
    def test_what_is_given_is_used(self, mode):
        line_search = LineSearchSettings(theta_min=0.5, rounding=3, fallback="stay")
        given = SQPSettings(
            mode=mode, line_search=line_search, hessian="exact", qp_start="multipliers"
        )
        assert (given.theta_min, given.rounding, given.fallback) == (0.5, 3.0, "stay")
        assert given.restarts_qp
        assert given.hessian_kind == "exact"
        other = replace(
            given,
            line_search=replace(line_search, fallback="smallest"),
            hessian="gauss_newton",
            qp_start="last",
        )
        assert other.fallback == "smallest"
        assert not other.restarts_qp
        assert other.hessian_kind == "gauss_newton"


CHANGES = {
    "kind": "full",
    "decay": 0.25,
    "step_min": 0.3,
    "scale": 0.01,
    "theta_max": 10.0,
    "theta_min": 1.0,
    "gamma": 0.5,
    "armijo": 0.9,
    "merit_margin": 20.0,
    "rounding": 1e16,
    "fallback": "stay",
}


class TestEffect:
    """Every field of the line search changes the choice of some step."""

    def test_table_has_every_field(self):
        assert set(CHANGES) == {f.name for f in fields(LineSearchSettings)}

    @pytest.mark.parametrize("name", CHANGES)
    def test_changes(self, name):
        kind = "merit" if name == "merit_margin" else "filter"
        before = LineSearchSettings(kind=kind, step_min=0.1)
        after = replace(before, **{name: CHANGES[name]})
        choices = []
        for line_search in (before, after):
            steps = len(line_search.ladder)
            settings = SQPSettings(mode="fixed", line_search=line_search)
            choices.append(np.asarray(choose(self.trial(steps), settings).alpha))
        assert not np.array_equal(*choices)

    @staticmethod
    def trial(steps):
        """Random values; shorter ladders take the first of the same ones."""
        rng, shape = np.random.default_rng(0), (4, 20, 1, 32)

        def evaluation(cost, violation):
            parts = (cost, violation**2, violation, violation)
            return Evaluation(*(jnp.asarray(a) for a in parts))

        here = evaluation(
            rng.normal(size=(1, *shape[1:])), 10 ** rng.uniform(-3, 1, (1, 20, 1, 32))
        )
        there = evaluation(rng.normal(size=shape)[:steps], 10 ** rng.uniform(-3, 1, shape)[:steps])
        slope, weight = -rng.exponential(size=shape[1:]), rng.exponential(size=shape[1:])
        return Trial(here, there, jnp.asarray(slope)[None], jnp.asarray(weight)[None])


class TestPresets:
    def test_real_time(self):
        """Fixed numbers of iterations that the fast engines take."""
        settings = SQPSettings.real_time(sqp=2, admm=30)
        assert (settings.mode, settings.max_iter) == ("fixed", 2)
        assert settings.qp_settings("float32").max_iter == 30
        assert MPCSolver(pendulum.build(5), settings, engine="onchip").engine == "onchip"
        MPCSolver(pendulum.build(5), replace(settings, fused=True))
        scaled = SQPSettings(mode="fixed", fused=True, qp=ADMMSettings())
        with pytest.raises(SettingsError, match="QPs are scaled"):
            MPCSolver(pendulum.build(5), scaled)

    @pytest.mark.parametrize("fused", [None, True])
    def test_fast_engines_take_the_defaults_of_fixed_mode(self, fused):
        """Nothing but the mode has to be said."""
        settings = SQPSettings(mode="fixed", fused=fused)
        engine = "onchip" if fused is None else "staged"
        solver = MPCSolver(pendulum.build(5), settings, engine=engine)
        assert solver.engine_reason.split(";")[0] == ("onchip" if fused is None else "three_launch")
        assert settings.qp_settings("float32") == SQPSettings.real_time().qp_settings("float32")

    def test_accurate(self):
        """Tolerances are those of the dtype."""
        settings, default = SQPSettings.accurate(), SQPSettings()
        assert settings.converges
        assert settings.tolerances("float64") == default.tolerances("float64")
        found, usual = (s.qp_settings("float64") for s in (settings, default))
        assert found.eps_abs == usual.eps_abs
        assert found.max_iter > usual.max_iter


class TestResolved:
    """What a solver makes of its settings can be seen, and means the same."""

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("settings", [SQPSettings(), SQPSettings(mode="fixed", max_iter=3)])
    def test_nothing_is_hidden(self, settings, dtype):
        found = settings.resolved(dtype)
        for part in (found, found.line_search, found.qp):
            hidden = {f.name for f in fields(part) if getattr(part, f.name) is None}
            assert hidden <= {"fused", "max_batch"}
        assert found.resolved(dtype) == found
        for name in ("hessian_kind", "fallback", "theta_min", "restarts_qp", "rounding"):
            assert getattr(found, name) == getattr(settings, name)
        assert found.tolerances(dtype) == settings.tolerances(dtype)
        assert found.qp_settings(dtype) == settings.qp_settings(dtype) == found.qp

    def test_what_was_given_stays(self):
        qp = ADMMSettings(max_iter=7, scaling=0)
        given = SQPSettings(tol_kkt=0.5, hessian="gauss_newton", qp=qp, qp_start="last")
        found = given.resolved("float32")
        assert (found.tol_kkt, found.hessian, found.qp_start) == (0.5, "gauss_newton", "last")
        assert found.qp == replace(qp, eps_abs=0.05, eps_rel=0.05)

    def test_solvers_show_it(self):
        shown = repr(MPCSolver(pendulum.build(5), SQPSettings(mode="fixed"), engine="sparse"))
        assert shown.startswith("MPCSolver(<17 variables, ")
        for part in ("tol_kkt=0.001", "hessian='gauss_newton'", "scaling=0", "engine='sparse'"):
            assert part in shown
        assert "hessian=None" not in shown

    def test_why_an_engine_is_not_taken(self):
        solver = MPCSolver(pendulum.build(5), SQPSettings(mode="fixed", qp=ADMMSettings()))
        reason = solver.engine_reason
        assert reason.startswith(
            "general; not onchip, because on a CPU its 32 lanes would run one after the other; not "
        )
        assert reason.endswith("; not three_launch, because QPs are scaled")
        assert "\n" not in reason
