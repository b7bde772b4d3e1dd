// The structure of a run as columns, one entry per durable event. Bodies of events are fetched only where they are shown.

import type { Event } from './protocol.d.ts';
import type { Outline as OutlinePage, OutlineNames } from './http_api.d.ts';
import { HistoryCount } from './history.ts';
import { CUT, FAILED, HIDDEN, HIDDEN_KIND, REFUSED, RETRIED, TRANSIENT, VOIDED, WAITS } from './kinds.ts';

/** An event as sent by `GET /runs/{id}/events`. */
export type { Event, OutlinePage };
export type EventOf<K extends Event['kind']> = Extract<Event, { kind: K }>;

export class Outline {
  seq: number[] = [];
  /** Milliseconds since the first event. */
  time: number[] = [];
  kind: string[] = [];
  /** Tool, nested agent, model of a call, state of a status, or type of a thought. */
  name: string[] = [];
  step: string[] = [];
  branch: string[] = [];
  /** Names of the nested agents, joined by a slash. Empty for the run itself. */
  path: string[] = [];
  /** Task id of the nested run, or an empty string. */
  run: string[] = [];
  /** The `seq` of the start that this event ends, or 0. For a thought, the last thought of the branch that it merges. */
  opens: number[] = [];
  flags: number[] = [];
  a: number[] = [];
  b: number[] = [];
  /** Messages in the history of the run after the event. */
  messages: number[] = [];
  /** Calls without a result after the event. */
  calls: number[] = [];
  label: string[] = [];
  /** Code of a failed tool call: `timeout`, `refused`, `canceled` or `error`. */
  code: string[] = [];
  /** Cost in US dollars, of `usage` events only. */
  dollars: number[] = [];
  attempts: [number, number][] = [];
  /** Time of the first event in milliseconds since 1970. */
  start = 0;
  final = false;
  /** True if an end was matched to its start by name, because the id of the call is not part of the outline. */
  guessed = false;
  /** Events of the stream with values that only the log knows: references of thoughts, and costs. */
  unresolved = new Set<number>();
  private thoughts = new Map<string, number>();
  private starts = new Map<string, number>();
  private open = new Set<number>();
  private history = new HistoryCount();

  get size(): number {
    return this.seq.length;
  }

  /** The `seq` of the newest event, or 0. */
  get last(): number {
    return this.seq.length ? this.seq[this.seq.length - 1] : 0;
  }

  /** Milliseconds from the first event to the newest one. */
  get duration(): number {
    return this.time.length ? this.time[this.time.length - 1] : 0;
  }

  /** Return the index of the last event with at most this `seq`, or -1. */
  find(seq: number): number {
    return lastAtMost(this.seq, seq);
  }

  /** Return the index of the last event at this time, or -1. */
  findTime(ms: number): number {
    return lastAtMost(this.time, ms);
  }

  attemptOf(seq: number): number {
    let attempt = 1;
    for (const [first, number] of this.attempts) if (first <= seq) attempt = number;
    return attempt;
  }

  /** Append a page of the outline. Events that are already known are ignored. */
  addPage(page: OutlinePage): void {
    const count = page.kind.length;
    let time = this.size ? this.start + this.duration : toMs(page.start);
    if (!this.size) this.start = toMs(page.start);
    if (page.attempts.length) this.attempts = page.attempts;
    const text = (column: keyof OutlineNames, index: number) => word(page, column, index);
    for (let i = 0; i < count; i++) {
      time += num(page, 'dt', i);
      const seq = page.first + i;
      if (seq <= this.last) continue;
      this.push({
        seq, time: time - this.start, kind: text('kind', i), name: text('name', i) || text('model', i), step: text('step', i),
        branch: text('branch', i), path: text('path', i), run: text('run', i), opens: num(page, 'opens', i), flags: num(page, 'flags', i),
        a: num(page, 'a', i), b: num(page, 'b', i), label: page.label[i] ?? '', code: text('code', i), dollars: page.dollars?.[seq] ?? 0,
      });
      this.count(this.history.read(this.kind.at(-1)!, !this.path.at(-1) && !this.branch.at(-1), num(page, 'messages', i), num(page, 'calls', i)));
      this.remember(page.taskId, this.size - 1);
    }
    this.final = page.final;
  }

  /** Append a durable event of the stream. Returns false for events that are already known or transient. */
  addEvent(event: Event): boolean {
    if (TRANSIENT.has(event.kind) || event.sub > 0 || event.seq <= this.last) return false;
    const at = Date.parse(event.timestamp);
    if (!this.size) this.start = at;
    const newest = this.attempts.at(-1);
    if (!newest || newest[1] !== event.attempt) this.attempts = [...this.attempts, [event.seq, event.attempt]];
    // The numbers between two events of a stream belong to events that are hidden from this reader.
    for (let seq = this.last + 1; seq < event.seq; seq++) { this.push({ ...HIDDEN_ENTRY, seq, time: this.duration }); this.count(this.history); }
    const entry = describe(event);
    const opens = this.match(event);
    // The attempt after a lost one repeats its request.
    const flags = entry.flags | (event.kind === 'llm-call' && opens ? RETRIED : 0);
    this.push({ ...entry, time: Math.max(at - this.start, this.duration), opens, flags, ...this.relate(event) });
    this.count(this.history.add(event));
    if (event.kind === 'usage') this.unresolved.add(event.seq);
    this.final = isOver(event);
    return true;
  }

  /** Take missing values from a page of the log. */
  resolve(page: OutlinePage): void {
    for (const seq of this.unresolved) {
      const k = seq - page.first;
      if (k < 0 || seq > page.last) continue;
      const i = this.find(seq);
      if (this.kind[i] === 'thought-stream') [this.a[i], this.b[i], this.opens[i]] = [num(page, 'a', k), num(page, 'b', k), num(page, 'opens', k)];
      this.dollars[i] = page.dollars?.[seq] ?? 0;
      this.unresolved.delete(seq);
    }
  }

  /** The references of a thought. The ids of thoughts are not part of the outline, so that those before the stream are unknown. */
  private relate(event: Event): Partial<Entry> {
    if (event.kind !== 'thought-stream') return {};
    const find = (id: string | null | undefined) => {
      const seq = id ? this.thoughts.get(id) : 0;
      if (seq === undefined) this.unresolved.add(event.seq);
      return seq ?? 0;
    };
    const related = { a: find(event.relatedTo), b: find(event.session?.revisesId), opens: find(event.session?.mergesId) };
    if (event.thoughtId) this.thoughts.set(event.thoughtId, event.seq);
    return related;
  }

  /** Keep the starts that later events of the stream can end. The ids of tool calls are not part of the outline. */
  private remember(taskId: string, i: number): void {
    const run = this.run[i] || taskId;
    const key = `model ${run} ${this.step[i]}`;
    if (this.kind[i] === 'llm-call') this.starts.set(key, this.seq[i]);
    if (this.kind[i] === 'content-complete') this.starts.delete(key);
    if (this.kind[i] === 'status-update' && !this.opens[i]) this.starts.set(`attempt ${run}`, this.seq[i]);
  }

  private count({ messages, calls }: HistoryCount): void {
    this.messages.push(messages);
    this.calls.push(calls);
  }

  private push(entry: Entry): void {
    this.seq.push(entry.seq);
    this.time.push(entry.time);
    this.kind.push(entry.kind);
    this.name.push(entry.name);
    this.step.push(entry.step);
    this.branch.push(entry.branch);
    this.path.push(entry.path);
    this.run.push(entry.run);
    this.opens.push(entry.opens);
    this.flags.push(entry.flags);
    this.a.push(entry.a);
    this.b.push(entry.b);
    this.label.push(entry.label);
    this.code.push(entry.code);
    this.dollars.push(entry.dollars);
    if (ENDS[entry.kind] && entry.opens) this.open.delete(entry.opens);
    else if (STARTS.has(entry.kind)) this.open.add(entry.seq);
  }

  /** Return the `seq` of the start that an event of the stream ends, or 0. */
  private match(event: Event): number {
    const key = callKey(event);
    if (key === '') return 0;
    if (event.kind === 'llm-failed') return this.starts.get(key) ?? 0;
    const isEnd = ENDS[event.kind] !== undefined && !isStart(event);
    const known = this.starts.get(key) ?? 0;
    if (!isEnd) {
      this.starts.set(key, event.seq);
      return event.kind === 'llm-call' ? known : 0;
    }
    this.starts.delete(key);
    if (known) return known;
    const entry = describe(event);
    for (const seq of this.open) {
      const i = this.find(seq);
      const same = this.run[i] === entry.run && this.kind[i] === ENDS[event.kind];
      // Answers are not part of a step.
      const isStep = event.kind === 'input-received' || this.step[i] === entry.step;
      if (same && isStep && (this.name[i] === entry.name || !NAMED.has(event.kind))) {
        this.guessed = true;
        return seq;
      }
    }
    return 0;
  }
}

interface Entry {
  seq: number; time: number; kind: string; name: string; step: string; branch: string; path: string; run: string;
  opens: number; flags: number; a: number; b: number; label: string; code: string; dollars: number;
}

const HIDDEN_ENTRY: Entry = {
  seq: 0, time: 0, kind: HIDDEN_KIND, name: '', step: '', branch: '', path: '', run: '', opens: 0, flags: HIDDEN, a: 0, b: 0, label: '', code: '', dollars: 0,
};

/** Kind of the start for each kind of an end. */
const ENDS: Record<string, string> = {
  'content-complete': 'llm-call', 'tool-complete': 'tool-start', 'tool-voided': 'tool-start', 'input-received': 'input-required',
  subtask: 'subtask', 'server-tool': 'server-tool', 'status-update': 'status-update',
};
const STARTS = new Set(Object.values(ENDS));
/** Kinds whose start and end have the same name. */
const NAMED = new Set(['tool-complete', 'tool-voided', 'subtask', 'server-tool']);

function isStart(event: Event): boolean {
  if (event.kind === 'status-update') return event.final !== true;
  if (event.kind === 'server-tool') return event.phase === 'start';
  return event.kind === 'subtask' && (event.state === 'working' || event.state === 'submitted');
}

function callKey(event: Event): string {
  const run = event.taskId;
  switch (event.kind) {
    case 'status-update': return `attempt ${run}`;
    case 'llm-call':
    case 'llm-failed':
    case 'content-complete': return `model ${run} ${event.step}`;
    case 'tool-start':
    case 'tool-complete':
    case 'tool-voided': return `tool ${run} ${event.step} ${event.call?.id}`;
    case 'server-tool': return `vendor ${run} ${event.toolCallId}`;
    case 'input-required': return `input ${event.input?.inputId}`;
    case 'auth-required': return `input ${event.inputId}`;
    case 'input-received': return `input ${event.inputId}`;
    case 'subtask': return `agent ${event.subtaskId}`;
    default: return '';
  }
}

/** Return true for the event after which no more events follow. */
function isOver(event: Event): boolean {
  if (event.kind !== 'status-update') return false;
  const over = event.state === 'completed' || event.state === 'failed' || event.state === 'canceled';
  return event.final === true && over && !event.parentTaskId;
}

function describe(event: Event): Entry {
  const [name, label, flags, a, b] = summarize(event);
  const hidden = ('hidden' in event && event.hidden) || ('call' in event && event.call?.hidden) ? HIDDEN : 0;
  return {
    seq: event.seq, time: 0, kind: event.kind, name, step: event.step ?? '', branch: event.branch ?? '',
    path: (event.agentPath ?? []).join('/'), run: event.parentTaskId ? event.taskId : '', opens: 0, flags: flags | hidden, a, b, label: shorten(label),
    code: event.kind === 'tool-complete' ? event.code ?? '' : '', dollars: 0,
  };
}

function summarize(event: Event): [name: string, label: string, flags: number, a: number, b: number] {
  switch (event.kind) {
    case 'task': return [event.agentName ?? '', textOf(event.messages?.at(-1)?.content), 0, 0, 0];
    case 'status-update': {
      const failed = event.state === 'failed' || event.state === 'canceled' ? FAILED : 0;
      const waits = event.state === 'input-required' || event.state === 'auth-required' ? WAITS : 0;
      return [event.state, event.error?.message ?? (event.reason || (event.final && event.content) || ''), failed | waits, 0, 0];
    }
    case 'llm-call': return [event.model, '', 0, event.estimatedInputTokens ?? 0, event.messageCount ?? 0];
    case 'llm-failed': return [event.error?.code ?? '', event.error?.message ?? '', FAILED | (event.retryIn != null ? RETRIED : 0), event.status ?? 0, toMilliseconds(event.retryIn)];
    case 'content-complete': {
      const cut = event.finishReason === 'length' || event.finishReason === 'interrupted' ? CUT : 0;
      const calls = event.toolCalls?.slice(0, 8).map(each => each.name).join(', ');
      return ['', event.content || calls || (event.finishReason ?? ''), cut, toMilliseconds(event.firstToken), toMilliseconds(event.longestSilence)];
    }
    case 'usage': return ['', '', 0, event.inputTokens ?? 0, event.outputTokens ?? 0];
    case 'tool-start': return [event.call?.name ?? '', argumentsOf(event.call?.arguments), 0, 0, 0];
    case 'tool-complete': {
      const label = event.success ? textOf(event.content) : event.error ?? textOf(event.content);
      return [event.call?.name ?? '', label, event.success ? 0 : FAILED, Math.round((event.duration ?? 0) * 1000), textOf(event.content).length];
    }
    case 'tool-voided': return [event.call?.name ?? '', '', VOIDED, 0, 0];
    case 'server-tool': return [event.name, argumentsOf(event.arguments), event.success === false ? FAILED : 0, 0, 0];
    case 'thought-stream': return [event.thoughtType ?? '', event.content ?? '', 0, 0, 0];
    case 'message-added': return [event.cause ?? '', textOf(event.content), 0, 0, 0];
    case 'context-compressed': return [event.reason ?? '', '', event.budgetUnmet ? CUT : 0, event.tokensBefore ?? 0, event.tokensAfter ?? 0];
    case 'thinking-failed': return ['', event.reason ?? '', FAILED, 0, 0];
    case 'tools-unavailable': return [event.toolset, event.reason ?? '', FAILED, 0, 0];
    case 'input-required': return [event.input?.call?.name ?? '', event.input?.prompt ?? '', WAITS, 0, 0];
    case 'auth-required': return [event.provider ?? '', '', WAITS, 0, 0];
    case 'stage': return [event.strategy, `${event.fromStage} → ${event.toStage}`, event.accepted === false ? REFUSED : 0, 0, 0];
    case 'subtask': return [event.agentName, '', event.state === 'failed' ? FAILED : 0, 0, 0];
    case 'artifact-update': return [event.name ?? event.artifactId, '', 0, event.size ?? 0, 0];
    case 'memory-noted': return [event.noteKind ?? '', event.text, 0, 0, 0];
    case 'thinking-noted': return ['', event.note ?? '', 0, 0, 0];
    case 'goals-updated': return ['', (event.goals ?? []).filter((goal: any) => !goal.parent).map((goal: any) => `${goal.title} (${goal.status ?? 'pending'})`).join(', '), 0, 0, 0];
    case 'custom': return [event.name ?? '', '', 0, 0, 0];
    default: return ['', '', 0, 0, 0];
  }
}

/** Return the text of a message content, which is a string or a list of parts. */
export function textOf(content: unknown): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return content == null ? '' : JSON.stringify(content);
  return content.map(part => part?.text ?? `[${part?.type ?? 'part'}]`).join(' ');
}

function argumentsOf(value: unknown): string {
  if (value === null || typeof value !== 'object') return value == null ? '' : String(value);
  return Object.entries(value).map(([name, each]) => `${name}=${typeof each === 'string' ? each : each !== null && typeof each === 'object' ? `[${Object.keys(each).length}]` : JSON.stringify(each)}`).join(', ');
}

function shorten(text: string): string {
  const line = text.slice(0, 400).replace(/\s+/g, ' ').trim();
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

function toMilliseconds(seconds: number | null | undefined): number {
  return seconds == null ? -1 : Math.round(seconds * 1000);
}

function toMs(value: string | number): number {
  return typeof value === 'number' ? value : Date.parse(value);
}

function num(page: OutlinePage, column: 'dt' | 'opens' | 'flags' | 'a' | 'b' | 'messages' | 'calls', index: number): number {
  return page[column]?.[index] ?? 0;
}

function word(page: OutlinePage, column: keyof OutlineNames, index: number): string {
  return [page.dict[column]?.[page[column]?.[index]] ?? ''].flat().join('/');
}

function lastAtMost(sorted: number[], value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
