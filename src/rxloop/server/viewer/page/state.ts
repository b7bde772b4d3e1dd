// State of a run after an event, and its difference from the state after another event.

import type { Message, StateInfo, Usage } from './http_api.d.ts';

export type { Message, StateInfo };

const MAX_STATES = 400;

/** States that were fetched. A history only grows, so the server sends each message once. */
export class States {
  private messages: Message[] = [];
  private known = new Map<number, StateInfo & { messageCount: number }>();
  private queue: Promise<unknown> = Promise.resolve();

  constructor(private fetch: (seq: number, messagesFrom: number, isWhole: boolean) => Promise<StateInfo>) {}

  /** Return the state after an event. Requests are sent one after the other. */
  load(seq: number): Promise<StateInfo> {
    return this.enqueue(() => this.read(seq));
  }

  /** Fetch a message completely. `seq` is the event that added it to the history. Without an index, fetch the rest of a state. */
  loadWhole(seq: number, index = Infinity): Promise<void> {
    return this.enqueue(async () => {
      const answer = await this.fetch(seq, Math.min(index, this.messages.length), true);
      if (index < this.messages.length) this.messages[index] = answer.messages[0];
      else this.known.set(seq, { ...answer, messages: [], messageCount: this.known.get(seq)!.messageCount });
    });
  }

  private enqueue<T>(work: () => Promise<T>): Promise<T> {
    const next = this.queue.then(work);
    this.queue = next.catch(() => undefined);
    return next;
  }

  private async read(seq: number): Promise<StateInfo> {
    let state = this.known.get(seq);
    if (!state) {
      const from = this.messages.length;
      const answer = await this.fetch(seq, from, false);
      const messageCount = answer.messageCount ?? from + answer.messages.length;
      if (messageCount > from) this.messages.push(...answer.messages);
      state = { ...answer, messages: [], messageCount };
      if (this.known.size >= MAX_STATES) this.known.delete(this.known.keys().next().value!);
      this.known.set(seq, state);
    }
    return { ...state, messages: this.messages.slice(0, state.messageCount) };
  }
}

export const EMPTY: StateInfo = {
  taskId: '', seq: 0, attempt: 0, state: 'submitted', iteration: 0, messages: [], content: '', usage: { inputTokens: 0, outputTokens: 0, cachedTokens: 0, reasoningTokens: 0 },
};

export type Sign = '+' | '-' | '~' | '';

export interface Line<T> {
  sign: Sign;
  item: T;
}

/** Compare two lists by the keys of their items. Items of `before` that are missing in `after` come last. */
export function compareItems<T>(before: readonly T[], after: readonly T[], keyOf: (item: T, index: number) => unknown): Line<T>[] {
  const old = new Set(before.map(keyOf));
  const now = new Set(after.map(keyOf));
  return [
    ...after.map((item, k): Line<T> => ({ sign: old.has(keyOf(item, k)) ? '' : '+', item })),
    ...before.filter((item, k) => !now.has(keyOf(item, k))).map((item): Line<T> => ({ sign: '-', item })),
  ];
}

/** Compare figures by their names. A changed figure has two lines. */
export function compareFigures(before: [string, string][], after: [string, string][]): Line<[string, string]>[] {
  const old = new Map(before);
  return after.flatMap(([name, value]): Line<[string, string]>[] => {
    const earlier = old.get(name);
    if (earlier === value) return [{ sign: '', item: [name, value] }];
    return earlier === undefined ? [{ sign: '+', item: [name, value] }] : [{ sign: '-', item: [name, earlier] }, { sign: '+', item: [name, value] }];
  });
}

const USAGE: [keyof Usage, string][] = [
  ['inputTokens', 'input tokens'], ['outputTokens', 'output tokens'], ['cachedTokens', 'from the cache'],
  ['cacheWriteTokens', 'written to the cache'], ['reasoningTokens', 'reasoning'],
];

/** Figures of a state, in the order in which they are shown. */
export function listFigures(state: StateInfo, format: (value: number) => string): [string, string][] {
  if (!state.seq) return [];
  const tokens = USAGE.filter(([key]) => state.usage[key]).map(([key, name]): [string, string] => [name, format(state.usage[key] ?? 0)]);
  return [['state', state.reason ? `${state.state}, ${state.reason}` : state.state], ['model calls', format(state.iteration)], ...tokens];
}

/** Number of changed lines of each sign. */
export function countChanges(lines: readonly Line<unknown>[]): string {
  return (['+', '-', '~'] as const).map(sign => ({ sign, count: lines.filter(each => each.sign === sign).length }))
    .filter(each => each.count).map(({ sign, count }) => `${sign.replace('-', '−')}${count}`).join(' ');
}
