// Requests to models as they were sent: parts, sizes, and the messages that each request contained.

import type { Message, OmittedMessage as Omitted, RequestRow, RequestTokens as Tokens, SentPart as Sent, SentRequest } from './http_api.d.ts';
import type { Outline } from './outline.ts';

export type { Message, Omitted, RequestRow, Sent, SentRequest, Tokens };
export type Change = Sent['change'];

export const PARTS = ['system', 'tools', 'task', 'summary', 'history', 'workspace', 'memory', 'note'] as const;
export type Part = (typeof PARTS)[number];

/** Names of the parts for readers. */
export const PART_NAMES: Record<Part, string> = {
  system: 'system', tools: 'tools', task: 'task', summary: 'summary', history: 'recent', workspace: 'workspace', memory: 'memory', note: 'note',
};

/** Tokens of each part of a request, in the order of `PARTS`. */
export function sumParts(request: SentRequest): Record<Part, number> {
  const sums = Object.fromEntries(PARTS.map(each => [each, 0])) as Record<Part, number>;
  for (const tool of request.tools) sums.tools += tool.tokens;
  for (const part of request.parts) if (part.from in sums) sums[part.from as Part] += part.tokens;
  return sums;
}

/** Parts of a request, with the messages that were left out between them. */
export function interleave(parts: readonly Sent[], leftOut: readonly Omitted[]): (Sent | Omitted)[] {
  const rest = [...leftOut].sort((a, b) => a.index - b.index);
  const rows: (Sent | Omitted)[] = [];
  for (const part of parts) {
    if (part.index !== undefined) while (rest.length && rest[0].index < part.index) rows.push(rest.shift()!);
    rows.push(part);
  }
  // Messages after the last one that was sent belong before the layers at the end.
  const end = rows.findLastIndex(each => !isOmitted(each) && each.index !== undefined) + 1;
  rows.splice(end, 0, ...rest);
  return rows;
}

export const isOmitted = (row: Sent | Omitted): row is Omitted => 'why' in row;

export interface Group {
  kind: 'left out' | 'same' | 'shown';
  rows: (Sent | Omitted)[];
}

const MIN_GROUP = { 'left out': 3, same: 12 };

/** Group successive messages that were left out, and those that are the same, so that readers see the changes. */
export function groupRows(rows: readonly (Sent | Omitted)[]): Group[] {
  const groups: Group[] = [];
  for (const row of rows) {
    const kind = isOmitted(row) ? 'left out' : row.change === 'same' && row.index !== undefined ? 'same' : 'shown';
    const last = groups.at(-1);
    if (last?.kind === kind) last.rows.push(row);
    else groups.push({ kind, rows: [row] });
  }
  return groups.map(each => (each.kind !== 'shown' && each.rows.length < MIN_GROUP[each.kind] ? { ...each, kind: 'shown' } : each));
}

/** Return the `seq` of the `llm-call` to which an event belongs, or 0. */
export function findCall(outline: Outline, i: number): number {
  const kind = outline.kind[i];
  const isSame = (k: number) => outline.kind[k] === 'llm-call' && outline.step[k] === outline.step[i] && outline.run[k] === outline.run[i] && outline.branch[k] === outline.branch[i];
  if (kind === 'llm-call') return outline.seq[i];
  if (!outline.step[i]) return 0;
  if (kind === 'context-compressed') {
    for (let k = i + 1; k < outline.size; k++) if (isSame(k)) return outline.seq[k];
    return 0;
  }
  if (!['content-complete', 'usage', 'llm-failed', 'llm-notice'].includes(kind)) return 0;
  for (let k = i - 1; k >= 0; k--) if (isSame(k)) return outline.seq[k];
  return 0;
}

/** Return the cost of each request in US dollars, by the `seq` of its `llm-call`. Requests to models without a price are missing. */
export function costsOf(outline: Outline): Map<number, number> {
  const calls = new Map<string, number>();
  const costs = new Map<number, number>();
  for (let i = 0; i < outline.size; i++) {
    const key = `${outline.run[i]} ${outline.branch[i]} ${outline.step[i]}`;
    const call = outline.kind[i] === 'llm-call' ? outline.seq[i] : calls.get(key);
    if (outline.kind[i] === 'llm-call') calls.set(key, outline.seq[i]);
    else if (call && outline.dollars[i]) costs.set(call, (costs.get(call) ?? 0) + outline.dollars[i]);
  }
  return costs;
}

/** Input tokens as reported by the provider, or the estimate. They include the tokens from the cache. */
export const inputOf = (row: RequestRow): number => row.tokens.counted ?? row.tokens.estimated;

/** Tokens of each part, scaled to the input tokens that the provider has reported. Their sum is `inputOf(row)`. */
export function scaleParts(row: RequestRow): number[] {
  const parts = PARTS.map(each => row.parts?.[each] ?? 0);
  const known = parts.reduce((sum, each) => sum + each, 0);
  const total = inputOf(row);
  if (!known) return PARTS.map(each => (each === 'history' ? total : 0));
  let reached = 0;
  let before = 0;
  return parts.map(each => {
    reached += each;
    const after = Math.round((total * reached) / known);
    const tokens = after - before;
    before = after;
    return tokens;
  });
}

/** Sums of the requests. Cached tokens are a part of the input. `uncounted` requests have no reported usage. */
export function sumRows(rows: readonly RequestRow[]): { input: number; cached: number; uncounted: number; saved: number | null } {
  let [input, cached, saved, priced, uncounted] = [0, 0, 0, 0, 0];
  for (const row of rows) {
    if (row.tokens.counted === undefined) uncounted++;
    input += inputOf(row);
    cached += Math.min(row.tokens.cached ?? 0, inputOf(row));
    if (row.saved !== undefined) (saved += row.saved, priced++);
  }
  return { input, cached, uncounted, saved: priced ? saved : null };
}

/** Part of the input that was read from the cache, in percent. */
export const cacheShare = (cached: number, input: number): number => (input ? Math.round((100 * cached) / input) : 0);

/** Name of the branch or nested run of a request. */
export function trackOf(row: RequestRow): string {
  const agent = row.agentPath?.length ? `${row.agentPath.join('/')} ${row.run ?? ''}` : '';
  return [agent, row.branch].filter(Boolean).join(', ');
}

export type Cell = 'sent' | 'shortened' | 'rewritten' | 'left out' | 'later';

/** State of a message of the history in each request. `later` is a request before the message existed. */
export function cellsOf(rows: readonly RequestRow[], index: number): Cell[] {
  return rows.map(row => {
    if (index >= row.history) return 'later';
    if (row.sent.some(([first, last]) => first <= index && index <= last)) return 'sent';
    const edit = row.edited?.find(([first, last]) => first <= index && index <= last);
    return edit ? edit[2] : 'left out';
  });
}

/** Describe cells in words, such as `sent in requests 1 to 4, left out of 5 to 9`. */
export function describeCells(cells: readonly Cell[]): string {
  const words: string[] = [];
  for (let k = 0; k < cells.length; ) {
    let end = k;
    while (end + 1 < cells.length && cells[end + 1] === cells[k]) end++;
    if (cells[k] !== 'later') words.push(`${cells[k]} ${cells[k] === 'left out' ? 'of' : 'in'} ${end > k ? `${k + 1} to ${end + 1}` : k + 1}`);
    k = end + 1;
  }
  return words.length ? `requests: ${words.join(', ')}` : 'in no request yet';
}

/** Path of an SVG element with a rectangle for each cell of a kind. Neighbouring cells share a rectangle. */
export function cellPath(cells: readonly Cell[], kind: Cell, width: number, height: number, gap: number): string {
  let path = '';
  for (let k = 0; k < cells.length; k++) {
    if (cells[k] !== kind) continue;
    let end = k;
    if (!gap) while (cells[end + 1] === kind) end++;
    path += `M${round(k * width)} 0h${round((end - k + 1) * width - gap)}v${height}h${-round((end - k + 1) * width - gap)}z`;
    k = end;
  }
  return path;
}

const round = (value: number): number => Math.round(value * 100) / 100;
