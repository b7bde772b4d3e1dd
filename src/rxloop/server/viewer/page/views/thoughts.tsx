// Thoughts of a run, drawn like a commit graph.

import { useEffect, useMemo, useState } from 'preact/hooks';
import { bodyOfKind } from '../bodies.ts';
import { moveTo } from '../commands.ts';
import type { RunModel } from '../model.ts';
import { isAtEnd, isLoading, now, playhead, revision, selected, useModel } from '../store.ts';
import { toLine } from '../text.ts';
import { describePlace, edgeColumn, makeMap, MAX_COLUMNS, type Edge, type Thought, type ThoughtGraph } from '../thoughts.ts';
import { formatDuration, formatNumber } from '../time.ts';
import { List } from '../parts/list.tsx';
import { px } from '../parts/px.ts';
import { LongText } from '../parts/text.tsx';

const HEIGHT = 46;
/** Distance of a thought from the top of its row. */
const MIDDLE = 16;
/** Number of thoughts from which the map is shown. */
const MIN_MAP = 40;
const COLUMNS = ['', 'type', 'thought', 'confidence', 'time'];

export function Thoughts() {
  const run = useModel();
  const { graph } = run;
  const [hovered, setHovered] = useState(-1);
  const [shown, setShown] = useState<[number, number]>([0, 0]);
  const live = isAtEnd.value ? <LiveThoughts run={run} /> : null;
  if (!graph.rows.length && !run.liveThoughts.length) return <Nothing isLoading={isLoading.value} />;
  const current = selected.value ? graph.find(selected.value) : -1;
  const reachable = current >= 0 ? current : 0;
  const ancestors = hovered >= 0 ? graph.ancestors(hovered) : null;
  return (
    <div class="table thoughts">
      {graph.rows.length >= MIN_MAP && <ThoughtMap graph={graph} shown={shown} current={current} />}
      <List
        role="grid" label="Thoughts" columns={COLUMNS} count={graph.rows.length} height={HEIGHT} current={current} followsEnd={isAtEnd.value && !run.outline.final} after={live}
        overlay={(first, last) => <Graph graph={graph} first={first} last={last} ancestors={ancestors} onShow={setShown} />}
        render={(k, top) => (
          <ThoughtRow
            key={graph.rows[k].seq} run={run} thought={graph.rows[k]} number={k} top={top} isSelected={k === current} isReachable={k === reachable}
            isMarked={ancestors?.has(k) ?? false} onHover={setHovered}
          />
        )}
      />
    </div>
  );
}

/** All thoughts from left to right, with the part that is in the list. A click opens a thought. */
function ThoughtMap({ graph: { rows }, shown: [first, last], current }: { graph: ThoughtGraph; shown: [number, number]; current: number }) {
  const { nodes, old, edges } = useMemo(() => makeMap(rows), [rows.length, revision.value]);
  const open = (event: MouseEvent) => {
    const { left, width } = (event.currentTarget as Element).getBoundingClientRect();
    moveTo(rows[Math.min(Math.floor(((event.clientX - left) / width) * rows.length), rows.length - 1)].seq);
  };
  return (
    <svg class="thought-map" role="img" aria-label={`Map of ${formatNumber(rows.length)} thoughts`} viewBox={`-.5 -1 ${rows.length} ${MAX_COLUMNS + 1}`} preserveAspectRatio="none" onClick={open}>
      <rect class="shown" x={first - 0.5} y={-1} width={last - first} height={MAX_COLUMNS + 1} />
      <path class="edges" d={edges} /><path class="nodes" d={nodes} /><path class="old" d={old} />
      {current >= 0 && <path class="current" d={`M${current} -1v${MAX_COLUMNS + 1}`} />}
    </svg>
  );
}

interface RowProps {
  run: RunModel;
  thought: Thought;
  number: number;
  top: number;
  isSelected: boolean;
  isReachable: boolean;
  isMarked: boolean;
  onHover: (row: number) => void;
}

function ThoughtRow({ run, thought, number, top, isSelected, isReachable, isMarked, onHover }: RowProps) {
  const { outline } = run;
  const { index: i, seq } = thought;
  const body = bodyOfKind(seq, 'thought-stream');
  const open = () => moveTo(seq);
  const text = toLine(body?.content ?? outline.label[i]);
  const names = [outline.path[i], outline.branch[i] || body?.session?.branchId].flatMap(each => (each ? [toLine(each)] : []));
  const facts = [...describePlace(thought), ...names.map(each => `branch ${each}`), body?.incomplete && 'incomplete'].filter(Boolean).join(', ');
  const others: string[] = body?.alternatives ?? [];
  const looks = [isSelected && 'selected', isMarked && 'hovered', seq > playhead.value && 'later'].filter(Boolean).join(' ');
  return (
    <div
      class={`row ${looks}`} role="row" aria-rowindex={number + 1} aria-selected={isSelected} tabIndex={isReachable ? 0 : -1} style={px({ top })} data-seq={seq}
      onClick={open} onKeyDown={event => { if (event.key === 'Enter') open(); }} onMouseEnter={() => onHover(number)} onMouseLeave={() => onHover(-1)}
    >
      <span role="gridcell" class="number">{number + 1}</span>
      <span role="gridcell"><b>{outline.name[i]}</b></span>
      <span role="gridcell" class="said-thought">
        <bdi>{text}</bdi>
        <small>{facts}{facts && others.length > 0 && '; '}{others.length > 0 && <>instead of: <bdi>{others.map(each => toLine(each)).join(' / ')}</bdi></>}</small>
      </span>
      <span role="gridcell"><Confidence value={body?.confidence} /></span>
      <span role="gridcell" class="mono quiet">{formatDuration(outline.time[i])}</span>
    </div>
  );
}

function Confidence({ value }: { value: number | null | undefined }) {
  if (value == null) return null;
  return (
    <>
      <span class="meter" role="meter" aria-label="Confidence" aria-valuemin={0} aria-valuemax={1} aria-valuenow={value}><i style={px({ width: 48 * value })} /></span>
      {value.toFixed(2)}
    </>
  );
}

/** The reasoning that is being written, as the last row. */
function LiveThoughts({ run }: { run: RunModel }) {
  now.value;
  return (
    <>
      {run.liveThoughts.map(([key, text]) => (
        <div class="live-thought" key={key}><b>thinking</b> <LongText text={text} /><span class="caret" /></div>
      ))}
    </>
  );
}

function Nothing({ isLoading: loads }: { isLoading: boolean }) {
  if (loads) return <div class="table" aria-busy="true" />;
  return (
    <div class="table">
      <div class="empty">
        <h2>No thoughts in this run</h2>
        <p>Agents think aloud with the tool <code>think_aloud</code>, which <code>Agent(thoughts=True)</code> adds.</p>
      </div>
    </div>
  );
}

/** The nodes and edges next to the visible rows. The rows contain the same facts as text. */
function Graph({ graph, first, last, ancestors, onShow }: { graph: ThoughtGraph; first: number; last: number; ancestors: Set<number> | null; onShow: (shown: [number, number]) => void }) {
  useEffect(() => onShow([first, last]), [first, last]);
  const gap = innerWidth < 700 ? 8 : 14;
  const x = (column: number) => 40 + column * gap;
  const y = (row: number) => (row - first) * HEIGHT + MIDDLE;
  const isMarked = (edge: Edge) => ancestors?.has(edge.to) && edge.kind !== 'replaced';
  const nodes = graph.rows.slice(first, last).map((each, k) => (
    <path
      key={each.seq} data-seq={each.seq} class={`node${each.seq === selected.value ? ' selected' : ''}${each.replacedBy >= 0 ? ' old' : ''}`}
      d={`M${x(each.column)} ${y(first + k) - 6}l6 6l-6 6l-6 -6z`}
    />
  ));
  const edges = graph.edges(first, last - 1).map(each => (
    <path key={`${each.kind} ${each.from} ${each.to}`} class={`edge-line ${each.kind}${isMarked(each) ? ' marked' : ''}`} d={edgePath(graph.rows, each, x, y, gap)} />
  ));
  return (
    <svg class="thought-graph" aria-hidden="true" width={x(MAX_COLUMNS)} height={(last - first) * HEIGHT} style={px({ top: first * HEIGHT })}>
      {edges}{nodes}
    </svg>
  );
}

/** Path of an edge. It leaves the column of one of its thoughts next to that thought, and is straight elsewhere. */
function edgePath(rows: Thought[], edge: Edge, x: (column: number) => number, y: (row: number) => number, gap: number): string {
  const { from, to, kind } = edge;
  const down = x(edgeColumn(rows, edge)) + (kind === 'replaced' ? gap / 2 : 0);
  const [left, right] = [x(rows[from].column), x(rows[to].column)];
  const [top, bottom] = [y(from), y(to)];
  const turn = Math.min(HEIGHT * 0.7, (bottom - top) / 2);
  const start = down === left ? `M${left} ${top}` : `M${left} ${top}C${left} ${top + turn} ${down} ${top} ${down} ${top + turn}`;
  const end = down === right ? `L${right} ${bottom}` : `L${down} ${bottom - turn}C${down} ${bottom} ${right} ${bottom - turn} ${right} ${bottom}`;
  return start + end;
}
