"""`twinscope tail`: dumps written as the frameworks write them, followed while they grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinscope.errors import ConfigError
from twinscope.testing import RecordedPost, Reply, SinkServer, accept
from twinscope.wire.codec import decode
from twinscope_service.cli import main
from twinscope_service.tail.dumps import FORMATS, recognise
from twinscope_service.tail.follow import Follower


def _prime(folder: Path, step: int, *, rank: int = 0, stable: bool = True) -> Path:
    place = folder / f"outputs/token_exports/step_{step}"
    place.mkdir(parents=True, exist_ok=True)
    record = {
        "step": step, "export_step": step, "rank": rank, "export_sequence_idx": 0,
        "env_name": "math", "token_ids": [1, 2, 3], "loss_mask": [False, True, True],
        "inference_logprobs": [0.0, -1.0, -2.0], "trainer_logprobs": [0.0, -1.1, -2.1],
        "entropy": [0.5, 0.5, 0.5],
    }  # fmt: skip
    (place / f"rank_{rank}.jsonl").write_text(json.dumps(record) + "\n")
    if stable:
        (place / "STABLE").touch()
    return place


def _nemo(folder: Path, step: int) -> Path:
    record = {
        "token_ids": [1, 2, 3], "token_loss_mask": [0, 1, 1], "sample_loss_mask": 1,
        "generation_logprobs": [0.0, -1.0, -2.0], "prev_logprobs": [0.0, -1.1, -2.1],
    }  # fmt: skip
    path = folder / f"train_data_step{step}.jsonl"
    path.write_text(json.dumps(record) + "\n")
    return path


def _slime(folder: Path, rollout: int, *, rank: int, **changes: Any) -> Path:
    torch = pytest.importorskip("torch")
    data = {
        "tokens": [torch.tensor([1, 2, 3])], "response_lengths": [2], "sample_indices": [5],
        "loss_masks": [torch.tensor([1, 1])], "rollout_log_probs": [torch.tensor([-1.0, -2.0])],
        "log_probs": [torch.tensor([-1.1, -2.1])],
    }  # fmt: skip
    path = folder / f"train_{rollout}_{rank}.pt"
    kept = {name: value for name, value in {**data, **changes}.items() if value is not None}
    torch.save({"rollout_id": rollout, "rank": rank, "rollout_data": kept}, path)
    return path


def test_prime_rl_step_waits_for_its_marker(tmp_path: Path) -> None:
    """STABLE is written when every rank is done; without it the step may still grow."""
    follower = Follower(tmp_path)
    assert list(follower.look()) == []
    place = _prime(tmp_path, 0, stable=False)

    first = [step.number for step in follower.look()]
    _prime(tmp_path, 0, rank=1, stable=False)
    second = [step.number for step in follower.look()]
    (place / "STABLE").touch()
    third = list(follower.look())

    assert first == second == []
    assert [(step.number, len(step.files)) for step in third] == [(0, 2)]
    assert list(follower.look()) == []
    assert follower.form is FORMATS["prime-rl"]


def test_files_without_a_marker_wait_until_they_stop_growing(tmp_path: Path) -> None:
    """A later file settles the earlier ones; the newest is taken when two looks are equal."""
    follower = Follower(tmp_path)
    _nemo(tmp_path, 9)
    newest = _nemo(tmp_path, 10)

    first = [step.number for step in follower.look()]
    newest.write_text(newest.read_text() * 2)
    second = [step.number for step in follower.look()]
    third = [step.number for step in follower.look()]

    assert (first, second, third) == ([9], [], [10])


def test_slime_ranks_that_hold_the_same_samples_count_once(tmp_path: Path) -> None:
    """Tensor-parallel ranks repeat each other; other pipeline stages have no log-probs."""
    _slime(tmp_path, 3, rank=0, log_probs=None, rollout_log_probs=None)
    _slime(tmp_path, 3, rank=1)
    _slime(tmp_path, 3, rank=2)
    _slime(tmp_path, 3, rank=3, sample_indices=[6])
    (step,) = Follower(tmp_path).look(finished=True)

    found = list(FORMATS["slime"].read(step))

    assert step.number == 3
    assert [fields["sample_ids"] for fields in found] == [["3-5"], ["3-6"]]


def test_slime_dump_of_all_ranks_holds_whole_responses(tmp_path: Path) -> None:
    """format_version 2: one dictionary per sample; one without an index leaves all without ids."""
    torch = pytest.importorskip("torch")
    samples = [
        {
            "data_parallel_rank": rank, "sample_index": index, "rollout_position": index,
            "tokens": torch.arange(length + 1), "total_lengths": length + 1,
            "response_lengths": length, "loss_masks": torch.ones(length),
            "rollout_log_probs": -torch.arange(1.0, length + 1),
            "log_probs": -torch.arange(1.0, length + 1) - 0.1,
        }
        for rank, index, length in ((0, 4, 2), (1, 5, 3))
    ]  # fmt: skip
    payload = {"format_version": 2, "rollout_id": 7, "rank": 0, "samples": samples, "dp_shards": []}
    torch.save(payload, tmp_path / "7.pt")
    torch.save({**payload, "samples": [{**samples[0], "sample_index": None}]}, tmp_path / "8.pt")

    whole, unnamed = Follower(tmp_path).look(finished=True)
    (found,), (other,) = (list(FORMATS["slime"].read(step)) for step in (whole, unnamed))

    assert (whole.number, unnamed.number) == (7, 8)
    assert found["sample_ids"] == ["7-4", "7-5"]
    assert [row.tolist() for row in found["token_ids"]] == [[1, 2], [1, 2, 3]]
    assert [row.tolist() for row in found["rollout_logprobs"]] == [[-1.0, -2.0], [-1.0, -2.0, -3.0]]
    assert [len(row) for row in found["train_logprobs"]] == [2, 3]
    assert "sample_ids" not in other


def test_dump_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """A .pt file is a pickle: only tensors and plain values are taken out of it."""
    torch = pytest.importorskip("torch")
    torch.save({"rollout_data": {"rollout_log_probs": Path}}, tmp_path / "train_1_0.pt")
    (step,) = FORMATS["slime"].find(tmp_path)

    with pytest.raises(ConfigError, match="not only tensors and plain values"):
        list(FORMATS["slime"].read(step))


@pytest.mark.parametrize("write", [_prime, _nemo])
def test_command_sends_every_step_once_and_in_order(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides of each step, then its end; an unreadable step is told and does not stop it."""
    monkeypatch.setenv("TWINSCOPE_RAISE", "1")
    for step in (10, 9, 8):
        write(tmp_path, step)
    broken = next(
        path for path in tmp_path.rglob("*.jsonl") if "9" in str(path.relative_to(tmp_path))
    )
    broken.write_text("{not json\n")

    with SinkServer() as server:
        status = main(["tail", str(tmp_path), "--once", "--url", server.url, "--run", "dumped"])
        batches, events = server.batches(), server.events("dump_unreadable")
        closed = [post.path for post in server.posts if post.path.endswith("/close")]

    assert status == 0
    assert [(batch.step, batch.side, batch.run) for batch in batches] == [
        (8, "paired", "dumped"), (10, "paired", "dumped"),
    ]  # fmt: skip
    assert batches[0].tensors["rollout_logprobs"].tolist() == [-1, -2]
    assert f"{broken.name}:1" in events[0]["fields"]["reason"]
    assert [path.split("/")[-2] for path in closed] == ["8", "9", "10"]


def _tail(folder: Path, url: str, *more: str) -> int:
    return main(["tail", str(folder), "--once", "--url", url, "--run", "dumped", *more])


def test_tail_that_is_started_again_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Nothing twice, nothing left out; `--afresh` and another run begin at the beginning."""
    for step in (1, 2):
        _nemo(tmp_path, step)
    with SinkServer() as server:
        assert _tail(tmp_path, server.url) == 0
        _nemo(tmp_path, 3)
        assert _tail(tmp_path, server.url) == 0
        assert _tail(tmp_path, server.url) == 0
        steps = [batch.step for batch in server.batches()]
        assert _tail(tmp_path, server.url, "--afresh") == 0
        assert main(["tail", str(tmp_path), "--once", "--url", server.url, "--run", "two"]) == 0
        later = [(batch.run, batch.step) for batch in server.batches()][3:]

    assert steps == [1, 2, 3]
    assert later == [(run, step) for run in ("dumped", "two") for step in (1, 2, 3)]


def test_step_that_the_service_did_not_take_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service fails after the first step: what it has acknowledged counts, and only that."""
    monkeypatch.setattr("twinscope_service.cli.tail.WAIT_S", 0.2)
    for step in (1, 2, 3):
        _nemo(tmp_path, step)

    def fails(post: RecordedPost) -> Reply:
        later = post.path == "/v1/batches" and decode(post.body).step != 1
        return (503, {}, b"{}") if later else accept(post)

    with SinkServer(fails) as server:
        assert _tail(tmp_path, server.url) == 2
        first, port = [batch.step for batch in server.batches()], server.port
    with SinkServer(port=port) as server:
        assert _tail(tmp_path, server.url) == 0
        second = [batch.step for batch in server.batches()]

    assert (first, second) == ([1], [2, 3])


def test_steps_of_a_resumed_run_are_sent_again_after_a_restart_event(tmp_path: Path) -> None:
    """The same number, other files: the service must open the step again before they come."""
    for step in (1, 2):
        _nemo(tmp_path, step)
    with SinkServer() as server:
        assert _tail(tmp_path, server.url) == 0
        newer = _nemo(tmp_path, 2)
        newer.write_text(newer.read_text() * 2)
        assert _tail(tmp_path, server.url) == 0
        sizes = [(batch.step, batch.samples) for batch in server.batches()]
        (event,) = server.events("restart")

    assert sizes == [(1, 1), (2, 1), (2, 2)]
    assert event["step"] == 2


def test_state_can_lie_elsewhere_and_must_be_one_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another tool's file is not overwritten; a folder that cannot be written is told."""
    _nemo(tmp_path, 1)
    other = tmp_path / "other.json"
    other.write_text("[1, 2]")
    with SinkServer() as server:
        assert _tail(tmp_path, server.url, "--state", str(other)) == 2
        assert other.read_text() == "[1, 2]"
        assert _tail(tmp_path, server.url, "--state", str(tmp_path / "absent/state.json")) == 0
        assert server.batches()[0].step == 1

    told = capsys.readouterr().err
    assert "not a file of twinscope tail" in told
    assert "after a restart all steps are sent again" in told


def test_folder_without_steps_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing found is status 2, not success; a wrong path is said."""
    assert recognise(tmp_path) is None
    with SinkServer() as server:
        assert main(["tail", str(tmp_path), "--once", "--url", server.url]) == 2
    assert main(["tail", str(tmp_path / "absent"), "--once"]) == 2
    assert "no such folder" in capsys.readouterr().err
