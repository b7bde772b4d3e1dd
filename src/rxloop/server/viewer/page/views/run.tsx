// One run: overview, marble lanes, waterfall, inspector and transport.

import type { FunctionComponent } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { TABS, type Tab } from '../address.ts';
import { pan, step, zoomAt } from '../commands.ts';
import { stepMatch } from '../find.ts';
import {
  address, change, connection, failure, filtered, go, goLive, info, isAtEnd, isInspectorOpen, isLoading, useModel, now, openRun, playhead,
  problems,
  playheadTime, shownWindow, words,
} from '../store.ts';
import { openCount } from '../questions.ts';
import { lists } from '../runs.ts';
import { toLine } from '../text.ts';
import { formatDollars, formatDuration, formatNumber, makeScale, plural } from '../time.ts';
import { AxisView } from '../parts/axis.tsx';
import { Figure, Filter, Header, State } from '../parts/header.tsx';
import { MatchBar } from '../parts/hits.tsx';
import { Inspector } from '../parts/inspector.tsx';
import { Lanes, Marker, PADDING } from '../parts/lanes.tsx';
import { Overview } from '../parts/overview.tsx';
import { Questions } from '../parts/question.tsx';
import { Send } from '../parts/send.tsx';
import { FileNote, isShareOpen, PublicNote, ShareButton, ShareDialog } from '../parts/share.tsx';
import { Transport } from '../parts/transport.tsx';
import { Waterfall } from '../parts/waterfall.tsx';
import { Context } from './context.tsx';
import { Conversation } from './conversation.tsx';
import { EventsTable } from './events.tsx';
import { Problems } from './problems.tsx';
import { Thoughts } from './thoughts.tsx';
import { px } from '../parts/px.ts';

const VIEWS: Record<Tab, { title: string; component: FunctionComponent }> = {
  timeline: { title: 'Timeline', component: Timeline },
  conversation: { title: 'Conversation', component: Conversation },
  thoughts: { title: 'Thoughts', component: Thoughts },
  context: { title: 'Context', component: Context },
  events: { title: 'Events', component: EventsTable },
  problems: { title: 'Problems', component: Problems },
};

export function RunPage() {
  const { outline } = useModel();
  const task = outline.label[0];
  const agent = info.value?.agent ?? outline.name[0] ?? '';
  const { taskId } = address.value;
  const listed = lists.value.runs.find(each => each.taskId === taskId);
  const isMissing = !!failure.value && !outline.size;
  const title = toLine(task || listed?.title || (outline.size || isMissing ? taskId : 'Waiting for the first event'));
  const View = VIEWS[address.value.tab].component;
  document.title = `${openCount.value ? `(${openCount.value}) ` : ''}${title} · rxloop`;
  return (
    <div class="page run">
      <Header path={<><a href="#/">Runs</a><i>/</i>{agent && <><span><bdi>{toLine(agent)}</bdi></span><i>/</i></>}<h1 title={title}><bdi>{title}</bdi></h1>{!isMissing && <State state={stateNow()} />}</>}>
        {!isMissing && <><Stats /><FileNote /><PublicNote /><ShareButton /></>}
      </Header>
      {!isMissing && <><Tabs /><MatchBar /></>}
      {isShareOpen.value && <ShareDialog />}
      {isMissing ? <Failure /> : (
        <main class="body">
          <View />
          {isInspectorOpen.value && <Inspector />}
        </main>
      )}
      <div class="acts"><Questions /><Send /></div>
      {!isMissing && <Transport />}
      <Marker />
    </div>
  );
}

/** State of the run at its newest event. */
function stateNow(): string {
  const { outline } = useModel();
  for (let i = outline.size - 1; i >= 0; i--) if (outline.kind[i] === 'status-update' && !outline.path[i]) return outline.name[i] || 'working';
  return info.value?.state ?? 'submitted';
}

function Stats() {
  const { rows, fold, outline } = useModel();
  const steps = rows.filter(row => row.kind === 'step' && row.first >= 0);
  const first = steps[0] && steps[0].first - steps[0].pieces.at(-1)!.from;
  const usage = info.value?.usage;
  const figures = fold.at(outline.size - 1);
  const cached = usage?.inputTokens && usage.cachedTokens ? `, ${Math.round((100 * usage.cachedTokens) / usage.inputTokens)} % cached` : '';
  return (
    <>
      {failure.value && <span class="offline">{failure.value.message}</span>}
      {!connection.value.isConnected && <span class="offline">not connected</span>}
      <Figure value={formatDuration(now.value)} label="elapsed" />
      {first !== undefined && <Figure value={formatDuration(first)} label="first token" />}
      <Figure value={formatNumber(figures.calls)} label={plural(figures.calls, 'model call')} />
      <Figure value={formatNumber(figures.tokens)} label={`tokens${cached}`} />
      {figures.dollars > 0 && <Figure value={formatDollars(figures.dollars)} label="cost" />}
    </>
  );
}

function Tabs() {
  const { outline, rows } = useModel();
  const count = problems.value?.length ?? 0;
  const { tab, q } = address.value;
  const found = filtered.value;
  return (
    <nav class="tabs" aria-label="Views">
      <div role="tablist">
        {TABS.map(name => (
          <button role="tab" key={name} aria-selected={tab === name} onClick={() => go({ ...address.value, tab: name })}>
            {VIEWS[name].title}
            {name === 'events' && <> <small>{formatNumber(outline.size)}</small></>}
            {name === 'problems' && <> <small class={count ? 'bad' : ''}>{count}</small></>}
          </button>
        ))}
      </div>
      <span class="space" />
      {found && <span class="count">{formatNumber(found.hits.length)} of {formatNumber(rows.length)} rows</span>}
      <span onKeyDown={event => { if (event.key === 'Enter') goToMatch(event.shiftKey ? -1 : 1); }}>
        <Filter value={q} label="Filter" hint="Find text, or filter: kind:tool ok:no >2s" onChange={text => change({ q: text })} />
      </span>
      <span class="sticky">
        {!isAtEnd.value && <button class="narrow" onClick={goLive}>{outline.final ? 'To the end' : 'Go live'}</button>}
        {!isInspectorOpen.value && <button onClick={() => { isInspectorOpen.value = true; }}>Inspector</button>}
      </span>
    </nav>
  );
}

/** Words lead to the texts that contain them, other filters to the events of matching rows. */
function goToMatch(direction: 1 | -1): void {
  if (words.value) void stepMatch(direction);
  else step(direction);
}

function Timeline() {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(800);
  useLayoutEffect(() => {
    const element = box.current!;
    const read = () => setWidth(Math.max(element.clientWidth - gutter() - 2 * PADDING, 80));
    read();
    const observer = new ResizeObserver(read);
    observer.observe(element);
    // Listening to the wheel of the whole element keeps the browser from zooming the page.
    const onWheel = (event: WheelEvent) => wheel(event, element);
    element.addEventListener('wheel', onWheel, { passive: false });
    return () => (observer.disconnect(), element.removeEventListener('wheel', onWheel));
  }, []);
  const { rows, outline } = useModel();
  if (isLoading.value && !outline.size) return <div class="timeline" ref={box} aria-busy="true" />;
  const scale = makeScale(useModel().axis, shownWindow.value, width);
  const x = scale(playheadTime.value);
  return (
    <div class="timeline" ref={box}>
      <div class="band"><div class="gutter caption">Overview<span>tokens per second</span></div><Overview width={width} /></div>
      <div class="band ruler"><div class="gutter caption">Marbles<span title="Each letter is a kind of event. The tab Events lists them.">a letter per event kind</span></div><AxisView width={width} /></div>
      <Lanes width={width} />
      <div class="band ruler legend">
        <div class="gutter caption">Waterfall<span>{formatNumber(rows.length)} {plural(rows.length, 'row')}</span></div>
        <div class="keys"><span class="key waits" />waits, first token, streams<span class="key tool" />tool<span class="key agent" />nested agent<span class="key failed">✕</span>failed</div>
      </div>
      <Waterfall width={width} />
      <div class="overlay" style={px({ left: gutter() + PADDING })}>
        {!isAtEnd.value && x > -4 && x < width + PADDING && <span class="future" style={px({ left: x + 1 })} />}
        {!isAtEnd.value && x >= -4 && x <= width + PADDING && <span class="head" style={px({ left: x - 1 })} data-seq={playhead.value} />}
      </div>
    </div>
  );
}

function gutter(): number {
  return innerWidth < 700 ? 120 : 284;
}

/** Ctrl and the wheel zoom at the pointer, Shift and the wheel pan. */
function wheel(event: WheelEvent, element: HTMLElement): void {
  const inner = Math.max(element.clientWidth - gutter() - 2 * PADDING, 1);
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    return pan((event.deltaX || event.deltaY) / inner);
  }
  if (!event.ctrlKey) return;
  event.preventDefault();
  const share = (event.clientX - element.getBoundingClientRect().left - gutter() - PADDING) / inner;
  const { from, to } = shownWindow.value;
  zoomAt(Math.exp(event.deltaY / 300), from + share * (to - from));
}

function Failure() {
  const problem = failure.value!;
  const text = problem.status === 404 ? 'There is no run with this id, or it belongs to another user.'
    : problem.status === 410 ? 'This run was removed from the log.'
    : problem.message;
  return (
    <main class="empty">
      <h2>{problem.status === 404 ? 'No such run' : problem.status === 410 ? 'Removed' : 'The run could not be loaded'}</h2>
      <p>{text}</p>
      <p><button class="primary" onClick={() => void openRun(address.value.taskId)}>Again</button> <a href="#/">All runs</a></p>
    </main>
  );
}
