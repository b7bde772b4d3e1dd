// The list of runs: polled while the page is visible. New runs wait until the reader adds them.

import { signal } from '@preact/signals';
import { address, api, needsKey, signIn } from './store.ts';
import { ApiError, type RunInfo } from './api.ts';

export const runs = signal<RunInfo[]>([]);
export const waiting = signal<RunInfo[]>([]);
export const next = signal<string | undefined>(undefined);
export const unreachable = signal<{ since: number } | null>(null);
export const isReady = signal(false);

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
    const page = await api.runs({ limit: PAGE, details: 1 });
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
  const page = await api.runs({ limit: PAGE, details: 1, after: next.value });
  const known = new Set(runs.value.map(run => run.taskId));
  runs.value = [...runs.value, ...page.runs.filter(run => !known.has(run.taskId))];
  next.value = page.next;
}

interface Terms {
  state: string;
  agent: string;
  text: string;
}

/** Split a filter text such as `state:failed agent:support refund`. */
export function parseTerms(text: string): Terms {
  const terms: Terms = { state: '', agent: '', text: '' };
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const [, key, value] = /^(state|agent):(.+)$/i.exec(word) ?? [];
    if (key) terms[key.toLowerCase() as 'state' | 'agent'] = value.toLowerCase();
    else terms.text = terms.text ? `${terms.text} ${word}` : word;
  }
  return terms;
}

/** Return the loaded runs that match a filter, and the runs that the server has found for it. */
export function matching(list: RunInfo[], text: string): RunInfo[] {
  const { state, agent, text: words } = parseTerms(text);
  const hits = list.filter(run => fits(run, state, agent) && `${run.title ?? ''} ${run.taskId}`.toLowerCase().includes(words.toLowerCase()));
  if (!words || found.value.text !== text) return hits;
  const known = new Set(hits.map(run => run.taskId));
  const more = found.value.runs.filter(run => fits(run, state, agent) && !known.has(run.taskId));
  return more.length ? [...hits, ...more].sort((x, y) => Date.parse(y.created) - Date.parse(x.created)) : hits;
}

function fits(run: RunInfo, state: string, agent: string): boolean {
  const isState = run.state.includes(state) || (state === 'waits' && run.state.endsWith('-required'));
  return isState && run.agent.toLowerCase().includes(agent);
}

/** Runs that the server has found in questions, answers and tool names. */
const found = signal<{ text: string; runs: RunInfo[]; isComplete: boolean }>({ text: '', runs: [], isComplete: true });
const MAX_PAGES = 40;

export const isSearching = (): boolean => parseTerms(filterText()).text !== '' && (found.value.text !== filterText() || !found.value.isComplete);

/** Search the log for the text of the filter, unless it changes in the meantime. */
export async function search(text: string): Promise<void> {
  const { text: q } = parseTerms(text);
  if (!q || found.value.text === text) return;
  found.value = { text, runs: [], isComplete: false };
  let after: string | undefined;
  try {
    for (let page = 0; page < MAX_PAGES; page++) {
      const answer = await api.runs({ q: q.slice(0, 200), details: 1, limit: PAGE, ...(after && { after }) });
      if (found.value.text !== text) return;
      after = answer.next ?? undefined;
      found.value = { text, runs: [...found.value.runs, ...answer.runs], isComplete: !after };
      if (!after) return;
    }
  } catch (error) {
    if (found.value.text === text) unreachable.value ??= { since: Date.now() };
  }
}

export const filterText = (): string => (address.value.page === 'runs' ? address.value.q : '');
