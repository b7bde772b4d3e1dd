// Transport: buttons, one tick for each event, and the figures at the playhead.

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { changeSpeed, first, last, moveTo, runCommand, step } from '../commands.ts';
import { line, prepare, readPalette } from '../draw.ts';
import { family } from '../kinds.ts';
import { connection, goLive, info, inspectorWidth, isAtEnd, isFollowing, isInspectorOpen, isPlaying, useModel, playhead, revision, speed, theme } from '../store.ts';
import { formatDollars, formatDuration, formatNumber, plural } from '../time.ts';
import { px } from './px.ts';

export function Transport() {
  return (
    <footer class="transport">
      <div class="gutter buttons">
        <button aria-label="First event" onClick={first}><Icon path="M3 3h2v10H3zM13 3v10L6 8z" /></button>
        <button aria-label="Event before" onClick={() => step(-1)}><Icon path="M11 3v10L4 8z" /></button>
        <button class="play" aria-label={isPlaying.value ? 'Pause' : 'Play'} onClick={() => runCommand('play')}><Icon path={isPlaying.value ? 'M4 3h3v10H4zM9 3h3v10H9z' : 'M5 3v10l8-5z'} /></button>
        <button aria-label="Next event" onClick={() => step(1)}><Icon path="M5 3v10l7-5z" /></button>
        <button aria-label="Last event" onClick={last}><Icon path="M11 3h2v10h-2zM3 3v10l7-5z" /></button>
        <button class="speed" aria-label={`Speed ${speed.value}×`} onClick={changeSpeed}>{speed.value}×</button>
      </div>
      <div class="scrubber">
        <Slider />
        <Figures />
      </div>
      <Edge />
    </footer>
  );
}

function Icon({ path }: { path: string }) {
  return <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d={path} fill="currentColor" /></svg>;
}

const HEIGHT = 34;
const EDGE = 8;

function Slider() {
  const element = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(600);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setWidth(element.current?.clientWidth ?? 600));
    observer.observe(element.current!);
    return () => observer.disconnect();
  }, []);
  const canvas = useRef<HTMLCanvasElement>(null);
  const isHeld = useRef(false);
  const { outline } = useModel();
  const [at, change, seq] = [theme.value, revision.value, playhead.value];
  const inner = Math.max(width - 2 * EDGE, 10);
  const toX = (index: number) => (outline.size < 2 ? 0 : (index / (outline.size - 1)) * inner);
  const x = toX(Math.max(outline.find(seq), 0));
  useEffect(() => {
    const palette = readPalette();
    const context = prepare(canvas.current!, inner + 2 * EDGE, HEIGHT);
    context.translate(EDGE, 0);
    line(context, 0, HEIGHT / 2, inner, HEIGHT / 2, palette.line, 6);
    line(context, 0, HEIGHT / 2, x, HEIGHT / 2, palette.accent, 6);
    let before = -4;
    for (let i = 0; i < outline.size; i++) {
      const left = toX(i);
      const isMain = outline.flags[i] & 1 || outline.kind[i] === 'llm-call';
      if (left - before < 3 && !isMain) continue;
      before = left;
      const half = isMain ? 9 : 5;
      context.globalAlpha = left <= x ? 1 : 0.45;
      line(context, left, HEIGHT / 2 - half, left, HEIGHT / 2 + half, palette[family(outline.kind[i], outline.flags[i])], 1.6);
    }
    context.globalAlpha = 1;
  }, [width, at, change, x]);
  const move = (event: PointerEvent) => {
    const left = (event.currentTarget as HTMLElement).getBoundingClientRect().left + EDGE;
    const index = Math.round(((event.clientX - left) / inner) * (outline.size - 1));
    const next = outline.seq[Math.min(Math.max(index, 0), outline.size - 1)];
    if (next && next !== playhead.peek()) moveTo(next);
  };
  return (
    <div
      class="slider" ref={element} role="slider" tabIndex={0} aria-label="Event" aria-valuemin={outline.seq[0] ?? 0} aria-valuemax={outline.last} aria-valuenow={seq}
      onPointerDown={event => { isHeld.current = true; event.currentTarget.setPointerCapture(event.pointerId); move(event); }}
      onPointerMove={event => { if (isHeld.current) move(event); }}
      onLostPointerCapture={() => { isHeld.current = false; }}
    >
      <canvas ref={canvas} />
      <span class="knob" style={px({ left: x + EDGE })} />
    </div>
  );
}

function Figures() {
  const { outline, fold } = useModel();
  const figures = fold.at(outline.find(playhead.value));
  return (
    <div class="figures" aria-live="off">
      <span>event <b>{formatNumber(playhead.value)}</b> of <b>{formatNumber(outline.last)}</b></span>
      <span><b>{figures.messages}</b> {plural(figures.messages, 'message')}</span>
      <span><b>{figures.openCalls}</b> {plural(figures.openCalls, 'open call')}</span>
      <span><b>{figures.thoughts}</b> {plural(figures.thoughts, 'thought')}</span>
      <span><b>{formatNumber(figures.tokens)}</b> tokens</span>
      {figures.dollars > 0 && <span><b>{formatDollars(figures.dollars)}</b> cost</span>}
    </div>
  );
}

/** Where the playhead is relative to the newest event. */
function Edge() {
  const { outline } = useModel();
  const newer = outline.size - 1 - outline.find(playhead.value);
  const { isConnected, since } = connection.value;
  const style = isInspectorOpen.value ? px({ width: inspectorWidth.value }) : {};
  if (!isConnected) {
    return <div class="edge" style={style}><div><b>not connected</b><div class="quiet">for {formatDuration(Date.now() - since)}, trying again. Nothing is lost.</div></div></div>;
  }
  if (outline.final) {
    if (isAtEnd.value || !newer) return <div class="edge" style={style}><div><b>{info.value?.state ?? 'over'}</b><div class="quiet">The run is over. {formatNumber(outline.size)} events.</div></div></div>;
    return <div class="edge" style={style}><div><b>{formatNumber(newer)} later {newer === 1 ? 'event' : 'events'}</b><div class="quiet">Drag the knob, or press → and ←.</div></div><button onClick={goLive}>Go to the end</button></div>;
  }
  if (isFollowing.value) return <div class="edge" style={style}><div><b><span class="dot" /> live</b><div class="quiet">The page follows the newest event.</div></div></div>;
  return (
    <div class="edge" style={style}>
      <div><b>{newer ? `${formatNumber(newer)} newer ${newer === 1 ? 'event' : 'events'}` : 'no newer event'}</b><div class="quiet">The page stays where you are.</div></div>
      <button class="primary" onClick={goLive}><span class="dot white" /> Go live</button>
    </div>
  );
}
