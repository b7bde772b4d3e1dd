// Bodies of the events of the open run, fetched in blocks when they are displayed.

import { effect, signal } from '@preact/signals';
import type { ApiError } from './api.ts';
import type { Event, EventOf } from './outline.ts';
import { api, model, selected, toApiError } from './store.ts';

const bodies = new Map<number, Event | null>();
export const bodiesRevision = signal(0);
export const bodyFailure = signal<ApiError | null>(null);
const BLOCK = 20;
const requested = new Set<string>();

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
    const events = await api.events(taskId, from, to);
    if (model.peek().taskId !== taskId) return;
    for (let each = from; each <= to; each++) if (!bodies.has(each)) bodies.set(each, null);
    for (const event of events) bodies.set(event.seq, event);
    bodyFailure.value = null;
    bodiesRevision.value++;
  } catch (error) {
    bodyFailure.value = toApiError(error);
  } finally {
    requested.delete(key);
  }
}

effect(() => {
  model.value;
  bodies.clear();
});
effect(() => {
  // The page tries again for another event.
  selected.value;
  bodyFailure.value = null;
});
