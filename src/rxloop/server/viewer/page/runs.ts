// The list of runs, kept current by the live list of the API. New runs wait until the reader adds them.

import { signal } from '@preact/signals';
import { address, api, go, needsKey, notify, signIn } from './store.ts';
import { ApiError, pause, PAUSES, type RunInfo } from './api.ts';
import { addPage, addRun, parseTerms, STATES, toMoment, type Lists } from './runlist.ts';

export const lists = signal<Lists>({ runs: [], waiting: [] });
export const next = signal<string | undefined>(undefined);
/** Set while the server cannot be reached. */
export const unreachable = signal<{ since: number; retryAt: number } | null>(null);
export const isReady = signal(false);

const PAGE = 100;

/** Follow the list until the returned function is called. A hidden page does not follow it. */
export function followRuns(): () => void {
  let stop = new AbortController();
  const update = () => {
    stop.abort();
    stop = new AbortController();
    if (!document.hidden) void follow(stop.signal);
  };
  document.addEventListener('visibilitychange', update);
  update();
  return () => {
    document.removeEventListener('visibilitychange', update);
    stop.abort();
  };
}

async function follow(signal: AbortSignal): Promise<void> {
  for (let failures = 0; !signal.aborted && !needsKey.peek(); ) {
    try {
      await signIn();
      for await (const { name, data } of api.runFrames({ limit: PAGE, details: 1 }, signal)) {
        failures = 0;
        unreachable.value = null;
        take(name, JSON.parse(data));
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status === 401) return void (needsKey.value = true);
    }
    if (signal.aborted) return;
    const time = PAUSES[Math.min(failures++, PAUSES.length - 1)];
    if (failures > 1) unreachable.value = { since: unreachable.peek()?.since ?? Date.now(), retryAt: Date.now() + time };
    await pause(time, signal);
  }
}

function take(name: string, data: unknown): void {
  if (name === 'run') lists.value = addRun(lists.peek(), data as RunInfo);
  if (name !== 'page') return;
  const page = data as { runs: RunInfo[]; next?: string };
  if (!isReady.peek()) next.value = page.next ?? undefined;
  lists.value = isReady.peek() ? addPage(lists.peek(), page.runs) : { runs: page.runs, waiting: [] };
  isReady.value = true;
}

/** Add the runs that have started since the page was opened. */
export function addWaiting(): void {
  lists.value = { runs: [...lists.value.waiting, ...lists.value.runs], waiting: [] };
}

export async function loadMore(): Promise<void> {
  const after = next.value;
  if (!after) return;
  const page = await api.runs({ limit: PAGE, details: 1, after }).catch(() => null);
  // A second click may have loaded the same page.
  if (next.value !== after) return;
  if (!page) return notify('Older runs could not be loaded. Try again.');
  const known = new Set(lists.value.runs.map(run => run.taskId));
  lists.value = { ...lists.value, runs: [...lists.value.runs, ...page.runs.filter(run => !known.has(run.taskId))] };
  next.value = page.next ?? undefined;
}

/** Runs that are marked for a comparison, at most two. */
export const marked = signal<string[]>([]);

export function mark(taskId: string): void {
  const others = marked.value.filter(each => each !== taskId);
  marked.value = others.length < marked.value.length ? others : [...others.slice(-1), taskId];
}

export function compareMarked(): void {
  const [taskId, other] = marked.value;
  if (other) go({ page: 'diff', taskId, other });
}

// -- filter

export const filterText = (): string => (address.value.page === 'runs' ? address.value.q : '');

/** Runs that the server has found for a filter. */
export const found = signal<{ text: string; runs: RunInfo[]; isComplete: boolean }>({ text: '', runs: [], isComplete: true });
const MAX_PAGES = 40;
const MAX_FOUND = 300;

export const isSearching = (): boolean => isSearched(filterText()) && (found.value.text !== filterText() || !found.value.isComplete);

/** The server is asked only if the filter selects runs. */
function isSearched(text: string): boolean {
  const { isGrouped, ...terms } = parseTerms(text);
  return Object.values(terms).some(Boolean);
}

/** Search the log for the terms of the filter, unless it changes in the meantime. */
export async function search(text: string): Promise<void> {
  if (!isSearched(text) || found.value.text === text) return;
  found.value = { text, runs: [], isComplete: false };
  const { state, agent, model, owner, text: q, ...times } = parseTerms(text);
  const known = STATES.find(each => each === (state === 'waits' ? 'input-required' : state));
  const [since, until] = [times.since, times.until].map(each => toMoment(each, Date.now())).map(each => each !== null && new Date(each).toISOString());
  const terms = {
    ...(q && { q: q.slice(0, 200) }), ...(known && { state: known }), ...(agent && { agent }), ...(model && { model }), ...(owner && { owner }),
    ...(since && { since }), ...(until && { until }),
  };
  let after: string | undefined;
  try {
    for (let page = 0; page < MAX_PAGES; page++) {
      const answer = await api.runs({ ...terms, details: 1, limit: PAGE, ...(after && { after }) });
      if (found.value.text !== text) return;
      after = answer.next ?? undefined;
      const all = [...found.value.runs, ...answer.runs];
      const isComplete = !after || all.length >= MAX_FOUND || page === MAX_PAGES - 1;
      found.value = { text, runs: all, isComplete };
      if (isComplete) return;
    }
  } catch {
    if (found.value.text === text) found.value = { ...found.value, isComplete: true };
  }
}
