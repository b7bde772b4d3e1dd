// Names of exported files, and the data that their readers do not receive.

import { HIDDEN, HIDDEN_KIND } from './kinds.ts';
import type { Outline } from './outline.ts';

export interface Hidden {
  /** Number of events, and of those that are hidden. */
  events: number;
  count: number;
  calls: number;
  /** Hidden events, and events without a part of their content, by kind and name, most frequent ones first. */
  whole: [string, number][];
  part: [string, number][];
  /** Number of model requests in the file. */
  requests: number;
}

/** Compare the outline of a run with its public form, up to an event. */
export function findHidden(all: Outline, shown: Outline, until: number): Hidden {
  const [whole, part] = [new Map<string, number>(), new Map<string, number>()];
  const found = { events: 0, count: 0, calls: 0, requests: 0 };
  for (let i = 0; i < all.size && !(until && all.seq[i] > until); i++) {
    const kind = all.kind[i];
    const isHidden = shown.kind[i] === HIDDEN_KIND;
    const isPartial = all.flags[i] & HIDDEN || all.label[i] !== shown.label[i];
    const [group, name] = isHidden ? [whole, `${kind} ${all.name[i]}`.trim()] : [part, kind];
    if (isHidden || isPartial) group.set(name, (group.get(name) ?? 0) + 1);
    found.events++;
    if (isHidden) found.count++;
    if (isHidden && kind === 'tool-start') found.calls++;
    if (!isHidden && kind === 'llm-call') found.requests++;
  }
  const sort = (group: Map<string, number>) => [...group].sort((a, b) => b[1] - a[1]);
  return { ...found, whole: sort(whole), part: sort(part) };
}

/** Return the file name of a `Content-Disposition` header. */
export function parseFileName(header: string | null): string {
  return /filename="([\w.-]+)"/.exec(header ?? '')?.[1] ?? 'run';
}

/** Return the line of a case with another expected answer. An empty answer is omitted. */
export function makeCase(line: string, expected: string): string {
  const { expected: _, ...fields } = JSON.parse(line) as Record<string, unknown>;
  return JSON.stringify(expected ? { ...fields, expected } : fields);
}
