"""The sending thread: order, retries, refusals, and books that balance, on real sockets."""

from __future__ import annotations

import json
import threading
from email.utils import formatdate
from typing import Any

import numpy as np
import pytest
from faulty_services import (
    Behaviour,
    answer_by_the_byte,
    faulty_service,
    free_port,
    hang_up,
    never_answer,
    reset,
    talk_nonsense,
)
from moving_clock import MovingClock
from waiting import eventually

from twinscope import Probe
from twinscope.answers import LONGEST_WAIT_S, read_answer, read_retry_after
from twinscope.clock import Pause, SystemClock
from twinscope.http_sink import HttpSink
from twinscope.items import Post
from twinscope.ship import LONGEST_DELAY_S, Backoff
from twinscope.sink import Answer
from twinscope.testing import ACCEPTED, InMemorySink, RecordedPost, Reply, SinkServer, accept

REFUSED = Answer("rejected", 404, detail="no such step")


def _logprobs(samples: int = 2, width: int = 8) -> np.ndarray:
    return -np.random.default_rng(0).random((samples, width), np.float32)


def _answers(samples: int = 2, width: int = 8) -> dict[str, Any]:
    """Log-probs and ids: what one side must send."""
    return {"logprobs": _logprobs(samples, width), "sample_ids": [str(s) for s in range(samples)]}


def test_posts_arrive_in_order_on_one_kept_connection() -> None:
    """What was captured first is sent first, messages among batches."""
    with SinkServer() as server, Probe(server.url, "r", token="secret") as probe:
        for step in range(20):
            probe.train(step=step, **_answers())
            probe.close_step(step)
        assert probe.flush(20)
        stats = probe.stats()

    assert [batch.step for batch in server.batches()] == list(range(20))
    assert [post.path for post in server.posts[1:5]] == [
        "/v1/batches",
        "/v1/runs/r/steps/0/close",
        "/v1/batches",
        "/v1/runs/r/steps/1/close",
    ]
    assert len({post.thread for post in server.posts}) == 1
    assert {post.authorization for post in server.posts} == {"Bearer secret"}
    assert len({post.batch_id for post in server.posts}) == len(server.posts)
    assert (stats.shipped.batches, stats.shipped.tokens) == (20, 20 * 16)
    assert stats.balanced


def test_a_large_batch_is_several_posts() -> None:
    """No post much above the limit; together they are the batch."""
    logprobs = _logprobs(64, 1000)
    with SinkServer() as server, Probe(server.url, post_bytes=40_000) as probe:
        probe.train(step=1, logprobs=logprobs, sample_ids=range(64))
        assert probe.flush(20)

    posts = [post for post in server.posts if post.path == "/v1/batches"]
    joined = np.concatenate([batch.tensors["train_logprobs"] for batch in server.batches()])
    assert len(posts) > 5
    assert max(len(post.body) for post in posts) < 41_000
    np.testing.assert_array_equal(joined, logprobs.ravel())


@pytest.mark.parametrize("status", [500, 502, 503, 408, 429])
def test_an_answer_that_may_change_is_tried_again(status: int) -> None:
    """Same batch id, until it is accepted; nothing behind it overtakes."""
    seen: list[str] = []

    def reply(post: RecordedPost) -> Reply:
        seen.append(post.batch_id)
        return (status, {}, b"later") if len(seen) < 3 else accept(post)

    with SinkServer(reply) as server, Probe(server.url) as probe:
        probe.rollout(logprobs=[[-1.0]], sample_ids="a")
        assert eventually(lambda: probe.flush(1.0))
        stats = probe.stats()

    assert seen[0] == seen[1] == seen[2] != seen[3]
    assert stats.retries == 2
    assert stats.shipped.batches == 1
    assert not stats.dropped


@pytest.mark.usefixtures("as_in_a_run")
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 422])
def test_a_refusal_is_final_and_says_why(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """Dropped as rejected; the service's explanation is in the log, once."""
    problem = (
        b'{"type":"urn:twinscope:problem:bad-batch","title":"Bad batch",'
        b'"detail":"offsets[3] decreases","fix":"send them in order"}'
    )

    def reply(post: RecordedPost) -> Reply:
        return (status, {}, problem) if post.path == "/v1/batches" else accept(post)

    with SinkServer(reply) as server, Probe(server.url) as probe:
        for step in range(3):
            probe.train(step=step, **_answers())
        assert probe.flush(20)
        stats = probe.stats()

    said = [r.message for r in caplog.records if "offsets[3] decreases" in r.message]
    assert len(said) == 1
    assert f"{status}" in said[0]
    assert "send them in order" in said[0]
    assert stats.dropped["rejected"].batches == 3
    assert stats.balanced


PAGE = b"<!DOCTYPE html>\n<html>\n<head><title>404</title></head>\n<body>\nnginx\n</body>\n</html>"
STRANGERS: list[tuple[int, bytes]] = [
    (404, PAGE),
    (405, b'{"detail":"Method Not Allowed"}'),
    (403, b"RBAC: access denied"),
    (301, b""),
    (200, PAGE),
]


@pytest.mark.parametrize(("status", "body"), STRANGERS)
def test_an_address_that_is_not_twinscope_yet_is_tried_again(
    status: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """An ingress may start late: said once, in one line, and everything arrives in the end."""
    seen: list[str] = []

    def reply(post: RecordedPost) -> Reply:
        seen.append(post.batch_id)
        return (status, {}, body) if len(seen) < 3 else accept(post)

    class Server(SinkServer):
        def record(self, post: RecordedPost) -> None:
            if len(seen) >= 3:
                super().record(post)

    with Server(reply) as server, Probe(server.url) as probe:
        probe.train(step=1, **_answers())
        assert eventually(lambda: probe.flush(1.0))
        stats = probe.stats()

    said = [record.message for record in caplog.records if "like TwinScope" in record.message]
    assert len(said) == 1
    assert "\n" not in said[0]
    assert "<" not in said[0]
    assert f"({status} " in said[0]
    assert [batch.step for batch in server.batches()] == [1]
    assert not stats.dropped


@pytest.mark.usefixtures("as_in_a_run")
def test_a_stranger_s_answer_is_given_up_after_retry_s() -> None:
    """Bounded, like an error of the service, and counted."""
    with SinkServer(lambda post: (404, {}, PAGE)) as server, Probe(server.url, retry_s=0) as probe:
        probe.train(step=1, **_answers())
        assert probe.flush(20)
        stats = probe.stats()

    assert stats.dropped["gave_up"].batches == 1
    assert stats.balanced


def test_a_proxy_s_413_is_final() -> None:
    """The same bytes do not get smaller: waiting would only hold up what comes behind."""
    assert read_answer(413, None, PAGE) == Answer("rejected", 413, "an HTML page")


def test_a_wrong_path_in_the_address_is_pointed_at() -> None:
    """The service itself refuses /metrics/v1/batches: the log says what to look at."""

    def reply(post: RecordedPost) -> Reply:
        detail = f"POST {post.path}: Not Found"
        problem = {"type": "urn:twinscope:problem:not-found", "title": "Not Found"}
        return 404, {}, json.dumps({**problem, "detail": detail}).encode()

    with SinkServer(reply) as server, Probe(f"{server.url}/metrics") as probe:
        assert probe.flush(20)
        error = probe.stats().last_error or ""

    assert error.endswith("/metrics/v1/events: Not Found; the address of the service may not "
                          "end in /metrics")  # fmt: skip


def test_a_refusal_says_each_thing_once() -> None:
    """The service's `detail` often holds the field, the value and the fix already."""
    detail = "sample_ids[1]: got '0'; send each sample once per batch"
    problem = {
        "type": "urn:twinscope:problem:malformed",
        "title": "Malformed",
        "detail": detail,
        "field": "sample_ids[1]",
        "value": "'0'",
        "fix": "send each sample once per batch",
    }
    answer = read_answer(422, None, json.dumps(problem).encode())

    assert answer == Answer("rejected", 422, f"Malformed: {detail}", about="sample_ids")


def test_what_a_receipt_reports_is_said_once_per_kind(caplog: pytest.LogCaptureFixture) -> None:
    """Late samples (a run that was resumed) and ids that differ: accepted, but not as meant."""
    receipt = {"step": 4, "samples": 32, "late": 30, "retokenized": 2, "joined": 0}

    def reply(post: RecordedPost) -> Reply:
        return 202, {}, json.dumps(receipt if post.path == "/v1/batches" else {}).encode()

    with SinkServer(reply) as server, Probe(server.url) as probe:
        for _ in range(3):
            probe.train(step=4, **_answers())
        assert probe.flush(20)
        stats = probe.stats()

    late, retokenized = (record.message for record in caplog.records)
    assert "30 samples came for a step that is closed already (step 4)" in late
    assert "probe.event('restart', step=...)" in late
    assert "2 samples have other token ids" in retokenized
    assert stats.shipped.batches == 3
    assert stats.errors == {}


@pytest.mark.parametrize("body", [b"{}", b'{"late":0}', b'{"late":"x"}', b'{"late":null}', b'{"a"'])
def test_a_receipt_without_news_is_silent(body: bytes) -> None:
    """Also one that was too long to be read to its end."""
    assert read_answer(202, None, body) == Answer("accepted", 202)


@pytest.mark.usefixtures("as_in_a_run")
def test_a_batch_that_always_breaks_the_service_does_not_block_the_rest() -> None:
    """After retry_s of 5xx it is given up; what waits behind it arrives."""

    def reply(post: RecordedPost) -> Reply:
        return (500, {}, b"boom") if b'"step":13' in post.body.replace(b"\\", b"") else accept(post)

    with SinkServer(reply) as server, Probe(server.url, retry_s=0) as probe:
        for step in (12, 13, 14):
            probe.train(step=step, **_answers())
        assert probe.flush(20)
        stats = probe.stats()

    assert [batch.step for batch in server.batches()] == [12, 14]
    assert stats.dropped["gave_up"].batches == 1
    assert server.events("probe_loss")[0]["fields"]["dropped"]["gave_up"]["batches"] == 1


def test_the_service_learns_at_the_end_what_it_will_never_see() -> None:
    """Losses are data: the last event carries the books."""
    sink = InMemorySink()
    probe = Probe(sink=sink, buffer_bytes=10_000)
    probe.train(step=1, **_answers(1, 5000))
    probe.close()

    fields = sink.events("probe_detached")[0]["fields"]
    assert fields["dropped"] == {"too_large": {"batches": 1, "tokens": 5000, "messages": 0}}
    assert fields["captured"]["batches"] == 1
    assert probe.stats().dropped.keys() == {"too_large"}


def test_a_report_of_losses_is_no_loss_itself() -> None:
    """What the service refused last is told by the farewell, and nothing comes too late behind."""
    sink = InMemorySink(lambda post: REFUSED if post.path.endswith("/close") else ACCEPTED)
    probe = Probe(sink=sink, run="closet")
    probe.close_step(77)
    assert probe.flush(20)
    probe.close()

    (farewell,) = sink.events("probe_detached")
    assert farewell["fields"]["dropped"].keys() == {"rejected"}
    assert probe.stats().dropped.keys() == {"rejected"}


def test_the_first_event_says_who_is_attached() -> None:
    """'No data' and 'never loaded' look different; the host name only on request."""
    sink = InMemorySink()
    environment = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TWINSCOPE_RUN": "r"}
    Probe(sink=sink, environment=environment).close()
    named = InMemorySink()
    Probe(sink=named, environment=environment, send_hostname=True).close()

    fields = sink.events("probe_attached")[0]["fields"]
    assert (fields["rank"], fields["local_rank"], fields["world_size"]) == (3, 1, 8)
    assert fields["libraries"]["numpy"] == np.__version__
    assert "host" not in fields
    assert "host" in named.events("probe_attached")[0]["fields"]


FAULTS = [never_answer, answer_by_the_byte, reset, hang_up, talk_nonsense]


@pytest.mark.parametrize("behaviour", FAULTS, ids=lambda f: f.__name__)
def test_a_misbehaving_service_costs_data_never_time(behaviour: Behaviour) -> None:
    """Calls return, memory stays in its bound, flush and close keep their limits, books balance."""
    with faulty_service(behaviour) as url:
        probe = Probe(url, buffer_bytes=200_000, timeout_s=0.2)
        for step in range(200):
            probe.train(step=step, **_answers(4, 500))
            assert probe.stats().buffer_bytes <= 200_000
            assert probe.stats().balanced
        assert probe.flush(0.05) is False
        assert eventually(lambda: probe.stats().retries > 0)
        probe.close(timeout=0.2)
        stats = probe.stats()

    assert stats.balanced
    assert stats.captured.batches == 200
    assert stats.shipped.batches == 0
    assert stats.pending.batches == 0
    assert set(stats.dropped) == {"buffer_full", "shutdown"}
    assert "unreachable" in (stats.last_error or "")


def test_a_dead_port_is_survived_and_its_return_noticed() -> None:
    """What was captured while the service was away arrives when it is back."""
    port = free_port()
    probe = Probe(f"http://127.0.0.1:{port}")
    for step in range(5):
        probe.train(step=step, **_answers())
    assert eventually(lambda: probe.stats().retries > 0)
    with SinkServer(port=port) as server:
        assert eventually(lambda: probe.flush(0.5))
        probe.close()

    assert [batch.step for batch in server.batches()] == list(range(5))
    assert probe.stats().shipped.batches == 5


def test_a_connection_closed_between_steps_is_not_a_failure() -> None:
    """Servers close idle connections: the post is repeated on a new one, at once."""

    def reply(post: RecordedPost) -> Reply:
        return 202, {"Connection": "close"}, b"{}"

    with SinkServer(reply) as server, Probe(server.url) as probe:
        for step in range(5):
            probe.train(step=step, **_answers())
            assert probe.flush(20)
        stats = probe.stats()

    assert [batch.step for batch in server.batches()] == list(range(5))
    assert stats.retries == 0


def test_nothing_of_the_host_s_thread_reaches_the_sink() -> None:
    """Encoding and sending happen elsewhere, whatever the call: no I/O in the host's thread."""
    encoded: set[int] = set()

    class Sink(InMemorySink):
        def send(self, post: Post) -> Answer:
            encoded.add(threading.get_ident())
            return super().send(post)

    sink = Sink()
    with Probe(sink=sink) as probe:
        probe.rollout(**_answers())
        probe.train(step=1, **_answers())
        probe.pair(step=1, rollout_logprobs=_logprobs(), train_logprobs=_logprobs())
        probe.scalar(step=1, reward=1.0)
        probe.event("weight_sync")
        probe.close_step(1)
        assert probe.flush(20)

    assert len(sink.posts) >= 7
    assert threading.get_ident() not in encoded
    assert len(encoded) == 1


def test_hammering_threads_lose_nothing_and_count_right() -> None:
    """Eight threads, one probe."""
    sink = InMemorySink()
    probe = Probe(sink=sink)

    def work(number: int) -> None:
        for step in range(50):
            probe.train(step=step, logprobs=[[-1.0] * number], sample_ids=f"{number}-{step}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert probe.flush(30)
    stats = probe.stats()
    probe.close()

    assert stats.captured.batches == stats.shipped.batches == stats.calls == 400
    assert stats.shipped.tokens == 50 * sum(range(1, 9))
    assert len({batch.sample_ids for batch in sink.batches()}) == 400


@pytest.mark.usefixtures("as_in_a_run")
@pytest.mark.parametrize("broken", ["send", "answer"])
def test_a_mistake_in_the_sink_loses_one_item_not_the_thread(broken: str) -> None:
    """An exception on the sending thread is counted; the next post goes out."""
    calls: list[int] = []

    def answer(post: Post) -> Answer:
        calls.append(1)
        if len(calls) == 2:
            if broken == "send":
                raise RuntimeError("bug")
            return None  # type: ignore[return-value]
        return ACCEPTED

    class Sink(InMemorySink):
        def send(self, post: Post) -> Answer:
            return answer(post)

    with Probe(sink=Sink()) as probe:
        probe.train(step=1, **_answers())
        probe.train(step=2, **_answers())
        assert probe.flush(20)
        stats = probe.stats()

    assert stats.dropped["internal_error"].batches == 1
    assert stats.shipped.batches == 1
    assert stats.balanced


def _delays(jitter: float) -> list[float]:
    backoff = Backoff(jitter=lambda: jitter)
    return [backoff.next_delay(None) for _ in range(12)]


def test_delays_double_up_to_a_limit_with_jitter() -> None:
    """Half of the delay is fixed, half is random."""
    low, high = _delays(0.0), _delays(1.0)

    assert low[:4] == [0.25, 0.5, 1.0, 2.0]
    assert high[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(high) == LONGEST_DELAY_S


def test_the_service_s_own_wish_is_a_lower_bound() -> None:
    """Retry-After is honoured, also across resets."""
    backoff = Backoff(jitter=lambda: 0.0)

    assert backoff.next_delay(7.0) == 7.0
    backoff.reset()
    assert backoff.next_delay(0.0) == 0.25


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), (" 0 ", 0.0), ("999999", LONGEST_WAIT_S), ("soon", None), ("-1", None),
     (None, None), ("9" * 40, None)],
)  # fmt: skip
def test_retry_after_is_read_in_bounds(text: str | None, seconds: float | None) -> None:
    """Numbers; nonsense is ignored; a day is cut to minutes."""
    assert read_retry_after(text) == seconds


def test_retry_after_may_be_a_date() -> None:
    """The other form of RFC 9110."""
    assert read_retry_after(formatdate(0, usegmt=True)) == 0.0
    assert read_retry_after(formatdate(4e9, usegmt=True)) == LONGEST_WAIT_S


def test_retry_after_holds_back_even_a_flush() -> None:
    """A service that asks for time gets it."""
    seen: list[str] = []

    def reply(post: RecordedPost) -> Reply:
        seen.append(post.batch_id)
        return 429, {"Retry-After": "60"}, b""

    with SinkServer(reply) as server:
        probe = Probe(server.url)
        assert eventually(lambda: probe.stats().retries == 1)
        assert probe.flush(0.2) is False
        assert probe.flush(0.2) is False
        probe.close(timeout=20)  # and closing does not wait for what cannot come in time

    assert len(seen) == 1


def test_a_clock_that_goes_back_cannot_silence_the_probe() -> None:
    """A pause is a length: set back by a year, it lasts no longer than asked for."""
    clock = MovingClock()
    pause = Pause(clock)
    pause.begin(5.0)
    clock.now += 3
    assert pause.left() == 2.0
    clock.now -= 3e7
    assert pause.left() == 5.0
    clock.now += 6
    assert pause.left() == 0.0
    pause.begin(5.0)
    pause.end()
    assert pause.left() == 0.0
    assert SystemClock().monotonic() <= SystemClock().monotonic()
    assert SystemClock().wall() > 1e9


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_a_probe_works_while_the_clock_jumps(jump: float) -> None:
    """Backwards in the middle of an outage, and forwards."""
    clock = MovingClock()
    calls: list[int] = []

    def answer(post: Post) -> Answer:
        calls.append(1)
        if len(calls) == 2:
            clock.now += jump
            return Answer("unreachable")
        return ACCEPTED

    sink = InMemorySink(answer)
    with Probe(sink=sink, clock=clock) as probe:
        probe.train(step=1, **_answers())
        assert eventually(lambda: probe.flush(0.5))
        stats = probe.stats()

    assert stats.shipped.batches == 1
    assert stats.host_seconds >= 0.0


def test_memory_stays_bounded_with_large_batches_and_a_dead_service() -> None:
    """Captured, dropped and counted: the bound holds at every step, for tokens too."""
    probe = Probe(f"http://127.0.0.1:{free_port()}", buffer_bytes=3_000_000, post_bytes=500_000)
    for step in range(40):
        probe.train(step=step, **_answers(10, 20_000))
        stats = probe.stats()
        assert stats.buffer_bytes <= 3_000_000
        assert stats.balanced
    probe.close(timeout=0.2)
    stats = probe.stats()

    assert stats.captured.tokens == 40 * 200_000
    assert stats.lost.tokens == 40 * 200_000


def test_an_exchange_that_was_given_up_is_no_answer() -> None:
    """Cut off in the middle of the headers it looks like a whole one without a body."""
    answers: list[Answer] = []
    with faulty_service(answer_by_the_byte) as url:
        sink = HttpSink(url, token=None, timeout_s=60.0)
        post = Post("/v1/events", "application/json", "id", [b"{}"])
        thread = threading.Thread(target=lambda: answers.append(sink.send(post)))
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
            sink.abort()

    assert [answer.outcome for answer in answers] == ["unreachable"]


def test_answers_are_awaited_for_the_whole_deadline_only(
    closing: list[Probe],
) -> None:
    """One byte at a time resets no timeout: the exchange has one deadline."""
    with faulty_service(answer_by_the_byte) as url:
        probe = Probe(url, timeout_s=0.3)
        closing.append(probe)
        assert eventually(lambda: "TimeoutError" in (probe.stats().last_error or ""))
