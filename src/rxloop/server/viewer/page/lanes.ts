// Marble lanes: which events are on which lane, and which marbles are merged because they are too close to each other.

import { FAILED, THINK_ALOUD, family, letter, role, type Family } from './kinds.ts';
import type { Outline } from './outline.ts';
import type { Row } from './rows.ts';

export interface Lane {
  id: string;
  title: string;
  sub: string;
  family: Family;
  height: number;
  /** Indexes of the events, in order. */
  events: number[];
  /** Track of each event, for calls that overlap. */
  tracks: number[];
  spans: { from: number; to: number; failed: boolean; track: number }[];
  trackCount: number;
}

/** A marble, or a pill that stands for several marbles. */
export interface Marble {
  x: number;
  track: number;
  indexes: number[];
  family: Family;
  letter: string;
  isHollow: boolean;
}

export const LEAST_DISTANCE = 11;
const MAX_TOOLS = 8;
const MAX_TRACKS = 3;

/** Build the lanes of a run. The bars of the rows are the lines between marbles. */
export function buildLanes(outline: Outline, rows: Row[]): Lane[] {
  const lanes = new Map<string, Lane>();
  const lane = (id: string, title: string, which: Family): Lane => {
    let found = lanes.get(id);
    if (!found) {
      found = { id, title, sub: '', family: which, height: 30, events: [], tracks: [], spans: [], trackCount: 1 };
      lanes.set(id, found);
    }
    return found;
  };
  lane('model', 'Model', 'model');
  lane('text', 'Text', 'model');
  const names = toolNames(outline, rows);
  const tracks = assignTracks(rows, names, lane);
  for (let i = 0; i < outline.size; i++) {
    const found = laneOf(outline, i, names, lane);
    if (!found) continue;
    found.events.push(i);
    found.tracks.push(tracks.get(outline.opens[i] || outline.seq[i]) ?? 0);
  }
  return arrange([...lanes.values()]);
}

/** Id of the lane of each tool. A tool that starts a nested agent shares the lane of the agent. */
function toolNames(outline: Outline, rows: Row[]): Map<string, string> {
  const names = new Map<string, string>();
  for (const row of rows) if (row.kind === 'agent' && row.parent?.kind === 'tool' && !row.parent.path) names.set(row.parent.title, `agent ${row.path}`);
  const agents = names.size;
  for (let i = 0; i < outline.size; i++) {
    const name = outline.name[i];
    if (!isTool(outline, i) || names.has(name)) continue;
    names.set(name, names.size - agents < MAX_TOOLS ? `tool ${name}` : 'tools');
  }
  return names;
}

function isTool(outline: Outline, i: number): boolean {
  const kind = outline.kind[i];
  const isCall = kind === 'tool-start' || kind === 'tool-complete' || kind === 'tool-voided' || kind === 'server-tool';
  return isCall && !outline.path[i] && outline.name[i] !== THINK_ALOUD;
}

type MakeLane = (id: string, title: string, which: Family) => Lane;

function laneOf(outline: Outline, i: number, names: Map<string, string>, lane: MakeLane): Lane | null {
  const kind = outline.kind[i];
  if (outline.path[i] || kind === 'subtask') {
    const path = kind === 'subtask' ? [outline.path[i], outline.name[i]].filter(Boolean).join('/') : outline.path[i];
    return isMinor(kind) ? null : lane(`agent ${path}`, path.split('/').at(-1)!, 'agent');
  }
  if (isTool(outline, i)) {
    const id = names.get(outline.name[i])!;
    return lane(id, id === 'tools' ? 'more tools' : outline.name[i], id.startsWith('agent') ? 'agent' : 'tool');
  }
  switch (kind) {
    case 'llm-call':
    case 'llm-failed':
    case 'content-complete': return lane('model', 'Model', 'model');
    case 'thought-stream': return lane('thoughts', 'Thoughts', 'thought');
    case 'input-required':
    case 'input-received':
    case 'auth-required':
    case 'message-added': return lane('you', 'You', 'you');
    case 'usage':
    case 'llm-notice':
    case 'tool-start':
    case 'tool-complete': return null;
    default: return lane('run', 'Run', 'run');
  }
}

/** Events of a nested agent that would only repeat others on its single lane. */
function isMinor(kind: string): boolean {
  return kind === 'task' || kind === 'status-update' || kind === 'usage' || kind === 'checkpoint';
}

/** Put calls that overlap on different tracks of a lane, and add their lines. */
function assignTracks(rows: Row[], names: Map<string, string>, lane: MakeLane): Map<number, number> {
  const tracks = new Map<number, number>();
  const ends = new Map<Lane, number[]>();
  for (const row of rows) {
    const found = rowLane(row, names, lane);
    if (!found) continue;
    if (row.kind === 'step') {
      for (const piece of row.pieces) found.spans.push({ ...piece, track: 0 });
      continue;
    }
    const busy = ends.get(found) ?? [];
    ends.set(found, busy);
    const free = busy.findIndex(end => end <= row.from);
    const track = Math.min(free < 0 ? busy.length : free, MAX_TRACKS - 1);
    busy[track] = row.to < 0 ? Infinity : Math.max(row.to, row.from + 1);
    tracks.set(row.id, track);
    found.trackCount = Math.max(found.trackCount, track + 1);
    found.spans.push({ from: row.from, to: row.to, failed: row.failed, track });
  }
  return tracks;
}

function rowLane(row: Row, names: Map<string, string>, lane: MakeLane): Lane | null {
  if (row.kind === 'agent') return lane(`agent ${row.path}`, row.title, 'agent');
  if (row.path) return null;
  if (row.kind === 'step') return lane('model', 'Model', 'model');
  if (row.kind === 'question') return lane('you', 'You', 'you');
  if (row.kind !== 'tool' && row.kind !== 'vendor tool') return null;
  const id = names.get(row.title);
  return id && !id.startsWith('agent') ? lane(id, id === 'tools' ? 'more tools' : row.title, 'tool') : null;
}

const ORDER: Record<string, number> = { model: 0, text: 1, thoughts: 2, tool: 3, tools: 4, agent: 5, you: 6, run: 7 };

function arrange(lanes: Lane[]): Lane[] {
  const position = (lane: Lane) => ORDER[lane.id.split(' ')[0]];
  for (const lane of lanes) lane.height = lane.id === 'thoughts' ? 52 : lane.id === 'model' ? 38 : 30 + (lane.trackCount - 1) * 13;
  return lanes.sort((x, y) => position(x) - position(y));
}

const SEVERITY: Family[] = ['run', 'thought', 'agent', 'tool', 'model', 'you', 'failed'];

/** Merge the marbles of a lane that are nearer than `LEAST_DISTANCE`. Only events within the width are included. */
export function cluster(outline: Outline, lane: Lane, scale: (ms: number) => number, width: number): Marble[] {
  const marbles: Marble[] = [];
  const newest: (Marble | undefined)[] = [];
  for (let k = firstVisible(outline, lane, scale); k < lane.events.length; k++) {
    const i = lane.events[k];
    const x = scale(outline.time[i]);
    if (x > width + 20) break;
    const track = lane.tracks[k];
    const last = newest[track];
    const marble = makeMarble(outline, i, x, track);
    if (last && x - last.x < LEAST_DISTANCE) merge(last, marble);
    else marbles.push((newest[track] = marble));
  }
  return marbles;
}

function firstVisible(outline: Outline, lane: Lane, scale: (ms: number) => number): number {
  let low = 0;
  let high = lane.events.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (scale(outline.time[lane.events[middle]]) < -20) low = middle + 1;
    else high = middle;
  }
  return low;
}

function makeMarble(outline: Outline, i: number, x: number, track: number): Marble {
  const kind = outline.kind[i];
  const which = family(kind, outline.flags[i]);
  const isStart = kind === 'llm-call' || kind === 'tool-start';
  const ends = !isStart && (role(kind) === 'end' || outline.opens[i] > 0 || (outline.flags[i] & FAILED) !== 0);
  return { x, track, indexes: [i], family: which, letter: letter(kind), isHollow: !ends };
}

function merge(into: Marble, marble: Marble): void {
  into.indexes.push(...marble.indexes);
  if (SEVERITY.indexOf(marble.family) > SEVERITY.indexOf(into.family)) into.family = marble.family;
}

/** Text rate of each model call: from its first token to its end. The log keeps no deltas, so the rate is an average. */
export function textSpans(rows: Row[], now: number): { from: number; to: number; tokens: number; path: string; key: string }[] {
  const spans = [];
  for (const row of rows) {
    if (row.kind !== 'step') continue;
    const piece = row.pieces.at(-1)!;
    const from = row.first >= 0 ? row.first : piece.from;
    const written = Number(/→ ([\d,]+)/.exec(row.note)?.[1]?.replaceAll(',', '') ?? 0);
    spans.push({ from, to: row.to < 0 ? now : row.to, tokens: written, path: row.path, key: `${row.run} ${row.branch} ${row.step}` });
  }
  return spans;
}
