"""Fork, spawn, exit, garbage, closing twice: one test per way in which a process begins or ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_services import faulty_service, free_port, never_answer
from waiting import eventually

from twinscope import Probe
from twinscope.testing import InMemorySink, SinkServer

LIMIT_S = 60  # far beyond anything expected: a test that reaches it has found a deadlock


def _python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter, as a host would."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": "probes", **environment},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def _samples(server: SinkServer) -> list[str]:
    return sorted(name for batch in server.batches() for name in batch.sample_ids or ())


def _in_child(work: Callable[[], object]) -> int:
    """Fork, work, leave without the parent's cleanup; the child's exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_closing_twice_and_calling_afterwards_is_harmless() -> None:
    """The second close does nothing; later data are counted as such."""
    probe = Probe(sink=InMemorySink())
    probe.close()
    probe.close()

    assert probe.train(step=1, logprobs=[[-1.0]], sample_ids="a") is False
    assert probe.flush(1.0) is True
    assert probe.stats().dropped["closed"].batches == 1
    assert probe.stats().balanced


def test_closing_while_a_post_is_on_its_way_keeps_its_limit() -> None:
    """The books are final when close returns, although the answer is still awaited."""
    with faulty_service(never_answer) as url:
        probe = Probe(url, timeout_s=LIMIT_S)
        probe.train(step=1, logprobs=[[-1.0]], sample_ids="a")
        probe.close(timeout=0.1)
        stats = probe.stats()

    assert stats.balanced
    assert stats.pending.batches == 0
    assert stats.dropped["shutdown"].batches == 1


def test_a_probe_that_becomes_garbage_still_delivers_and_its_thread_ends() -> None:
    """Nobody waits, nothing is lost, nothing leaks."""
    sink = InMemorySink()
    probe = Probe(sink=sink)
    probe.train(step=1, logprobs=[[-1.0]], sample_ids="a")
    thread = probe._shipper._thread
    gone = weakref.ref(probe)
    del probe
    gc.collect()

    assert gone() is None
    assert thread is not None
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert len(sink.batches()) == 1


def test_garbage_in_front_of_a_dead_service_ends_too() -> None:
    """After exit_timeout_s the thread gives up: a probe per episode must not pile up threads."""
    probe = Probe(f"http://127.0.0.1:{free_port()}", exit_timeout_s=0.2)
    probe.train(step=1, logprobs=[[-1.0]], sample_ids="a")
    thread = probe._shipper._thread
    del probe
    gc.collect()

    assert thread is not None
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_dead_thread_is_replaced_with_the_next_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever killed it."""
    sink = InMemorySink()
    probe = Probe(sink=sink)
    assert probe.flush(10)
    dead = threading.Thread(target=lambda: None)
    dead.start()
    dead.join()
    probe.close()
    other = Probe(sink=sink)
    monkeypatch.setattr(other._shipper, "_thread", dead)
    other.train(step=1, logprobs=[[-1.0]], sample_ids="a")

    assert other.flush(10)
    other.close()
    assert len(sink.batches()) == 1


def test_a_forked_child_works_and_the_parent_does_not_notice() -> None:
    """What waits belongs to the parent; the child starts with empty books and its own thread."""
    with SinkServer() as server:
        probe = Probe(server.url)
        probe.train(step=1, logprobs=[[-1.0]], sample_ids="before")

        def work() -> None:
            assert probe.stats().captured.batches == 0
            assert probe.train(step=2, logprobs=[[-1.0]], sample_ids="child")
            assert probe.flush(LIMIT_S)
            assert probe.stats().shipped.batches == 1
            probe.close()

        assert _in_child(work) == 0
        probe.train(step=3, logprobs=[[-1.0]], sample_ids="after")
        assert probe.flush(LIMIT_S)
        stats = probe.stats()
        probe.close()

    assert _samples(server) == ["after", "before", "child"]
    assert stats.captured.batches == stats.shipped.batches == 2
    pids = {event["fields"]["pid"] for event in server.events("probe_attached")}
    assert len(pids) == 2


def test_forking_in_the_middle_of_sending_deadlocks_nobody() -> None:
    """Twenty forks while four threads capture and the sender sends: locks are held at the fork."""
    with SinkServer() as server:
        probe = Probe(server.url)
        stop = threading.Event()

        def capture() -> None:
            while not stop.is_set():
                probe.train(step=1, logprobs=[[-1.0] * 100], token_ids=[[7] * 100])
                stop.wait(0.0005)

        threads = [threading.Thread(target=capture) for _ in range(4)]
        for thread in threads:
            thread.start()

        def work() -> None:
            signal.alarm(LIMIT_S)  # a deadlock ends as a failure, not as a hang
            assert probe.train(step=2, logprobs=[[-1.0]], sample_ids=f"child-{os.getpid()}")
            assert probe.flush(LIMIT_S)
            probe.close()

        results = [_in_child(work) for _ in range(20)]
        stop.set()
        for thread in threads:
            thread.join()
        assert probe.flush(LIMIT_S)
        stats = probe.stats()
        probe.close()

    assert results == [0] * 20
    assert len(_samples(server)) == 20
    assert stats.balanced
    assert not stats.dropped


def test_a_child_that_never_uses_the_probe_is_not_slowed_down() -> None:
    """Data loaders and shells fork too: exit must be quiet and quick."""
    code = """
        import os, sys
        from twinscope import Probe
        probe = Probe(sys.argv[1])
        probe.train(step=1, logprobs=[[-1.0]], sample_ids="a")
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        os.waitpid(pid, 0)
    """
    with SinkServer() as server:
        done = _python(code, server.url)
        batches = len(server.batches())

    assert (done.returncode, done.stderr) == (0, "")
    assert batches == 1


MULTIPROCESSING = """
    import multiprocessing, sys
    from twinscope import Probe

    def work(url, name):
        Probe(url).train(step=1, logprobs=[[-1.0]], sample_ids=name)

    def inherited(probe, name):
        probe.train(step=1, logprobs=[[-1.0]], sample_ids=name)

    if __name__ == "__main__":
        url, method = sys.argv[1:]
        context = multiprocessing.get_context(method)
        probe = Probe(url)
        children = [context.Process(target=work, args=(url, "own")),
                    context.Process(target=inherited, args=(probe, "passed"))]
        for child in children:
            child.start()
        for child in children:
            child.join()
        sys.exit(max(child.exitcode for child in children))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children_deliver_before_they_end(method: str, tmp_path: Path) -> None:
    """They leave by os._exit, where atexit does not run; a probe can be passed as an argument."""
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(MULTIPROCESSING))
    with SinkServer() as server:
        done = subprocess.run(
            [sys.executable, str(script), server.url, method],
            env={**os.environ, "PYTHONPATH": "probes"},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        samples = _samples(server)

    assert (done.returncode, done.stderr) == (0, "")
    assert samples == ["own", "passed"]


def test_a_probe_sent_elsewhere_carries_its_settings_and_nothing_else() -> None:
    """Ray and spawn send objects around: there, a new probe with the same settings is made."""
    probe = Probe("http://127.0.0.1:9", "r", buffer_bytes=12345, exit_timeout_s=0.0)
    make, arguments = probe.__reduce__()
    twin = make(*arguments)

    assert twin.stats().buffer_capacity_bytes == 12345
    assert twin.stats().run == "r"
    for each in (probe, twin):
        each.close(timeout=0)


def test_pending_data_leave_before_the_interpreter_does() -> None:
    """No flush, no close: a script that simply ends."""
    code = """
        import sys
        from twinscope import Probe
        probe = Probe(sys.argv[1])
        for step in range(50):
            probe.train(step=step, logprobs=[[-1.0] * 1000], sample_ids="a")
    """
    with SinkServer() as server:
        done = _python(code, server.url)
        steps = [batch.step for batch in server.batches()]

    assert (done.returncode, done.stderr) == (0, "")
    assert steps == list(range(50))


@pytest.mark.parametrize("ending", ["pass", "sys.exit(3)", "raise SystemExit(3)", "1 / 0"])
def test_exit_waits_for_a_hanging_service_only_so_long(ending: str) -> None:
    """Bounded by exit_timeout_s; the status is the host's own; one line says what was lost."""
    code = f"""
        import sys, time
        from twinscope import Probe
        probe = Probe(sys.argv[1], exit_timeout_s=0.3, timeout_s=600)
        probe.train(step=1, logprobs=[[-1.0]], sample_ids="a")
        {ending}
    """
    with faulty_service(never_answer) as url:
        done = _python(code, url)

    assert done.returncode == {"pass": 0, "1 / 0": 1}.get(ending, 3)
    assert "lost in this process: 1 batches, 1 tokens, 2 messages: shutdown" in done.stderr
    assert "close(timeout=60)" in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "os._exit(7)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.execv(sys.executable, [sys.executable, '-c', 'import os; os._exit(7)'])",
    ],
)
def test_a_process_may_end_as_brutally_as_it_likes(code: str) -> None:
    """Nothing of ours stands in the way."""
    script = f"""
        import os, signal, sys
        from twinscope import Probe
        probe = Probe(sys.argv[1])
        probe.train(step=1, logprobs=[[-1.0]], sample_ids="a")
        {code}
    """
    with faulty_service(never_answer) as url:
        done = _python(script, url)

    assert done.returncode in (7, -signal.SIGKILL, -signal.SIGTERM)
    assert "twinscope" not in done.stderr


def test_exit_in_the_middle_of_a_host_s_thread_is_quiet() -> None:
    """A daemon thread of the host that captures while the interpreter goes down."""
    code = """
        import sys, threading, time
        from twinscope import Probe
        probe = Probe(sys.argv[1])
        def work():
            while True:
                probe.train(step=1, logprobs=[[-1.0] * 100], sample_ids="a")
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
    """
    with SinkServer() as server:
        done = _python(code, server.url)
        delivered = len(server.batches())

    assert done.returncode == 0
    assert delivered > 0
    assert "Traceback" not in done.stderr
    assert "Fatal" not in done.stderr


SERVICE = """
    import sys
    from twinscope.testing import SinkServer
    with SinkServer(port=int(sys.argv[1])) as server:
        print("ready", flush=True)
        sys.stdin.read()
"""


def _start_service(port: int) -> subprocess.Popen[str]:
    service = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVICE), str(port)],
        env={**os.environ, "PYTHONPATH": "probes"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert service.stdout is not None
    assert service.stdout.readline() == "ready\n"
    return service


def _kill(service: subprocess.Popen[str]) -> None:
    service.kill()
    service.communicate()


def test_a_service_killed_in_the_middle_costs_nothing_that_can_be_sent_again() -> None:
    """SIGKILL under load, then a new one on the same port: all is acknowledged in the end."""
    port = free_port()
    service = _start_service(port)
    probe = Probe(f"http://127.0.0.1:{port}")
    try:
        for step in range(200):
            probe.train(step=step, logprobs=[[-1.0] * 200], sample_ids="a")
            if step == 100:
                _kill(service)
                service = _start_service(port)
        assert eventually(lambda: probe.flush(0.5), timeout_s=LIMIT_S)
    finally:
        _kill(service)
    stats = probe.stats()
    probe.close(timeout=0.2)

    assert stats.shipped.batches == 200
    assert not stats.dropped
    assert stats.balanced


def test_a_stopped_service_stops_nobody_else() -> None:
    """SIGSTOP: the kernel still accepts connections, nobody ever answers."""
    port = free_port()
    service = _start_service(port)
    try:
        os.kill(service.pid, signal.SIGSTOP)
        probe = Probe(f"http://127.0.0.1:{port}", timeout_s=0.2)
        for step in range(100):
            probe.train(step=step, logprobs=[[-1.0] * 200], sample_ids="a")
        assert eventually(lambda: probe.stats().retries > 0)
        os.kill(service.pid, signal.SIGCONT)
        assert eventually(lambda: probe.flush(0.5), timeout_s=LIMIT_S)
        stats = probe.stats()
        probe.close()
    finally:
        _kill(service)

    assert stats.shipped.batches == 100
    assert stats.balanced
