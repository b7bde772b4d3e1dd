// Text search in an event, like that of the server, and steps through the matches.

export interface Found {
  field: string;
  text: string;
  /** Positions of the matches in code points. */
  marks: [number, number][];
}

const SKIPPED = new Set(['version', 'kind', 'contextId', 'taskId', 'timestamp', 'parentTaskId', 'agentPath', 'idempotencyKey', 'metadata']);
const MAX_FOUND = 100;
const MAX_DEPTH = 50;
const MAX_EXCERPT = 200;
const BEFORE = 60;

/** Return an excerpt for each field of an event that contains a text, ignoring case. */
export function findTexts(event: Record<string, unknown>, text: string): Found[] {
  const pattern = new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'), 'giu');
  const found: Found[] = [];
  const visit = (field: string, value: unknown, depth: number) => {
    if (found.length >= MAX_FOUND) return;
    if (typeof value === 'string') {
      pattern.lastIndex = 0;
      const start = pattern.exec(value)?.index;
      if (start !== undefined) found.push({ field, ...makeExcerpt(value, start, pattern) });
    } else if (value !== null && typeof value === 'object' && depth < MAX_DEPTH) {
      const isBinary = 'mediaType' in value || 'encoding' in value;
      for (const [name, item] of Object.entries(value)) if (!(isBinary && name === 'data')) visit(`${field}.${name}`, item, depth + 1);
    }
  };
  for (const [name, value] of Object.entries(event)) if (!SKIPPED.has(name)) visit(name, value, 0);
  return found;
}

function makeExcerpt(text: string, start: number, pattern: RegExp): { text: string; marks: [number, number][] } {
  const before = [...text.slice(Math.max(start - 2 * BEFORE, 0), start)].slice(-BEFORE);
  const excerpt = [...before, ...[...text.slice(start, start + 2 * MAX_EXCERPT)].slice(0, MAX_EXCERPT - before.length)].join('');
  pattern.lastIndex = 0;
  const count = (end: number) => [...excerpt.slice(0, end)].length;
  const marks = [...excerpt.matchAll(pattern)].map((match): [number, number] => [count(match.index), count(match.index + match[0].length)]);
  return { text: excerpt, marks };
}

/** Return the index of the match after or before the current one, or -1 at the end. */
export function findNext(hits: readonly { seq: number }[], current: number, seq: number, direction: 1 | -1): number {
  if (hits[current] && hits[current].seq === seq) return current + direction < hits.length ? current + direction : -1;
  return direction > 0 ? hits.findIndex(each => each.seq >= seq) : hits.findLastIndex(each => !seq || each.seq < seq);
}
