// Time axis with the flag of the playhead. Dragging sets the shown window.

import { useRef } from 'preact/hooks';
import { endOfAxis } from '../commands.ts';
import { isAtEnd, useModel, playhead, playheadTime, show, shownWindow } from '../store.ts';
import { findTicks, formatDuration, formatTick, keepInside, makeScale } from '../time.ts';
import { PADDING } from './lanes.tsx';
import { px } from './px.ts';

export function AxisView({ width }: { width: number }) {
  const from = useRef<number | null>(null);
  const part = shownWindow.value;
  const { axis } = useModel();
  const scale = makeScale(axis, part, width);
  const ticks = findTicks(axis, part, width);
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1000;
  const x = scale(playheadTime.value);
  const toPosition = (event: PointerEvent) => part.from + ((event.clientX - (event.currentTarget as HTMLElement).getBoundingClientRect().left - PADDING) / width) * (part.to - part.from);
  const onDown = (event: PointerEvent) => {
    event.preventDefault();
    (event.currentTarget as HTMLElement).setPointerCapture(event.pointerId);
    from.current = toPosition(event);
  };
  const onUp = (event: PointerEvent) => {
    const start = from.current;
    from.current = null;
    if (start === null) return;
    const end = toPosition(event);
    if (Math.abs(end - start) < (part.to - part.from) / 100) return;
    show(keepInside({ from: Math.min(start, end), to: Math.max(start, end) }, endOfAxis()));
  };
  return (
    <div class="axis" onPointerDown={onDown} onPointerUp={onUp}>
      {ticks.filter(tick => !axis.breaks.some(each => Math.abs(scale(tick) - (scale(each.from) + scale(each.to)) / 2) < 96)).map(tick => <span class="tick" key={tick} style={px({ left: scale(tick) + PADDING })}>{formatTick(tick, step)}</span>)}
      {axis.breaks.map(each => (
        <span class="cut" key={each.from} style={px({ left: (scale(each.from) + scale(each.to)) / 2 + PADDING })} title={`${formatDuration(each.to - each.from)}, ${each.reason}`}>
          {formatDuration(each.to - each.from)}, {each.reason}
        </span>
      ))}
      {!isAtEnd.value && x >= -8 && x <= width + 8 && (
        <span class="flag" style={px({ left: x + PADDING })}>{playhead.value} · {formatDuration(playheadTime.value)}</span>
      )}
    </div>
  );
}
