// Chart of the sizes of requests: one stacked bar per request, on canvas.

import { line, prepare, type Palette } from './draw.ts';
import { inputOf, PARTS, scaleParts, type Part, type RequestRow } from './requests.ts';

/** Families whose colours the parts have. The order of the parts is the same in all bars. */
export const PART_COLORS: Record<Part, keyof Palette> = {
  system: 'run', tools: 'tool', task: 'you', summary: 'thought', history: 'model', workspace: 'agent', memory: 'memory', note: 'line2',
};

const WIDEST = 28;

/** Width of a bar with its gap, in pixels. Narrow bars scroll. */
export function barWidth(count: number, width: number): number {
  return Math.max(1, Math.min(WIDEST, Math.floor(width / Math.max(count, 1))));
}

/** Index of the bar at a position, or -1. */
export function barAt(count: number, bar: number, x: number): number {
  const k = Math.floor(x / bar);
  return k >= 0 && k < count ? k : -1;
}

/** Tokens at the upper end of the chart. The window of the model is only included if requests come near it. */
export function scaleOf(rows: readonly RequestRow[]): number {
  let most = 1;
  for (const row of rows) most = Math.max(most, inputOf(row));
  const window = Math.max(0, ...rows.slice(-1).map(each => each.window ?? 0));
  return window && window < most * 4 ? Math.max(window, most) * 1.05 : most * 1.05;
}

/** Round numbers of tokens for the labels of the axis, from zero to the upper end of the chart. */
export function ticksOf(scale: number): number[] {
  const raw = scale / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(([1, 2, 5].find(each => each * power >= raw) ?? 10) * power, 1);
  return Array.from({ length: Math.floor(scale / step) + 1 }, (_, k) => k * step);
}

/** Distance of a number of tokens from the upper edge of the chart, in pixels. */
export const heightOf = (tokens: number, scale: number, height: number): number => height - (tokens / scale) * (height - 4);

/** Distance of the labels of requests, in bars. */
export const labelEvery = (bar: number): number => [1, 2, 5, 10, 20, 50, 100, 200, 500].find(each => each * bar >= 48) ?? 1000;

export interface Bars {
  rows: readonly RequestRow[];
  scale: number;
  bar: number;
  /** Scroll offset and width of the visible part. */
  left: number;
  width: number;
  height: number;
  /** Index of the selected request, or -1. */
  current: number;
}

export function drawBars(canvas: HTMLCanvasElement, palette: Palette, { rows, scale, bar, left, width, height, current }: Bars): void {
  const context = prepare(canvas, width, height);
  for (const tick of ticksOf(scale)) line(context, 0, heightOf(tick, scale, height) - 0.5, width, heightOf(tick, scale, height) - 0.5, palette.line);
  const first = Math.max(0, Math.floor(left / bar));
  const last = Math.min(rows.length, Math.ceil((left + width) / bar));
  const thick = bar > 3 ? bar - 2 : bar;
  const tall = (tokens: number) => (tokens / scale) * (height - 4);
  for (let k = first; k < last; k++) {
    const x = k * bar - left;
    let y = height;
    scaleParts(rows[k]).forEach((tokens, part) => {
      if (!tokens) return;
      const size = tall(tokens);
      y -= size;
      context.fillStyle = palette[PART_COLORS[PARTS[part]]];
      context.fillRect(x, y, thick, bar > 3 ? Math.max(size - 1, 0.5) : size);
    });
    const cached = Math.min(rows[k].tokens.cached ?? 0, inputOf(rows[k]));
    if (cached) {
      context.strokeStyle = palette.ink;
      context.lineWidth = bar > 3 ? 1.5 : 1;
      const top = height - tall(cached);
      if (bar > 3) context.strokeRect(x + 0.75, top, thick - 1.5, height - top - 0.75);
      else line(context, x, top, x + thick, top, palette.ink);
    }
    if (k === current) {
      context.strokeStyle = palette.playhead;
      context.lineWidth = 1;
      context.strokeRect(x - 0.5, 0.5, thick + 1, height - 1);
    }
  }
  const window = rows[last - 1]?.window;
  if (window && window <= scale) line(context, 0, height - tall(window), width, height - tall(window), palette.failed, 1.5, [5, 4]);
}
