// The time axis: long pauses are cut out, and a window of the rest is scaled to pixels. Formats durations and numbers.

import { WAITS } from './kinds.ts';
import type { Outline } from './outline.ts';

export interface Break {
  from: number;
  to: number;
  reason: string;
}

export interface Window {
  from: number;
  to: number;
}

const SHORTEST_BREAK = 30_000;

/** Find the pauses in which the run only waited for a person, or was not running at all. */
export function findBreaks(outline: Outline): Break[] {
  const { time, kind, flags, name } = outline;
  const gaps: number[] = [];
  for (let i = 1; i < time.length; i++) if (time[i] > time[i - 1]) gaps.push(time[i] - time[i - 1]);
  gaps.sort((x, y) => x - y);
  const limit = Math.max(SHORTEST_BREAK, 10 * (gaps[gaps.length >> 1] ?? 0));
  const breaks: Break[] = [];
  let waiting = 0;
  for (let i = 1; i < time.length; i++) {
    if (kind[i - 1] === 'input-required' || kind[i - 1] === 'auth-required') waiting++;
    if (kind[i - 1] === 'input-received') waiting = Math.max(0, waiting - 1);
    const isOver = kind[i - 1] === 'status-update' && name[i - 1] !== 'working' && !outline.path[i - 1];
    if (time[i] - time[i - 1] < limit || !(isOver || waiting)) continue;
    const waits = waiting || flags[i - 1] & WAITS;
    breaks.push({ from: time[i - 1], to: time[i], reason: waits ? 'waited for you' : 'between attempts' });
  }
  return breaks;
}

/** Map from milliseconds of the run to positions on the axis, where each break takes a small part of the whole. */
export class Axis {
  readonly breaks: Break[];
  readonly gap: number;

  constructor(breaks: Break[], duration: number, isTrueTime = false) {
    this.breaks = isTrueTime ? [] : breaks;
    const active = duration - this.breaks.reduce((sum, each) => sum + each.to - each.from, 0);
    this.gap = Math.max(active, 1) * 0.05;
  }

  toPosition(ms: number): number {
    let cut = 0;
    for (const each of this.breaks) {
      if (ms >= each.to) cut += each.to - each.from - this.gap;
      else if (ms > each.from) return each.from - cut + ((ms - each.from) / (each.to - each.from)) * this.gap;
      else break;
    }
    return ms - cut;
  }

  toTime(position: number): number {
    let cut = 0;
    for (const each of this.breaks) {
      const from = each.from - cut;
      if (position <= from) break;
      if (position < from + this.gap) return each.from + ((position - from) / this.gap) * (each.to - each.from);
      cut += each.to - each.from - this.gap;
    }
    return position + cut;
  }
}

/** Pixel position of a time in a window of axis positions. */
export function makeScale(axis: Axis, window: Window, width: number): (ms: number) => number {
  const factor = width / Math.max(window.to - window.from, 1e-6);
  return ms => (axis.toPosition(ms) - window.from) * factor;
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 72e5, 216e5, 864e5];

/** Times of the labels in a window, at least 64 pixels apart. */
export function findTicks(axis: Axis, window: Window, width: number): number[] {
  const least = ((window.to - window.from) / Math.max(width, 1)) * 64;
  const step = STEPS.find(each => each >= least) ?? Math.ceil(least / 864e5) * 864e5;
  const ticks: number[] = [];
  const end = axis.toTime(window.to);
  for (let at = Math.ceil(Math.max(axis.toTime(window.from), 0) / step) * step; at <= end && ticks.length < 200; at += step) {
    const pause = axis.breaks.find(each => at > each.from && at < each.to);
    if (pause) at = Math.floor(pause.to / step) * step;
    else ticks.push(at);
  }
  return ticks;
}

/** Zoom a window around a position. A factor below 1 shows less. The window stays within the axis. */
export function zoom(window: Window, center: number, factor: number, end: number): Window {
  const size = Math.min(Math.max((window.to - window.from) * factor, 1), Math.max(end, 1));
  const share = (center - window.from) / Math.max(window.to - window.from, 1e-6);
  return keepInside({ from: center - size * share, to: center + size * (1 - share) }, end);
}

/** Move a window into the axis without changing its size. */
export function keepInside(window: Window, end: number): Window {
  const size = Math.min(window.to - window.from, Math.max(end, 1));
  const from = Math.min(Math.max(window.from, 0), Math.max(end - size, 0));
  return { from, to: from + size };
}

/** Format a duration: `0.76 s`, `12.1 s`, `3 min 20 s`, `4 h 12 min`. */
export function formatDuration(ms: number): string {
  const s = ms / 1000;
  if (ms < 1) return ms <= 0 ? '0 s' : '<1 ms';
  if (ms < 10) return `${Math.round(ms)} ms`;
  if (s < 9.995) return `${s.toFixed(2)} s`;
  if (s < 59.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 3600) return whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole / 60} min`;
  const minutes = Math.round(s / 60);
  if (minutes < 2880) return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  return `${Math.round(minutes / 1440)} days`;
}

/** Format a label of the axis, with as many decimals as the distance of the labels needs. */
export function formatTick(ms: number, step: number): string {
  if (ms === 0) return '0';
  if (step < 100 && ms < 1000) return `${Math.round(ms * 10) / 10} ms`;
  const digits = step >= 1000 ? 0 : step >= 100 ? 1 : step >= 10 ? 2 : 3;
  if (ms < 60_000) return `${(ms / 1000).toFixed(digits)} s`;
  if (step >= 60_000) return formatDuration(ms);
  const minutes = Math.floor(ms / 60_000);
  const seconds = ((ms % 60_000) / 1000).toFixed(digits).padStart(digits ? digits + 3 : 2, '0');
  return minutes < 60 ? `${minutes}:${seconds}` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, '0')}:${seconds}`;
}

const DIGITS = new Intl.NumberFormat('en-US');

/** Format a whole number with separators: `8,914`. */
export const formatNumber = (value: number): string => DIGITS.format(Math.round(value));

/** Format a cost in US dollars: `$0.0063`, `$0.31`. */
export function formatDollars(dollars: number): string {
  const size = Math.abs(dollars);
  if (size > 0 && size < 0.00005) return '<$0.0001';
  return `${dollars < 0 ? '-' : ''}$${size.toFixed(size < 0.1 ? 4 : 2)}`;
}

/** Return the noun for a number: `call` for 1, `calls` otherwise. */
export const plural = (count: number, noun: string): string => `${noun}${count === 1 ? '' : 's'}`;

/** Format the time since a moment: `now`, `2 min`, `1 h`, `3 days`. */
export function formatAge(ms: number): string {
  if (ms < 10_000) return 'now';
  if (ms < 60_000) return `${Math.floor(ms / 1000)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${Math.floor(ms / 3_600_000)} h`;
  return `${Math.floor(ms / 86_400_000)} days`;
}

export function formatSize(size: number): string {
  if (size < 1000) return `${size} bytes`;
  const [value, unit] = size < 1e6 ? [size / 1e3, 'kB'] : [size / 1e6, 'MB'];
  return `${value.toFixed(value < 10 ? 1 : 0)} ${unit}`;
}
