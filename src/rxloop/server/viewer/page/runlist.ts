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
  owner: string;
  /** Limits of the creation time: an age such as `24h` or `7d`, or a time in ISO 8601. */
  since: string;
  until: string;
  text: string;
  /** Group the runs by conversation. */
  isGrouped: boolean;
}

const BY_CONVERSATION = 'by:conversation';

export const STATES = ['submitted', 'working', 'input-required', 'auth-required', 'completed', 'failed', 'canceled'];

export const KEYS = ['state', 'agent', 'model', 'owner', 'since', 'until'] as const;
export type Key = (typeof KEYS)[number];

const TERM = new RegExp(`^(${KEYS.join('|')}):(.+)$`, 'i');

/** Words of a filter. Quotes join words. */
const split = (text: string): string[] => text.match(/(?:[^\s"]|"[^"]*"?)+/g) ?? [];

/** Split a filter text such as `state:failed agent:"my agent" refund`. */
export function parseTerms(text: string): Terms {
  const terms: Terms = { state: '', agent: '', model: '', owner: '', since: '', until: '', text: '', isGrouped: false };
  for (const word of split(text)) {
    const [, key, value] = TERM.exec(word) ?? [];
    if (key) terms[key.toLowerCase() as Key] = value.replaceAll('"', '');
    else if (word === BY_CONVERSATION) terms.isGrouped = true;
    else terms.text = terms.text ? `${terms.text} ${word}` : word;
  }
  return terms;
}

/** Return the filter with another value of a term. An empty value removes the term. */
export function setTerm(text: string, key: Key, value: string): string {
  const others = split(text).filter(word => TERM.exec(word)?.[1].toLowerCase() !== key);
  return [...(value ? [`${key}:${/\s/.test(value) ? `"${value}"` : value}`] : []), ...others].join(' ');
}

const UNITS: Record<string, number> = { m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Return the moment of a term in milliseconds since 1970, or null. */
export function toMoment(value: string, now: number): number | null {
  const [, count, unit] = /^(\d+)([mhd])$/.exec(value) ?? [];
  const moment = unit ? now - Number(count) * UNITS[unit] : Date.parse(value);
  return Number.isNaN(moment) ? null : moment;
}

/** Return the filter with or without the term that groups runs by conversation. */
export function toggleGroups(text: string): string {
  const words = split(text);
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

function fits(run: RunInfo, { state, agent, model, owner, since, until }: Terms): boolean {
  const has = (text: string, part: string) => text.toLowerCase().includes(part.toLowerCase());
  const isState = has(run.state, state) || (state.toLowerCase() === 'waits' && run.state.endsWith('-required'));
  const [first, end] = [since, until].map(each => toMoment(each, Date.now()));
  const created = Date.parse(run.created);
  const isInTime = (first === null || created >= first) && (end === null || created < end);
  return isState && isInTime && has(run.agent, agent) && has(run.model ?? '', model) && has(run.owner ?? '', owner);
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
