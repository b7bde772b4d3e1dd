// Figures of a run at each event, as prefix sums of the outline. Moving the playhead only reads them.

import type { Outline } from './outline.ts';

export interface Figures {
  messages: number;
  openCalls: number;
  thoughts: number;
  tokens: number;
  calls: number;
  dollars: number;
}

export class Fold {
  messages: number[] = [];
  openCalls: number[] = [];
  thoughts: number[] = [];
  tokens: number[] = [];
  calls: number[] = [];
  dollars: number[] = [];
  private usage = new Map<string, number>();

  /** Add the events that are not included yet. */
  update(outline: Outline): void {
    for (let i = this.messages.length; i < outline.size; i++) this.add(outline, i);
    // The costs of a live run arrive after their events.
    let sum = 0;
    this.dollars = outline.dollars.map(each => (sum += each));
  }

  at(index: number): Figures {
    const read = (column: number[]) => (index < 0 ? 0 : column[Math.min(index, column.length - 1)] ?? 0);
    return {
      messages: read(this.messages), openCalls: read(this.openCalls), thoughts: read(this.thoughts),
      tokens: read(this.tokens), calls: read(this.calls), dollars: read(this.dollars),
    };
  }

  private add(outline: Outline, i: number): void {
    const kind = outline.kind[i];
    const next = (column: number[], change: number) => column.push((column.at(-1) ?? 0) + change);
    this.messages.push(outline.messages[i] ?? 0);
    this.openCalls.push(outline.calls[i] ?? 0);
    next(this.thoughts, kind === 'thought-stream' ? 1 : 0);
    next(this.calls, kind === 'llm-call' ? 1 : 0);
    next(this.tokens, kind === 'usage' ? this.addUsage(outline, i) : this.openUsage(outline, i));
  }

  /** A second report of the same call replaces the first one. */
  private addUsage(outline: Outline, i: number): number {
    const key = callOf(outline, i);
    const total = outline.a[i] + outline.b[i];
    const change = total - (this.usage.get(key) ?? 0);
    this.usage.set(key, total);
    return change;
  }

  private openUsage(outline: Outline, i: number): number {
    if (outline.kind[i] === 'llm-call') this.usage.delete(callOf(outline, i));
    return 0;
  }
}

function callOf(outline: Outline, i: number): string {
  return `${outline.run[i]} ${outline.branch[i]} ${outline.step[i]}`;
}
