// The list of runs: polled while the page is visible. New runs wait until the reader adds them.

import { signal } from '@preact/signals';
import { address, api, me, needsKey, signIn } from './store.ts';
import { ApiError, type RunInfo } from './api.ts';
import { textOf } from './outline.ts';

export const runs = signal<RunInfo[]>([]);
export const waiting = signal<RunInfo[]>([]);
export const next = signal<string | undefined>(undefined);
export const unreachable = signal<{ since: number } | null>(null);
export const isReady = signal(false);
export const titles = signal<ReadonlyMap<string, string>>(new Map());

const PERIOD = 2000;
const PAGE = 100;
let timer = 0;

export function startPolling(): () => void {
  void poll();
  timer = window.setInterval(() => { if (!document.hidden) void poll(); }, PERIOD);
  return () => clearInterval(timer);
}

export async function poll(): Promise<void> {
  if (needsKey.value) return;
  try {
    await signIn();
    const page = await api.runs({ limit: PAGE });
    unreachable.value = null;
    merge(page.runs, page.next);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return;
    unreachable.value ??= { since: Date.now() };
  }
}

function merge(page: RunInfo[], cursor: string | undefined): void {
  if (!isReady.value) {
    runs.value = page;
    next.value = cursor ?? undefined;
    isReady.value = true;
    return;
  }
  const fresh = new Map(page.map(run => [run.taskId, run]));
  const known = new Set(runs.value.map(run => run.taskId));
  runs.value = runs.value.map(run => fresh.get(run.taskId) ?? run);
  const added = page.filter(run => !known.has(run.taskId));
  if (!runs.value.length) runs.value = added;
  else waiting.value = added;
}

/** Add the runs that have started since the page was opened. */
export function addWaiting(): void {
  runs.value = [...waiting.value, ...runs.value];
  waiting.value = [];
}

export async function loadMore(): Promise<void> {
  if (!next.value) return;
  const page = await api.runs({ limit: PAGE, after: next.value });
  const known = new Set(runs.value.map(run => run.taskId));
  runs.value = [...runs.value, ...page.runs.filter(run => !known.has(run.taskId))];
  next.value = page.next;
}

const asked = new Set<string>();
const queue: string[] = [];
let active = 0;
const CONCURRENCY = 4;

/** Return what was asked in a run. Until it is known, it is fetched from the first event. */
export function titleOf(run: RunInfo): string | undefined {
  const known = titles.value.get(run.taskId);
  if (known === undefined && !asked.has(run.taskId) && me.value) {
    asked.add(run.taskId);
    queue.push(run.taskId);
    while (active < CONCURRENCY && queue.length) void fetchTitles();
  }
  return known;
}

async function fetchTitles(): Promise<void> {
  active++;
  for (let taskId = queue.shift(); taskId; taskId = queue.shift()) await fetchTitle(taskId);
  active--;
}

async function fetchTitle(taskId: string): Promise<void> {
  const events = await api.events(taskId, 1, 1).catch(() => []);
  const text = textOf(events[0]?.messages?.at(-1)?.content).slice(0, 120);
  titles.value = new Map(titles.value).set(taskId, text);
}

/** Return the runs that match the filter text: `state:failed agent:support text`. */
export function matching(list: RunInfo[], text: string): RunInfo[] {
  const terms = text.toLowerCase().split(/\s+/).filter(Boolean);
  // Only texts that are known can match.
  if (terms.some(term => !/^(state|agent):/.test(term))) list.forEach(titleOf);
  return list.filter(run => terms.every(term => {
    const [, key, value] = /^(state|agent):(.+)$/.exec(term) ?? [];
    if (key === 'state') return run.state.includes(value) || (value === 'waits' && run.state.endsWith('-required'));
    if (key === 'agent') return run.agent.toLowerCase().includes(value);
    return `${titles.value.get(run.taskId) ?? ''} ${run.agent} ${run.state} ${run.taskId}`.toLowerCase().includes(term);
  }));
}

export const filterText = (): string => (address.value.page === 'runs' ? address.value.q : '');
