"""`make page-speed`: how long each view takes from a cold start, in a real browser, and why.

`text`: verdict, numbers, causes are there. `plots`: those in the window are drawn. Both count from
the moment the address was asked for, and include the service. `main thread` is the processor time
of the page's own work, whatever else the machine was doing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from bare_chromium import bare_chromium
from cold_start import HIGH, VIEWS, open_cold
from looking import fill
from service_process import running_service


def main(times: int) -> None:
    """One line per view: medians and worst of `times` cold starts."""
    print(f"{'view':<20} {'text':>7} {'plots':>7} {'worst':>7} {'main thread':>12} {'sent':>9}")
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "data", hostile_too=False)
        with running_service(Path(folder)) as service, bare_chromium() as browser:
            open_cold(browser, f"{service.url}/#/")  # the browser's own start is not the page's
            for name, address in VIEWS.items():
                seen = [
                    open_cold(browser, f"{service.url}/{address}", height=HIGH.get(name, 1000))
                    for _ in range(times)
                ]
                text, plots, work = (
                    statistics.median(getattr(one, what) for one in seen)
                    for what in ("text", "plots", "main_thread")
                )
                print(
                    f"{name:<20} {text:>5.2f} s {plots:>5.2f} s "
                    f"{max(one.plots for one in seen):>5.2f} s {work:>10.2f} s "
                    f"{seen[-1].transferred / 1e6:>6.2f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
