"""The Grafana dashboards as code: `python -m twinscope_dashboards.grafana dashboards/grafana`.

What is shown is declared in `boards.py`; here it becomes Grafana's JSON, through Grafana's own SDK
(package grafana-foundation-sdk, in the `dev` extra). A test keeps the committed JSON fresh, another
executes every query against a real Prometheus.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from twinscope_dashboards.boards import BOARDS, RUN, Board, Panel, Query

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
VERDICTS = {"0": ("ok", "green"), "1": ("inconsistent", "red"), "2": ("unknown", "yellow")}
BUILDERS: dict[str, Any] = {
    "lines": timeseries.Panel,
    "number": stat.Panel,
    "states": statetimeline.Panel,
    "bars": bargauge.Panel,
    "table": table.Panel,
}


def render(board: Board) -> str:
    """One dashboard as the JSON that Grafana imports and provisions."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["twinscope"])
        .editable()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            dashboard.TextBoxVariable("twinscope").label("TwinScope page").default_value(board.page)
        )
        .link(
            dashboard.DashboardLink("TwinScope dashboards")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["twinscope"])
            .keep_time(True)
            .include_vars(True)
        )
        .link(
            dashboard.DashboardLink("Page")
            .type(models.DashboardLinkType.LINK)
            .url(board.link)
            .target_blank(True)
        )
    )  # fmt: skip
    if board.by_run:
        built = built.with_variable(_run_variable(many=board.many_runs)).annotation(_alarms())
    for panel in board.panels:
        built = built.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


def _run_variable(*, many: bool) -> dashboard.QueryVariable:
    variable = (
        dashboard.QueryVariable("run")
        .label("Run")
        .query("label_values(rollout_train_step, run)")
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(many)
        .include_all(many)
    )
    return variable.all_value(".*") if many else variable


def _alarms() -> dashboard.AnnotationQuery:
    """A mark wherever a level shift or a spike was reported."""
    expression = f"changes(rollout_train_level_shifts_total{RUN}[$__interval]) > 0 or "
    expression += f"changes(rollout_train_spikes_total{RUN}[$__interval]) > 0"
    return (
        dashboard.AnnotationQuery()
        .name("Alarms")
        .datasource(SOURCE)
        .enable(True)
        .icon_color("red")
        .expr(expression)
    )


def _panel(panel: Panel) -> Any:
    built = (
        BUILDERS[panel.kind]()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(panel.height)
    )
    for query in panel.queries:
        built = built.with_target(_target(query, instant=panel.kind in ("table", "bars")))
    if panel.kind == "lines":
        built = _lines(built, panel)
    if panel.kind in ("lines", "states"):
        built = built.legend(_legend())
    if panel.kind == "states":
        built = built.mappings([_verdict_mapping()]).fill_opacity(80)
    if panel.link:
        link = dashboard.DashboardLink("Open in TwinScope").url(panel.link).target_blank(True)
        built = built.data_links([link])
    return built


def _target(query: Query, *, instant: bool) -> prometheus.Dataquery:
    built = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(query.ref)
    return built.instant().format(PromQueryFormat.TABLE) if instant else built


def _lines(built: Any, panel: Panel) -> Any:
    built = built.line_width(2).fill_opacity(6).show_points(common_models.VisibilityMode.NEVER)
    if panel.least is not None:
        built = built.min(panel.least)
    if panel.logarithmic:
        scale = common.ScaleDistributionConfig().type(common_models.ScaleDistribution.LOG).log(10)
        built = built.scale_distribution(scale)
    return built


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
    )


def _verdict_mapping() -> models.ValueMap:
    options = {
        value: models.ValueMappingResult(text=text, color=color, index=int(value))
        for value, (text, color) in VERDICTS.items()
    }
    return models.ValueMap(options=options)


def main(folder: Path) -> None:
    """Write every dashboard to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        (folder / f"{board.uid}.json").write_text(render(board), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
