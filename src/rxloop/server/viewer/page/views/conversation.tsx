// The conversation of a run as the user saw it: messages, tool calls as lines, questions, and the text that is being written.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { moveTo } from '../commands.ts';
import { FAILED, THINK_ALOUD, family } from '../kinds.ts';
import type { RunModel } from '../model.ts';
import { textOf, type Event } from '../outline.ts';
import { bodyOf } from '../bodies.ts';
import { isAtEnd, now, playhead, revision, selected, useModel } from '../store.ts';
import { toLine } from '../text.ts';
import { formatDuration } from '../time.ts';
import { Shape } from '../parts/shape.tsx';
import { LongText } from '../parts/text.tsx';

const PAGE = 200;

export function Conversation() {
  const run = useModel();
  const box = useRef<HTMLDivElement>(null);
  const [count, setCount] = useState(PAGE);
  const indexes = listTurns(run, playhead.value);
  const shown = indexes.slice(-count);
  // New messages move the view only if it was at the end.
  const wasAtEnd = useRef(true);
  const change = isAtEnd.value ? revision.value + now.value : 0;
  useEffect(() => {
    if (wasAtEnd.current && isAtEnd.value && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [change]);
  const onScroll = () => {
    const element = box.current!;
    wasAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
  };
  return (
    <div class="conversation" ref={box} onScroll={onScroll} role="log" aria-label="Conversation" aria-live="off">
      <div class="column">
        {indexes.length > count && <button onClick={() => setCount(count + PAGE)}>Show {Math.min(PAGE, indexes.length - count)} earlier</button>}
        {shown.map(i => <Turn key={run.outline.seq[i]} run={run} index={i} />)}
        {isAtEnd.value && <LiveText run={run} />}
      </div>
    </div>
  );
}

/** Indexes of the events that the user saw, up to the playhead. Calls of nested agents belong to the call that started them. */
function listTurns(run: RunModel, last: number): number[] {
  const { outline, rowOf } = run;
  const indexes: number[] = [];
  for (let i = 0; i < outline.size && outline.seq[i] <= last; i++) {
    if (outline.path[i] || outline.branch[i]) continue;
    const kind = outline.kind[i];
    const isCall = kind === 'tool-start' || (kind === 'tool-complete' && !outline.opens[i]);
    if (isCall ? outline.name[i] !== THINK_ALOUD && rowOf[i] !== undefined : TURNS.has(kind)) indexes.push(i);
    else if (kind === 'status-update' && outline.flags[i] & FAILED) indexes.push(i);
  }
  return indexes;
}

const TURNS = new Set(['task', 'content-complete', 'message-added', 'input-required', 'input-received', 'thought-stream']);

function Turn({ run, index: i }: { run: RunModel; index: number }) {
  const kind = run.outline.kind[i];
  const seq = run.outline.seq[i];
  if (kind === 'tool-start' || kind === 'tool-complete') return <Call run={run} index={i} />;
  if (kind === 'thought-stream') return <Line run={run} index={i} text={run.outline.label[i]} name={run.outline.name[i]} />;
  if (kind === 'input-received') return <Line run={run} index={i} text="" name="answered" />;
  if (kind === 'status-update') return <Line run={run} index={i} text={run.outline.label[i]} name={`run ${run.outline.name[i]}`} />;
  const event = bodyOf(seq);
  if (event === undefined) return <p class="quiet">…</p>;
  if (event === null) return <p class="quiet">A hidden message.</p>;
  return <Message event={event} />;
}

function Message({ event }: { event: Event }) {
  if (event.kind === 'task') {
    return <>{event.messages.map((each: { content: unknown }, k: number) => <Said key={k} event={event} look="user"><LongText text={textOf(each.content)} /></Said>)}</>;
  }
  if (event.kind === 'message-added') return <Said event={event} look="user"><small>{event.cause ?? 'message'}</small><LongText text={textOf(event.content)} /></Said>;
  if (event.kind === 'input-required') return <Said event={event} look="question"><small>question</small><LongText text={event.input?.prompt ?? ''} /></Said>;
  if (!event.content && !event.reasoning) return null;
  return (
    <Said event={event} look="model">
      {event.reasoning && <details onClick={each => each.stopPropagation()}><summary>reasoning, {event.reasoning.length.toLocaleString('en-US')} characters</summary><LongText text={event.reasoning} /></details>}
      {event.content && <LongText text={event.content} />}
      {event.finishReason === 'interrupted' && <small>interrupted by a new message</small>}
      {event.finishReason === 'length' && <small>cut off at its length limit</small>}
    </Said>
  );
}

/** A message that opens its event. */
function Said({ event, look, children }: { event: Event; look: string; children: ComponentChildren }) {
  const open = () => moveTo(event.seq);
  const onKey = (press: KeyboardEvent) => { if (press.key === 'Enter' && press.target === press.currentTarget) open(); };
  return <article class={`said ${look}${event.seq === selected.value ? ' selected' : ''}`} tabIndex={0} onClick={open} onKeyDown={onKey}>{children}</article>;
}

/** A tool call as one line. */
function Call({ run, index: i }: { run: RunModel; index: number }) {
  revision.value;
  const row = run.rowOf[i];
  const last = playhead.value;
  const isOver = row.end > 0 && row.end <= last;
  const isSelected = selected.value > 0 && (row.id === selected.value || row.end === selected.value);
  const took = isOver ? formatDuration(row.to - row.from) : 'running';
  return (
    <button class={`call${isSelected ? ' selected' : ''}`} onClick={() => moveTo(isOver ? row.end : row.id)}>
      <Shape family={isOver && row.failed ? 'failed' : 'tool'} />
      <b><bdi>{toLine(row.title)}</bdi></b> <span class="quiet"><bdi>{toLine(row.sub)}</bdi></span>
      <span class={isOver && row.failed ? 'result failed' : 'result'}>{isOver && row.failed && '✕ '}<bdi>{isOver ? toLine(row.note) : ''}</bdi></span>
      <span class="took">{took}</span>
    </button>
  );
}

function Line({ run, index: i, name, text }: { run: RunModel; index: number; name: string; text: string }) {
  const { outline } = run;
  return (
    <button class={`call${outline.seq[i] === selected.value ? ' selected' : ''}`} onClick={() => moveTo(outline.seq[i])}>
      <Shape family={family(outline.kind[i], outline.flags[i])} />
      <b><bdi>{toLine(name)}</bdi></b> <span class="result"><bdi>{toLine(text)}</bdi></span>
    </button>
  );
}

/** The text of a model call that is not complete. */
function LiveText({ run }: { run: RunModel }) {
  now.value;
  const open = run.rows.findLast(row => row.kind === 'step' && row.to < 0 && !row.path && !row.branch);
  const text = open && run.live.get(`${open.run} ${open.branch} ${open.step}`)?.text;
  if (!open) return null;
  return <div class="said model">{text ? <LongText text={text} /> : <span class="quiet">waits for {toLine(open.sub.split(',')[0])}</span>}<span class="caret" /></div>;
}
