// Two runs side by side, from their first difference on one time axis.

import { useEffect } from 'preact/hooks';
import { formatAddress } from '../address.ts';
import { choose, chosen, compareFailure, comparison, differences, eventFailure, eventOf, fetchAgain, openComparison, rows, sides, stepDifference, times, toggleStretch, type Side } from '../compare.ts';
import { compareEvents, describeCost, type ComparedRun, type Difference, type Row } from '../diff.ts';
import { family, letter } from '../kinds.ts';
import { address, inspectorWidth } from '../store.ts';
import { toLine } from '../text.ts';
import { formatDuration, formatNumber } from '../time.ts';
import { Header, State } from '../parts/header.tsx';
import { List } from '../parts/list.tsx';
import { px } from '../parts/px.ts';
import { Sections } from '../parts/sections.tsx';
import { Shape } from '../parts/shape.tsx';
import { Text } from '../parts/text.tsx';

export function DiffPage() {
  const { taskId, other } = address.value;
  useEffect(() => openComparison(taskId, other), [taskId, other]);
  const found = comparison.value;
  const failure = compareFailure.value;
  document.title = 'Comparison · rxloop';
  return (
    <div class="page">
      <Header path={<><Sections /><i>/</i><h1>Comparison</h1></>}>{failure && found && <span class="offline">{failure.message}</span>}</Header>
      <Steps />
      {failure && !found ? <Failure /> : (
        <main class="body diff" aria-busy={!found}>
          <div class="both table">
            <div class="heads">{found && sides.value.map((side, k) => <Head key={k} name={'AB'[k]} side={side} run={k ? found.b : found.a} hasShared={found.shared > 0 && !!found.at} />)}</div>
            {found && <Rows />}
          </div>
          {found?.at && <Details />}
        </main>
      )}
    </div>
  );
}

function Failure() {
  const { status, message } = compareFailure.value!;
  return (
    <main class="empty">
      <h2>{status === 404 ? 'No such run' : 'The runs could not be compared'}</h2>
      <p>{status === 404 ? 'One of the runs does not exist, or belongs to another user.' : message}</p>
      <p><button class="primary" onClick={() => { openComparison(address.value.taskId, address.value.other); }}>Again</button> <a href="#/">All runs</a></p>
    </main>
  );
}

function Steps() {
  const found = comparison.value;
  const count = differences.value.length;
  return (
    <nav class="tabs">
      <span class="count" role="status" title="Usage, checkpoints and other events without content are not compared.">
        {!found ? 'Comparing' : !found.at ? 'The runs are the same, event for event.' : found.shared ? `The first ${formatNumber(found.shared)} compared events are the same.` : 'The runs differ from their first event.'}
        {found?.more ? ` ${formatNumber(found.more)} further pairs are not shown.` : ''}
      </span>
      <span class="space" />
      {count > 0 && (
        <>
          <button aria-label="Difference before" title="Difference before (,)" onClick={() => stepDifference(-1)}>◂</button>
          <span class="count">difference {formatNumber(chosen.value)} of {formatNumber(count)}</span>
          <button aria-label="Next difference" title="Next difference (;)" onClick={() => stepDifference(1)}>▸</button>
        </>
      )}
    </nav>
  );
}

function Head({ name, side, run, hasShared }: { name: string; side: Side; run: ComparedRun; hasShared: boolean }) {
  const title = side.outline.label[0] || side.taskId;
  return (
    <section aria-label={`Run ${name}`}>
      <h2>{name} <a href={formatAddress({ page: 'run', taskId: side.taskId })}><bdi>{toLine(title)}</bdi></a> <State state={run.state} /></h2>
      <p class="quiet">{describeCost(run.cost, formatNumber)}</p>
      {hasShared && <p class="quiet">since the difference: {describeCost(run.costSince, formatNumber)}</p>}
    </section>
  );
}

interface Axis {
  /** Time of each event. */
  time: number[];
  /** Time of the first difference. */
  start: number;
  /** Longer time of both runs after the first difference. */
  span: number;
}

/** Return a time axis for each run. Both begin at the first difference and have the same length. */
function makeAxes(): Axis[] {
  const { at } = comparison.value!;
  const starts = sides.value.map(({ outline }, k) => (at ? times.value[k][outline.find(at[k] ?? outline.last)] ?? 0 : 0));
  const span = Math.max(...times.value.map((each, k) => (each.at(-1) ?? 0) - starts[k]), 1);
  return starts.map((start, k) => ({ time: times.value[k], start, span }));
}

function Rows() {
  const list = rows.value;
  const axes = makeAxes();
  const current = list.findIndex(each => each.difference === chosen.value && each.difference > 0);
  return (
    <List
      role="grid" label="Compared events" count={list.length} height={30} current={current}
      render={(k, top) => <PairRow key={k} row={list[k]} number={k} top={top} axes={axes} />}
    />
  );
}

const WORDS = { same: '', changed: '≠ changed', only: '± only here' };

function PairRow({ row, number, top, axes }: { row: Row; number: number; top: number; axes: Axis[] }) {
  const style = px({ top });
  if (row.folded) {
    return (
      <div class="row stretch" role="row" aria-rowindex={number + 1} style={style}>
        <span role="gridcell"><button class="more" aria-expanded={row.isOpen} onClick={() => toggleStretch(row.pair)}>{row.isOpen ? '▾' : '▸'} {formatNumber(row.folded)} equal {row.folded === 1 ? 'event' : 'events'}</button></span>
      </div>
    );
  }
  const isChosen = row.difference > 0 && row.difference === chosen.value;
  const select = () => { if (row.difference) choose(row.difference); };
  return (
    <div
      class={`row pair ${row.change}${isChosen ? ' selected' : ''}`} role="row" aria-rowindex={number + 1} aria-selected={isChosen} tabIndex={row.difference ? 0 : -1} style={style}
      data-a={row.a || undefined} data-b={row.b || undefined} onClick={select} onKeyDown={event => { if (event.key === 'Enter') select(); }}
    >
      {sides.value.map((side, k) => <Cell key={k} side={side} seq={k ? row.b : row.a} row={row} axis={axes[k]} />)}
    </div>
  );
}

const TRACK = 1000;

function Cell({ side, seq, row, axis: { time, start, span } }: { side: Side; seq: number; row: Row; axis: Axis }) {
  const { outline } = side;
  const i = seq ? outline.find(seq) : -1;
  if (i < 0 || outline.seq[i] !== seq) return <span role="gridcell" class="cell missing">{seq ? '…' : ''}</span>;
  const begin = time[outline.opens[i] ? outline.find(outline.opens[i]) : i];
  const toX = (ms: number) => Math.min(Math.max(((ms - start) / span) * TRACK, 0), TRACK);
  const which = family(outline.kind[i], outline.flags[i]);
  return (
    <span role="gridcell" class="cell">
      <Shape family={which} letter={letter(outline.kind[i])} />
      <b><bdi>{toLine(outline.name[i] || outline.kind[i])}</bdi></b>
      <span class="sub"><bdi>{toLine(outline.label[i])}</bdi></span>
      {row.difference > 0 && <small>{WORDS[row.change]}</small>}
      {row.difference > 0 && (
        <svg class="track" viewBox={`0 0 ${TRACK} 10`} preserveAspectRatio="none" aria-hidden="true">
          <rect class={which} x={toX(begin)} y="1" width={Math.max(toX(time[i]) - toX(begin), 6)} height="8" />
        </svg>
      )}
      <span class="took">{row.difference > 0 ? `+${formatDuration(Math.max(time[i] - start, 0))}` : ''}</span>
    </span>
  );
}

/** The parts in which the events of the selected difference differ. */
function Details() {
  const row = differences.value[chosen.value - 1];
  if (!row) return null;
  const [a, b] = sides.value;
  const [left, right] = [eventOf(a.taskId, row.a), eventOf(b.taskId, row.b)];
  const isLoading = left === undefined || right === undefined;
  const links = [['A', a, row.a], ['B', b, row.b]] as const;
  return (
    <aside class="inspector" aria-label="Difference" style={px({ width: inspectorWidth.value })}>
      <header>
        <div class="heading"><h2>{(left ?? right)?.kind ?? 'event'}</h2><span class="sub">{row.change === 'only' ? `only in ${row.a ? 'A' : 'B'}` : 'changed'}</span></div>
        <div class="facts">{links.map(([name, side, seq]) => seq > 0 && <a key={name} href={formatAddress({ page: 'run', taskId: side.taskId, at: `${side.outline.attemptOf(seq)}.${seq}.0` })}>{name}: seq {seq}</a>)}</div>
      </header>
      <div class="scroll">
        {isLoading && eventFailure.value ? <div class="section"><p>The events could not be loaded: {eventFailure.value.message}.</p><p><button onClick={fetchAgain}>Again</button></p></div>
          : isLoading ? <div class="section quiet">Loading the events…</div>
          : !left && !right ? <div class="section quiet">These events are hidden. Their content needs the scope <code>internal</code>.</div>
          : compareEvents(left, right).map(each => <Field key={each.path} difference={each} />)}
      </div>
    </aside>
  );
}

function Field({ difference: { path, parts } }: { difference: Difference }) {
  return (
    <section class="section">
      <h3 class="mono path"><bdi>{toLine(path)}</bdi></h3>
      <div class="block words">
        {parts.map((each, k) => (each.sign === '+' ? <ins key={k}><Text text={each.text} /></ins> : each.sign === '-' ? <del key={k}><Text text={each.text} /></del> : <Text key={k} text={each.text} />))}
      </div>
    </section>
  );
}
