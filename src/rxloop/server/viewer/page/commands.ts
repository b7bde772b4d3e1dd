// What the keys and buttons do.

import { TABS } from './address.ts';
import { stepDifference } from './compare.ts';
import { addWaiting, compareMarked } from './runs.ts';
import {
  address, forkAt, marked, change, filtered, goLive, isFollowing, isHelpOpen, isInspectorOpen, isPlaying, keepSetting, model, notify, now, playhead, problems, revision,
  select, selected, selectedRow, show, shownRows, shownWindow, speed, theme, toggle, toggleWrap, go,
} from './store.ts';
import type { ThoughtGraph } from './thoughts.ts';
import { keepInside, zoom } from './time.ts';

const COMMANDS: Record<string, () => void> = {
  help: () => { isHelpOpen.value = !isHelpOpen.value; },
  find: () => document.querySelector<HTMLInputElement>('input[type=search]')?.focus(),
  leave: () => (document.activeElement as HTMLElement | null)?.blur(),
  theme: toggleTheme,
  copy: copyLink,
  close,
  next: () => step(1),
  previous: () => step(-1),
  nextRow: () => stepRow(1),
  previousRow: () => stepRow(-1),
  fold: () => { if (selectedRow.value?.kids.length) toggle(selectedRow.value); },
  nextInLane: () => stepInLane(1),
  previousInLane: () => stepInLane(-1),
  nextProblem: () => stepProblem(1),
  previousProblem: () => stepProblem(-1),
  childThought: () => stepThought((graph, row) => graph.rows[row]?.children[0]),
  parentThought: () => stepThought((graph, row) => graph.rows[row]?.parent),
  inspect: () => { isInspectorOpen.value = true; },
  zoomIn: () => zoomAt(0.7),
  zoomOut: () => zoomAt(1 / 0.7),
  panLeft: () => pan(-0.2),
  panRight: () => pan(0.2),
  zoomToSelection,
  zoomAll: () => show(null),
  play,
  live: goLive,
  addRuns: addWaiting,
  nextRun: () => focusRun(1),
  previousRun: () => focusRun(-1),
  compareRuns: compareMarked,
  experiments: () => go({ page: 'experiments' }),
  problemsOfAll: () => go({ page: 'problems' }),
  fork: () => {
    if (!selected.value) return;
    isInspectorOpen.value = true;
    forkAt.value = selected.value;
  },
  wrap: toggleWrap,
  nextDifference: () => stepDifference(1),
  previousDifference: () => stepDifference(-1),
  mark: () => {
    marked.value = marked.value === playhead.value ? 0 : playhead.value;
    notify(marked.value ? `Event ${marked.value} is marked. States are compared with it.` : 'No event is marked.');
  },
  trueTime: () => {
    model.value.isTrueTime = !model.value.isTrueTime;
    model.value.setEnd(now.value);
    show(null);
    revision.value++;
  },
};

export function runCommand(name: string): void {
  const tab = TABS.find(each => each === name);
  if (tab) go({ ...address.value, tab });
  else COMMANDS[name]?.();
}

export function toggleTheme(): void {
  theme.value = theme.value === 'dark' ? 'light' : 'dark';
  keepSetting('theme', theme.value);
}

export function copyLink(): void {
  // Browsers refuse the clipboard to pages without encryption, except on this machine.
  const copied = navigator.clipboard?.writeText(location.href) ?? Promise.reject(new Error('no clipboard'));
  copied.then(() => notify('Link copied'), () => notify('The link could not be copied'));
}

function close(): void {
  if (isHelpOpen.value) isHelpOpen.value = false;
  else if (isInspectorOpen.value && innerWidth <= 1000) isInspectorOpen.value = false;
  else if (address.value.q) change({ q: '' });
  else if (isInspectorOpen.value) isInspectorOpen.value = false;
}

/** Move to the next or previous event. With a filter, only to events of matching rows. */
export function step(direction: 1 | -1): void {
  const { outline, rowOf } = model.value;
  const hits = filtered.value && new Set(filtered.value.hits);
  const start = outline.find(playhead.value) + (selected.value || direction < 0 ? direction : 0);
  for (let i = selected.value ? start : direction > 0 ? 0 : outline.size - 1; i >= 0 && i < outline.size; i += direction) {
    if (!hits || hits.has(rowOf[i])) return moveTo(outline.seq[i]);
  }
}

export function first(): void {
  const { outline } = model.value;
  if (outline.size) moveTo(outline.seq[0]);
}

export function last(): void {
  moveTo(model.value.outline.last);
}

function stepRow(direction: 1 | -1): void {
  if (address.value.tab === 'thoughts') return stepThought((_, row) => row + direction);
  const rows = shownRows.value;
  const at = selectedRow.value ? rows.indexOf(selectedRow.value) : direction > 0 ? -1 : rows.length;
  const row = rows[Math.min(Math.max(at + direction, 0), rows.length - 1)];
  if (row) moveTo(row.end || row.id);
}

/** Select another thought. An event that is no thought stands for the last thought before it. */
function stepThought(find: (graph: ThoughtGraph, row: number) => number | undefined): void {
  const { graph } = model.value;
  const row = find(graph, graph.findLast(selected.value || playhead.value));
  const thought = row === undefined ? undefined : graph.rows[row];
  if (thought) moveTo(thought.seq);
}

/** Focus the next or previous run of the list, or the first one. */
function focusRun(direction: 1 | -1): void {
  const rows = [...document.querySelectorAll<HTMLElement>('.runs [role=row][tabindex]')];
  const at = rows.indexOf(document.activeElement as HTMLElement);
  rows[at < 0 ? 0 : at + direction]?.focus();
}

function stepInLane(direction: 1 | -1): void {
  const { outline, lanes } = model.value;
  const i = outline.find(playhead.value);
  const lane = lanes.find(each => each.events.includes(i));
  const next = lane?.events[lane.events.indexOf(i) + direction];
  if (next !== undefined) moveTo(outline.seq[next]);
}

function stepProblem(direction: 1 | -1): void {
  const seqs = (problems.value ?? []).map(each => each.seq);
  const from = selected.value || (direction > 0 ? 0 : Infinity);
  const next = direction > 0 ? seqs.find(seq => seq > from) : seqs.findLast(seq => seq < from);
  if (next !== undefined) moveTo(next);
}

/** Select an event, and bring it into the window and its row into view. */
export function moveTo(seq: number): void {
  select(seq);
  const { outline, axis } = model.value;
  const position = axis.toPosition(outline.time[outline.find(seq)] ?? 0);
  const { from, to } = shownWindow.value;
  if (position < from || position > to) {
    const half = (to - from) / 2;
    show(keepInside({ from: position - half, to: position + half }, endOfAxis()));
  }
  dispatchEvent(new CustomEvent('reveal'));
}

export function endOfAxis(): number {
  const { axis, outline } = model.value;
  return axis.toPosition(Math.max(now.value, outline.duration)) * 1.02;
}

/** Zoom around the playhead, or around a position. */
export function zoomAt(factor: number, center?: number): void {
  const part = shownWindow.value;
  const { axis, outline } = model.value;
  const middle = axis.toPosition(outline.time[outline.find(playhead.value)] ?? 0);
  const isInside = middle >= part.from && middle <= part.to;
  const next = zoom(part, center ?? (isInside ? middle : (part.from + part.to) / 2), factor, endOfAxis());
  show(next.to - next.from >= endOfAxis() - 1 ? null : next);
}

export function pan(share: number): void {
  const { from, to } = shownWindow.value;
  const distance = (to - from) * share;
  show(keepInside({ from: from + distance, to: to + distance }, endOfAxis()));
}

export function zoomToSelection(): void {
  const row = selectedRow.value;
  if (!row) return;
  const { axis } = model.value;
  const from = axis.toPosition(row.from);
  const to = axis.toPosition(row.to < 0 ? now.value : row.to);
  const margin = Math.max((to - from) * 0.1, 5);
  show(keepInside({ from: from - margin, to: to + margin }, endOfAxis()));
}

let playing = 0;

/** Move the playhead in the pace of the run, without the pauses. */
function play(): void {
  isPlaying.value = !isPlaying.value;
  cancelAnimationFrame(playing);
  if (!isPlaying.value) return;
  const run = model.value;
  const { outline } = run;
  if (isFollowing.value || playhead.value >= outline.last) select(outline.seq[0] ?? 0);
  let position = run.axis.toPosition(outline.time[outline.find(playhead.value)] ?? 0);
  let before = performance.now();
  const advance = (at: number) => {
    if (!isPlaying.value || model.value !== run) return;
    position += (at - before) * speed.value;
    before = at;
    const i = outline.findTime(run.axis.toTime(position));
    if (i >= 0 && outline.seq[i] > playhead.value) moveTo(outline.seq[i]);
    if (playhead.value >= outline.last) isPlaying.value = false;
    else playing = requestAnimationFrame(advance);
  };
  playing = requestAnimationFrame(advance);
}

export function changeSpeed(): void {
  const speeds = [1, 4, 16, 0.25];
  speed.value = speeds[(speeds.indexOf(speed.value) + 1) % speeds.length];
}
