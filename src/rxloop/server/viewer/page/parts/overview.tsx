// Overview of the whole run: tokens per second, events as ticks, and the shown window.

import { useEffect, useMemo, useRef } from 'preact/hooks';
import { endOfAxis } from '../commands.ts';
import { drawArea, line, prepare, readPalette } from '../draw.ts';
import { family } from '../kinds.ts';
import { textSpans } from '../lanes.ts';
import type { RunModel } from '../model.ts';
import { model, now, revision, show, shownWindow, theme, window_ } from '../store.ts';
import { formatNumber, keepInside, makeScale } from '../time.ts';
import { PADDING } from './lanes.tsx';
import { px } from './px.ts';

const HEIGHT = 52;
const BIN = 3;
/** Rates of shorter answers would hide all others. */
const SHORTEST = 250;

export function Overview({ width }: { width: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const drag = useRef<{ from: number; mode: 'new' | 'move' | 'left' | 'right'; start: number; end: number } | null>(null);
  const part = window_.value;
  const [at, end, change] = [theme.value, now.value, revision.value];
  const whole = { from: 0, to: Math.max(endOfAxis(), 1) };
  const { values, peak } = useMemo(() => findRates(model.peek(), width, end, whole.to), [width, end, change, whole.to]);
  useEffect(() => draw(canvas.current!, model.peek(), values, width, whole.to), [values, at]);
  const toPosition = (event: PointerEvent) => ((event.clientX - canvas.current!.getBoundingClientRect().left - PADDING) / width) * whole.to;
  const shown = shownWindow.value;
  const [left, right] = [(shown.from / whole.to) * width, (Math.min(shown.to, whole.to) / whole.to) * width];
  const onDown = (event: PointerEvent) => {
    event.preventDefault();
    (event.currentTarget as HTMLElement).setPointerCapture(event.pointerId);
    const position = toPosition(event);
    const x = (position / whole.to) * width;
    const mode = part && Math.abs(x - left) < 7 ? 'left' : part && Math.abs(x - right) < 7 ? 'right' : part && x > left && x < right ? 'move' : 'new';
    drag.current = { from: position, mode, start: shown.from, end: shown.to };
  };
  const onMove = (event: PointerEvent) => {
    const held = drag.current;
    if (!held) return;
    const position = toPosition(event);
    if (held.mode === 'move') return show(keepInside({ from: held.start + position - held.from, to: held.end + position - held.from }, whole.to));
    const fixed = held.mode === 'left' ? held.end : held.mode === 'right' ? held.start : held.from;
    const [from, to] = [Math.max(Math.min(fixed, position), 0), Math.min(Math.max(fixed, position), whole.to)];
    if (to - from > whole.to / 200) show({ from, to });
  };
  return (
    <div
      class="overview" onPointerDown={onDown} onPointerMove={onMove} onLostPointerCapture={() => { drag.current = null; }}
      onDblClick={() => show(null)} title="Drag to choose a part, double-click for the whole run"
    >
      <canvas ref={canvas} role="img" aria-label={`Tokens per second over the whole run${peak ? `, at most ${peak}` : ''}`} />
      {peak && <span class="peak" aria-hidden="true">{peak}</span>}
      {part && <span class="outside" style={px({ left: 0, width: left + PADDING })} />}
      {part && <span class="outside" style={px({ left: right + PADDING, right: 0 })} />}
      <span class="handle" style={px({ left: left + PADDING - 4 })} />
      <span class="handle" style={px({ left: right + PADDING })} />
    </div>
  );
}

function draw(canvas: HTMLCanvasElement, run: RunModel, values: number[], width: number, to: number): void {
  const palette = readPalette();
  const context = prepare(canvas, width + 2 * PADDING, HEIGHT);
  context.translate(PADDING, 0);
  const scale = makeScale(run.axis, { from: 0, to }, width);
  drawArea(context, values, BIN, 0, HEIGHT - 9, HEIGHT - 16, palette.model);
  line(context, 0, HEIGHT - 8.5, width, HEIGHT - 8.5, palette.line2);
  const { outline } = run;
  let before = -2;
  for (let i = 0; i < outline.size; i++) {
    const x = Math.round(scale(outline.time[i]));
    if (x - before < 2 && !outline.flags[i]) continue;
    before = x;
    line(context, x + 0.5, HEIGHT - 7, x + 0.5, HEIGHT - 3, palette[family(outline.kind[i], outline.flags[i])], 1.2);
  }
}

/** Return tokens per second in bins, as a part of the highest value, and this value in words. */
function findRates(run: RunModel, width: number, end: number, to: number): { values: number[]; peak: string } {
  const scale = makeScale(run.axis, { from: 0, to }, width);
  const bins = new Array<number>(Math.max(Math.ceil(width / BIN), 2)).fill(0);
  for (const span of textSpans(run.rows, end)) {
    const times = run.live.get(span.key)?.times;
    if (times?.length) {
      for (const at of times) add(bins, scale(at) / BIN, Math.max(span.tokens, times.length) / times.length);
      continue;
    }
    const [from, to] = [scale(span.from) / BIN, Math.max(scale(span.to) / BIN, scale(span.from + SHORTEST) / BIN, scale(span.from) / BIN + 1)];
    for (let k = Math.max(Math.floor(from), 0); k < to && k < bins.length; k++) bins[k] += span.tokens / (to - from);
  }
  const smooth = bins.map((_, k) => (at(bins, k - 2) + 2 * at(bins, k - 1) + 3 * bins[k] + 2 * at(bins, k + 1) + at(bins, k + 2)) / 9);
  const most = Math.max(...smooth, 1e-9);
  const perSecond = most / ((BIN * to) / width / 1000);
  return { values: smooth.map(each => each / most), peak: perSecond >= 0.05 ? `${perSecond < 10 ? perSecond.toFixed(1) : formatNumber(perSecond)} tokens/s` : '' };
}

const at = (bins: number[], k: number): number => bins[Math.min(Math.max(k, 0), bins.length - 1)];

function add(bins: number[], position: number, value: number): void {
  const k = Math.floor(position);
  if (k >= 0 && k < bins.length) bins[k] += value;
}
