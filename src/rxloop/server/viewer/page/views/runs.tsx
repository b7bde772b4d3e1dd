// The list of runs, newest first.

import { useEffect } from 'preact/hooks';
import type { RunInfo } from '../api.ts';
import { searchTexts } from '../findings.ts';
import { matching, parseTerms, setTerm, STATES, toggleGroups, toHeights, toItems, type Item, type Key } from '../runlist.ts';
import { addWaiting, compareMarked, filterText, followRuns, found, isReady, isSearching, lists, loadMore, mark, marked, next, search, unreachable } from '../runs.ts';
import { change, go, me } from '../store.ts';
import { toLine } from '../text.ts';
import { formatAge, formatDollars, formatDuration, formatNumber, plural } from '../time.ts';
import { Filter, Header, State } from '../parts/header.tsx';
import { Hits } from '../parts/hits.tsx';
import { List } from '../parts/list.tsx';
import { px } from '../parts/px.ts';
import { Sections } from '../parts/sections.tsx';

export function RunsPage() {
  useEffect(followRuns, []);
  const text = filterText();
  useEffect(() => {
    const timer = setTimeout(() => {
      void search(text);
      void searchTexts(parseTerms(text).text);
    }, 150);
    return () => clearTimeout(timer);
  }, [text]);
  const { runs, waiting } = lists.value;
  const { isGrouped } = parseTerms(text);
  const shown = matching(runs, text, found.value.text === text ? found.value.runs : []);
  const items = toItems(shown, isGrouped);
  const hasOwners = me.value?.may.others && runs.some(run => run.owner);
  const news = waiting.length;
  document.title = 'Runs · rxloop';
  return (
    <div class="page">
      <Header path={<Sections />}><Connection /></Header>
      <nav class="tabs">
        <span class="count">{isReady.value && `${shown.length < runs.length ? `${formatNumber(shown.length)} of ` : ''}${formatNumber(runs.length)}${next.value ? '+' : ''} ${plural(runs.length, 'run')}${isSearching() ? ', searching the log' : ''}`}</span>
        {news > 0 && <button class="new" title="Show the new runs (.)" onClick={addWaiting}>{news} new {news === 1 ? 'run' : 'runs'}</button>}
        {marked.value.length === 2 && <button class="new" title="Compare the marked runs (m)" onClick={compareMarked}>Compare</button>}
        <span class="space" />
        <Choices text={text} runs={runs} />
        <button aria-pressed={isGrouped} onClick={() => change({ q: toggleGroups(text) })}>By conversation</button>
        <Filter value={text} label="Filter runs" hint="Filter: state:failed since:7d text" onChange={q => change({ q })} />
      </nav>
      <main class={`body table runs${hasOwners ? ' owned' : ''}`}>
        {items.length ? (
          <List
            role="grid" label="Runs" count={items.length} height={36} current={-1}
            columns={['state', 'asked', 'agent', ...(hasOwners ? ['owner'] : []), 'model', 'tool calls', 'tokens', 'cost', 'rate', 'duration', 'age']}
            render={(k, top) => <Row key={key(items[k])} item={items[k]} number={k} top={top} hasOwner={!!hasOwners} />}
          />
        ) : isReady.value && !isSearching() ? <Nothing /> : unreachable.value ? <div class="empty"><h2>The server cannot be reached</h2></div> : null}
        {next.value && <button class="older" onClick={() => void loadMore()}>Load older runs</button>}
        <Hits />
      </main>
    </div>
  );
}

const AGES: [value: string, label: string][] = [['1h', 'last hour'], ['24h', 'last 24 hours'], ['7d', 'last 7 days'], ['30d', 'last 30 days']];

/** Lists of values for the terms of the filter. */
function Choices({ text, runs }: { text: string; runs: RunInfo[] }) {
  const terms = parseTerms(text);
  const values = (name: 'agent' | 'model' | 'owner') => [...new Set(runs.map(run => run[name] ?? '').filter(Boolean))].sort().slice(0, 200).map((each): [string, string] => [each, each]);
  const choices: [Key, [string, string][]][] = [
    ['state', STATES.map(each => [each, each])], ['agent', values('agent')], ['model', values('model')],
    ...(me.value?.may.others ? [['owner', values('owner')] as [Key, [string, string][]]] : []), ['since', AGES],
  ];
  return <>{choices.map(([name, options]) => <Choice key={name} name={name} value={terms[name]} options={options} onChange={value => change({ q: setTerm(text, name, value) })} />)}</>;
}

function Choice({ name, value, options, onChange }: { name: Key; value: string; options: [string, string][]; onChange: (value: string) => void }) {
  const isKnown = !value || options.some(each => each[0] === value);
  return (
    <label class={`choice${value ? ' active' : ''}`}>
      <select aria-label={name} value={value} onChange={event => onChange(event.currentTarget.value)}>
        <option value="">{name}</option>
        {(isKnown ? options : [[value, value], ...options]).map(([each, label]) => <option key={each} value={each}>{toLine(label)}</option>)}
      </select>
    </label>
  );
}

const key = ({ kind, run }: Item): string => `${kind} ${run.taskId}`;

function Connection() {
  const lost = unreachable.value;
  if (!lost) return <span class="live"><span class="dot" /> live</span>;
  const seconds = Math.max(Math.round((lost.retryAt - Date.now()) / 1000), 1);
  return <span class="offline">not reached since {new Date(lost.since).toLocaleTimeString()}, trying again in {seconds} s</span>;
}

function Row({ item, number, top, hasOwner }: { item: Item; number: number; top: number; hasOwner: boolean }) {
  if (item.kind === 'run') return <RunRow run={item.run} number={number} top={top} isInGroup={item.isInGroup} hasOwner={hasOwner} />;
  return (
    <div class="row group" role="row" aria-rowindex={number + 1} style={px({ top })} data-context={item.run.contextId}>
      <span role="gridcell">{item.count} {item.count === 1 ? 'run' : 'runs'}</span>
      <span role="gridcell"><bdi>{toLine(item.run.title ?? '') || item.run.contextId}</bdi></span>
    </div>
  );
}

function RunRow({ run, number, top, isInGroup, hasOwner }: { run: RunInfo; number: number; top: number; isInGroup: boolean; hasOwner: boolean }) {
  const open = () => go({ page: 'run', taskId: run.taskId });
  const isMarked = marked.value.includes(run.taskId);
  const onKey = (event: KeyboardEvent) => {
    if (event.key === 'Enter') open();
    else if (event.key === ' ') mark(run.taskId);
    else return;
    event.preventDefault();
  };
  const isActive = run.state === 'working' || run.state === 'submitted';
  const took = run.seconds === undefined ? null : run.seconds * 1000 + (isActive ? Date.now() - Date.parse(run.updated) : 0);
  const tokens = run.usage ? run.usage.inputTokens + run.usage.outputTokens : 0;
  return (
    <div
      class={`row${isMarked ? ' selected' : ''}${isInGroup ? ' inner' : ''}`} role="row" aria-rowindex={number + 1} aria-selected={isMarked} tabIndex={0}
      style={px({ top })} data-run={run.taskId} onClick={open} onKeyDown={onKey}
    >
      <span role="gridcell">
        <label class="marker" title="Mark to compare two runs (Space)" onMouseDown={event => event.preventDefault()} onClick={event => event.stopPropagation()}>
          <input type="checkbox" tabIndex={-1} aria-label="Mark" checked={isMarked} onChange={() => mark(run.taskId)} />
        </label>
        <State state={run.state} />
      </span>
      <span role="gridcell" class="asked">
        {run.forkOf && <span class="quiet" title={`Fork of ${run.forkOf}`}>↳ </span>}
        <bdi>{toLine(run.title ?? '') || run.taskId}</bdi><Count run={run} />
      </span>
      <span role="gridcell"><bdi>{toLine(run.agent)}</bdi></span>
      {hasOwner && <span role="gridcell" class="quiet"><bdi>{toLine(run.owner ?? '')}</bdi></span>}
      <span role="gridcell" class="quiet"><bdi>{toLine(run.model ?? '')}</bdi></span>
      <span role="gridcell" class="quiet">{run.calls === undefined ? '' : formatNumber(run.calls)}</span>
      <span role="gridcell">{tokens ? formatNumber(tokens) : '–'}</span>
      <span role="gridcell">{run.dollars === undefined ? '' : formatDollars(run.dollars)}</span>
      <span role="gridcell"><Sparkline values={run.tokenRate ?? []} /></span>
      <span role="gridcell">{took === null ? '' : formatDuration(Math.max(took, 0))}</span>
      <span role="gridcell" class="quiet">{formatAge(Date.now() - Date.parse(run.updated))}</span>
    </div>
  );
}

/** Number of problems. The open questions of a waiting run are problems, but not failures. */
function Count({ run }: { run: RunInfo }) {
  const count = run.problems ?? 0;
  const waits = run.state === 'input-required' || run.state === 'auth-required';
  if (waits) return count > 1 ? <span class="quiet" title="Open questions and other problems"> {formatNumber(count)} problems</span> : null;
  return count ? <span class="problems" title={`${formatNumber(count)} ${plural(count, 'problem')}`}> ✕ {formatNumber(count)}</span> : null;
}

const BAR = 5;
const HEIGHT = 16;

/** Tokens over the time of a run. */
function Sparkline({ values }: { values: number[] }) {
  if (!values.some(Boolean)) return null;
  return (
    <svg class="sparkline" width={values.length * BAR} height={HEIGHT} role="img" aria-label={`tokens over time: ${values.join(', ')}`}>
      {toHeights(values).map((height, k) => <rect key={k} x={k * BAR} y={HEIGHT * (1 - height)} width={BAR - 1} height={HEIGHT * height} />)}
    </svg>
  );
}

function Nothing() {
  const text = filterText();
  if (text) return <div class="empty"><h2>No run matches</h2><p>“{text}” <button onClick={() => change({ q: '' })}>Clear the filter</button></p></div>;
  return (
    <div class="empty">
      <h2>No run yet</h2>
      <p>Runs appear here as soon as they start:</p>
      <pre>rxloop demo --view{'\n'}rxloop run "Compare the weather in Oslo and Bergen."{'\n'}rxloop view</pre>
      {me.value && !me.value.may.others && <p class="quiet">You see the runs of {me.value.principal || 'everybody'}.</p>}
    </div>
  );
}
