// Requests of the open run, fetched when they are displayed.

import { effect, signal } from '@preact/signals';
import type { ApiError } from './api.ts';
import type { RequestRow, SentRequest } from './requests.ts';
import { api, model, revision, toApiError } from './store.ts';

const requests = new Map<number, SentRequest>();
const loading = new Set<string>();
const MAX_REQUESTS = 30;
/** Requests that are fetched completely. */
const wholes = new Set<number>();
const sentRevision = signal(0);
export const requestFailure = signal<{ seq: number; error: ApiError } | null>(null);

/** Return a request, or undefined while it is fetched. A request without an answer is fetched again after the answer. */
export function requestOf(seq: number): SentRequest | undefined {
  sentRevision.value;
  revision.value;
  const known = requests.get(seq);
  const isStale = known !== undefined && known.answer === undefined && hasEnded(seq);
  if ((!known || isStale) && requestFailure.peek()?.seq !== seq) void fetchRequest(seq);
  return known;
}

/** Fetch a request completely. */
export function loadWholeRequest(seq: number): void {
  wholes.add(seq);
  void fetchRequest(seq);
}

export function retryRequest(): void {
  requestFailure.value = null;
  sentRevision.value++;
}

/** True if the outline contains the answer of a request. */
function hasEnded(seq: number): boolean {
  const { outline } = model.peek();
  for (let i = outline.find(seq) + 1; i > 0 && i < outline.size; i++) if (outline.opens[i] === seq && outline.kind[i] === 'content-complete') return true;
  return false;
}

const MAX_TRIES = 10;

/** Fetch a request. The log contains it some milliseconds after the stream. */
async function readStored(taskId: string, seq: number): Promise<SentRequest> {
  for (let tries = 1; ; tries++) {
    try {
      return await api.sentRequest(taskId, seq, wholes.has(seq));
    } catch (error) {
      if (toApiError(error).code !== 'not_found' || tries === MAX_TRIES) throw error;
      await new Promise(done => setTimeout(done, 50 * tries));
    }
  }
}

async function fetchRequest(seq: number): Promise<void> {
  const { taskId } = model.peek();
  const key = `${taskId} ${seq}`;
  if (loading.has(key)) return;
  loading.add(key);
  try {
    const request = await readStored(taskId, seq);
    if (model.peek().taskId !== taskId) return;
    requests.delete(seq);
    requests.set(seq, request);
    if (requests.size > MAX_REQUESTS) requests.delete(requests.keys().next().value!);
    sentRevision.value++;
  } catch (error) {
    if (model.peek().taskId === taskId) requestFailure.value = { seq, error: toApiError(error) };
  } finally {
    loading.delete(key);
  }
}

// -- the list of all requests

export const requestRows = signal<RequestRow[] | null>(null);
export const rowsFailure = signal<ApiError | null>(null);
let loadedTo = '';
let timer = 0;

/** Fetch the list again if the run has sent a request or received an answer since the last time. */
export function loadRows(): void {
  const { taskId, outline } = model.peek();
  let count = 0;
  for (let i = 0; i < outline.size; i++) if (outline.kind[i] === 'llm-call' || outline.kind[i] === 'usage') count++;
  const key = `${taskId} ${count}`;
  if (key === loadedTo || timer || !taskId || !outline.size) return;
  const pause = requestRows.peek() ? 1000 : 0;
  timer = window.setTimeout(() => {
    timer = 0;
    loadedTo = key;
    void fetchRows(taskId);
  }, pause);
}

export function retryRows(): void {
  loadedTo = '';
  rowsFailure.value = null;
  loadRows();
}

async function fetchRows(taskId: string): Promise<void> {
  try {
    const rows: RequestRow[] = [];
    for (let after: number | undefined = 0; after !== undefined; ) {
      const page: { requests: RequestRow[]; next?: number } = await api.sentRequests(taskId, after);
      rows.push(...page.requests);
      after = page.next;
    }
    if (model.peek().taskId !== taskId) return;
    rowsFailure.value = null;
    requestRows.value = rows;
  } catch (error) {
    if (model.peek().taskId === taskId) rowsFailure.value = toApiError(error);
  }
}

effect(() => {
  model.value;
  requests.clear();
  wholes.clear();
  clearTimeout(timer);
  timer = 0;
  loadedTo = '';
  requestRows.value = null;
  rowsFailure.value = null;
  requestFailure.value = null;
});
