// Waterfall: one row for each step, tool, nested agent, question and compression, on the time axis of the lanes.

import { moveTo, zoomToSelection } from '../commands.ts';
import { describeRow, type Piece, type Row } from '../rows.ts';
import {
  address, collapsed, filtered, hovered, useModel, now, selectedRow, shownRows, shownWindow, toggle,
  playhead,
} from '../store.ts';
import { toLine } from '../text.ts';
import { formatDuration, makeScale } from '../time.ts';
import { List } from './list.tsx';
import { Shape } from './shape.tsx';
import { px } from './px.ts';

const HEIGHT = 30;

export function Waterfall({ width }: { width: number }) {
  const rows = shownRows.value;
  const current = selectedRow.value ? rows.indexOf(selectedRow.value) : -1;
  const scale = makeScale(useModel().axis, shownWindow.value, width);
  const hits = filtered.value ? new Set(filtered.value.hits) : null;
  if (!rows.length) return <div class="list nothing">{address.value.q ? 'No row matches the filter.' : 'No event yet.'}</div>;
  return (
    <List
      class="waterfall" role="treegrid" label="Waterfall" count={rows.length} height={HEIGHT} current={current}
      render={(index, top) => (
        <RowView
          key={rows[index].id} row={rows[index]} index={index} top={top} scale={scale} width={width}
          isSelected={index === current} isReachable={index === Math.max(current, 0)} isFaint={hits !== null && !hits.has(rows[index])}
        />
      )}
    />
  );
}

interface RowProps {
  row: Row;
  index: number;
  top: number;
  scale: (ms: number) => number;
  width: number;
  isSelected: boolean;
  isReachable: boolean;
  isFaint: boolean;
}

function RowView({ row, index, top, scale, width, isSelected, isReachable, isFaint }: RowProps) {
  const end = row.to < 0 ? now.value : row.to;
  const isOpen = !collapsed.value.has(row.id);
  const choose = () => moveTo(row.end || row.id);
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    event.stopPropagation();
    choose();
  };
  return (
    <div
      class={`row${isSelected ? ' selected' : ''}${isFaint ? ' ancestor' : ''}${hovered.value === row.id ? ' hovered' : ''}`}
      role="row" aria-rowindex={index + 1} aria-level={row.level} aria-selected={isSelected}
      aria-expanded={row.kids.length ? isOpen : undefined} aria-label={toLine(describeRow(row, now.value))}
      tabIndex={isReachable ? 0 : -1} style={px({ top })} data-seq={row.id}
      onClick={choose} onDblClick={zoomToSelection} onKeyDown={onKey}
      onMouseEnter={() => { hovered.value = row.id; }} onMouseLeave={() => { hovered.value = 0; }}
    >
      <div class="gutter" role="rowheader" style={px({ paddingLeft: 8 + (row.level - 1) * 15 })}>
        {row.kids.length ? (
          <button class="fold" tabIndex={-1} aria-label={isOpen ? 'fold' : 'unfold'} onClick={event => { event.stopPropagation(); toggle(row); }}>
            {isOpen ? '▾' : '▸'}
          </button>
        ) : <span class="fold" />}
        <Shape family={row.family} isFailed={row.failed && row.family !== 'run'} isHollow={row.family === 'run'} />
        <span class="title"><bdi>{toLine(row.title)}</bdi></span>
        {row.sub && <span class="sub"><bdi>{toLine(shortArguments(row.sub))}</bdi></span>}
        <span class="took">{row.to === row.from ? '' : formatDuration(end - row.from)}</span>
      </div>
      <div class="bars" role="gridcell">
        <Bars row={row} scale={scale} width={width} end={end} />
      </div>
    </div>
  );
}

/** `city=Oslo, day=Sunday` as `Oslo, Sunday`. */
function shortArguments(text: string): string {
  return text.replace(/(^|, )[\w-]+=/g, '$1');
}

function Bars({ row, scale, width, end }: { row: Row; scale: (ms: number) => number; width: number; end: number }) {
  const place = (from: number, to: number) => {
    const left = Math.min(Math.max(scale(from), -8), width + 8);
    const right = Math.min(Math.max(scale(to), -8), width + 8);
    return px({ left, width: Math.max(right - left, 3) });
  };
  const bar = (name: string, from: number, to: number, title?: string) => <span class={`bar ${name}`} style={place(from, to)} title={title} />;
  const parts = [];
  if (row.kind === 'step') {
    row.pieces.forEach((piece, k) => parts.push(<Try key={k} row={row} piece={piece} next={row.pieces[k + 1]} end={end} bar={bar} />));
  } else {
    const look = row.family === 'run' ? (row.level === 1 || row.kind === 'attempt' ? 'whole' : 'point') : row.failed ? 'failed' : row.voided ? 'voided' : row.family;
    parts.push(bar(`${look}${row.to < 0 ? ' growing' : ''}`, row.from, end));
  }
  return <>{parts}<Note row={row} left={scale(row.from)} right={scale(end)} width={width} /></>;
}

type MakeBar = (name: string, from: number, to: number, title?: string) => preact.JSX.Element;

/** One request to the model: hatched while it waits, a mark at the first token, solid while the answer streams. */
function Try({ row, piece, next, end, bar }: { row: Row; piece: Piece; next?: Piece; end: number; bar: MakeBar }) {
  // The next try is planned for a time that has not come yet.
  if (piece.from > end) return null;
  const to = piece.to < 0 ? Math.max(end, piece.from) : piece.to;
  const isLast = !next;
  if (piece.failed) {
    return <>{bar('failed', piece.from, Math.max(to, piece.from))}{next && bar('pause', to, Math.min(next.from, end), `waits ${formatDuration(next.from - to)}`)}</>;
  }
  const growing = isLast && row.to < 0 ? ' growing' : '';
  if (!isLast || row.first < 0) return bar(`waiting${growing}`, piece.from, to, 'The time of the first token was not recorded.');
  return (
    <>
      {bar('waiting', piece.from, row.first, `first token after ${formatDuration(row.first - piece.from)}`)}
      {bar(`model${growing}`, row.first, to)}
      {bar('mark', row.first, row.first)}
    </>
  );
}

/** `get_alerts timed out after 2 s. It was …` as `timed out after 2 s`. */
function firstSentence(row: Row): string {
  const sentence = row.note.split('. ')[0];
  return sentence.startsWith(`${row.title} `) ? sentence.slice(row.title.length + 1) : sentence;
}

/** The text next to a bar: on its right, or on its left if there is no room. */
function Note({ row, left, right, width }: { row: Row; left: number; right: number; width: number }) {
  const text = toLine(row.failed ? firstSentence(row) : row.note);
  if (!text || right < -4 || left > width + 4) return null;
  const length = text.length * 6.4 + 16;
  const room = width - right - 8;
  const isLeft = room < Math.min(length, 150) && left > Math.min(length, 150);
  const isInside = !isLeft && room < Math.min(length, 60);
  const style: Record<string, number | string> = isLeft
    ? { right: width - left + 8, left: 'auto', maxWidth: left }
    : isInside ? { left: 8, maxWidth: width - 16 } : { left: Math.max(right, 0) + 8, maxWidth: Math.min(room, 420) };
  // The result of a row that is over at the playhead is not in the future, although its text is.
  const isKnown = row.end > 0 && row.end <= playhead.value;
  return <span class={`note${row.failed ? ' failed' : ''}${isInside ? ' inside' : ''}${isKnown ? ' known' : ''}`} style={px(style)}>{row.failed && '✕ '}<bdi>{text}</bdi></span>;
}
