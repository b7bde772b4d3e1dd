// Bodies of the events of the open run, fetched in blocks when they are displayed.

import { effect, signal } from '@preact/signals';
import type { ApiError } from './api.ts';
import { HIDDEN_KIND } from './kinds.ts';
import { omissionOf } from './omissions.ts';
import type { Event, EventOf, Outline } from './outline.ts';
import { api, model, selected, toApiError } from './store.ts';

const bodies = new Map<number, Event | null>();
export const bodiesRevision = signal(0);
export const bodyFailure = signal<ApiError | null>(null);
const BLOCK = 20;
/** More than any view displays at once. */
const MAX_BODIES = 4_000;
const requested = new Set<string>();
/** The log contains an event some milliseconds after the stream. The page waits for it up to six seconds. */
const MAX_PAUSES = 15;
/** Events that were fetched completely, newest last. */
let wholes: number[] = [];
const MAX_WHOLES = 16;

/** Fetch an event completely. */
export async function loadWhole(seq: number): Promise<void> {
  const { taskId } = model.peek();
  const key = `${taskId} ${seq}`;
  if (requested.has(key)) return;
  requested.add(key);
  bodyFailure.value = null;
  try {
    const [event] = await api.events(taskId, seq, seq, true);
    if (model.peek().taskId !== taskId) return;
    bodies.set(seq, event ?? null);
    wholes.push(seq);
    if (wholes.length > MAX_WHOLES) bodies.delete(wholes.shift()!);
    bodiesRevision.value++;
  } catch (error) {
    if (model.peek().taskId === taskId) bodyFailure.value = toApiError(error);
  } finally {
    requested.delete(key);
  }
}

/** Like `bodyOf`, for uses that require the complete event. */
export function wholeOf(seq: number): Event | null | undefined {
  const event = bodyOf(seq);
  if (!omissionOf(event)) return event;
  if (!bodyFailure.peek()) void loadWhole(seq);
  return undefined;
}

/** Return the body of an event, or undefined while it is fetched. Null means that this reader may not receive it. */
export function bodyOf(seq: number): Event | null | undefined {
  bodiesRevision.value;
  // After a failure, the reader decides when to try again.
  if (!bodies.has(seq) && !bodyFailure.peek()) void fetchBodies(seq);
  return bodies.get(seq);
}

/** Return the body of an event of a kind, or undefined while it is fetched. Null if it is hidden, or of another kind. */
export function bodyOfKind<K extends Event['kind']>(seq: number, kind: K): EventOf<K> | null | undefined {
  const event = bodyOf(seq);
  return event?.kind === kind ? (event as EventOf<K>) : event && null;
}

async function fetchBodies(seq: number): Promise<void> {
  const { taskId, outline } = model.peek();
  const from = Math.max(1, seq - (seq % BLOCK));
  const to = Math.max(seq, Math.min(from + BLOCK - 1, outline.last));
  const key = `${taskId} ${from} ${to}`;
  if (requested.has(key)) return;
  requested.add(key);
  try {
    // The server ends a range early if its events are large.
    for (let first = from, pauses = 0; first <= to; ) {
      const events = await api.events(taskId, first, to, false);
      if (model.peek().taskId !== taskId) return;
      const last = events.at(-1)?.seq ?? first - 1;
      const end = hasMore(outline, last, to) && pauses < MAX_PAUSES ? last : to;
      const put = (at: number, event: Event | null) => { if (!(bodies.has(at) && wholes.includes(at))) bodies.set(at, event); };
      for (let each = first; each <= end; each++) put(each, null);
      for (const event of events) put(event.seq, event);
      bodyFailure.value = null;
      bodiesRevision.value++;
      if (end >= first) first = end + 1;
      else await new Promise(done => setTimeout(done, 50 * ++pauses));
    }
    for (const old of [...bodies.keys()].slice(0, Math.max(bodies.size - MAX_BODIES, 0))) bodies.delete(old);
  } catch (error) {
    if (model.peek().taskId === taskId) bodyFailure.value = toApiError(error);
  } finally {
    requested.delete(key);
  }
}

/** True if this reader may receive an event after `last`. */
function hasMore(outline: Outline, last: number, to: number): boolean {
  for (let i = outline.find(last) + 1; i < outline.size && outline.seq[i] <= to; i++) if (outline.kind[i] !== HIDDEN_KIND) return true;
  return false;
}

effect(() => {
  model.value;
  bodies.clear();
  wholes = [];
});
effect(() => {
  // The page tries again for another event.
  selected.value;
  bodyFailure.value = null;
});
