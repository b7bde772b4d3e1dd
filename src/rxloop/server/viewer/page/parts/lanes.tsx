// Marble lanes: labels on the left, and one canvas for all lanes.

import { useEffect, useRef } from 'preact/hooks';
import { moveTo } from '../commands.ts';
import { drawArc, drawBreak, drawEnd, drawMarble, line, prepare, readPalette, type Palette } from '../draw.ts';
import { cluster, textSpans, type Lane, type Marble } from '../lanes.ts';
import type { RunModel } from '../model.ts';
import { hovered, model, useModel, now, playhead, revision, selected, show, shownWindow, theme } from '../store.ts';
import { toLine } from '../text.ts';
import { findTicks, formatDuration, formatNumber, keepInside, makeScale } from '../time.ts';
import { endOfAxis } from '../commands.ts';
import { Shape } from './shape.tsx';
import { px } from './px.ts';

/** Space on both sides of the axis in pixels. */
export const PADDING = 16;

export function Lanes({ width }: { width: number }) {
  const { lanes } = useModel();
  return (
    <div class="lanes">
      <div class="labels">
        {lanes.map(lane => (
          <div class="gutter lane" key={lane.id} style={px({ height: lane.height })}>
            <Shape family={lane.family} isHollow={lane.family === 'run'} />
            <span class="title"><bdi>{toLine(lane.title)}</bdi></span>
            <span class="took">{describeLane(lane)}</span>
          </div>
        ))}
      </div>
      <Marbles width={width} lanes={lanes} />
    </div>
  );
}

function describeLane(lane: Lane): string {
  const { outline, rows } = useModel();
  const count = lane.events.length;
  if (lane.id === 'model') {
    const i = lane.events.findLast(each => outline.kind[each] === 'llm-call');
    return i === undefined ? '' : toLine(outline.name[i]);
  }
  if (lane.id === 'text') {
    const written = textSpans(rows, now.peek()).reduce((sum, each) => sum + each.tokens, 0);
    return written ? `${formatNumber(written)} tokens` : '';
  }
  if (lane.id === 'thoughts') return String(count);
  if (lane.id.startsWith('tool')) {
    const failed = lane.spans.filter(each => each.failed).length;
    const calls = lane.spans.length;
    return `${calls} ${calls === 1 ? 'call' : 'calls'}${failed ? `, ${failed} failed` : ''}`;
  }
  if (lane.id.startsWith('agent')) return 'nested';
  return lane.id === 'run' ? `${formatNumber(outline.size)} events` : String(count);
}

interface Placed extends Marble {
  y: number;
}

function Marbles({ width, lanes }: { width: number; lanes: Lane[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const placed = useRef<Placed[]>([]);
  const height = lanes.reduce((sum, lane) => sum + lane.height, 0);
  const part = shownWindow.value;
  const [at, chosen, pointed, end] = [theme.value, selected.value, hovered.value, now.value];
  const change = revision.value;
  useEffect(() => {
    placed.current = drawLanes(canvas.current!, model.peek(), lanes, width, height, end, chosen, pointed);
  }, [width, height, part.from, part.to, at, chosen, pointed, end, change]);
  const find = (event: MouseEvent) => {
    const x = event.offsetX - PADDING;
    return placed.current.find(each => Math.abs(each.x - x) <= (each.indexes.length > 1 ? 14 : 9) && Math.abs(each.y - event.offsetY) <= 11);
  };
  const { outline } = useModel();
  const open = (marble: Placed) => {
    const times = marble.indexes.map(i => outline.time[i]);
    const { axis } = model.peek();
    const [from, to] = [axis.toPosition(times[0]), axis.toPosition(times[times.length - 1])];
    // Events of the same millisecond cannot be separated by a zoom.
    if (marble.indexes.length === 1 || to - from < 2) return moveTo(outline.seq[nextOf(marble)]);
    const margin = (to - from) * 0.6;
    show(keepInside({ from: from - margin, to: to + margin }, endOfAxis()));
  };
  const nextOf = (marble: Placed) => {
    const i = outline.find(selected.peek());
    const k = marble.indexes.indexOf(i);
    return marble.indexes[k < 0 ? 0 : (k + 1) % marble.indexes.length];
  };
  const summary = `${lanes.length} lanes, ${outline.size} events in ${formatDuration(outline.duration)}`;
  return (
    <div class="marbles">
      <canvas
        ref={canvas} role="img" aria-label={summary}
        onMouseMove={event => { const found = find(event); hovered.value = found ? outline.seq[found.indexes[0]] : 0; }}
        onMouseLeave={() => { hovered.value = 0; }}
        onClick={event => { const found = find(event); if (found) open(found); }}
      />
      <Tip placed={placed.current} />
    </div>
  );
}

/** Three lines about the marble below the pointer. */
function Tip({ placed }: { placed: Placed[] }) {
  const { outline } = useModel();
  const i = hovered.value ? outline.find(hovered.value) : -1;
  const marble = i < 0 ? undefined : placed.find(each => each.indexes.includes(i));
  if (!marble || outline.seq[i] !== hovered.value) return null;
  const more = marble.indexes.length - 1;
  return (
    <div class="tip" style={px({ left: marble.x + PADDING + 12, top: marble.y + 14 })}>
      <b>{outline.kind[i]}</b> <bdi>{toLine(outline.name[i])}</bdi>
      <div class="quiet">seq {outline.seq[i]} · +{formatDuration(outline.time[i])}{outline.step[i] && ` · step ${outline.step[i]}`}</div>
      {more > 0 ? <div class="quiet">and {more} more here</div> : outline.label[i] && <div class="quiet"><bdi>{toLine(outline.label[i])}</bdi></div>}
    </div>
  );
}

function drawLanes(canvas: HTMLCanvasElement, run: RunModel, lanes: Lane[], width: number, height: number, end: number, chosen: number, pointed: number): Placed[] {
  const palette = readPalette();
  const context = prepare(canvas, width + 2 * PADDING, height);
  const scale = makeScale(run.axis, shownWindow.peek(), width);
  context.translate(PADDING, 0);
  for (const tick of findTicks(run.axis, shownWindow.peek(), width)) line(context, scale(tick), 0, scale(tick), height, palette.line);
  for (const each of run.axis.breaks) drawBreak(context, palette, scale(each.from), scale(each.to), height);
  const placed: Placed[] = [];
  let top = 0;
  for (const lane of lanes) {
    drawLine(context, palette, run, lane, top, scale, width, end);
    const marbles = cluster(run.outline, lane, scale, width);
    if (lane.id === 'thoughts') drawThoughts(context, palette, run, lane, marbles, top, scale, width);
    for (const marble of marbles) {
      const y = trackTop(lane, top, marble.track);
      const isChosen = marble.indexes.some(i => run.outline.seq[i] === chosen);
      const isPointed = pointed > 0 && marble.indexes.some(i => run.outline.seq[i] === pointed);
      drawMarble(context, palette, marble, y, isChosen, isPointed);
      placed.push({ ...marble, y });
    }
    top += lane.height;
  }
  return placed;
}

function trackTop(lane: Lane, top: number, track: number): number {
  if (lane.id === 'thoughts') return top + lane.height - 16;
  if (lane.id === 'model') return top + lane.height - 16;
  return top + lane.height / 2 + (track - (lane.trackCount - 1) / 2) * 13;
}

function drawLine(context: CanvasRenderingContext2D, palette: Palette, run: RunModel, lane: Lane, top: number, scale: (ms: number) => number, width: number, end: number): void {
  const middle = trackTop(lane, top, (lane.trackCount - 1) / 2);
  const right = Math.min(scale(end) + 10, width + 10);
  line(context, -8, middle, right, middle, palette.line2, 1);
  const isOver = run.outline.final;
  const isFailed = isOver && lane.id === 'run' && run.rows[0]?.failed;
  if (right < width + 10) drawEnd(context, palette, right, middle, isFailed ? 'failed' : isOver ? 'over' : 'goes on');
  if (lane.id === 'text') return drawText(context, palette, run, middle, scale, width, end);
  for (const span of lane.spans) {
    if (span.from > end) continue;
    const [from, to] = [scale(span.from), scale(span.to < 0 ? end : span.to)];
    if (to < -20 || from > width + 20) continue;
    const y = trackTop(lane, top, span.track);
    line(context, Math.max(from, -16), y, Math.min(to, width + 16), y, palette[span.failed ? 'failed' : lane.family], 2.2);
  }
  if (lane.id === 'model') drawWaits(context, palette, run, middle, scale, end);
}

/** Dashed lines between the tries of a request. */
function drawWaits(context: CanvasRenderingContext2D, palette: Palette, run: RunModel, y: number, scale: (ms: number) => number, end: number): void {
  for (const row of run.rows) {
    if (row.kind !== 'step' || row.path) continue;
    row.pieces.forEach((piece, k) => {
      const next = row.pieces[k + 1];
      if (!next || !piece.failed) return;
      const [from, to] = [scale(piece.to), scale(Math.min(next.from, end))];
      line(context, from, y, to, y, palette.bg, 3);
      line(context, from, y, to, y, palette.failed, 1.4, [3, 3]);
      if (to - from < 34) return;
      context.font = '11px ui-sans-serif, system-ui, sans-serif';
      context.textAlign = 'left';
      context.textBaseline = 'middle';
      context.fillStyle = palette.quiet;
      context.fillText(`waits ${formatDuration(next.from - piece.to)}`, from + 12, y - 11);
    });
  }
}

/** Ticks of the text while it streams. Without deltas, they show the average rate of the call. */
function drawText(context: CanvasRenderingContext2D, palette: Palette, run: RunModel, y: number, scale: (ms: number) => number, width: number, end: number): void {
  const spans = textSpans(run.rows, end);
  const rates = spans.map(each => (each.tokens * 1000) / Math.max(each.to - each.from, 1));
  const most = Math.max(...rates, 1);
  spans.forEach((span, k) => {
    if (span.path) return;
    const [from, to] = [Math.max(scale(span.from), -8), Math.min(scale(span.to), width + 8)];
    const half = span.tokens ? 3 + 6 * (rates[k] / most) : 4;
    const times = run.live.get(span.key)?.times.map(scale);
    context.beginPath();
    if (times) for (const x of times) if (x > -8 && x < width + 8) context.rect(x - 0.7, y - half, 1.4, 2 * half);
    if (!times) for (let x = from; x < to; x += 3.2) context.rect(x, y - half, 1.4, 2 * half);
    context.fillStyle = palette.model;
    context.globalAlpha = times ? 1 : 0.75;
    context.fill();
    context.globalAlpha = 1;
  });
}

function drawThoughts(context: CanvasRenderingContext2D, palette: Palette, run: RunModel, lane: Lane, marbles: Marble[], top: number, scale: (ms: number) => number, width: number): void {
  const y = trackTop(lane, top, 0);
  const { outline } = run;
  for (const i of lane.events) {
    for (const [seq, isRevision] of [[outline.a[i], false], [outline.b[i], true]] as const) {
      const from = seq ? outline.find(seq) : -1;
      if (from < 0 || outline.seq[from] !== seq) continue;
      const [x1, x2] = [scale(outline.time[from]), scale(outline.time[i])];
      if (x2 > -50 && x1 < width + 50 && x2 - x1 > 4) drawArc(context, x1, y - 9, x2, y - 9, palette[isRevision ? 'failed' : 'thought'], isRevision);
    }
  }
  context.font = '11.5px ui-sans-serif, system-ui, sans-serif';
  context.textAlign = 'left';
  context.textBaseline = 'middle';
  marbles.forEach((marble, k) => {
    const i = marble.indexes[0];
    const left = marble.x + (marble.indexes.length > 1 ? 16 : 13);
    const room = Math.min((marbles[k + 1]?.x ?? width) - left - 14, 320);
    const text = fit(context, toLine(`${outline.name[i]}: ${outline.label[i]}`), room);
    if (!text) return;
    context.lineWidth = 6;
    context.strokeStyle = palette.bg;
    context.strokeText(text, left, y);
    context.fillStyle = palette.quiet;
    context.fillText(text, left, y);
  });
}

function fit(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (room < 40) return '';
  if (context.measureText(text).width <= room) return text;
  const length = Math.floor((text.length * room) / context.measureText(text).width) - 1;
  return length > 4 ? `${text.slice(0, length)}…` : '';
}

/** The event of the playhead as a real button, for keyboards and screen readers. */
export function Marker() {
  const { outline } = useModel();
  const i = outline.find(playhead.value);
  if (i < 0 || !selected.value) return null;
  const text = [outline.kind[i], outline.name[i], `seq ${outline.seq[i]}`, `after ${formatDuration(outline.time[i])}`].filter(Boolean).join(', ');
  return <button class="unseen" onClick={() => moveTo(outline.seq[i])}>{toLine(text)}</button>;
}
