// Rows of the waterfall: run, attempts, steps, tools, nested agents, questions and compressions, as a tree in order.

import { explainFailure } from './failures.ts';
import { FAILED, RETRIED, THINK_ALOUD, VOIDED, type Family } from './kinds.ts';
import type { Outline } from './outline.ts';
import { formatDollars, formatDuration, formatNumber } from './time.ts';

/** A part of a bar: one try of a request to the model, and the wait after it. */
export interface Piece {
  from: number;
  to: number;
  failed: boolean;
}

export interface Row {
  /** The `seq` of the first event, which is the address of the row. */
  id: number;
  /** The `seq` of the event that ended the row, or 0 while it is open. */
  end: number;
  level: number;
  family: Family;
  kind: string;
  title: string;
  sub: string;
  note: string;
  from: number;
  /** Milliseconds since the start of the run, or -1 while the row is open. */
  to: number;
  /** Time of the first token, or -1 if it is not known. */
  first: number;
  pieces: Piece[];
  failed: boolean;
  voided: boolean;
  parent: Row | null;
  kids: Row[];
  step: string;
  branch: string;
  path: string;
  run: string;
  tokens: number;
  /** Cost in US dollars. */
  dollars: number;
}

export interface Waterfall {
  /** All rows in the order of the page. */
  rows: Row[];
  /** Row of each event, by its index in the outline. */
  of: Row[];
}

/** Build the rows of an outline. */
export function buildRows(outline: Outline): Waterfall {
  const builder = new Builder(outline);
  for (let i = 0; i < outline.size; i++) builder.add(i);
  return { rows: builder.flatten(), of: builder.of };
}

class Builder {
  of: Row[] = [];
  private roots: Row[] = [];
  private run: Row | null = null;
  private attempt: Row | null = null;
  /** Rows of nested agents by the id of their run. */
  private agents = new Map<string, Row>();
  /** Rows of nested agents whose first own event is still missing, by path. */
  private unclaimed = new Map<string, Row[]>();
  private steps = new Map<string, Row>();
  private byStart = new Map<number, Row>();

  constructor(private outline: Outline) {}

  flatten(): Row[] {
    const rows: Row[] = [];
    const visit = (row: Row, level: number) => {
      row.level = level;
      rows.push(row);
      for (const kid of row.kids) visit(kid, level + 1);
    };
    for (const row of this.roots) visit(row, 1);
    return rows;
  }

  add(i: number): void {
    this.of[i] = this.place(i);
  }

  private place(i: number): Row {
    const { kind, name, time, seq, opens } = this.outline;
    if (!this.run) this.begin(i);
    const container = this.container(i);
    switch (kind[i]) {
      case 'status-update': return this.status(i, container);
      case 'llm-call': return this.call(i, container);
      case 'llm-failed': return this.fail(i, container);
      case 'usage': return this.usage(i, container);
      case 'content-complete': return this.complete(i, container);
      case 'tool-start': return name[i] === THINK_ALOUD ? this.stepRow(i) ?? container : this.start(i, 'tool', this.stepRow(i) ?? container);
      case 'server-tool':
      case 'tool-complete':
      case 'tool-voided': return this.endTool(i, container);
      case 'subtask': return opens[i] ? this.endAgent(i, container) : this.startAgent(i, container);
      case 'input-required':
      case 'auth-required': return this.start(i, 'you', container, 'question');
      case 'input-received': return this.close(i, this.byStart.get(opens[i])) ?? container;
      case 'context-compressed': return this.compression(i, container);
      case 'thinking-failed':
      case 'tools-unavailable': return this.point(i, 'failed', container, kind[i] === 'thinking-failed' ? 'thinking or compression failed' : `no tools of ${name[i]}`);
      case 'message-added': return name[i] === 'steering' || name[i] === 'fork' ? this.point(i, 'you', container, 'message') : this.stepRow(i) ?? container;
      case 'artifact-update': return this.artifact(i, container);
      default: return this.stepRow(i) ?? (container.id <= seq[i] && time[i] >= 0 ? container : this.run!);
    }
  }

  private begin(i: number): void {
    this.run = this.make(i, 'run', 'run', null);
    this.run.title = this.outline.name[i] || 'run';
    this.roots.push(this.run);
  }

  /** Row that contains an event: the nested agent, or the attempt, or the run. */
  private container(i: number): Row {
    const { outline } = this;
    if (outline.path[i]) {
      const known = this.agents.get(outline.run[i]);
      if (known) return known;
      const row = this.unclaimed.get(outline.path[i])?.shift() ?? this.agentRow(i, outline.path[i], this.attempt ?? this.run!);
      this.agents.set(outline.run[i], row);
      return row;
    }
    if (outline.attempts.length < 2) return this.run!;
    const number = outline.attemptOf(outline.seq[i]);
    const id = outline.attempts.find(each => each[1] === number)?.[0] ?? 0;
    if (!this.attempt || this.attempt.title !== `attempt ${number}`) {
      this.attempt = this.make(i, 'run', 'attempt', this.run, `attempt ${number}`);
      this.attempt.id = Math.max(id, this.attempt.id);
    }
    return this.attempt;
  }

  private make(i: number, family: Family, kind: string, parent: Row | null, title = ''): Row {
    const { outline } = this;
    const row: Row = {
      id: outline.seq[i], end: 0, level: 1, family, kind, title, sub: '', note: '', from: outline.time[i], to: -1, first: -1,
      pieces: [], failed: false, voided: false, parent, kids: [], step: outline.step[i], branch: outline.branch[i],
      path: outline.path[i], run: outline.run[i], tokens: 0, dollars: 0,
    };
    parent?.kids.push(row);
    this.byStart.set(row.id, row);
    return row;
  }

  private key(i: number): string {
    return `${this.outline.run[i]} ${this.outline.branch[i]} ${this.outline.step[i]}`;
  }

  private stepRow(i: number): Row | undefined {
    return this.outline.step[i] ? this.steps.get(this.key(i)) : undefined;
  }

  private status(i: number, container: Row): Row {
    const { name, seq, time, label, flags } = this.outline;
    if (name[i] === 'working' || name[i] === 'submitted') return container;
    for (let row: Row | null = container; row; row = container === this.attempt && row === this.attempt ? this.run : null) {
      row.end = seq[i];
      row.to = time[i];
      row.failed = (flags[i] & FAILED) !== 0;
      row.note = name[i] === 'completed' ? '' : name[i].endsWith('-required') ? 'waits for an answer' : [name[i], label[i]].filter(Boolean).join(': ');
    }
    return container;
  }

  private call(i: number, container: Row): Row {
    const { outline } = this;
    const known = this.stepRow(i);
    if (known && known.to < 0 && !known.end) {
      known.pieces.push({ from: outline.time[i], to: -1, failed: false });
      known.sub = `${outline.name[i]}, ${known.pieces.length} tries`;
      return known;
    }
    // The second request of a step after its answer is the retry of a resumed run.
    const row = this.make(i, 'model', 'step', this.branchRow(i, container), `step ${outline.step[i].split('/').at(-1)}`);
    row.sub = outline.name[i];
    row.pieces.push({ from: outline.time[i], to: -1, failed: false });
    this.steps.set(this.key(i), row);
    return row;
  }

  private branchRow(i: number, container: Row): Row {
    const { branch, run } = this.outline;
    if (!branch[i]) return container;
    const key = `${run[i]} ${branch[i]}`;
    const known = this.steps.get(`branch ${key}`);
    if (known) return known;
    const row = this.make(i, 'agent', 'branch', container, branch[i]);
    row.sub = 'branch';
    this.steps.set(`branch ${key}`, row);
    return row;
  }

  private fail(i: number, container: Row): Row {
    const { time, b, flags, label, name } = this.outline;
    const row = this.stepRow(i) ?? container;
    const piece = row.pieces.at(-1);
    if (!piece || piece.to >= 0) return row;
    piece.to = time[i];
    piece.failed = true;
    if (flags[i] & RETRIED) {
      row.pieces.push({ from: time[i] + Math.max(b[i], 0), to: -1, failed: false });
      row.sub = `${row.sub.split(',')[0]}, ${row.pieces.length} tries`;
    } else {
      row.failed = true;
      row.to = time[i];
      row.end = this.outline.seq[i];
      row.note = label[i] || name[i];
    }
    return row;
  }

  private usage(i: number, container: Row): Row {
    const { a, b, dollars } = this.outline;
    const row = this.stepRow(i);
    if (!row) return container;
    row.tokens = a[i] + b[i];
    row.dollars += dollars[i];
    row.note = `${formatNumber(a[i])} → ${formatNumber(b[i])} tokens${row.dollars ? ` · ${formatDollars(row.dollars)}` : ''}`;
    return row;
  }

  private complete(i: number, container: Row): Row {
    const { time, a, seq, opens } = this.outline;
    const row = this.byStart.get(opens[i]) ?? this.stepRow(i);
    if (!row) return container;
    const piece = row.pieces.at(-1);
    if (piece && piece.to < 0) piece.to = time[i];
    row.to = time[i];
    row.end = seq[i];
    // The time to the first token includes failed requests.
    const called = this.outline.find(opens[i]);
    if (called >= 0 && a[i] >= 0) row.first = Math.min(time[called] + a[i], time[i]);
    return row;
  }

  private start(i: number, family: Family, parent: Row, title = ''): Row {
    const { name, label } = this.outline;
    const row = this.make(i, family, family === 'you' ? 'question' : 'tool', parent, title || name[i]);
    row.sub = label[i];
    return row;
  }

  private endTool(i: number, container: Row): Row {
    const { name, opens, kind, seq, label, code } = this.outline;
    const step = this.stepRow(i);
    if (name[i] === THINK_ALOUD) return step ?? container;
    if (kind[i] === 'server-tool' && !opens[i]) {
      const row = this.start(i, 'tool', step ?? container);
      row.kind = 'vendor tool';
      return row;
    }
    let row = this.byStart.get(opens[i]);
    if (!row) {
      row = this.start(i, 'tool', step ?? container);
      row.sub = '';
    }
    this.close(i, row);
    row.end = seq[i];
    row.note = row.failed && kind[i] === 'tool-complete' ? explainFailure(code[i], name[i], label[i]) : label[i];
    row.voided = (this.outline.flags[i] & VOIDED) !== 0;
    return row;
  }

  private close(i: number, row: Row | undefined): Row | undefined {
    if (!row) return undefined;
    const { time, seq, flags } = this.outline;
    row.to = time[i];
    row.end = seq[i];
    row.failed = (flags[i] & FAILED) !== 0;
    if (row.failed && row.family !== 'run') row.family = 'failed';
    return row;
  }

  private nestedPath(i: number): string {
    const { path, name } = this.outline;
    return path[i] ? `${path[i]}/${name[i]}` : name[i];
  }

  private startAgent(i: number, container: Row): Row {
    const row = this.agentRow(i, this.nestedPath(i), this.findCaller(i) ?? this.stepRow(i) ?? container);
    this.unclaimed.set(row.path, [...(this.unclaimed.get(row.path) ?? []), row]);
    return row;
  }

  private agentRow(i: number, path: string, parent: Row): Row {
    const row = this.make(i, 'agent', 'agent', parent, path.split('/').at(-1));
    row.sub = 'nested';
    row.path = path;
    return row;
  }

  /** The open tool call that started a nested agent: of the same name, or the newest one. */
  private findCaller(i: number): Row | undefined {
    const open = (this.stepRow(i)?.kids ?? []).filter(row => row.kind === 'tool' && row.to < 0 && row.kids.length === 0);
    return open.find(row => row.title === this.outline.name[i]) ?? open.at(-1);
  }

  private endAgent(i: number, container: Row): Row {
    return this.close(i, this.byStart.get(this.outline.opens[i])) ?? container;
  }

  private compression(i: number, container: Row): Row {
    const { a, b, name } = this.outline;
    const row = this.point(i, 'run', container, 'compression');
    row.sub = name[i];
    row.note = `${formatNumber(a[i])} → ${formatNumber(b[i])} tokens`;
    return row;
  }

  private artifact(i: number, container: Row): Row {
    const { name, a } = this.outline;
    const parent = this.stepRow(i) ?? container;
    const known = parent.kids.find(row => row.kind === 'artifact' && row.title === name[i]);
    if (known) return this.close(i, known)!;
    const row = this.point(i, 'tool', parent, name[i]);
    row.kind = 'artifact';
    row.note = a[i] ? `${formatNumber(a[i])} bytes` : '';
    return row;
  }

  private point(i: number, family: Family, parent: Row, title: string): Row {
    const row = this.make(i, family, title, parent, title);
    row.to = this.outline.time[i];
    row.end = this.outline.seq[i];
    row.note = this.outline.label[i];
    row.failed = family === 'failed';
    return row;
  }
}

/** Return the rows that are shown: those without a collapsed ancestor. */
export function visibleRows(rows: Row[], collapsed: ReadonlySet<number>, matches: ReadonlySet<Row> | null): Row[] {
  const shown: Row[] = [];
  let hiddenBelow = Infinity;
  for (const row of rows) {
    if (row.level > hiddenBelow) continue;
    hiddenBelow = Infinity;
    if (matches && !matches.has(row)) continue;
    shown.push(row);
    if (collapsed.has(row.id) && !matches) hiddenBelow = row.level;
  }
  return shown;
}

/** Describe a row in one sentence, for screen readers and tooltips. */
export function describeRow(row: Row, now: number): string {
  const took = formatDuration((row.to < 0 ? now : row.to) - row.from);
  const state = row.failed ? ', failed' : row.to < 0 ? ', running' : '';
  return `${row.title}${row.sub ? `, ${row.sub}` : ''}, ${took}${state}${row.note ? `, ${row.note}` : ''}`;
}
