// The conversation of a run as the user saw it: messages, tool calls as lines, questions, and the text that is being written.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { bodyOf, bodyOfKind } from '../bodies.ts';
import { moveTo } from '../commands.ts';
import {
  describeAnswer, describeTry, explainEnd, findUsage, listTurns, nameCause, reasoningTime, splitAtCitations, type Citation, type Turn as TurnOf,
} from '../conversation.ts';
import { family } from '../kinds.ts';
import type { Part } from '../media.ts';
import type { RunModel } from '../model.ts';
import type { Event, EventOf } from '../outline.ts';
import { address, change as changeAddress, info, isAtEnd, me, now, playhead, revision, selected, useModel } from '../store.ts';
import { toLine } from '../text.ts';
import { formatDuration, formatNumber } from '../time.ts';
import { Json } from '../parts/json.tsx';
import { Content, EventMedia, MediaPart } from '../parts/media.tsx';
import { Shape } from '../parts/shape.tsx';
import { EventNote, EventParts, LongText, Text } from '../parts/text.tsx';
import { ModelView } from './modelview.tsx';

const PAGE = 200;

export function Conversation() {
  const run = useModel();
  const box = useRef<HTMLDivElement>(null);
  const isModel = address.value.as === 'model' && !!me.value?.may.internal;
  // New messages move the view only if it was at the end.
  const wasAtEnd = useRef(true);
  const change = isAtEnd.value ? revision.value + now.value : 0;
  const top = useRef(0);
  const onScroll = () => {
    const element = box.current;
    if (!element) return;
    wasAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
    top.current = element.scrollTop;
  };
  useEffect(() => {
    const element = box.current;
    if (!element || !isAtEnd.value) return;
    // The browser reports the scrolling of the reader only with the next frame.
    if (element.scrollTop < top.current) onScroll();
    if (!wasAtEnd.current) return;
    element.scrollTop = element.scrollHeight;
    top.current = element.scrollTop;
  }, [change]);
  return (
    <div class="conversation" ref={box} onScroll={onScroll} role="log" aria-label="Conversation" aria-live="off">
      <div class="column">
        {me.value?.may.internal && <Readers isModel={isModel} />}
        {isModel ? <ModelView /> : <Turns run={run} turns={listTurns(run, playhead.value)} />}
        {isAtEnd.value && <LiveText run={run} />}
      </div>
    </div>
  );
}

/** Choice between the conversation of the person and the messages of the model, which contain internal texts. */
function Readers({ isModel }: { isModel: boolean }) {
  return (
    <div class="readers" role="group" aria-label="Conversation as seen by">
      <button aria-pressed={!isModel} title="Messages, answers and calls as the user saw them" onClick={() => changeAddress({ as: 'person' })}>Person</button>
      <button aria-pressed={isModel} title="Messages of the last request, as they were sent to the model" onClick={() => changeAddress({ as: 'model' })}>Model</button>
    </div>
  );
}

/** The newest turns, and a button for earlier ones. */
function Turns({ run, turns }: { run: RunModel; turns: TurnOf[] }) {
  const [count, setCount] = useState(PAGE);
  return (
    <>
      {turns.length > count && <button onClick={() => setCount(count + PAGE)}>Show {Math.min(PAGE, turns.length - count)} earlier</button>}
      {turns.slice(-count).map(each => <Turn key={run.outline.seq[each.index]} run={run} turn={each} />)}
    </>
  );
}

function Turn({ run, turn }: { run: RunModel; turn: TurnOf }) {
  const { index: i } = turn;
  const { outline } = run;
  switch (outline.kind[i]) {
    case 'tool-start':
    case 'tool-complete':
    case 'server-tool': return <Call run={run} index={i} />;
    case 'subtask': return <Nested run={run} turn={turn} />;
    case 'llm-failed':
    case 'llm-call': return <Try run={run} index={i} />;
    case 'status-update': return <Line run={run} index={i} text={outline.label[i]} name={`run ${outline.name[i]}`} />;
    case 'artifact-update': return <Line run={run} index={i} text={outline.a[i] ? `${formatNumber(outline.a[i])} bytes` : ''} name={`artifact ${outline.name[i]}`} />;
    case 'thought-stream': return <Thought run={run} index={i} />;
    default: return <Body run={run} index={i} />;
  }
}

function Body({ run, index: i }: { run: RunModel; index: number }) {
  const event = bodyOf(run.outline.seq[i]);
  if (event === undefined) return <p class="quiet">…</p>;
  if (event === null) return <p class="quiet">A hidden message.</p>;
  return <EventParts seq={event.seq}><Kind run={run} index={i} event={event} /><EventNote seq={event.seq} /></EventParts>;
}

function Kind({ run, index: i, event }: { run: RunModel; index: number; event: Event }) {
  switch (event.kind) {
    case 'task': return <>{event.messages.map((each, k) => <Said key={k} event={event} look="user" label={`${each.role} message`}><Content content={each.content} seq={event.seq} /></Said>)}</>;
    case 'message-added': return <Added run={run} index={i} event={event} />;
    case 'input-required': return <Question event={event} />;
    case 'auth-required': return <Said event={event} look="question" label="question"><small>sign-in</small>Sign in with <Text text={event.provider ?? 'the provider'} /></Said>;
    case 'input-received': return <Answer run={run} index={i} event={event} />;
    case 'content-complete': return <Message run={run} index={i} event={event} />;
    default: return null;
  }
}

/** A message that was added while the run was working. */
function Added({ run, index: i, event }: { run: RunModel; index: number; event: EventOf<'message-added'> }) {
  const name = nameCause(event.cause);
  return (
    <Said event={event} look={event.role === 'system' ? 'system' : 'user'} label={name}>
      <small>{name}, after {formatDuration(run.outline.time[i])}</small>
      <Content content={event.content} seq={event.seq} />
    </Said>
  );
}

function Question({ event }: { event: EventOf<'input-required'> }) {
  const { prompt, options, call } = event.input;
  return (
    <Said event={event} look="question" label="question">
      <small>question{call && <> about <bdi>{toLine(call.name)}</bdi></>}</small>
      <LongText text={prompt} />
      {options && options.length > 0 && <small>options: <bdi>{options.map(each => toLine(String(each))).join(' / ')}</bdi></small>}
    </Said>
  );
}

function Answer({ run, index: i, event }: { run: RunModel; index: number; event: EventOf<'input-received'> }) {
  const question = run.outline.opens[i] ? bodyOf(run.outline.opens[i]) : null;
  const words = describeAnswer(question?.kind === 'input-required' ? question.input.inputKind : question?.kind === 'auth-required' ? 'credential' : undefined, event.value);
  return <Said event={event} look="user" label="answer to the question"><small>answer</small>{words === null ? <Json value={event.value} /> : <LongText text={words} />}</Said>;
}

/** A message of the model. */
function Message({ run, index: i, event }: { run: RunModel; index: number; event: EventOf<'content-complete'> }) {
  const end = explainEnd(event.finishReason, event.maxTokens);
  const citations = event.citations ?? [];
  const files = event.files ?? [];
  if (!event.content && !event.reasoning && !files.length && !end) return null;
  return (
    <Said event={event} look="model" label={run.outline.path[i] ? `message of ${toLine(run.outline.path[i])}` : 'message of the model'}>
      {event.reasoning && <Reasoning run={run} index={i} text={event.reasoning} />}
      {event.content && (citations.length ? <Cited text={event.content} citations={citations} /> : <LongText text={event.content} />)}
      {files.map((each, k) => <MediaPart key={k} part={each} seq={event.seq} />)}
      {citations.length > 0 && <ol class="citations" aria-label="Citations">{citations.map((each, k) => <Source key={k} citation={each} />)}</ol>}
      {end && <small class="end" role="note">{end}</small>}
    </Said>
  );
}

function Cited({ text, citations }: { text: string; citations: Citation[] }) {
  return <>{splitAtCitations(text, citations).map((each, k) => <span key={k}><LongText text={each.text} />{each.numbers.map(number => <sup key={number}>[{number}]</sup>)}</span>)}</>;
}

function Source({ citation }: { citation: Citation }) {
  return (
    <li>
      {citation.title && <><Text text={citation.title} /> </>}
      {citation.url && <span class="mono"><Text text={citation.url} /></span>}
      {citation.text && <q><Text text={citation.text} /></q>}
    </li>
  );
}

/** Folded reasoning. Its duration and its tokens are shown if the log contains them. */
function Reasoning({ run, index: i, text }: { run: RunModel; index: number; text: string }) {
  const ms = reasoningTime(run, i);
  const usage = findUsage(run.outline, i);
  const tokens = usage < 0 ? 0 : bodyOfKind(run.outline.seq[usage], 'usage')?.reasoningTokens;
  const length = tokens ? `${formatNumber(tokens)} tokens` : `${formatNumber(text.length)} characters`;
  return <details onClick={each => each.stopPropagation()}><summary>{ms < 0 ? 'reasoning' : `thought for ${formatDuration(ms)}`}, {length}</summary><LongText text={text} /></details>;
}

/** A message that opens its event. */
function Said({ event, look, label, children }: { event: Event; look: string; label: string; children: ComponentChildren }) {
  const open = () => moveTo(event.seq);
  const onKey = (press: KeyboardEvent) => { if (press.key === 'Enter' && press.target === press.currentTarget) open(); };
  return <article class={`said ${look}${event.seq === selected.value ? ' selected' : ''}`} aria-label={label} tabIndex={0} onClick={open} onKeyDown={onKey}>{children}</article>;
}

/** A request whose answer was discarded. Its text is known if it was received while it was written. */
function Try({ run, index: i }: { run: RunModel; index: number }) {
  const { outline } = run;
  const text = run.discarded.get(outline.seq[i]);
  const isKept = text !== undefined || outline.kind[i] === 'llm-failed';
  return (
    <div class="discarded" role="note" aria-label="discarded try">
      {text && <del><LongText text={text} /></del>}
      <button class={`call${outline.seq[i] === selected.value ? ' selected' : ''}`} onClick={() => moveTo(outline.seq[i])}>
        <Shape family="failed" /> <span class="result"><bdi>{toLine(describeTry(run, i))}</bdi>{!isKept && ', text not kept'}</span>
      </button>
    </div>
  );
}

/** A nested agent as a quoted block. */
function Nested({ run, turn }: { run: RunModel; turn: TurnOf }) {
  const { outline, rowOf } = run;
  const row = rowOf[turn.index];
  const isOver = row.end > 0 && row.end <= playhead.value;
  const [isOpen, setOpen] = useState(true);
  return (
    <blockquote class="nested" aria-label={`nested agent ${toLine(row.title)}`}>
      <button class="call" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Shape family={isOver && row.failed ? 'failed' : 'agent'} /> <b><bdi>{toLine(outline.name[turn.index])}</bdi></b>
        <span class="result">{formatNumber(turn.kids.length)} {turn.kids.length === 1 ? 'entry' : 'entries'}{isOver && row.failed && ', failed'}</span>
        <span class="took">{isOver ? formatDuration(row.to - row.from) : 'running'}</span>
      </button>
      {isOpen && <Turns run={run} turns={turn.kids} />}
    </blockquote>
  );
}

/** A tool call as one line, with the pictures and files of its result. */
function Call({ run, index: i }: { run: RunModel; index: number }) {
  revision.value;
  const row = run.rowOf[i];
  const last = playhead.value;
  const isOver = row.end > 0 && row.end <= last;
  const isSelected = selected.value > 0 && (row.id === selected.value || row.end === selected.value);
  const took = isOver ? formatDuration(row.to - row.from) : isAtEnd.value && info.value?.state.endsWith('-required') ? 'waits' : 'running';
  const parts: Part[] = (isOver && bodyOfKind(row.end, 'tool-complete')?.parts) || [];
  return (
    <>
      <button class={`call${isSelected ? ' selected' : ''}${row.voided ? ' voided' : ''}`} onClick={() => moveTo(isOver ? row.end : row.id)}>
        <Shape family={isOver && row.failed ? 'failed' : 'tool'} />
        <b><bdi>{toLine(row.title)}</bdi></b> <span class="quiet"><bdi>{toLine(row.sub)}</bdi></span>
        <span class={isOver && row.failed ? 'result failed' : 'result'}>{isOver && row.failed && '✕ '}<bdi>{row.voided ? 'discarded' : isOver ? toLine(row.note) : ''}</bdi></span>
        <span class="took">{took}</span>
      </button>
      {parts.length > 0 && <EventMedia parts={parts} seq={row.end} />}
    </>
  );
}

/** A thought as one line. The reasoning of a message is part of the message. */
function Thought({ run, index: i }: { run: RunModel; index: number }) {
  const { outline, rowOf } = run;
  const body = bodyOfKind(outline.seq[i], 'thought-stream');
  const end = rowOf[i]?.end ?? 0;
  if (body?.source === 'reasoning' && end > outline.seq[i] && end <= playhead.value && outline.kind[outline.find(end)] === 'content-complete') return null;
  return <Line run={run} index={i} text={outline.label[i]} name={outline.name[i]} />;
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
