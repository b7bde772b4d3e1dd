// Pure functions for the list of runs: changes, filter and conversations.

import type { RunInfo } from './api.ts';

export interface Lists {
  /** Displayed runs, newest first. */
  runs: RunInfo[];
  /** Runs that have started since, newest first. */
  waiting: RunInfo[];
}

/** Replace a displayed run in place. A new run waits. */
export function addRun({ runs, waiting }: Lists, run: RunInfo): Lists {
  const replace = (list: RunInfo[]) => list.map(each => (each.taskId === run.taskId ? run : each));
  const isKnown = (list: RunInfo[]) => list.some(each => each.taskId === run.taskId);
  if (isKnown(runs)) return { runs: replace(runs), waiting };
  if (isKnown(waiting)) return { runs, waiting: replace(waiting) };
  // The first run replaces the explanation of an empty list.
  if (!runs.length) return { runs: [run], waiting };
  // Runs that are older than the displayed ones belong to a later page.
  return run.created < runs.at(-1)!.created ? { runs, waiting } : { runs, waiting: [run, ...waiting] };
}

/** Add a page that was read again after the connection was lost. */
export function addPage(lists: Lists, page: RunInfo[]): Lists {
  return [...page].reverse().reduce(addRun, lists);
}

export interface Terms {
  state: string;
  agent: string;
  model: string;
  text: string;
  /** Group the runs by conversation. */
  isGrouped: boolean;
}

const BY_CONVERSATION = 'by:conversation';

/** Split a filter text such as `state:failed agent:support refund`. */
export function parseTerms(text: string): Terms {
  const terms: Terms = { state: '', agent: '', model: '', text: '', isGrouped: false };
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const [, key, value] = /^(state|agent|model):(.+)$/i.exec(word) ?? [];
    if (key) terms[key.toLowerCase() as 'state' | 'agent' | 'model'] = value;
    else if (word === BY_CONVERSATION) terms.isGrouped = true;
    else terms.text = terms.text ? `${terms.text} ${word}` : word;
  }
  return terms;
}

/** Return the filter with or without the term that groups runs by conversation. */
export function toggleGroups(text: string): string {
  const words = text.split(/\s+/).filter(Boolean);
  const others = words.filter(word => word !== BY_CONVERSATION);
  return (others.length < words.length ? others : [BY_CONVERSATION, ...others]).join(' ');
}

/** Return the loaded runs that match a filter, and the runs that the server has found for it. */
export function matching(list: RunInfo[], text: string, found: RunInfo[]): RunInfo[] {
  const terms = parseTerms(text);
  const words = terms.text.toLowerCase();
  const hits = list.filter(run => fits(run, terms) && `${run.title ?? ''} ${run.taskId}`.toLowerCase().includes(words));
  const known = new Map(list.map(run => [run.taskId, run]));
  const shown = new Set(hits.map(run => run.taskId));
  // A loaded run is more recent than the found one.
  const more = found.filter(run => !shown.has(run.taskId)).map(run => known.get(run.taskId) ?? run).filter(run => fits(run, terms));
  return more.length ? [...hits, ...more].sort((x, y) => Date.parse(y.created) - Date.parse(x.created)) : hits;
}

function fits(run: RunInfo, { state, agent, model }: Terms): boolean {
  const has = (text: string, part: string) => text.toLowerCase().includes(part.toLowerCase());
  const isState = has(run.state, state) || (state.toLowerCase() === 'waits' && run.state.endsWith('-required'));
  return isState && has(run.agent, agent) && has(run.model ?? '', model);
}

export type Item = { kind: 'conversation'; run: RunInfo; count: number } | { kind: 'run'; run: RunInfo; isInGroup: boolean };

/** Return the rows of the list. Grouped runs follow their conversation, which has the position of its newest run. */
export function toItems(runs: RunInfo[], isGrouped: boolean): Item[] {
  if (!isGrouped) return runs.map(run => ({ kind: 'run', run, isInGroup: false }));
  const groups = new Map<string, RunInfo[]>();
  for (const run of runs) {
    const key = JSON.stringify([run.contextId, run.owner]);
    const group = groups.get(key);
    if (group) group.push(run);
    else groups.set(key, [run]);
  }
  return [...groups.values()].flatMap(group => [
    { kind: 'conversation', run: group.at(-1)!, count: group.length } as Item,
    ...group.map((run): Item => ({ kind: 'run', run, isInGroup: true })),
  ]);
}

/** Return the heights of a sparkline, from 0 to 1. */
export function toHeights(values: number[]): number[] {
  const top = Math.max(...values, 1);
  return values.map(each => (each ? Math.max(each / top, 0.12) : 0));
}
