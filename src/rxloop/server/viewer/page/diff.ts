// Differences between two runs: rows of the comparison, and the parts in which two events differ.

import { diffWordsWithSpace } from 'diff';
import type { ComparedCost, ComparedEvents, ComparedRun, RunComparison } from './http_api.d.ts';
import type { Event, Outline } from './outline.ts';
import { formatDollars } from './time.ts';

export type { ComparedCost, ComparedEvents, ComparedRun, RunComparison };
export type Change = ComparedEvents['change'];

export interface Row {
  /** Index of the pair in the comparison. */
  pair: number;
  change: Change;
  /** Number of equal events that this row hides or heads, or 0. */
  folded: number;
  isOpen: boolean;
  a: number;
  b: number;
  /** Number of the difference from 1, or 0. */
  difference: number;
}

/** List the rows of a comparison. Open stretches of equal events have one row per event of either run. */
export function toRows(comparison: RunComparison, open: ReadonlySet<number>): Row[] {
  const rows: Row[] = [];
  let difference = 0;
  comparison.pairs.forEach(({ change, a = 0, b = 0, count, last }, pair) => {
    const common = { pair, change, folded: 0, isOpen: false, a, b, difference: 0 };
    if (change !== 'same') return void rows.push({ ...common, difference: ++difference });
    const isOpen = open.has(pair);
    rows.push({ ...common, folded: count, isOpen });
    if (!isOpen) return;
    const [lastA, lastB] = last ?? [a, b];
    for (let k = 0; k <= Math.max(lastA - a, lastB - b); k++) rows.push({ ...common, a: a + k <= lastA ? a + k : 0, b: b + k <= lastB ? b + k : 0 });
  });
  return rows;
}

export interface Part {
  text: string;
  sign: '+' | '-' | '';
}

/** A part in which two events differ. */
export interface Difference {
  /** Path of the part, such as `call.arguments.city`. */
  path: string;
  parts: Part[];
}

/** Times of the events without the time between attempts. A fork copies events that may be days older than its own. */
export function toActiveTimes(outline: Outline): number[] {
  let time = 0;
  return outline.time.map((at, i) => {
    const isSameAttempt = i > 0 && outline.attemptOf(outline.seq[i]) === outline.attemptOf(outline.seq[i - 1]);
    return (time += isSameAttempt ? at - outline.time[i - 1] : 0);
  });
}

/** Fields that differ in any two runs. */
const INCIDENTAL = new Set([
  'version', 'contextId', 'taskId', 'seq', 'sub', 'attempt', 'timestamp', 'parentTaskId', 'agentPath', 'metadata', 'id', 'toolCallId', 'messageId', 'inputId',
  'idempotencyKey', 'duration', 'firstToken', 'longestSilence', 'thoughtId', 'subtaskId', 'providerState', 'usage', 'estimatedInputTokens', 'window', 'parts', 'request',
  'forkOf', 'forkSeq', 'owner',
]);
const MAX_WORDS = 40_000;
const MAX_DIFFERENCES = 200;

/** Compare two events. Texts are compared by words, other values by path. */
export function compareEvents(a: Event | null, b: Event | null): Difference[] {
  const found: Difference[] = [];
  visit(a ?? undefined, b ?? undefined, '', found);
  // The model usually reads the result itself.
  const isRead = [a, b].every(each => each?.kind === 'tool-complete' && isSame(parseText(each.content), parseText(each.result)));
  return isRead ? found.filter(each => !/^content\b/.test(each.path)) : found;
}

function visit(a: unknown, b: unknown, path: string, found: Difference[]): void {
  if (found.length >= MAX_DIFFERENCES || isSame(a, b)) return;
  const [left, right] = [parseText(a), parseText(b)];
  if (isBranch(left) && isBranch(right) && Array.isArray(left) === Array.isArray(right)) {
    for (const name of new Set([...Object.keys(left), ...Object.keys(right)])) {
      if (INCIDENTAL.has(name)) continue;
      const next = Array.isArray(left) ? `${path}[${name}]` : path ? `${path}.${name}` : name;
      visit(get(left, name), get(right, name), next, found);
    }
  } else if (isBranch(left) && right === undefined) {
    for (const name of Object.keys(left)) if (!INCIDENTAL.has(name)) visit(get(left, name), undefined, path ? `${path}.${name}` : name, found);
  } else if (isBranch(right) && left === undefined) {
    for (const name of Object.keys(right)) if (!INCIDENTAL.has(name)) visit(undefined, get(right, name), path ? `${path}.${name}` : name, found);
  } else found.push({ path: path || 'value', parts: compareTexts(a, b) });
}

/** Compare two texts by words, or replace the whole value. */
function compareTexts(a: unknown, b: unknown): Part[] {
  const [left, right] = [toText(a), toText(b)];
  const isText = typeof a === 'string' && typeof b === 'string' && left.length + right.length <= MAX_WORDS;
  if (!isText) return [{ text: left, sign: '-' } as Part, { text: right, sign: '+' } as Part].filter(each => each.text !== '');
  return diffWordsWithSpace(left, right).map(each => ({ text: each.value, sign: each.added ? '+' : each.removed ? '-' : '' }));
}

/** Text that contains JSON is compared by path. */
function parseText(value: unknown): unknown {
  if (typeof value !== 'string' || !/^\s*[{[]/.test(value)) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

const isSame = (a: unknown, b: unknown): boolean => (a ?? null) === (b ?? null) || JSON.stringify(a ?? null) === JSON.stringify(b ?? null);

const toText = (value: unknown): string => (value == null ? '' : typeof value === 'string' ? value : JSON.stringify(value));

function isBranch(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null;
}

function get(value: Record<string, unknown>, name: string): unknown {
  return Object.hasOwn(value, name) ? value[name] : undefined;
}

/** Describe a cost in one line. */
export function describeCost(cost: ComparedCost, format: (value: number) => string): string {
  const money = cost.dollars === undefined ? '' : `, ${formatDollars(cost.dollars)}`;
  const tokens = cost.usage.inputTokens + cost.usage.outputTokens;
  return `${cost.modelCalls} model ${cost.modelCalls === 1 ? 'call' : 'calls'}, ${cost.toolCalls} tool ${cost.toolCalls === 1 ? 'call' : 'calls'}, ${format(tokens)} tokens, ${cost.seconds.toFixed(1)} s${money}`;
}
