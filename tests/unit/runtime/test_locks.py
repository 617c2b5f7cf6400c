"""Forks in the midst of other threads' calls: children can call the same layers."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import uniep_compiler

ROOT = Path(__file__).parents[3]

FORKS = """
import os, threading, torch
from tests.numerics.layers import Shape, compile_layer, make_inputs

torch.set_num_threads(1)
shape = Shape(tokens=5)
layer, args = compile_layer(shape, "cpu"), make_inputs(shape, "cpu").args
wanted = layer(*args)
done, started = threading.Event(), threading.Event()

def call_on():
    while not done.is_set():
        started.set()
        layer(*args)

def call_in_thread(found):
    found.append(torch.equal(layer(*args), wanted))

def child():
    found = []
    thread = threading.Thread(target=call_in_thread, args=(found,))  # it may get the number of `caller`
    thread.start()
    thread.join()
    layer.register("forked")
    new = compile_layer(shape, "cpu", lanes=2)
    os._exit(0 if found == [True] and torch.equal(new(*args), wanted) else 1)

caller = threading.Thread(target=call_on)
caller.start()
started.wait()
statuses = []
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        child()
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
done.set()
caller.join()
print(statuses)
"""


def run_python(code):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)


def test_a_child_that_is_forked_while_a_thread_is_in_a_call_can_call_layers():
    done = run_python(FORKS)
    assert done.stdout == "[0, 0, 0, 0, 0]\n", done.stderr


def test_a_lock_that_a_thread_holds_is_free_in_the_child():
    """And one that the forking thread holds is still its own."""
    done = run_python("""
import os, threading, time
from uniep_compiler.runtime import calls, layer, modules, torch_op, workspace

def fork_and_take(lock):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if lock.acquire(timeout=5) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def hold(lock, held):
    with lock:
        held.set()
        time.sleep(0.2)

for lock in (modules.interpreter_lock, torch_op._lock, workspace._lock, calls._lock, layer._lock):
    held = threading.Event()
    threading.Thread(target=hold, args=(lock, held)).start()
    held.wait()
    with_thread = fork_and_take(lock)
    with lock:
        print(with_thread, fork_and_take(lock))
""")
    assert done.stdout == "0 0\n" * 5, done.stderr


def test_all_locks_of_the_package_can_be_forked_around():
    """But for those of workspaces, of which a child gets new ones."""
    found = {
        path.name: calls
        for path in Path(uniep_compiler.__file__).parent.rglob("*.py")
        if (calls := [node for node in ast.walk(ast.parse(path.read_text())) if is_lock(node)])
    }
    assert set(found) == {"locks.py", "workspace.py"}
    assert all(len(calls) == 1 for calls in found.values())


def is_lock(node):
    name = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.keyword) else None
    return isinstance(name, ast.Attribute) and name.attr in ("Lock", "RLock", "Condition", "Semaphore")
