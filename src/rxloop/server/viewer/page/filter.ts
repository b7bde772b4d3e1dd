// The filter grammar of all pages: `kind:tool name:get_* ok:no step:3 branch:b1 agent:alerts-desk >2s tokens>1000 text`.

import type { Row } from './rows.ts';

type Test = (row: Row, now: number) => boolean;

const toTerms = (text: string): string[] => text.trim().split(/\s+/).filter(Boolean);

/** Return the words of a filter text, without its terms. */
export const findWords = (text: string): string => toTerms(text).filter(each => !parseTerm(each)).join(' ');

function parseTerm(term: string): Test | null {
  const longer = /^>(\d+(?:\.\d+)?)(ms|s|min)?$/.exec(term);
  if (longer) {
    const least = Number(longer[1]) * { ms: 1, s: 1000, min: 60_000 }[longer[2] ?? 's']!;
    return (row, now) => (row.to < 0 ? now : row.to) - row.from > least;
  }
  const tokens = /^tokens>(\d+)$/.exec(term);
  if (tokens) return row => row.tokens > Number(tokens[1]);
  const pair = /^([a-z]+):(.+)$/.exec(term);
  return pair && parsePair(pair[1], pair[2]);
}

const hasWord = (word: string): Test => row => `${row.title} ${row.sub} ${row.note}`.toLowerCase().includes(word.toLowerCase());

function parsePair(key: string, value: string): Test | null {
  const matches = wildcard(value);
  switch (key) {
    case 'kind': return row => matches(row.kind) || matches(row.family) || (value === 'model' && row.kind === 'step');
    case 'name': return row => matches(row.title);
    case 'step': return row => matches(row.step);
    case 'branch': return row => matches(row.branch);
    case 'agent': return row => matches(row.path.split('/').at(-1)!);
    case 'ok': return row => (value === 'no') === (row.failed || row.pieces.some(piece => piece.failed));
    default: return null;
  }
}

function wildcard(pattern: string): (text: string) => boolean {
  const escaped = pattern.replace(/[.+?^${}()|[\]\\]/g, '\\$&').replace(/\*/g, '.*');
  const regex = new RegExp(`^${escaped}$`, 'i');
  return text => regex.test(text);
}

/**
 * Return the matching rows, and these rows together with their ancestors. Null means that all rows match. Rows match all
 * terms, and the words are in the row or in one of its events.
 */
export function applyFilter(rows: Row[], text: string, now: number, found?: ReadonlySet<Row | null>): { hits: Row[]; shown: Set<Row> } | null {
  const terms = toTerms(text);
  if (!terms.length) return null;
  const tests = terms.map(parseTerm);
  const hits = rows.filter(row => terms.every((term, k) => (tests[k] ?? (found?.has(row) ? () => true : hasWord(term)))(row, now)));
  const shown = new Set<Row>();
  for (const hit of hits) for (let row: Row | null = hit; row && !shown.has(row); row = row.parent) shown.add(row);
  return { hits, shown };
}
