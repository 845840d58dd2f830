"""A data directory whose runs the page is tested on, and what a browser complains about."""

from __future__ import annotations

import json
import math
import random
import sqlite3
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode, encode_batch
from twinscope_service.config import load_settings
from twinscope_service.pipeline import Pipeline, open_pipeline
from twinscope_service.replay import before_and_after, steps

if TYPE_CHECKING:
    from playwright.sync_api import Page

HEALTHY, FAULTY, LONG, ONSET, ADVISED = 30, 10, 5000, 4200, 36
HOSTILE = "<img src=x onerror=\"window.hit='run'\">&lt;b&gt;'\"/x"
NOTE = "<script>window.hit='event'</script><b>bold</b>"
LABEL = "<svg onload=window.hit='label'>"


@dataclass
class Visit:
    """A page, and what its browser complained about or asked other machines for."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def open(self, address: str) -> Page:
        """Go to a view from a cold start, and wait until it shows its data."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/{address}")
        self.page.wait_for_selector("main:not([aria-busy]) h1, main:not([aria-busy]) h3")
        self.page.wait_for_function("() => !document.querySelector('main .state[role=status]')")
        return self.page

    def see_all(self) -> None:
        """Scroll through the view until every plot is drawn."""
        for plot in self.page.query_selector_all(".plot"):
            plot.scroll_into_view_if_needed()
            self.page.wait_for_function("plot => plot.dataset.drawn !== undefined", arg=plot)


def watch(seen: Visit) -> None:
    """Note errors of the console and requests that leave the service."""
    page = seen.page
    page.on("console", lambda m: m.type == "error" and seen.complaints.append(m.text))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on(
        "request",
        lambda r: (
            r.url.startswith((seen.url, "data:", "blob:", "about:")) or seen.strangers.append(r.url)
        ),
    )


def fill(data_dir: Path, *, hostile_too: bool = True) -> None:
    """Real steps through the real pipeline; the long run is copied from two of them."""
    pipeline = open_pipeline(load_settings(data_dir=data_dir))
    healthy, faulty = before_and_after("temperature_0.7_restored", "temperature_0.7_unrestored")
    plan = [healthy] * HEALTHY + [faulty] * FAULTY
    for batch in steps(plan, run="demo", samples_per_step=48, seed=0):
        send(pipeline, batch)
        tell(pipeline, batch.step or 0)
    if hostile_too:
        for batch in steps([faulty], run=HOSTILE, samples_per_step=24, seed=1):
            send(pipeline, hostile(batch))
        pipeline.event(HOSTILE, step=0, kind="config_change", fields={"note": NOTE})
    for batch in steps([healthy] * ADVISED, run="reference", samples_per_step=24, seed=2):
        send(pipeline, with_reference(batch))
        reward = {"reward": 0.2 + 0.01 * (batch.step or 0), "baseline_reward": 0.1}
        pipeline.scalars("reference", batch.step or 0, reward)
    pipeline.close()
    lengthen(data_dir / "twinscope.sqlite")


def tell(pipeline: Pipeline, step: int) -> None:
    """What a trainer says beside its tokens: scalars, and now and then an event."""
    trouble = max(step - HEALTHY + 1, 0)
    reward = 0.2 + 0.4 * (1 - math.exp(-step / 20)) - 0.02 * trouble
    values = {"reward": reward, "entropy": 1.2 * math.exp(-step / 60)}
    pipeline.scalars("demo", step, {**values, "grad_norm": 0.3 + 0.08 * trouble})
    if step % 8 == 0:
        pipeline.event("demo", step=step, kind="weight_sync", fields={"version": step // 8})
    if step == HEALTHY:
        pipeline.event("demo", step=step, kind="config_change", fields={"note": "new trainer"})


def send(pipeline: Pipeline, batch: Batch) -> None:
    """One paired step, closed."""
    body = b"".join(encode_batch(batch))
    assert batch.step is not None
    pipeline.ingest(body, decode(body), batch_id=None)
    pipeline.close_step(batch.run, batch.step)


def with_reference(batch: Batch) -> Batch:
    """The batch with a frozen reference that the policy leaves, further with every step."""
    p = batch.tensors["train_logprobs"]
    wave = np.cos(np.arange(len(p)), dtype=np.float32) * np.float32(0.1 + 0.01 * (batch.step or 0))
    return replace(batch, tensors={**batch.tensors, "ref_logprobs": np.minimum(p + wave, 0)})


def hostile(batch: Batch) -> Batch:
    """The batch with markup wherever a sender may write text."""
    ids = tuple(f"<b onclick=x>{s}</b>" for s in range(batch.samples))
    return replace(batch, sample_ids=ids, groups={"replica": (LABEL,) * batch.samples})


def lengthen(database: Path) -> None:
    """Run `long`: LONG steps whose level drifts, with a fault from ONSET on."""
    random.seed(0)
    now = time.time()
    with sqlite3.connect(database) as db:
        good, bad = (
            db.execute("SELECT view FROM steps WHERE run = 'demo' AND step = ?", (s,)).fetchone()[0]
            for s in (10, 39)
        )
        db.execute("INSERT INTO runs VALUES ('long', ?, ?)", (now - LONG, now))
        for step in range(LONG):
            view = stretched(json.loads(bad if step >= ONSET else good), step)
            row = (step, now - LONG + step, view["verdict"], json.dumps(view))
            db.execute(
                "INSERT INTO steps (run,step,closed_at,verdict,view) VALUES (?,?,?,?,?)",
                ("long", *row),
            )
        reward = [("long", s, "reward", 1 - math.exp(-s / 900)) for s in range(LONG)]
        db.executemany("INSERT INTO scalars VALUES (?,?,?,?)", reward)
        db.execute(
            "INSERT INTO alerts (run,kind,state,series,step,onset_step,before,after,ratio,message,"
            "causes,at) VALUES ('long','level_shift','firing','k3',4203,?,0.002,0.13,65,'k3',?,1)",
            (ONSET, '["temperature_not_restored"]'),
        )


def stretched(view: dict[str, Any], step: int) -> dict[str, Any]:
    """A step's view as another step of the run `long`."""
    view.update(run="long", step=step)
    view["metrics"]["k3_mean"] *= math.exp(random.gauss(0, 0.05)) * (1 + step / 8000)
    view["reasons"] = [one for one in view["reasons"] if not one.startswith("rollout_train_kl")]
    for cause in view["diagnosis"]:  # it speaks of the onset of the run it was copied from
        cause["evidence"] = cause["evidence"].partition("; began at")[0]
        cause["estimate"].pop("onset_step", None)
    return view
