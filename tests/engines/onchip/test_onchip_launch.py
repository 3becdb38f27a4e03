"""What a multiprocessor holds of problems on chip, and how they share its blocks."""

import pytest

import warpmpc as wm
from warpmpc.engines.ldl.launch import MAX_REGISTERS
from warpmpc.engines.onchip import launch as onchip_engine
from warpmpc.engines.onchip.launch import most_registers, problems_at_once, problems_held
from warpmpc.mpc.sqp.onchip import OnchipIteration, lane_memory
from warpmpc.systems import make

SIZES = {"pendulum": 64, "car": 50, "cartpole": 100}
HELD = {"pendulum": 14, "car": 8, "cartpole": 5}
MULTIPROCESSORS = 132


def made(name, **settings):
    system = make(name, horizon=SIZES[name], sqp_iter=2, admm_iter=5)
    changed = wm.SQPSettings(**{**vars(system.settings), **settings})
    return wm.MPCSolver(system.problem, changed, "float32", "onchip")


def kernel(solver):
    return OnchipIteration(solver.programs, solver.qp, solver.settings).kernel


@pytest.mark.parametrize("name", HELD)
def test_registers_and_shared_memory_suffice_for_all_that_are_held(name):
    memory = lane_memory(made(name).programs)
    held, registers = problems_held(memory, "float32"), most_registers(memory, "float32")
    assert held == HELD[name] <= problems_at_once(memory, "float32")
    warps = -(-held // 4)  # the scheduler that has most has so many
    assert warps * 32 * registers <= 65536 // 4 or registers == MAX_REGISTERS
    assert held * onchip_engine.shared_bytes(memory, "float32") < 227 * 1024


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(onchip_engine, "has_gpu", lambda: True)
    monkeypatch.setattr(onchip_engine, "multiprocessors", lambda: MULTIPROCESSORS)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", HELD)
def test_blocks_of_batches_that_fill_the_device(name):
    found, full = kernel(made(name)), MULTIPROCESSORS * HELD[name]
    half = HELD[name] // 2 if HELD[name] % 2 == 0 else 1
    assert [found.together(batch, ends=False) for batch in (1, full - 1, full)] == [1, 1, half]
    assert found.together(full, ends=True) == 1


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_blocks_have_a_problem_at_least(held, monkeypatch):
    monkeypatch.setattr(onchip_engine, "problems_held", lambda *_: held)
    assert kernel(made("pendulum")).together(100_000, ends=False) == 1


@pytest.mark.usefixtures("hopper")
def test_problems_whose_qps_end_share_no_block():
    qp = wm.ADMMSettings(max_iter=5, check_every=5, adaptive_rho_every=0, scaling=0)
    assert kernel(made("car", qp=qp)).together(100_000, ends=False) == 1


def test_cpu():
    assert kernel(made("car")).together(100_000, ends=False) == 1
