// One run in memory: outline, figures, rows, lanes and time axis, and the text that is being written.

import { Fold } from './fold.ts';
import { buildLanes, type Lane } from './lanes.ts';
import { Outline, type Event, type EventOf, type OutlinePage } from './outline.ts';
import { ThoughtGraph } from './thoughts.ts';
import { buildRows, type Row } from './rows.ts';
import { Axis, findBreaks, type Break } from './time.ts';

/** Text of a model call that is not complete. */
export interface LiveText {
  first: number;
  times: number[];
  text: string;
  /** Reasoning that is not part of a thought yet. */
  thought: string;
}

export class RunModel {
  outline = new Outline();
  fold = new Fold();
  rows: Row[] = [];
  rowOf: Row[] = [];
  lanes: Lane[] = [];
  graph = new ThoughtGraph();
  breaks: Break[] = [];
  axis = new Axis([], 0);
  live = new Map<string, LiveText>();
  /** Text of requests that failed or were repeated, by the `seq` of the event that tells so. Logs do not contain it. */
  discarded = new Map<number, string>();
  /** Position of the newest event, including transient ones, for the cursor. */
  newest = '';
  isTrueTime = false;

  constructor(readonly taskId: string) {}

  addPage(page: OutlinePage): void {
    this.outline.addPage(page);
    this.newest = `${this.outline.attemptOf(this.outline.last)}.${this.outline.last}.0`;
  }

  /** Add an event of the stream. Returns true if it was new. */
  addEvent(event: Event): boolean {
    if (event.kind === 'gap') return false;
    if (event.sub === 0 && event.seq <= this.outline.last) return false;
    this.newest = `${event.attempt}.${event.seq}.${event.sub}`;
    if (event.kind === 'content-delta' || event.kind === 'thought-delta') return this.addDelta(event);
    if (event.kind === 'llm-call' || event.kind === 'llm-failed') this.discard(event);
    if (event.kind === 'thought-stream' || event.kind === 'content-complete') this.endThought(event);
    return this.outline.addEvent(event);
  }

  /** Use another outline of the same events. The text of the stream is kept. */
  replaceOutline(outline: Outline): void {
    [this.outline, this.fold, this.graph] = [outline, new Fold(), new ThoughtGraph()];
  }

  /** Derive everything from the outline. */
  build(now: number): void {
    const { outline } = this;
    this.fold.update(outline);
    this.graph.update(outline);
    const built = buildRows(outline);
    this.rows = built.rows;
    this.rowOf = built.of;
    for (const row of this.rows) {
      const live = row.kind === 'step' ? this.live.get(`${row.run} ${row.branch} ${row.step}`) : undefined;
      if (live && row.first < 0) row.first = Math.min(live.first, row.to < 0 ? Infinity : row.to);
    }
    this.lanes = buildLanes(outline, this.rows);
    this.breaks = findBreaks(outline);
    this.setEnd(now);
  }

  /** Extend the axis to the current time. */
  setEnd(now: number): void {
    this.axis = new Axis(this.breaks, Math.max(this.outline.duration, now), this.isTrueTime);
  }

  cursor(): string {
    return this.newest ? `${this.taskId}/${this.newest}` : '';
  }

  /** Reasoning that is being written, by model call. */
  get liveThoughts(): [key: string, text: string][] {
    return [...this.live].flatMap(([key, live]): [string, string][] => (live.thought ? [[key, live.thought]] : []));
  }

  private discard(event: Event): void {
    const text = this.live.get(callKey(event))?.text;
    if (text) this.discarded.set(event.seq, text);
    this.live.delete(callKey(event));
  }

  private endThought(event: EventOf<'thought-stream' | 'content-complete'>): void {
    const live = this.live.get(callKey(event));
    if (live && (event.kind === 'content-complete' || event.source === 'reasoning')) live.thought = '';
    if (live && event.kind === 'content-complete') live.text = '';
  }

  private addDelta(event: EventOf<'content-delta' | 'thought-delta'>): boolean {
    const key = callKey(event);
    const at = Date.parse(event.timestamp) - this.outline.start;
    const live = this.live.get(key) ?? { first: at, times: [], text: '', thought: '' };
    this.live.set(key, live);
    live.times.push(at);
    if (event.kind === 'content-delta') live.text += event.delta;
    else live.thought += event.delta;
    return true;
  }
}

function callKey(event: Event): string {
  return `${event.parentTaskId ? event.taskId : ''} ${event.branch ?? ''} ${event.step ?? ''}`;
}
