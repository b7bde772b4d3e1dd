// Context of a run: the size of each request, compressions, and the requests that contained a message.

import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { moveTo } from '../commands.ts';
import { barAt, barWidth, drawBars, heightOf, labelEvery, scaleOf, ticksOf } from '../bars.ts';
import { readPalette } from '../draw.ts';
import { bodyOfKind } from '../bodies.ts';
import { textOf } from '../outline.ts';
import {
  cacheShare, cellPath, cellsOf, costsOf, describeCells, findCall, inputOf, isOmitted, interleave, PART_NAMES, PARTS, scaleParts, sumRows, trackOf, type Cell,
  type RequestRow,
} from '../requests.ts';
import { loadRows, requestFailure, requestOf, requestRows, retryRequest, retryRows, rowsFailure } from '../sent.ts';
import { change, isInspectorOpen, playhead, revision, selected, theme, useModel } from '../store.ts';
import { toLine } from '../text.ts';
import { formatDollars, formatNumber } from '../time.ts';
import { List } from '../parts/list.tsx';
import { px } from '../parts/px.ts';
import { Text } from '../parts/text.tsx';

const CHART = 200;

export function Context() {
  useModel();
  const all = requestRows.value;
  const [track, setTrack] = useState('');
  useLayoutEffect(loadRows);
  const tracks = useMemo(() => [...new Set((all ?? []).map(trackOf))], [all]);
  const shown = tracks.includes(track) ? track : tracks[0] ?? '';
  const rows = useMemo(() => (all ?? []).filter(each => trackOf(each) === shown), [all, shown]);
  if (!all) {
    const problem = rowsFailure.value;
    if (!problem) return <div class="context" aria-busy="true" />;
    return <div class="context empty"><p>The requests could not be loaded: {problem.message}.</p><p><button onClick={retryRows}>Again</button></p></div>;
  }
  if (!rows.length) return <div class="context"><div class="empty"><h2>No requests yet</h2><p>This run has not called a model.</p></div></div>;
  return (
    <div class="context">
      <Totals rows={rows}>
        {tracks.length > 1 && (
          <label>Requests of <select value={shown} onChange={event => setTrack(event.currentTarget.value)}>
            {tracks.map(each => <option key={each} value={each}>{each ? toLine(each) : 'the main branch'}</option>)}
          </select></label>
        )}
      </Totals>
      <Chart rows={rows} />
      <Requests rows={rows} />
      <Compressions rows={rows} />
      <Messages rows={rows} />
    </div>
  );
}

/** Open a request in the inspector. */
function openRequest(row: RequestRow): void {
  moveTo(row.seq);
  isInspectorOpen.value = true;
  change({ in: 'request' });
}

/** Index of the last request at the playhead. */
function currentOf(rows: readonly RequestRow[]): number {
  return selected.value ? rows.findLastIndex(each => each.seq <= playhead.value) : -1;
}

function Totals({ rows, children }: { rows: readonly RequestRow[]; children: unknown }) {
  const { input, cached, uncounted, saved } = sumRows(rows);
  return (
    <section class="section totals" aria-label="Totals">
      <dl class="legend-parts">
        {PARTS.map(each => <div key={each}><dt><i class={`swatch p-${each}`} />{PART_NAMES[each]}</dt></div>)}
        <div><dt><i class="swatch p-cached" />outline: from the cache</dt></div>
        {rows.some(each => each.window) && <div><dt><i class="swatch p-window" />line: context window</dt></div>}
      </dl>
      <p>
        <b>{formatNumber(rows.length)}</b> requests, <b>{formatNumber(input)}</b> input tokens{uncounted > 0 && ` (${formatNumber(uncounted)} requests estimated)`}, <b>{formatNumber(cached)}</b> of them from the cache
        {' '}(<b>{cacheShare(cached, input)} %</b>){saved !== null && <>. The cache has saved <b>{formatDollars(saved)}</b></>}
      </p>
      {children as never}
    </section>
  );
}

/** Bars of the requests. Only the visible ones are drawn. */
function Chart({ rows }: { rows: readonly RequestRow[] }) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [place, setPlace] = useState({ left: 0, width: 800 });
  const current = currentOf(rows);
  useLayoutEffect(() => {
    const read = () => setPlace({ left: box.current!.scrollLeft, width: box.current!.clientWidth });
    read();
    const observer = new ResizeObserver(read);
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  const bar = barWidth(rows.length, place.width);
  const scale = useMemo(() => scaleOf(rows), [rows]);
  useLayoutEffect(() => {
    drawBars(canvas.current!, readPalette(), { rows, scale, bar, left: place.left, width: place.width, height: CHART, current });
  }, [rows, scale, bar, place, current, theme.value]);
  const find = (event: PointerEvent | MouseEvent) => rows[barAt(rows.length, bar, event.clientX - canvas.current!.getBoundingClientRect().left + place.left)];
  const { input, cached } = sumRows(rows);
  const every = labelEvery(bar);
  const [first, last] = [Math.ceil(Math.max(place.left / bar - 1, 0) / every), Math.ceil(Math.min(rows.length, (place.left + place.width) / bar) / every)];
  const labels = Array.from({ length: Math.max(last - first, 0) }, (_, k) => (first + k) * every);
  return (
    <div class="chartbox">
      <div class="unit">input tokens per request</div>
      {ticksOf(scale).map(each => <span key={each} class="tick" aria-hidden="true" style={px({ top: heightOf(each, scale, CHART) + 16 })}>{formatNumber(each)}</span>)}
      <div class="chart" ref={box} tabIndex={0} role="group" aria-label="Chart of the requests" onScroll={() => setPlace({ left: box.current!.scrollLeft, width: box.current!.clientWidth })}>
        <div style={px({ width: Math.max(rows.length * bar, 1), height: CHART + 18 })}>
          <canvas
            ref={canvas} role="img" aria-label={`${rows.length} requests with ${input} input tokens, ${cached} of them from the cache. The table below has the numbers.`}
            onClick={event => { const row = find(event); if (row) openRequest(row); }}
            onPointerMove={event => { const row = find(event); canvas.current!.title = row ? `step ${row.step}: ${formatNumber(inputOf(row))} tokens` : ''; }}
          />
          {labels.map(k => <span key={k} class={k ? 'tick' : 'tick first'} aria-hidden="true" style={px({ left: k && (k + 0.5) * bar, top: CHART + 1 })}>{k ? toLine(rows[k].step ?? '') : `step ${toLine(rows[k].step ?? '')}`}</span>)}
        </div>
      </div>
    </div>
  );
}

const COLUMNS = ['request', 'seq', 'input', 'from the cache', ...PARTS.map(each => PART_NAMES[each]), 'cost'];

function Requests({ rows }: { rows: readonly RequestRow[] }) {
  const current = currentOf(rows);
  const { outline } = useModel();
  const costs = useMemo(() => costsOf(outline), [outline, revision.value]);
  return (
    <div class="table requests">
      <List role="grid" label="Requests" columns={COLUMNS} count={rows.length} height={28} current={current}
        render={(k, top) => <RequestLine key={rows[k].seq} row={rows[k]} cost={costs.get(rows[k].seq)} number={k} top={top} isSelected={k === current} isReachable={k === Math.max(current, 0)} />} />
    </div>
  );
}

function RequestLine({ row, cost, number, top, isSelected, isReachable }: { row: RequestRow; cost?: number; number: number; top: number; isSelected: boolean; isReachable: boolean }) {
  const parts = scaleParts(row);
  const cached = Math.min(row.tokens.cached ?? 0, inputOf(row));
  const open = () => openRequest(row);
  return (
    <div
      class={`row${isSelected ? ' selected' : ''}`} role="row" aria-rowindex={number + 1} aria-selected={isSelected} tabIndex={isReachable ? 0 : -1}
      style={px({ top })} data-seq={row.seq} onClick={open} onKeyDown={event => { if (event.key === 'Enter') open(); }}
    >
      <span role="gridcell">step {toLine(row.step ?? '')}{!row.exact && <span class="quiet"> rebuilt</span>}</span>
      <span role="gridcell" class="mono quiet">{row.seq}</span>
      <span role="gridcell" class="mono">{formatNumber(inputOf(row))}{row.tokens.counted === undefined && <span class="quiet"> est.</span>}</span>
      <span role="gridcell" class="mono">{cached ? `${formatNumber(cached)} (${cacheShare(cached, inputOf(row))} %)` : ''}</span>
      {parts.map((each, k) => <span key={k} role="gridcell" class="mono quiet">{each ? formatNumber(each) : ''}</span>)}
      <span role="gridcell" class="mono">{cost === undefined ? '' : formatDollars(cost)}</span>
    </div>
  );
}

/** Compressions of the shown branch, with the messages that they folded. */
function Compressions({ rows }: { rows: readonly RequestRow[] }) {
  const { outline } = useModel();
  const seqs = new Set(rows.map(each => each.seq));
  const found: { seq: number; call: number }[] = [];
  for (let i = 0; i < outline.size; i++) {
    if (outline.kind[i] !== 'context-compressed') continue;
    const call = findCall(outline, i);
    if (seqs.has(call)) found.push({ seq: outline.seq[i], call });
  }
  if (!found.length) return null;
  return (
    <section class="section" aria-label="Compressions">
      <h3>Compressions<span>{found.length}</span></h3>
      {found.map(each => <Compression key={each.seq} {...each} rows={rows} />)}
    </section>
  );
}

function Compression({ seq, call, rows }: { seq: number; call: number; rows: readonly RequestRow[] }) {
  const { outline } = useModel();
  const [isOpen, setOpen] = useState(false);
  const i = outline.find(seq);
  return (
    <article class="part">
      <button class="head" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <b>step {toLine(outline.step[i])}</b>
        <span>{formatNumber(outline.a[i])} to {formatNumber(outline.b[i])} tokens</span>
        <span class="count">seq {seq}</span>
      </button>
      {isOpen && <Folded seq={seq} call={call} rows={rows} />}
    </article>
  );
}

function Folded({ seq, call, rows }: { seq: number; call: number; rows: readonly RequestRow[] }) {
  const event = bodyOfKind(seq, 'context-compressed');
  const request = requestOf(call);
  if (!event || !request) return <Loading seq={call} />;
  const folded = new Set<number>(event.folded ?? []);
  const summary = request.parts.filter(each => each.from === 'summary');
  const cost = event.thinking ? `, ${formatNumber((event.thinking.inputTokens ?? 0) + (event.thinking.outputTokens ?? 0))} tokens of ${event.thinkingModel}` : '';
  return (
    <>
      <p class="quiet">{event.reason || 'overflow'}: {formatNumber(event.dropped ?? 0)} messages left out, {formatNumber(event.shortened ?? 0)} results shortened{toLine(cost)}{event.budgetUnmet && '. The request is still too large'}</p>
      {(event.problems ?? []).map((each, k) => <p key={k} class="rebuilt"><b>Repaired</b> <Text text={each} /></p>)}
      {summary.map((each, k) => <div key={k}><p class="caption-line">Summary, {formatNumber(each.tokens)} tokens</p><div class="block">{each.hidden ? 'hidden from clients' : <Text text={textOf(each.message?.content)} />}</div></div>)}
      <p class="caption-line">Left out and shortened</p>
      {interleave(request.parts, request.leftOut).filter(each => each.index !== undefined && folded.has(each.index)).map(each => (
        <div class="folded" key={each.index}>
          <span class="mono quiet">{each.index}</span><b>{each.role}</b><span class="mono">{formatNumber(each.tokens)}</span>
          <span class="preview">{isOmitted(each) ? (each.text === undefined ? 'hidden from clients' : <del><bdi>{toLine(each.text)}</bdi></del>) : <bdi>shortened: {toLine(textOf(each.message?.content)).slice(0, 200)}</bdi>}</span>
          <Cells rows={rows} index={each.index!} />
        </div>
      ))}
    </>
  );
}

/** The place of a request that is not known yet. */
function Loading({ seq }: { seq: number }) {
  const problem = requestFailure.value;
  if (problem?.seq !== seq) return <p class="quiet">Loading…</p>;
  return <p>The request could not be loaded: {problem.error.message}. <button onClick={retryRequest}>Again</button></p>;
}

/** Messages of the history, with a cell for each request. */
function Messages({ rows }: { rows: readonly RequestRow[] }) {
  const [isOpen, setOpen] = useState(false);
  const last = rows[rows.length - 1];
  return (
    <section class="section" aria-label="Messages">
      <h3><button class="more" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>Messages in each request</button><span>{formatNumber(last.history)}</span></h3>
      {isOpen && <MessageList rows={rows} last={last} />}
    </section>
  );
}

function MessageList({ rows, last }: { rows: readonly RequestRow[]; last: RequestRow }) {
  const request = requestOf(last.seq);
  if (!request) return <Loading seq={last.seq} />;
  const messages = interleave(request.parts, request.leftOut).filter(each => each.index !== undefined);
  return (
    <div class="table messages">
      <List role="table" isFocusable label="Messages in each request" columns={['index', 'role', 'requests', 'text']} count={messages.length} height={28} current={-1}
        render={(k, top) => {
          const each = messages[k];
          const text = isOmitted(each) ? each.text : each.hidden ? undefined : textOf((each.original ?? each.message)?.content) || (each.message?.toolCalls ?? []).map(call => call.name).join(', ');
          return (
            <div class="row" role="row" aria-rowindex={k + 1} key={each.index} style={px({ top })}>
              <span role="cell" class="mono quiet">{each.index}</span>
              <span role="cell">{each.role}</span>
              <span role="cell"><Cells rows={rows} index={each.index!} /></span>
              <span role="cell" class="quiet"><bdi>{text === undefined ? 'hidden from clients' : toLine(text.slice(0, 300))}</bdi></span>
            </div>
          );
        }} />
    </div>
  );
}

const KINDS: Cell[] = ['sent', 'shortened', 'rewritten', 'left out'];
const CELLS = 240;

/** Row of cells that shows the requests in which a message was sent, shortened or left out. */
function Cells({ rows, index }: { rows: readonly RequestRow[]; index: number }) {
  const cells = useMemo(() => cellsOf(rows, index), [rows, index]);
  const width = Math.min(10, CELLS / cells.length);
  const gap = width >= 4 ? 2 : 0;
  const words = describeCells(cells);
  return (
    <svg class="cells" role="img" aria-label={words} width={Math.ceil(width * cells.length)} height={14}>
      <title>{words}</title>
      {KINDS.map(kind => <path key={kind} class={`cell ${kind.replace(' ', '-')}`} transform={kind === 'left out' ? 'translate(0 10)' : kind === 'sent' ? undefined : 'translate(0 6)'} d={cellPath(cells, kind, width, kind === 'sent' ? 12 : kind === 'left out' ? 2 : 6, gap)} />)}
    </svg>
  );
}
