"""The scene of a closed-loop demo: that of the system's description, or the generic one."""

from __future__ import annotations

from importlib import import_module

from warpmpc import systems
from warpmpc.viz.scene import Scene
from warpmpc_bench.demos.loop import LoopDemo


def scene_of(loop: LoopDemo) -> Scene:
    """Prepares the picture of a batch of closed loops."""
    scene = systems.describe(loop.options.name).scene
    if scene is None:
        scene = "warpmpc_bench.demos.states_scene:StatesScene"
    if isinstance(scene, str):
        module, _, name = scene.partition(":")
        scene = getattr(import_module(module), name)
    return scene(loop)
