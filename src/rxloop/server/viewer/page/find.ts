// Search in the texts of the open run, for the words of its filter.

import { signal } from '@preact/signals';
import { moveTo } from './commands.ts';
import { findNext } from './search.ts';
import { api, currentMatches, matches, model, selected, toApiError, words } from './store.ts';

const PAGE = 200;
/** Number of hits after which the search stops until the reader goes to the next one. */
const MAX_HITS = 500;

/** Index of the match to which the reader went last, or -1. */
export const place = signal(-1);

let running = Promise.resolve();

/** Search the events that were not searched yet, after earlier searches. */
export function searchRun(limit = MAX_HITS): Promise<void> {
  return (running = running.then(() => search(limit)));
}

async function search(limit: number): Promise<void> {
  const { taskId, outline } = model.peek();
  const text = words.peek();
  if (!currentMatches.peek()) {
    place.value = -1;
    matches.value = text && taskId ? { taskId, text, hits: [], searched: 0, isLoading: false, failure: '' } : null;
  }
  const isOpen = () => currentMatches.peek()?.text === text && currentMatches.peek()!.taskId === taskId;
  let found = currentMatches.peek();
  if (!found) return;
  try {
    while (found.searched < outline.last && found.hits.length < limit) {
      matches.value = { ...found, isLoading: true, failure: '' };
      const page = await api.search(taskId, text, found.searched, PAGE);
      if (!isOpen()) return;
      found = { ...found, hits: [...found.hits, ...page.hits], searched: page.next ?? page.searched };
      if (page.next == null) break;
    }
    matches.value = { ...found, isLoading: false };
  } catch (error) {
    if (isOpen()) matches.value = { ...found, isLoading: false, failure: toApiError(error).message };
  }
}

/** True if there may be matches that are not known yet. */
export const hasMore = (): boolean => (currentMatches.value?.searched ?? 0) < model.value.outline.last;

/** Go to the next or previous match, from the selected event on. */
export async function stepMatch(direction: 1 | -1): Promise<void> {
  await (currentMatches.peek() ? running : searchRun());
  const found = currentMatches.peek();
  if (!found) return;
  const next = findNext(found.hits, place.peek(), selected.peek(), direction);
  if (direction > 0 && next < 0 && hasMore()) await searchRun(found.hits.length + MAX_HITS);
  const { hits } = currentMatches.peek() ?? found;
  if (!hits.length) return;
  const again = findNext(hits, place.peek(), selected.peek(), direction);
  place.value = again >= 0 ? again : direction > 0 ? 0 : hits.length - 1;
  moveTo(hits[place.value].seq);
}
