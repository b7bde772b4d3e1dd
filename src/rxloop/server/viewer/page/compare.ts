// The comparison of two runs, which follows both of them until they are over.

import { batch, computed, signal } from '@preact/signals';
import { follow, type ApiError, type RunInfo } from './api.ts';
import { toActiveTimes, toRows, type RunComparison } from './diff.ts';
import { Outline, type Event } from './outline.ts';
import { address, api, change, signIn, toApiError } from './store.ts';

export interface Side {
  taskId: string;
  outline: Outline;
  info: RunInfo | null;
  /** Cursor of the newest event, without the run. */
  newest: string;
}

const makeSide = (taskId: string): Side => ({ taskId, outline: new Outline(), info: null, newest: '' });

export const sides = signal<[Side, Side]>([makeSide(''), makeSide('')]);
export const comparison = signal<RunComparison | null>(null);
export const compareFailure = signal<ApiError | null>(null);
export const opened = signal<ReadonlySet<number>>(new Set());
/** Incremented whenever events have arrived. */
export const arrived = signal(0);

export const rows = computed(() => (comparison.value ? toRows(comparison.value, opened.value) : []));
export const differences = computed(() => rows.value.filter(each => each.difference));
/** Times of the events of each run, without the time between attempts. */
export const times = computed(() => {
  arrived.value;
  return sides.value.map(each => toActiveTimes(each.outline));
});
/** Number of the selected difference from 1, or 0 if there is none. */
export const chosen = computed(() => Math.min(Math.max(Number(address.value.at) || 1, 1), differences.value.length));

const PAUSE = 400;
let stop = new AbortController();

/** Load two runs and their differences. Returns the function that stops following them. */
export function openComparison(a: string, b: string): () => void {
  stop.abort();
  stop = new AbortController();
  clearTimeout(timer);
  timer = 0;
  const { signal: aborted } = stop;
  batch(() => {
    sides.value = [makeSide(a), makeSide(b)];
    comparison.value = null;
    compareFailure.value = null;
    eventFailure.value = null;
    opened.value = new Set();
  });
  bodies.clear();
  void load(aborted);
  return () => stop.abort();
}

async function load(aborted: AbortSignal): Promise<void> {
  try {
    await signIn();
    await Promise.all(sides.peek().map(each => loadSide(each)));
    await loadDifferences(aborted);
  } catch (error) {
    if (!aborted.aborted) compareFailure.value = toApiError(error);
    return;
  }
  if (aborted.aborted) return;
  for (const side of sides.peek()) if (!side.outline.final) void followSide(side, aborted);
}

async function loadSide(side: Side): Promise<void> {
  side.info = await api.run(side.taskId);
  for (let last = -1; last !== side.outline.last; ) {
    last = side.outline.last;
    const page = await api.outline(side.taskId, last);
    side.outline.addPage(page);
    if (page.last >= (page.seq as number)) break;
  }
  side.newest = `${side.outline.attemptOf(side.outline.last)}.${side.outline.last}.0`;
}

async function loadDifferences(aborted: AbortSignal): Promise<void> {
  const [a, b] = sides.peek();
  const found = await api.diff(a.taskId, b.taskId);
  if (aborted.aborted) return;
  batch(() => {
    comparison.value = found;
    arrived.value++;
  });
}

let timer = 0;

/** Fetch the differences after a pause, unless that is already planned. */
function plan(aborted: AbortSignal): void {
  if (timer) return;
  timer = window.setTimeout(async () => {
    timer = 0;
    if (!aborted.aborted) await loadDifferences(aborted).catch(error => { if (!aborted.aborted) compareFailure.value = toApiError(error); });
  }, PAUSE);
}

function followSide(side: Side, aborted: AbortSignal): Promise<void> {
  return follow(api, side.taskId, {
    cursor: () => `${side.taskId}/${side.newest}`,
    onEvent: event => {
      if (event.kind === 'gap' || (event.sub === 0 && event.seq <= side.outline.last)) return;
      side.newest = `${event.attempt}.${event.seq}.${event.sub}`;
      if (!side.outline.addEvent(event)) return;
      plan(aborted);
    },
    onConnection: () => undefined,
    onFailure: error => { if (!aborted.aborted) compareFailure.value = error; },
    onEnd: () => plan(aborted),
  }, aborted);
}

// -- bodies of the compared events

const bodies = new Map<string, Event | null>();
const MAX_BODIES = 1_000;
export const compareRevision = signal(0);
/** Reason why an event could not be fetched, until the reader tries again. */
export const eventFailure = signal<ApiError | null>(null);

/** Return an event, or undefined while it is fetched. Null means that the run has no such event, or hides it. */
export function eventOf(taskId: string, seq: number): Event | null | undefined {
  compareRevision.value;
  if (!seq) return null;
  const key = `${taskId} ${seq}`;
  if (!bodies.has(key) && !eventFailure.peek()) void fetchEvent(key, taskId, seq);
  return bodies.get(key);
}

const requested = new Set<string>();

async function fetchEvent(key: string, taskId: string, seq: number): Promise<void> {
  if (requested.has(key)) return;
  requested.add(key);
  try {
    const [event] = await api.events(taskId, seq, seq, true);
    bodies.set(key, event ?? null);
    if (bodies.size > MAX_BODIES) bodies.delete(bodies.keys().next().value!);
    compareRevision.value++;
  } catch (error) {
    eventFailure.value = toApiError(error);
  } finally {
    requested.delete(key);
  }
}

export function fetchAgain(): void {
  eventFailure.value = null;
  compareRevision.value++;
}

/** Select a difference. */
export function choose(number: number): void {
  const last = differences.value.length;
  if (!last) return;
  eventFailure.value = null;
  change({ at: String(Math.min(Math.max(number, 1), last)) });
  requestAnimationFrame(() => dispatchEvent(new CustomEvent('reveal')));
}

export function stepDifference(direction: 1 | -1): void {
  choose(chosen.value + direction);
}

export function toggleStretch(pair: number): void {
  const next = new Set(opened.peek());
  if (!next.delete(pair)) next.add(pair);
  opened.value = next;
}
