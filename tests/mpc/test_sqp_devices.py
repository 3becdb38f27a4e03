"""Batches spread over devices of one process, and over two processes: see `device_script`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import device_script
import pytest

SCRIPT = Path(device_script.__file__)


def begin(*args: str, devices: int = 1) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(SCRIPT), *args],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def succeeds(process: subprocess.Popen) -> None:
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output[-5000:]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize("mode", ["devices", pytest.param("everything", marks=pytest.mark.slow)])
def test_devices_of_one_process(mode):
    """Equal to one device bit for bit, nothing gathered, results spread like the data."""
    succeeds(begin(mode, devices=device_script.DEVICES))


@pytest.mark.parametrize(
    "mode",
    [
        "gradients",
        pytest.param("all_gradients", marks=pytest.mark.slow),
        pytest.param("moves", marks=pytest.mark.slow),
    ],
)
def test_gradients_on_devices(mode):
    """Equal to those of one device, also where all instances add to them."""
    succeeds(begin(mode, devices=device_script.DEVICES))


@pytest.mark.slow
def test_two_processes():
    port = str(free_port())
    processes = [begin("process", str(number), "2", port) for number in range(2)]
    for process in processes:
        succeeds(process)
