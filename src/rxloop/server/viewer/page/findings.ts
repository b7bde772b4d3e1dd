// Problems and search hits in all runs.

import { signal } from '@preact/signals';
import type { Hit, ProblemPage, RunInfo, SearchResults } from './api.ts';
import { api, signIn, toApiError } from './store.ts';

/** Number of runs or texts that are loaded together. The server returns fewer at a time if it needs long. */
const PAGE = 50;

export interface Recent {
  runs: ProblemPage['runs'];
  next?: string;
  isLoading: boolean;
  failure: string;
}

export const recent = signal<Recent>({ runs: [], isLoading: true, failure: '' });

/** Load the problems of the newest runs, or of older runs. */
export async function loadRecent(after?: string): Promise<void> {
  const before = after ? recent.peek().runs : [];
  recent.value = { ...recent.peek(), isLoading: true, failure: '' };
  try {
    await signIn();
    let cursor: string | undefined = after;
    let runs = before;
    // A page may be empty if the server needs more time.
    do {
      const page: ProblemPage = await api.get('problems', { limit: before.length + PAGE - runs.length, visibility: api.visibility, ...(cursor && { after: cursor }) });
      runs = [...runs, ...page.runs];
      cursor = page.next;
      recent.value = { runs, next: cursor, isLoading: true, failure: '' };
    } while (cursor && runs.length < before.length + PAGE);
    recent.value = { ...recent.peek(), isLoading: false };
  } catch (error) {
    recent.value = { ...recent.peek(), isLoading: false, failure: toApiError(error).message };
  }
}

export interface Hits {
  text: string;
  hits: Hit[];
  runs: Map<string, RunInfo>;
  next?: string;
  isLoading: boolean;
}

const NONE: Hits = { text: '', hits: [], runs: new Map(), isLoading: false };
export const hits = signal<Hits>(NONE);
const MAX_PAGES = 100;

/** Search all runs for a text, unless the text changes in the meantime. */
export async function searchTexts(text: string, after?: string): Promise<void> {
  if (!text) return void (hits.value = NONE);
  if (hits.peek().text === text && !after) return;
  const start = after ? hits.peek() : { ...NONE, text };
  hits.value = { ...start, isLoading: true };
  let cursor = after;
  try {
    for (let page = 0; page < MAX_PAGES; page++) {
      const limit = start.hits.length + PAGE - hits.peek().hits.length;
      const answer: SearchResults = await api.get('search', { q: text.slice(0, 200), limit, visibility: api.visibility, ...(cursor && { after: cursor }) });
      if (hits.peek().text !== text) return;
      cursor = answer.next;
      const { hits: before, runs } = hits.peek();
      const all = [...before, ...answer.hits];
      for (const run of answer.runs) runs.set(run.taskId, run);
      const isDone = !cursor || all.length >= start.hits.length + PAGE;
      hits.value = { text, hits: all, runs: new Map(runs), next: cursor, isLoading: !isDone };
      if (isDone) return;
    }
  } catch {
    // The list of runs reports that the server cannot be reached.
  }
  if (hits.peek().text === text) hits.value = { ...hits.peek(), isLoading: false };
}
