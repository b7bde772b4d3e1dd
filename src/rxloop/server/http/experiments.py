"""Experiments whose runs are in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.responses import Response

from rxloop.errors import ConfigurationError, ScoreMissing
from rxloop.evals.case import METADATA_KEY
from rxloop.evals.report import Report
from rxloop.evals.stored_reports import read_report
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.http_api.experiments import (
    CaseInfo,
    CaseRun,
    ExperimentInfo,
    ExperimentPage,
    ExperimentSummary,
    MeanScore,
    VariantInfo,
)
from rxloop.protocol.ids import Id
from rxloop.protocol.messages import Usage
from rxloop.recorded.summary import shorten_line
from rxloop.server.core.adapter import read_path_id
from rxloop.server.core.errors import Refused
from rxloop.server.http.findings import find_owner, scan_runs
from rxloop.server.http.inspection import Outlines, respond_in_thread
from rxloop.server.http.requests import ApiCall, Query
from rxloop.server.http.summaries import Summaries

SCAN_SECONDS = 0.5
"""Seconds after which a request for all experiments examines no further runs."""

MAX_RUNS = 20_000
"""Maximum number of runs of an experiment."""

_PAGE_SIZE = 500
"""Number of records read at once."""

_MAX_TITLES = 200
"""Maximum number of cases whose title is read from a run."""


class ExperimentsQuery(Query):
    """Query parameters for listing experiments."""

    after: Id | None = None
    """`next` of the previous page."""


def _read_label(record: RunRecord, name: str) -> str | None:
    value = record.metadata.get(f"{METADATA_KEY}.{name}")
    return None if value is None else str(value)


async def experiments(call: ApiCall[None, ExperimentsQuery]) -> Response:
    """List the experiments with runs that the caller may read."""
    after = call.query.after
    if after is not None:
        await call.gateway.find_run(call.principal, after)
    loop = asyncio.get_running_loop()
    deadline, next_cursor = loop.time() + SCAN_SECONDS, None
    runs: dict[str, list[RunRecord]] = {}
    with call.gateway.reserve_stream(call.principal):
        async with aclosing(scan_runs(call, None, after)) as records:
            async for record in records:
                if after != call.query.after and loop.time() > deadline:
                    next_cursor = after
                    break
                after = record.task_id
                # Runs of judges have no variant.
                if call.principal.may_see(record) and _read_label(record, "variant") is not None:
                    runs.setdefault(str(record.metadata.get(METADATA_KEY)), []).append(record)
        return await respond_in_thread(call, partial(_make_page, runs, next_cursor))


def _make_page(runs: Mapping[str, Sequence[RunRecord]], next_cursor: str | None) -> ExperimentPage:
    return ExperimentPage(experiments=[_summarize(name, each) for name, each in runs.items()], next=next_cursor)


def _summarize(name: str, records: Sequence[RunRecord]) -> ExperimentSummary:
    return ExperimentSummary(
        name=name,
        variants=sorted({_read_label(record, "variant") or "" for record in records}),
        cases=len({_read_label(record, "case") for record in records}),
        runs=len(records),
        failed=sum(record.state == "failed" for record in records),
        updated=max(record.updated for record in records),
    )


async def experiment(call: ApiCall[None, Query]) -> Response:
    """Return an experiment with its variants, cases and scores."""
    name, log = read_path_id(call.request, "experiment"), call.gateway.runtime.log
    compute = log.local.get(Outlines).compute
    with call.gateway.reserve_stream(call.principal):
        records = await _list_records(call, name)
        if not records:
            raise Refused(404, "not_found", "the experiment does not exist")
        report = await read_log(read_report, log, name)
        titles: dict[str, str] = {}
        if report is not None:
            report, titles = await compute(partial(_select_trials, report, records))
        titles = await _add_titles(call, records, titles)
        return await respond_in_thread(call, partial(_make_info, name, records, report, titles))


async def _list_records(call: ApiCall[None, Any], name: str) -> list[RunRecord]:
    """Return the runs of an experiment that the caller may read, oldest first."""
    list_runs, after = call.gateway.runtime.log.list_runs, None
    filters: dict[str, Any] = {"owner": find_owner(call), "metadata": {METADATA_KEY: name}, "limit": _PAGE_SIZE}
    records: list[RunRecord] = []
    for _ in range(0, MAX_RUNS, _PAGE_SIZE):
        found = await read_log(list_runs, **filters, after=after)
        # Runs of judges have no variant.
        records += [each for each in found if call.principal.may_see(each) and _read_label(each, "variant") is not None]
        if len(found) < _PAGE_SIZE:
            break
        after = found[-1].task_id
        # Reading a log in memory does not suspend.
        await asyncio.sleep(0)
    return records


def _select_trials(report: Report, records: Sequence[RunRecord]) -> tuple[Report | None, dict[str, str]]:
    """Return the part of a report with certain runs, and the titles of its cases.

    The client may not have access to all runs. The report may also be of another experiment with the same name, whose
    existence the client must not learn.
    """
    ids = {record.task_id for record in records}
    trials = [trial for trial in report.trials if trial.task_id in ids]
    titles = {trial.case: shorten_line(str(trial.input)) for trial in trials}
    return (report.model_copy(update={"trials": trials}) if trials else None), titles


async def _add_titles(call: ApiCall[None, Any], records: Sequence[RunRecord], titles: dict[str, str]) -> dict[str, str]:
    """Add the titles of cases that are not in the report, from their first runs."""
    log = call.gateway.runtime.log
    for record in records:
        case = _read_label(record, "case") or ""
        if case not in titles and len(titles) < _MAX_TITLES:
            summary = await log.local.get(Summaries).find_or_start(log, record)
            titles[case] = summary.title
    return titles


def _make_info(
    name: str, records: Sequence[RunRecord], report: Report | None, titles: dict[str, str]
) -> ExperimentInfo:
    scores = {trial.task_id: trial.scores for trial in report.trials} if report is not None else {}
    order = report.variants if report is not None else []
    variants = sorted({_read_label(record, "variant") or "" for record in records})
    variants.sort(key=lambda variant: order.index(variant) if variant in order else len(order))
    cases: dict[str, dict[str, list[CaseRun]]] = {}
    for record in records:
        repeat = record.metadata.get(f"{METADATA_KEY}.repeat")
        cell = CaseRun(
            task_id=record.task_id,
            repeat=repeat if isinstance(repeat, int) else 1,
            state=record.state,
            scores={scorer: score.value for scorer, score in scores.get(record.task_id, {}).items()},
        )
        cells = cases.setdefault(_read_label(record, "case") or "", {})
        cells.setdefault(_read_label(record, "variant") or "", []).append(cell)
    return ExperimentInfo(
        name=name,
        has_report=report is not None,
        variants=[
            VariantInfo(name=each, scores=_list_means(report, each), usage=_add_usage(records, each))
            for each in variants
        ],
        cases=[
            CaseInfo(
                id=case,
                title=titles.get(case, ""),
                cells={variant: sorted(runs, key=lambda run: run.repeat) for variant, runs in cells.items()},
            )
            for case, cells in cases.items()
        ],
    )


def _list_means(report: Report | None, variant: str) -> list[MeanScore]:
    if report is None or variant not in report.variants:
        return []
    own, means = report.of(variant), list[MeanScore]()
    for measure in report.measures:
        try:
            low, high = own.interval(measure.name)
            mean = own.mean(measure.name)
        except (ScoreMissing, ConfigurationError):
            # Labels have no mean, and a mean without the failed scores would be wrong.
            continue
        means.append(MeanScore(scorer=measure.name, better=measure.better, mean=mean, low=low, high=high))
    return means


def _add_usage(records: Sequence[RunRecord], variant: str) -> Usage:
    usages = [each.usage for each in records if each.usage is not None and _read_label(each, "variant") == variant]
    return sum(usages, Usage())
