// The list of runs, newest first.

import { useEffect } from 'preact/hooks';
import type { RunInfo } from '../api.ts';
import { addWaiting, filterText, isReady, isSearching, loadMore, matching, next, runs, search, startPolling, unreachable, waiting } from '../runs.ts';
import { change, go, me } from '../store.ts';
import { toLine } from '../text.ts';
import { formatAge, formatDuration, formatNumber } from '../time.ts';
import { Filter, Header, State } from '../parts/header.tsx';
import { List } from '../parts/list.tsx';
import { px } from '../parts/px.ts';

export function RunsPage() {
  useEffect(startPolling, []);
  const text = filterText();
  useEffect(() => {
    const timer = setTimeout(() => void search(text), 150);
    return () => clearTimeout(timer);
  }, [text]);
  const shown = matching(runs.value, filterText());
  document.title = 'Runs · rxloop';
  return (
    <div class="page">
      <Header path={<h1>Runs</h1>}>
        {unreachable.value ? <span class="offline">not reached since {new Date(unreachable.value.since).toLocaleTimeString()}, trying again</span>
          : <span class="live"><span class="dot" /> live</span>}
      </Header>
      <nav class="tabs">
        <span class="count">{isReady.value && `${formatNumber(shown.length)} of ${formatNumber(runs.value.length)}${next.value ? '+' : ''} runs${isSearching() ? ', searching the log' : ''}`}</span>
        {waiting.value.length > 0 && <button class="new" onClick={addWaiting}>{waiting.value.length} new {waiting.value.length === 1 ? 'run' : 'runs'}</button>}
        <span class="space" />
        <Filter value={filterText()} label="Filter runs" hint="Filter: state:failed agent:support text" onChange={q => change({ q })} />
      </nav>
      <main class="body table runs">
        {shown.length ? (
          <List
            role="grid" label="Runs" columns={['state', 'asked', 'agent', 'model', 'calls', 'tokens', 'duration', 'age']} count={shown.length} height={36} current={-1}
            render={(k, top) => <RunRow key={shown[k].taskId} run={shown[k]} number={k} top={top} />}
          />
        ) : isReady.value && !isSearching() ? <Nothing /> : unreachable.value ? <div class="empty"><h2>The server cannot be reached</h2></div> : null}
        {next.value && <button class="older" onClick={() => void loadMore()}>Load older runs</button>}
      </main>
    </div>
  );
}

function RunRow({ run, number, top }: { run: RunInfo; number: number; top: number }) {
  const open = () => go({ page: 'run', taskId: run.taskId });
  const onKey = (event: KeyboardEvent) => {
    const rows = [...document.querySelectorAll<HTMLElement>('.runs [role=row][tabindex]')];
    const at = rows.indexOf(event.currentTarget as HTMLElement);
    if (event.key === 'Enter') open();
    else if (event.key === 'ArrowDown' || event.key === 'j') rows[at + 1]?.focus();
    else if (event.key === 'ArrowUp' || event.key === 'k') rows[at - 1]?.focus();
    else return;
    event.preventDefault();
  };
  const isActive = run.state === 'working' || run.state === 'submitted';
  const took = (isActive ? Date.now() : Date.parse(run.updated)) - Date.parse(run.created);
  const tokens = run.usage ? run.usage.inputTokens + run.usage.outputTokens : 0;
  return (
    <div class="row" role="row" aria-rowindex={number + 1} tabIndex={0} style={px({ top })} data-run={run.taskId} onClick={open} onKeyDown={onKey}>
      <span role="gridcell"><State state={run.state} /></span>
      <span role="gridcell" class="asked"><bdi>{toLine(run.title ?? '') || run.taskId}</bdi>{run.problems ? <span class="problems" title={`${run.problems} problems`}> ✕ {run.problems}</span> : null}</span>
      <span role="gridcell"><bdi>{toLine(run.agent)}</bdi></span>
      <span role="gridcell" class="quiet"><bdi>{toLine(run.model ?? '')}</bdi></span>
      <span role="gridcell" class="quiet">{run.calls === undefined ? '' : formatNumber(run.calls)}</span>
      <span role="gridcell">{tokens ? formatNumber(tokens) : '–'}</span>
      <span role="gridcell">{formatDuration(Math.max(took, 0))}</span>
      <span role="gridcell" class="quiet">{formatAge(Date.now() - Date.parse(run.updated))}</span>
    </div>
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
