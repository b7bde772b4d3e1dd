// Inspector: the selected event in words, and as it is stored.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { moveTo } from '../commands.ts';
import { describeCode } from '../failures.ts';
import { family, letter } from '../kinds.ts';
import { textOf, type Event, type EventOf } from '../outline.ts';
import { bodiesRevision, bodyFailure, bodyOf, bodyOfKind } from '../bodies.ts';
import { place } from '../find.ts';
import { address, change, currentMatches, info, inspectorWidth, isInspectorOpen, keepSetting, useModel, selected, words } from '../store.ts';
import { toLine } from '../text.ts';
import { formatDuration, formatNumber } from '../time.ts';
import { findCall } from '../requests.ts';
import { Fork, ForkButton } from './fork.tsx';
import { STATE_WORDS } from './header.tsx';
import { Json, JsonDocument } from './json.tsx';
import { bringIntoView, highlight } from './ranges.ts';
import { RequestTab } from './request.tsx';
import { Shape } from './shape.tsx';
import { ChangedGoals, StateTab } from './state.tsx';
import { Block, EventNote, EventParts } from './text.tsx';
import { px } from './px.ts';

export function Inspector() {
  const { outline } = useModel();
  const i = selected.value ? outline.find(selected.value) : -1;
  const onDown = (event: PointerEvent) => {
    const handle = event.currentTarget as HTMLElement;
    handle.setPointerCapture(event.pointerId);
    const move = (next: PointerEvent) => { inspectorWidth.value = Math.min(Math.max(innerWidth - next.clientX, 320), 720); };
    handle.addEventListener('pointermove', move);
    handle.addEventListener('lostpointercapture', () => {
      handle.removeEventListener('pointermove', move);
      keepSetting('width', String(inspectorWidth.value));
    }, { once: true });
  };
  const onKey = (event: KeyboardEvent) => {
    const wider = { ArrowLeft: 20, ArrowRight: -20 }[event.key];
    if (!wider) return;
    event.preventDefault();
    event.stopPropagation();
    inspectorWidth.value = Math.min(Math.max(inspectorWidth.value + wider, 320), 720);
    keepSetting('width', String(inspectorWidth.value));
  };
  return (
    <aside class="inspector" aria-label="Inspector" style={px({ width: inspectorWidth.value })}>
      <span
        class="grip" role="separator" aria-label="Width of the inspector" aria-orientation="vertical" tabIndex={0}
        aria-valuemin={320} aria-valuemax={720} aria-valuenow={inspectorWidth.value} onPointerDown={onDown} onKeyDown={onKey}
      />
      {i < 0 ? <Summary /> : <Selected index={i} />}
    </aside>
  );
}

function Head({ shape, title, sub, action, children }: { shape: ComponentChildren; title: string; sub: string; action?: ComponentChildren; children: ComponentChildren }) {
  return (
    <header>
      <div class="heading">{shape}<h2>{title}</h2><span class="sub"><bdi>{toLine(sub)}</bdi></span>
        {action}<button class="plain" aria-label="Close the inspector" onClick={() => { isInspectorOpen.value = false; }}>✕</button>
      </div>
      <div class="facts">{children}</div>
    </header>
  );
}

/** The run itself, while no event is selected. */
function Summary() {
  const { outline } = useModel();
  const run = info.value;
  const task = outline.size ? bodyOfKind(outline.seq[0], 'task') : undefined;
  if (!run) return <div class="section quiet">…</div>;
  const failed = run.error?.message ?? (run.state === 'failed' ? run.reason : undefined);
  return (
    <>
      <Head shape={<Shape family="run" isHollow />} title="run" sub={run.agent}>
        <span>{STATE_WORDS[run.state] ?? run.state}</span><span>{new Date(run.created).toLocaleString()}</span><span class="mono">{run.taskId.slice(-8)}</span>
      </Head>
      <div class="scroll">
        {task && <Section title="Asked">{task.messages.map((each, k) => <Block key={k} text={textOf(each.content)} />)}</Section>}
        {run.content && <Section title="Answer"><Block text={run.content} /></Section>}
        {failed && <Section title="Failed" isFailed><Block text={failed} /></Section>}
        {(run.pending ?? []).map((each, k) => <Section title="Waits for an answer" key={k}><Block text={each.prompt ?? ''} /></Section>)}
        {run.usage && (
          <Section title="Tokens">
            <Facts pairs={[['input', formatNumber(run.usage.inputTokens)], ['from the cache', formatNumber(run.usage.cachedTokens ?? 0)], ['output', formatNumber(run.usage.outputTokens)]]} />
          </Section>
        )}
        <Section title="Run"><Facts pairs={[['id', run.taskId], ['conversation', run.contextId], ...(run.owner ? [['owner', run.owner] as [string, string]] : [])]} /></Section>
        <p class="section quiet">Select a marble or a row to see its event. Press <kbd>?</kbd> for the keys.</p>
      </div>
    </>
  );
}

/** Tabs of the inspector. */
const PANELS = { event: 'Event', request: 'Request', state: 'State', json: 'JSON' } as const;

function Selected({ index: i }: { index: number }) {
  const { outline, taskId } = useModel();
  const seq = outline.seq[i];
  const event = bodyOf(seq);
  const call = findCall(outline, i);
  const panels = (Object.keys(PANELS) as (keyof typeof PANELS)[]).filter(name => name !== 'request' || call);
  const tab = panels.find(name => name === address.value.in) ?? 'event';
  const kind = outline.kind[i];
  const which = family(kind, outline.flags[i]);
  const box = useRef<HTMLDivElement>(null);
  const isMatch = currentMatches.value?.hits[place.value]?.seq === seq;
  useEffect(() => {
    const [first] = highlight('match', box.current, words.value);
    if (isMatch) bringIntoView(first);
    return () => void CSS.highlights?.delete('match');
  }, [seq, event, tab, words.value, isMatch && place.value]);
  return (
    <>
      <Head shape={<Shape family={which} letter={letter(kind)} />} title={kind} sub={outline.name[i]} action={<ForkButton seq={seq} />}>
        <span>seq {seq}</span><span>+{formatDuration(outline.time[i])}</span>
        {outline.step[i] && <span>step {outline.step[i]}</span>}
        <span>attempt {outline.attemptOf(seq)}</span>
        <span class="mono" title="End of the cursor of this event: run, attempt, seq and fragment">…{taskId.slice(-2)}/{outline.attemptOf(seq)}.{seq}.0</span>
      </Head>
      <div class="tabs small" role="tablist">
        {panels.map(name => (
          <button key={name} role="tab" aria-selected={tab === name} onClick={() => change({ in: name })}>{PANELS[name]}</button>
        ))}
      </div>
      <div class="scroll" role="tabpanel" ref={box}>
        <Fork seq={seq} />
        {tab === 'state' ? <StateTab seq={seq} />
          : tab === 'request' ? <RequestTab seq={call} />
          : event === undefined ? <Pending />
          : event === null ? <div class="section quiet">This event is hidden. Its content needs the scope <code>internal</code>.</div>
          : <EventParts seq={seq}><EventNote seq={seq} />{tab === 'json' ? <div class="section"><JsonDocument value={event} name={`${taskId}-${seq}`} /></div> : <Content event={event} />}</EventParts>}
        {tab === 'event' && <Links index={i} />}
      </div>
    </>
  );
}

/** The place of an event whose body is not known yet. */
function Pending() {
  const problem = bodyFailure.value;
  if (!problem) return <div class="section quiet">Loading the event…</div>;
  return (
    <div class="section">
      <p>The event could not be loaded: {problem.message}.</p>
      <p><button onClick={() => { bodyFailure.value = null; bodiesRevision.value++; }}>Again</button></p>
    </div>
  );
}

/** Links to the event that this one ended, and to the end of this one. */
function Links({ index: i }: { index: number }) {
  const { outline, rowOf } = useModel();
  const row = rowOf[i];
  const start = outline.opens[i];
  const end = row && row.id === outline.seq[i] && row.end !== row.id ? row.end : 0;
  if (outline.kind[i] === 'thought-stream') return <ThoughtLinks index={i} />;
  if (!start && !end) return null;
  const describe = (seq: number) => `${outline.kind[outline.find(seq)]}, seq ${seq}`;
  return (
    <Section title="Related">
      {start > 0 && <button class="link" onClick={() => moveTo(start)}>begins with {describe(start)}</button>}
      {end > 0 && <button class="link" onClick={() => moveTo(end)}>ends with {describe(end)}</button>}
    </Section>
  );
}

/** Links to the thoughts that a thought refers to. */
function ThoughtLinks({ index: i }: { index: number }) {
  const { graph } = useModel();
  const thought = graph.rows[graph.find(useModel().outline.seq[i])];
  if (!thought) return null;
  const links = ([['follows', thought.parent], ['replaces', thought.replaced], ['merges', thought.merged], ['replaced by', thought.replacedBy]] as const)
    .filter(([, row]) => row >= 0);
  if (!links.length) return null;
  return (
    <Section title="Related">
      {links.map(([word, row]) => <button class="link" key={word} onClick={() => moveTo(graph.rows[row].seq)}>{word} thought {row + 1}, seq {graph.rows[row].seq}</button>)}
    </Section>
  );
}

function Section({ title, aside, isFailed, children }: { title: string; aside?: string; isFailed?: boolean; children: ComponentChildren }) {
  return (
    <section class="section">
      <h3 class={isFailed ? 'failed' : ''}>{title}{aside && <span>{aside}</span>}</h3>
      {children}
    </section>
  );
}

function Facts({ pairs }: { pairs: [string, string][] }) {
  return <dl class="pairs">{pairs.map(([name, value]) => <div key={name}><dt>{name}</dt><dd><bdi>{toLine(value)}</bdi></dd></div>)}</dl>;
}

function Data({ title, value, aside }: { title: string; value: unknown; aside?: string }) {
  if (value == null || value === '') return null;
  return (
    <Section title={title} aside={aside}>
      {typeof value === 'string' ? <Block text={value} /> : <div class="block mono"><Json value={value} /></div>}
    </Section>
  );
}

/** The content of an event, in the terms of its kind. */
function Content({ event }: { event: Event }) {
  switch (event.kind) {
    case 'task': return <>{event.messages.map((each, k) => <Data key={k} title={each.role} value={textOf(each.content)} />)}</>;
    case 'tool-start': return <Data title="Call" value={event.call.arguments} aside={event.call.id} />;
    case 'tool-complete': return <ToolResult event={event} />;
    case 'content-complete': return <Message event={event} />;
    case 'thought-stream': return <Thought event={event} />;
    case 'llm-call': return <Request event={event} />;
    case 'llm-failed': return (
      <Section title="Failed" isFailed aside={event.status ? `status ${event.status}` : undefined}>
        <Block text={event.error?.message ?? ''} />
        <p class="quiet">{event.retryIn == null ? 'The request is not repeated.' : `The request is repeated after ${formatDuration(event.retryIn * 1000)}.`}</p>
      </Section>
    );
    case 'usage': return (
      <Section title="Tokens">
        <Facts pairs={[['input', formatNumber(event.inputTokens ?? 0)], ['from the cache', formatNumber(event.cachedTokens ?? 0)], ['output', formatNumber(event.outputTokens ?? 0)], ['reasoning', formatNumber(event.reasoningTokens ?? 0)]]} />
      </Section>
    );
    case 'goals-updated': return event.parentTaskId ? <Data title="Goals" value={event.goals} /> : <ChangedGoals seq={event.seq} />;
    case 'input-required': return <><Data title="Question" value={event.input?.prompt} /><Data title="Options" value={event.input?.options} /></>;
    case 'message-added': return <Data title={event.cause ?? 'Message'} value={textOf(event.content)} />;
    case 'context-compressed': return (
      <>
        <Section title="Tokens"><Facts pairs={[['before', formatNumber(event.tokensBefore)], ['after', formatNumber(event.tokensAfter)], ['reason', event.reason ?? ''], ['left out', `${event.dropped ?? 0} messages`], ['shortened', `${event.shortened ?? 0} results`]]} /></Section>
        <Data title="Summary" value={event.summary} />
      </>
    );
    case 'status-update': return (
      <>
        <Section title="State"><Facts pairs={[['state', event.state], ...(event.reason ? [['reason', event.reason] as [string, string]] : [])]} /></Section>
        {event.error && <Section title="Failed" isFailed aside={event.error.code}><Block text={event.error.message} /></Section>}
        {event.content && <Data title="Answer" value={event.content} />}
      </>
    );
    default: return <div class="section"><div class="block mono"><Json value={withoutEnvelope(event)} /></div></div>;
  }
}

const ENVELOPE = new Set(['version', 'kind', 'contextId', 'taskId', 'seq', 'sub', 'attempt', 'timestamp', 'parentTaskId', 'agentPath', 'step', 'branch', 'metadata']);

function withoutEnvelope(event: Event): Record<string, unknown> {
  return Object.fromEntries(Object.entries(event).filter(([name, value]) => !ENVELOPE.has(name) && value !== null));
}

function ToolResult({ event }: { event: EventOf<'tool-complete'> }) {
  const took = event.duration == null ? undefined : `took ${formatDuration(event.duration * 1000)}`;
  const isSame = typeof event.result === 'string' && event.result === event.content;
  return (
    <>
      <Data title="Call" value={event.call.arguments} aside={took} />
      {event.success ? <Data title="Result" value={event.result} /> : <Section title={event.code ? `Failed: ${describeCode(event.code)}` : 'Failed'} isFailed><Block text={event.error ?? ''} /></Section>}
      {!isSame && event.content !== event.error && <Data title="What the model read" value={textOf(event.content)} />}
    </>
  );
}

function Message({ event }: { event: EventOf<'content-complete'> }) {
  const first = event.firstToken == null ? undefined : `first token after ${formatDuration(event.firstToken * 1000)}`;
  const calls = event.toolCalls ?? [];
  return (
    <>
      {event.reasoning && <Data title="Reasoning" value={event.reasoning} />}
      {event.content && <Data title="Text" value={event.content} aside={first} />}
      {calls.map(each => <Data key={each.id} title={`Calls ${each.name}`} value={each.arguments} aside={each.id} />)}
      <Section title="End"><Facts pairs={[['finish reason', event.finishReason ?? ''], ...(event.maxTokens ? [['limit', formatNumber(event.maxTokens)] as [string, string]] : [])]} /></Section>
    </>
  );
}

function Thought({ event }: { event: EventOf<'thought-stream'> }) {
  const confidence = event.confidence == null ? undefined : `confidence ${event.confidence}`;
  return (
    <>
      <Data title={event.thoughtType ?? 'Thought'} value={event.content} aside={confidence} />
      {event.alternatives && event.alternatives.length > 0 && <Data title="Alternatives" value={event.alternatives} />}
      <Section title="Place"><Facts pairs={[['id', event.thoughtId ?? ''], ['related to', event.relatedTo ?? '—'], ['source', event.source ?? '']]} /></Section>
    </>
  );
}

/** A request to the model, with the text that has arrived so far. */
function Request({ event }: { event: EventOf<'llm-call'> }) {
  const key = `${event.parentTaskId ? event.taskId : ''} ${event.branch ?? ''} ${event.step ?? ''}`;
  const live = useModel().live.get(key);
  return (
    <>
      <Section title="Request"><Facts pairs={[['model', event.model], ['messages', formatNumber(event.messageCount)], ['tools', formatNumber(event.toolCount)], ['estimated tokens', formatNumber(event.estimatedInputTokens)]]} /></Section>
      {live?.text && <Data title="Text so far" value={live.text} />}
      {event.problems && event.problems.length > 0 && <Data title="Repaired" value={event.problems} />}
    </>
  );
}
