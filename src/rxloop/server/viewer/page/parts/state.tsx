// Tab of the inspector: the state of the run after the selected event, with the changes since another event.

import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { moveTo } from '../commands.ts';
import { compareGoals, findGoals, statusOf, type GoalLine } from '../goals.ts';
import { textOf } from '../outline.ts';
import { compareFigures, compareItems, countChanges, EMPTY, listFigures, States, type Line, type Message, type Sign, type StateInfo } from '../state.ts';
import { api, marked, model, toApiError, useModel } from '../store.ts';
import { toLine } from '../text.ts';
import { formatNumber } from '../time.ts';
import { State } from './header.tsx';
import { Json } from './json.tsx';
import { px } from './px.ts';
import { LoadRest, LongText, OmittedNote } from './text.tsx';

/** Milliseconds for which the playhead must rest before its state is requested. */
const REST = 150;
const SHOWN = 30;

const caches = new WeakMap<object, Record<string, States>>();

/** Return the states of the open run, with or without its messages. */
function findStates(hasMessages: boolean): States {
  const run = model.peek();
  const make = () => new States((seq, from, isWhole) => api.state(run.taskId, seq, hasMessages ? from : Number.MAX_SAFE_INTEGER, isWhole));
  const known = caches.get(run) ?? {};
  caches.set(run, known);
  return (known[`${hasMessages}`] ??= make());
}

interface Loaded {
  seq: number;
  base: number;
  before: StateInfo;
  after: StateInfo;
}

interface LoadedStates {
  loaded: Loaded | null;
  failure: string;
  load: Load;
  retry: () => void;
}

/** Return the state after an event and the one with which it is compared, when the playhead rests. */
function useStates(seq: number, base: number, hasMessages: boolean): LoadedStates {
  const [loaded, setLoaded] = useState<Loaded | null>(null);
  const [failure, setFailure] = useState('');
  const [tries, setTries] = useState(0);
  const cache = findStates(hasMessages);
  const retry = () => setTries(tries + 1);
  const load = (at: number, index?: number) => {
    cache.loadWhole(at, index).then(retry, error => setFailure(toApiError(error).message));
  };
  useEffect(() => {
    let isCurrent = true;
    const timer = setTimeout(async () => {
      try {
        const before = base > 0 ? await cache.load(base) : EMPTY;
        const after = isCurrent ? await cache.load(seq) : EMPTY;
        if (isCurrent) setLoaded({ seq, base, before, after });
        if (isCurrent) setFailure('');
      } catch (error) {
        if (isCurrent) setFailure(toApiError(error).message);
      }
    }, REST);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [seq, base, cache, tries]);
  return { loaded, failure, load, retry };
}

export function StateTab({ seq }: { seq: number }) {
  const base = marked.value && marked.value !== seq ? marked.value : seq - 1;
  const { loaded, failure, load, retry } = useStates(seq, base, true);
  if (failure) return <div class="section"><p>The state could not be loaded: {failure}.</p><p><button onClick={retry}>Again</button></p></div>;
  if (!loaded) return <div class="section quiet">Loading the state…</div>;
  const isCurrent = loaded.seq === seq && loaded.base === base;
  return <div aria-busy={!isCurrent} class={isCurrent ? 'runstate' : 'runstate stale'} data-seq={loaded.seq}><Sections {...loaded} load={load} /></div>;
}

/** Loads a message by its index, or the other parts of a state. */
type Load = (seq: number, index?: number) => void;

function Sections({ seq, base, before, after, load }: Loaded & { load: Load }) {
  const { outline } = useModel();
  const loadMessage = (k: number) => load(outline.seq[outline.messages.findIndex(count => count > k)] ?? Math.max(seq, base), k);
  const loadState = (_: number, sign: Sign) => load(sign === '-' ? base : seq);
  const listThoughts = (last: number) => outline.seq.filter((each, i) => each <= last && outline.kind[i] === 'thought-stream');
  const messages = compareItems(before.messages, after.messages, (_, k) => k);
  const calls = compareItems(before.calls ?? [], after.calls ?? [], each => each.id);
  const pending = compareItems(before.pending ?? [], after.pending ?? [], each => each.inputId);
  const thoughts = compareItems(listThoughts(base), listThoughts(seq), each => each);
  const figures = compareFigures(listFigures(before, formatNumber), listFigures(after, formatNumber));
  return (
    <>
      <p class="section quiet">
        {marked.value === base && marked.value ? <>Changes since the marked event {base}. <button class="more" onClick={() => { marked.value = 0; }}>Compare with the event before</button></>
          : base ? <>Changes since event {base}. Press <kbd>m</kbd> to mark an event for comparison.</> : 'State after the first event.'}
      </p>
      <Group title="Figures" lines={figures} count={0} render={([name, value]) => <>{name} <b><bdi>{toLine(value)}</bdi></b></>} />
      <Goals seq={seq} base={base} before={before} after={after} />
      <Group title="Messages" lines={messages} count={after.messages.length} render={each => <MessageText message={each} />} number load={loadMessage} />
      <Group title="Open calls" lines={calls} count={after.calls?.length ?? 0} load={loadState} render={each => <><b><bdi>{toLine(each.name)}</bdi></b> <Json value={each.arguments} depth={1} /></>} />
      <Group title="Open questions" lines={pending} count={after.pending?.length ?? 0} load={loadState} render={each => <LongText text={each.prompt} />} />
      <Group title="Thoughts" lines={thoughts} count={thoughts.filter(each => each.sign !== '-').length} render={each => (
        <button class="link" onClick={() => moveTo(each)}><bdi>{toLine(outline.label[outline.find(each)])}</bdi></button>
      )} />
    </>
  );
}

/** Goals after an event, with the changes since another event. */
function Goals({ seq, base, before, after }: Loaded) {
  const { outline } = useModel();
  const goals = after.goals ?? [];
  const isInherited = goals.length > 0 && !findGoals(outline, seq);
  // A run begins with the goals of the conversation.
  const lines = compareGoals((base ? before.goals : goals) ?? [], goals);
  return (
    <>
      <Group title="Goals" lines={lines} count={goals.length} levelOf={each => each.level} render={each => <GoalText line={each} />} />
      {isInherited && <p class="section quiet">These goals come from an earlier run of the conversation.</p>}
    </>
  );
}

/** Goals that an event has changed. */
export function ChangedGoals({ seq }: { seq: number }) {
  const { loaded, failure } = useStates(seq, seq - 1, false);
  if (loaded?.seq !== seq) return <p class="section quiet">{failure ? `The goals could not be loaded: ${failure}.` : 'Loading the goals…'}</p>;
  return <div class="runstate"><Goals {...loaded} /></div>;
}

function GoalText({ line: { goal, changes, after } }: { line: GoalLine }) {
  return (
    <>
      <State state={statusOf(goal)} /> <bdi title={toLine(goal.id)}>{toLine(goal.title)}</bdi>
      {after.map((each, k) => <span class="quiet" key={each.id}>{k ? ', ' : ' after '}<bdi>{toLine(each.title)}</bdi> ({statusOf(each)})</span>)}
      {changes.map(each => <span class="was" key={each}>, <bdi>{toLine(each)}</bdi></span>)}
    </>
  );
}

interface GroupProps<T> {
  title: string;
  lines: Line<T>[];
  count: number;
  number?: boolean;
  /** Level of an item in a tree. */
  levelOf?: (item: T) => number;
  render: (item: T) => ComponentChildren;
  /** Loads the parts of an item that were not loaded. */
  load?: (index: number, sign: Sign) => void;
}

const WORDS = { '+': 'added', '-': 'removed', '~': 'changed', '': '' };

/** Lines of a part of the state, newest ones at the end. Of long parts, only the end and the changes are shown at first. */
function Group<T>({ title, lines, count, number, levelOf, render, load }: GroupProps<T>) {
  const [isWhole, setWhole] = useState(false);
  if (!lines.length) return null;
  const first = isWhole ? 0 : Math.max(0, lines.length - SHOWN);
  const shown = lines.map((line, k) => ({ line, k })).filter(({ line, k }) => k >= first || line.sign);
  return (
    <section class="section" aria-label={title}>
      <h3>{title}{count > 0 && ` ${formatNumber(count)}`}<span>{countChanges(lines)}</span></h3>
      {shown.length < lines.length && <button class="more" onClick={() => setWhole(true)}>Show {lines.length - shown.length} earlier</button>}
      <ul>
        {shown.map(({ line, k }) => (
          <li key={`${line.sign}${k}`} class={WORDS[line.sign]} aria-level={levelOf && levelOf(line.item) + 1} style={levelOf && px({ 'padding-left': levelOf(line.item) * 18 })}>
            <span class="sign">{line.sign === '-' ? '−' : line.sign || (number ? k + 1 : '')}</span>
            {line.sign && <span class="unseen">{WORDS[line.sign]}</span>}
            <div><LoadRest.Provider value={() => load?.(k, line.sign)}>{render(line.item)}<OmittedNote value={line.item} /></LoadRest.Provider></div>
          </li>
        ))}
      </ul>
    </section>
  );
}

function MessageText({ message }: { message: Message }) {
  const text = textOf(message.content);
  return (
    <>
      <b>{message.role}</b> {text && <LongText text={text} />}
      {message.toolCalls?.map(each => <div key={each.id} class="quiet">calls <bdi>{toLine(each.name)}</bdi> <Json value={each.arguments} depth={1} /></div>)}
    </>
  );
}
