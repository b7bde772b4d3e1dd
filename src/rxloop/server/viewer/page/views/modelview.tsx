// The messages that the model read and wrote: the last request at the playhead, its answer, and the results of its calls.

import type { ComponentChildren } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { bodyOf } from '../bodies.ts';
import { moveTo } from '../commands.ts';
import type { Outline } from '../outline.ts';
import { PART_NAMES, type Sent } from '../requests.ts';
import { loadWholeRequest, requestFailure, requestOf, retryRequest } from '../sent.ts';
import { playhead, useModel } from '../store.ts';
import { toLine } from '../text.ts';
import { formatNumber } from '../time.ts';
import { Json } from '../parts/json.tsx';
import { Content } from '../parts/media.tsx';
import { EventNote, EventParts, LoadRest, LongText, OmittedNote } from '../parts/text.tsx';

const PAGE = 200;

/** Return the `seq` of the last request of the main branch, and of its answer and results, up to an event. */
function findLast(outline: Outline, last: number): { call: number; later: number[] } {
  let [call, later]: [number, number[]] = [0, []];
  for (let i = 0; i < outline.size && outline.seq[i] <= last; i++) {
    if (outline.path[i] || outline.branch[i]) continue;
    if (outline.kind[i] === 'llm-call') [call, later] = [outline.seq[i], []];
    else if (call && ['content-complete', 'tool-complete', 'message-added'].includes(outline.kind[i])) later.push(outline.seq[i]);
  }
  return { call, later };
}

export function ModelView() {
  const { outline } = useModel();
  const last = playhead.value;
  const { call, later } = useMemo(() => findLast(outline, last), [outline, outline.size, last]);
  if (!call) return <p class="quiet">No model has been called up to this event.</p>;
  const request = requestOf(call);
  const problem = requestFailure.value;
  if (!request && problem?.seq === call) return <p>The request could not be loaded: {problem.error.message}. <button onClick={retryRequest}>Again</button></p>;
  if (!request) return <p class="quiet">Loading the request…</p>;
  return (
    <>
      <p class="quiet">
        The <button class="more" onClick={() => moveTo(call)}>request of {request.step ? `step ${request.step}` : `event ${call}`}</button> to <bdi>{toLine(request.model)}</bdi>
        {request.tools.length > 0 && <>, with {formatNumber(request.tools.length)} tools</>}, and the messages after it.
        {!request.exact && <> <b>Rebuilt</b> from the history, without the system prompt and the tools.</>}
      </p>
      <LoadRest.Provider value={() => loadWholeRequest(call)}><Parts parts={request.parts} seq={call} /></LoadRest.Provider>
      {later.map(seq => <Later key={seq} seq={seq} />)}
    </>
  );
}

/** The newest parts of a request, and a button for earlier ones. */
function Parts({ parts, seq }: { parts: Sent[]; seq: number }) {
  const [count, setCount] = useState(PAGE);
  return (
    <>
      {parts.length > count && <button onClick={() => setCount(count + PAGE)}>Show {Math.min(PAGE, parts.length - count)} earlier</button>}
      {parts.slice(-count).map((part, k) => (
        <Entry key={parts.length - count + k} role={part.role} note={part.index === undefined ? PART_NAMES[part.from as keyof typeof PART_NAMES] ?? part.from : `message ${part.index}`}>
          {part.hidden || !part.message ? <span class="quiet">{part.hidden ? 'hidden from clients' : 'not recorded'}</span> : <><Message {...part.message} seq={seq} /><OmittedNote value={part.message} /></>}
        </Entry>
      ))}
    </>
  );
}

/** The answer to the request, the result of a call, or a message that was added later. */
function Later({ seq }: { seq: number }) {
  return <EventParts seq={seq}><LaterMessage seq={seq} /><EventNote seq={seq} /></EventParts>;
}

function LaterMessage({ seq }: { seq: number }) {
  const event = bodyOf(seq);
  if (!event) return <p class="quiet">{event === null ? 'A hidden message.' : '…'}</p>;
  switch (event.kind) {
    case 'content-complete': return <Entry role="assistant" note="answer"><Message {...event} seq={seq} /></Entry>;
    case 'tool-complete': return <Entry role="tool" note={event.call.name}><Message content={event.content} seq={seq} /></Entry>;
    case 'message-added': return <Entry role={event.role ?? 'user'} note={event.cause ?? ''}><Message content={event.content} seq={seq} /></Entry>;
    default: return null;
  }
}

const LOOKS: Record<string, string> = { user: 'user', assistant: 'model', system: 'system', tool: 'tool' };

function Entry({ role, note, children }: { role: string; note: string; children: ComponentChildren }) {
  return (
    <article class={`said ${LOOKS[role] ?? 'system'}`} aria-label={`${role} message`} tabIndex={0}>
      <small>{role}{note && note !== role && <>, <bdi>{toLine(note)}</bdi></>}</small>
      {children}
    </article>
  );
}

interface Body {
  content?: unknown;
  reasoning?: string | null;
  toolCalls?: { id: string; name: string; arguments?: unknown }[];
  seq: number;
}

function Message({ content, reasoning, toolCalls = [], seq }: Body) {
  return (
    <>
      {reasoning && <details><summary>reasoning, {formatNumber(reasoning.length)} characters</summary><LongText text={reasoning} /></details>}
      {content != null && content !== '' && <Content content={content} seq={seq} />}
      {toolCalls.map(each => <div key={each.id} class="asked">calls <b><bdi>{toLine(each.name)}</bdi></b> <Json value={each.arguments} depth={1} /></div>)}
    </>
  );
}
