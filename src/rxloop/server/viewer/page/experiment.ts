// Pure functions for the table of an experiment.

import type { CaseInfo, CaseRun, ExperimentInfo, ExperimentSummary, MeanScore } from './http_api.d.ts';

export type { CaseInfo, CaseRun, ExperimentInfo, ExperimentSummary, MeanScore };
export type Score = CaseRun['scores'][string];

/** Add a page of experiments. An experiment may continue on the next page. */
export function addExperiments(list: ExperimentSummary[], page: ExperimentSummary[]): ExperimentSummary[] {
  const all = new Map(list.map(each => [each.name, each]));
  for (const each of page) {
    const known = all.get(each.name);
    all.set(each.name, known ? {
      ...known,
      variants: [...new Set([...known.variants, ...each.variants])].sort(),
      cases: Math.max(known.cases, each.cases),
      runs: known.runs + each.runs,
      failed: known.failed + each.failed,
    } : each);
  }
  return [...all.values()];
}

/** Names of the scorers, in the order of the report. */
export function listScorers({ variants, cases }: ExperimentInfo): string[] {
  const names = new Set(variants.flatMap(each => each.scores.map(score => score.scorer)));
  for (const each of cases) for (const runs of Object.values(each.cells)) for (const run of runs) for (const name of Object.keys(run.scores)) names.add(name);
  return [...names];
}

/** What a cell displays for a run, with a text for screen readers. */
export function describeRun(run: CaseRun, scorer: string): { text: string; title: string } {
  const value = run.scores[scorer];
  if (value === true) return { text: '✓', title: 'passed' };
  if (value === false) return { text: '✕', title: 'failed' };
  if (typeof value === 'number') return { text: formatScore(value), title: formatScore(value) };
  if (typeof value === 'string') return { text: value, title: value };
  return { text: run.state === 'completed' ? '–' : run.state, title: run.state };
}

export function formatScore(value: number): string {
  if (Number.isInteger(value)) return value.toLocaleString('en-US');
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

/** Mean of the runs of a cell that have a score, or null. */
export function meanOf(runs: CaseRun[] | undefined, scorer: string): number | null {
  const values = (runs ?? []).map(run => run.scores[scorer]).filter(value => typeof value === 'number' || typeof value === 'boolean').map(Number);
  return values.length ? values.reduce((sum, each) => sum + each, 0) / values.length : null;
}

/** Variants of a case whose mean is worse than that of the best variant. */
export function findWorse(each: CaseInfo, scorer: string, better: 'higher' | 'lower'): Set<string> {
  const means = Object.entries(each.cells).map(([name, runs]) => [name, meanOf(runs, scorer)] as const).filter(([, mean]) => mean !== null);
  const sign = better === 'higher' ? 1 : -1;
  const best = Math.max(...means.map(([, mean]) => sign * mean!));
  return new Set(means.filter(([, mean]) => sign * mean! < best).map(([name]) => name));
}

/** Largest difference between two variants of a case. */
export function difference(each: CaseInfo, scorer: string): number {
  const means = Object.values(each.cells).map(runs => meanOf(runs, scorer)).filter(mean => mean !== null);
  return means.length ? Math.max(...means) - Math.min(...means) : 0;
}

/** Return the cases in their order, or those with the largest difference first. */
export function sortCases(cases: CaseInfo[], scorer: string, byDifference: boolean): CaseInfo[] {
  return byDifference ? [...cases].sort((x, y) => difference(y, scorer) - difference(x, scorer)) : cases;
}

/** Range of a scale that contains all intervals. */
export function findRange(scores: MeanScore[]): { from: number; to: number } {
  const from = Math.min(0, ...scores.map(each => each.low));
  const to = Math.max(...scores.map(each => each.high), from);
  return { from, to: to > from ? to : from + 1 };
}
