// Tab of the inspector: the state of the run after the selected event, with the changes since another event.

import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { bodyOfKind } from '../bodies.ts';
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

let states = new States(() => Promise.reject(new Error('no run')));
let opened: unknown = null;

function findStates(): States {
  const run = model.peek();
  if (opened === run) return states;
  opened = run;
  states = new States((seq, messagesFrom, isWhole) => api.state(run.taskId, seq, messagesFrom, isWhole));
  return states;
}

interface Loaded {
  seq: number;
  base: number;
  before: StateInfo;
  after: StateInfo;
}

export function StateTab({ seq }: { seq: number }) {
  const [loaded, setLoaded] = useState<Loaded | null>(null);
  const [failure, setFailure] = useState('');
  const [tries, setTries] = useState(0);
  const cache = findStates();
  const base = marked.value && marked.value !== seq ? marked.value : seq - 1;
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
  if (failure) return <div class="section"><p>The state could not be loaded: {failure}.</p><p><button onClick={() => setTries(tries + 1)}>Again</button></p></div>;
  if (!loaded) return <div class="section quiet">Loading the state…</div>;
  const isCurrent = loaded.seq === seq && loaded.base === base;
  const load = (at: number, index?: number) => {
    const retry = () => setTries(tries + 1);
    cache.loadWhole(at, index).then(retry, error => setFailure(toApiError(error).message));
  };
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
      <Goals seq={seq} base={base} />
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
export function Goals({ seq, base }: { seq: number; base: number }) {
  const { outline } = useModel();
  const load = (at: number) => (at ? bodyOfKind(at, 'goals-updated') : null);
  const [before, after] = [load(findGoals(outline, base)), load(findGoals(outline, seq))];
  if (before === undefined || after === undefined) return <p class="section quiet">Loading the goals…</p>;
  const lines = compareGoals(before?.goals ?? [], after?.goals ?? []);
  return <Group title="Goals" lines={lines} count={after?.goals.length ?? 0} levelOf={each => each.level} render={each => <GoalText line={each} />} />;
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
