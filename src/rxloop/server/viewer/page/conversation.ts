// The turns of a conversation, and the words for them.

import { FAILED, RETRIED, THINK_ALOUD } from './kinds.ts';
import type { RunModel } from './model.ts';
import type { Outline } from './outline.ts';
import type { Row } from './rows.ts';
import { formatDuration } from './time.ts';

/** An event that is displayed. The turns of a nested agent belong to the event that started it. */
export interface Turn {
  index: number;
  kids: Turn[];
}

const TURNS = new Set(['task', 'content-complete', 'message-added', 'input-required', 'auth-required', 'input-received', 'thought-stream', 'llm-failed', 'artifact-update']);

/** Return the turns up to an event. */
export function listTurns(run: RunModel, last: number): Turn[] {
  const { outline, rowOf } = run;
  const turns: Turn[] = [];
  const agents = new Map<Row, Turn>();
  for (let i = 0; i < outline.size && outline.seq[i] <= last; i++) {
    if (outline.branch[i] || !isTurn(outline, i, rowOf[i])) continue;
    const turn: Turn = { index: i, kids: [] };
    const isStart = outline.kind[i] === 'subtask';
    const agent = findAgent(isStart ? rowOf[i]?.parent : rowOf[i]);
    (agents.get(agent!)?.kids ?? (agent ? [] : turns)).push(turn);
    if (isStart) agents.set(rowOf[i], turn);
  }
  return turns;
}

function isTurn(outline: Outline, i: number, row: Row | undefined): boolean {
  switch (outline.kind[i]) {
    case 'tool-start':
    case 'tool-complete':
    case 'server-tool': return outline.name[i] !== THINK_ALOUD && !outline.opens[i] && row !== undefined;
    case 'subtask': return !outline.opens[i] && row?.kind === 'agent';
    case 'status-update': return (outline.flags[i] & FAILED) !== 0 && !outline.path[i];
    case 'llm-call': return (outline.flags[i] & RETRIED) !== 0 && !hasFailed(outline, i);
    default: return TURNS.has(outline.kind[i]);
  }
}

/** True if the earlier request of a step is displayed as a failed one. */
function hasFailed(outline: Outline, i: number): boolean {
  for (let k = i - 1; k >= 0 && outline.seq[k] > outline.opens[i]; k--) {
    if (outline.kind[k] === 'llm-failed' && outline.step[k] === outline.step[i] && outline.run[k] === outline.run[i]) return true;
  }
  return false;
}

function findAgent(row: Row | null | undefined): Row | null {
  for (let each = row ?? null; each; each = each.parent) if (each.kind === 'agent') return each;
  return null;
}

/** Return the milliseconds in which the model wrote its reasoning, or -1 if the log does not tell. */
export function reasoningTime(run: RunModel, i: number): number {
  const { outline, rowOf } = run;
  const first = rowOf[i]?.first ?? -1;
  for (let k = i - 1; first >= 0 && k >= 0 && outline.seq[k] > outline.opens[i]; k--) {
    const isSame = outline.step[k] === outline.step[i] && outline.run[k] === outline.run[i] && outline.branch[k] === outline.branch[i];
    if (isSame && outline.kind[k] === 'thought-stream') return Math.max(outline.time[k] - first, 0);
  }
  return -1;
}

/** Return the index of the last usage report of a message, or -1. */
export function findUsage(outline: Outline, i: number): number {
  for (let k = i - 1; k >= 0 && outline.seq[k] > outline.opens[i]; k--) {
    if (outline.kind[k] === 'usage' && outline.step[k] === outline.step[i] && outline.run[k] === outline.run[i]) return k;
  }
  return -1;
}

/** Describe a request whose answer was discarded: one that failed, or one that was repeated by a later attempt. */
export function describeTry(run: RunModel, i: number): string {
  const { outline, rowOf } = run;
  if (outline.kind[i] === 'llm-call') return `first try, started after ${formatDuration(outline.time[outline.find(outline.opens[i])])}, not completed`;
  const end = outline.time[i];
  const tries = rowOf[i]?.pieces ?? [];
  const k = tries.findLastIndex(each => each.failed && each.to === end);
  const took = k < 0 ? '' : ` after ${formatDuration(tries[k].to - tries[k].from)}`;
  return `try ${Math.max(k, 0) + 1} failed${took}: ${outline.label[i] || outline.name[i]}`;
}

export interface Citation {
  url?: string | null;
  title?: string | null;
  text?: string | null;
  start?: number | null;
  end?: number | null;
}

/** Split a text after each cited part. Positions count characters, not UTF-16 units. */
export function splitAtCitations(content: string, citations: Citation[]): { text: string; numbers: number[] }[] {
  const characters = [...content];
  const ends = new Map<number, number[]>();
  citations.forEach(({ end }, k) => {
    if (end == null) return;
    const at = Math.min(Math.max(end, 0), characters.length);
    ends.set(at, [...(ends.get(at) ?? []), k + 1]);
  });
  const parts = [];
  let start = 0;
  for (const [end, numbers] of [...ends].sort(([x], [y]) => x - y)) {
    parts.push({ text: characters.slice(start, end).join(''), numbers });
    start = end;
  }
  if (start < characters.length) parts.push({ text: characters.slice(start).join(''), numbers: [] });
  return parts;
}

const ENDS: Record<string, string> = {
  interrupted: 'interrupted by a new message',
  canceled: 'canceled before its end',
  content_filter: 'stopped by the content filter of the vendor',
  pause: 'paused by the vendor, continued in the next message',
};

/** Explain why a message is not complete, or return an empty string. */
export function explainEnd(finishReason: string | undefined, maxTokens: number | null | undefined): string {
  if (finishReason === 'length') return maxTokens ? `cut off at the limit of ${maxTokens.toLocaleString('en-US')} tokens` : 'cut off at its length limit';
  return ENDS[finishReason ?? ''] ?? '';
}

const CAUSES: Record<string, string> = {
  steering: 'message to the running agent',
  fork: 'message of the fork',
  retry: 'request to correct the answer',
  tool: 'message of a tool',
  strategy: 'message of the strategy',
};

/** Name a message that was added to the history. */
export const nameCause = (cause: string | undefined): string => CAUSES[cause ?? ''] ?? 'added message';

/** Describe an answer in words, or return null if it is data. */
export function describeAnswer(inputKind: string | undefined, value: unknown): string | null {
  if (inputKind === 'credential') return 'signed in';
  if (typeof value === 'boolean') return inputKind === 'confirmation' ? (value ? 'approved' : 'refused') : String(value);
  if (value == null) return 'answered';
  return typeof value === 'string' ? value : null;
}
