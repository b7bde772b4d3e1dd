// Drawings on canvas: marble lanes, overview and transport. All positions are in CSS pixels.

import type { Family } from './kinds.ts';
import type { Marble } from './lanes.ts';

export type Palette = Record<Family | 'bg' | 'panel' | 'line' | 'line2' | 'ink' | 'quiet' | 'faint' | 'accent' | 'playhead' | 'memory', string>;

const NAMES = ['model', 'thought', 'tool', 'agent', 'failed', 'you', 'run', 'bg', 'panel', 'line', 'line2', 'ink', 'quiet', 'faint', 'accent', 'playhead', 'memory'] as const;

export function readPalette(): Palette {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map(name => [name, style.getPropertyValue(`--${name}`).trim()])) as Palette;
}

/** Fit a canvas to a size in CSS pixels, and return its cleared context. */
export function prepare(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d')!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export function line(context: CanvasRenderingContext2D, x1: number, y1: number, x2: number, y2: number, color: string, width = 1, dash: number[] = []): void {
  context.beginPath();
  context.setLineDash(dash);
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.strokeStyle = color;
  context.lineWidth = width;
  context.stroke();
  context.setLineDash([]);
}

const RADIUS = 7.5;

/** Trace the shape of a family: circle, diamond, square, triangle, octagon or hexagon. */
function trace(context: CanvasRenderingContext2D, family: Family, x: number, y: number): void {
  context.beginPath();
  switch (family) {
    case 'tool': return context.roundRect(x - 6.5, y - 6.5, 13, 13, 3);
    case 'thought': return polygon(context, x, y, 9, 4, 0);
    case 'agent': return context.roundRect(x - 7, y - 6.5, 14, 13, [2, 7, 7, 2]);
    case 'failed': return polygon(context, x, y, 8.2, 8, Math.PI / 8);
    case 'you': return polygon(context, x, y, 8.4, 6, 0);
    case 'run': return context.arc(x, y, 6.2, 0, 2 * Math.PI), undefined;
    default: return context.arc(x, y, RADIUS, 0, 2 * Math.PI), undefined;
  }
}

function polygon(context: CanvasRenderingContext2D, x: number, y: number, radius: number, corners: number, turn: number): void {
  for (let k = 0; k < corners; k++) {
    const angle = turn + (2 * Math.PI * k) / corners;
    context.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
  }
  context.closePath();
}

export function drawMarble(context: CanvasRenderingContext2D, palette: Palette, marble: Marble, y: number, isSelected: boolean, isHovered: boolean): void {
  const { x, indexes, family, isHollow } = marble;
  const color = palette[family];
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  if (indexes.length > 1) return drawPill(context, palette, marble, y, isSelected || isHovered);
  trace(context, family, x, y);
  context.fillStyle = isHollow ? palette.bg : color;
  context.fill();
  context.lineWidth = 1.6;
  context.strokeStyle = color;
  context.stroke();
  context.fillStyle = isHollow ? color : palette.bg;
  context.font = '650 9px ui-monospace, "JetBrains Mono", monospace';
  context.fillText(marble.letter, x, y + 0.5);
  if (isSelected || isHovered) ring(context, x, y, 12, palette.playhead, isSelected ? 2 : 1);
}

function drawPill(context: CanvasRenderingContext2D, palette: Palette, marble: Marble, y: number, isMarked: boolean): void {
  const text = marble.indexes.length > 999 ? '999+' : String(marble.indexes.length);
  const width = 11 + text.length * 6;
  context.beginPath();
  context.roundRect(marble.x - 7, y - 7, width, 14, 7);
  context.fillStyle = palette[marble.family];
  context.fill();
  context.fillStyle = palette.bg;
  context.font = '700 9.5px ui-sans-serif, system-ui, sans-serif';
  context.fillText(text, marble.x - 7 + width / 2, y + 0.5);
  if (!isMarked) return;
  context.beginPath();
  context.roundRect(marble.x - 10, y - 10, width + 6, 20, 10);
  context.strokeStyle = palette.playhead;
  context.lineWidth = 1.5;
  context.stroke();
}

function ring(context: CanvasRenderingContext2D, x: number, y: number, radius: number, color: string, width: number): void {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.strokeStyle = color;
  context.lineWidth = width;
  context.stroke();
}

/** Draw the end of a lane: an arrow if it continues, a bar if it is over, a cross if it failed. */
export function drawEnd(context: CanvasRenderingContext2D, palette: Palette, x: number, y: number, end: 'goes on' | 'over' | 'failed'): void {
  if (end === 'over') return line(context, x, y - 6, x, y + 6, palette.faint, 1.6);
  if (end === 'failed') {
    line(context, x - 4, y - 4, x + 4, y + 4, palette.failed, 1.8);
    return line(context, x - 4, y + 4, x + 4, y - 4, palette.failed, 1.8);
  }
  line(context, x - 5, y - 4, x, y, palette.faint, 1.3);
  line(context, x - 5, y + 4, x, y, palette.faint, 1.3);
}

/** Draw an arc from an earlier thought to a later one. */
export function drawArc(context: CanvasRenderingContext2D, x1: number, y1: number, x2: number, y2: number, color: string, isDashed: boolean): void {
  const lift = Math.min(26, 8 + Math.abs(x2 - x1) * 0.08);
  context.beginPath();
  context.setLineDash(isDashed ? [4, 3] : []);
  context.moveTo(x1, y1);
  context.bezierCurveTo(x1 + (x2 - x1) * 0.2, y1 - lift, x2 - (x2 - x1) * 0.2, y2 - lift, x2, y2);
  context.strokeStyle = color;
  context.lineWidth = 1.4;
  context.stroke();
  context.setLineDash([]);
}

/** Draw a zigzag where a pause was cut out. */
export function drawBreak(context: CanvasRenderingContext2D, palette: Palette, x1: number, x2: number, height: number): void {
  context.fillStyle = palette.panel;
  context.fillRect(x1, 0, x2 - x1, height);
  for (const x of [x1, x2]) {
    context.beginPath();
    for (let y = 0, k = 0; y <= height; y += 6, k++) context.lineTo(x + (k % 2 ? 3 : -3), y);
    context.strokeStyle = palette.line2;
    context.lineWidth = 1;
    context.stroke();
  }
}

/** Draw an area under a curve of values between 0 and 1. */
export function drawArea(context: CanvasRenderingContext2D, values: number[], step: number, left: number, bottom: number, height: number, color: string): void {
  if (!values.length) return;
  const y = (k: number) => bottom - values[k] * height;
  context.beginPath();
  context.moveTo(left, bottom);
  for (let k = 0; k < values.length; k++) context.lineTo(left + k * step, y(k));
  context.lineTo(left + (values.length - 1) * step, bottom);
  context.closePath();
  context.globalAlpha = 0.22;
  context.fillStyle = color;
  context.fill();
  context.globalAlpha = 1;
  context.beginPath();
  for (let k = 0; k < values.length; k++) context.lineTo(left + k * step, y(k));
  context.strokeStyle = color;
  context.lineWidth = 1.2;
  context.stroke();
}
