// A request as it was sent to the model: sizes, parts, tools, settings, tries and the answer.

import { useMemo, useState } from 'preact/hooks';
import { moveTo } from '../commands.ts';
import { textOf } from '../outline.ts';
import {
  cacheShare, groupRows, interleave, isOmitted, PART_NAMES, PARTS, sumParts, type Change, type Message, type Omitted, type Sent, type SentRequest,
} from '../requests.ts';
import { loadWholeRequest, requestFailure, requestOf, retryRequest } from '../sent.ts';
import { toLine } from '../text.ts';
import { formatDuration, formatNumber } from '../time.ts';
import { Json } from './json.tsx';
import { Block, LoadRest, OmittedNote, Text } from './text.tsx';

const WINDOW = 200;
const MARKS: Record<Change, string> = { same: '=', new: '+', shortened: '−', rewritten: '~' };

export function RequestTab({ seq }: { seq: number }) {
  const request = requestOf(seq);
  const problem = requestFailure.value;
  if (!request && problem?.seq === seq && problem.error.code === 'file') {
    return <div class="section quiet">{problem.error.message}. Open the run on its server to see it.</div>;
  }
  if (!request && problem?.seq === seq) {
    return (
      <div class="section">
        <p>The request could not be loaded: {problem.error.message}.</p>
        <p><button onClick={retryRequest}>Again</button></p>
      </div>
    );
  }
  if (!request) return <div class="section quiet">Loading the request…</div>;
  return <LoadRest.Provider value={() => loadWholeRequest(seq)}><RequestView key={request.seq} request={request} /></LoadRest.Provider>;
}

export function RequestView({ request }: { request: SentRequest }) {
  const groups = useMemo(() => groupRows(interleave(request.parts, request.leftOut)), [request]);
  return (
    <div class="request">
      <Sizes request={request} />
      <section class="section" aria-label="Parts">
        <h3>Parts<span>{request.previous ? <button class="link" onClick={() => moveTo(request.previous!)}>compared with seq {request.previous}</button> : 'first request'}</span></h3>
        {groups.map((each, k) => (each.kind === 'shown' ? <Rows key={k} rows={each.rows} /> : <GroupView key={k} kind={each.kind} rows={each.rows} />))}
      </section>
      {request.tools.length > 0 && (
        <section class="section" aria-label="Tools">
          <h3>Tools<span>{formatNumber(request.tools.length)}</span></h3>
          {request.tools.map((tool, k) => <ToolView key={k} tool={tool} />)}
        </section>
      )}
      <Settings request={request} />
      <Tries request={request} />
      <section class="section">
        <h3>Answer</h3>
        {request.answer ? <button class="link" onClick={() => moveTo(request.answer!)}>content-complete, seq {request.answer}</button> : <p class="quiet">No answer yet.</p>}
      </section>
    </div>
  );
}

function Rows({ rows }: { rows: (Sent | Omitted)[] }) {
  const [count, setCount] = useState(WINDOW);
  return (
    <>
      {rows.slice(0, count).map((row, k) => (isOmitted(row) ? <OmittedPart key={`o${row.index}`} part={row} /> : <PartView key={row.index === undefined ? `l${k}` : `p${row.index}`} part={row} />))}
      {rows.length > count && <button class="more" onClick={() => setCount(count + WINDOW)}>{formatNumber(rows.length - count)} more</button>}
    </>
  );
}

/** Messages that are the same or were left out, folded to a line. */
function GroupView({ kind, rows }: { kind: 'left out' | 'same'; rows: (Sent | Omitted)[] }) {
  const [isOpen, setOpen] = useState(false);
  const tokens = rows.reduce((sum, each) => sum + each.tokens, 0);
  const [first, last] = [rows[0].index, rows[rows.length - 1].index];
  return (
    <article class="part">
      <button class="head" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {kind === 'same' ? <Mark change="same" /> : <span class="mark">left out</span>}
        <b>{formatNumber(rows.length)} messages</b>
        <span class="origin">{first} to {last}</span>
        {kind === 'left out' && <span class="edited">{WHY[(rows[0] as Omitted).why] ?? (rows[0] as Omitted).why}</span>}
        <span class="count">{formatNumber(tokens)}</span>
      </button>
      {isOpen && <div class="group"><Rows rows={rows} /></div>}
    </article>
  );
}

/** Tokens of the request, with a bar of its parts. */
function Sizes({ request }: { request: SentRequest }) {
  const { estimated, counted, cached } = request.tokens;
  const sums = sumParts(request);
  const shown = PARTS.filter(each => sums[each]);
  const window = request.window ? ` of ${formatNumber(request.window)}` : '';
  return (
    <section class="section" aria-label="Size">
      <h3>Request{request.step ? ` of step ${request.step}` : ''}<span>{formatNumber(counted ?? estimated)}{window} tokens</span></h3>
      {!request.exact && <p class="rebuilt"><b>Rebuilt</b> from the history, because the log has no complete record of this request. The system prompt, tools or edited messages are missing.</p>}
      <div class="sizes" role="img" aria-label={shown.map(each => `${PART_NAMES[each]} ${sums[each]}`).join(', ')}>
        <Bar sizes={shown.map(each => [each, sums[each]])} />
      </div>
      <dl class="legend-parts">
        {shown.map(each => <div key={each}><dt><i class={`swatch p-${each}`} />{PART_NAMES[each]}</dt><dd>{formatNumber(sums[each])}</dd></div>)}
      </dl>
      <p class="quiet">
        {formatNumber(estimated)} estimated
        {counted !== undefined && <>, {formatNumber(counted)} counted by the provider</>}
        {cached ? <>, {formatNumber(cached)} of them from the cache ({cacheShare(cached, counted ?? estimated)} %)</> : null}
      </p>
    </section>
  );
}

/** Stacked bar. The widths are attributes, because the page forbids style attributes. */
export function Bar({ sizes }: { sizes: (readonly [string, number])[] }) {
  const total = sizes.reduce((sum, [, size]) => sum + size, 0) || 1;
  let x = 0;
  return (
    <svg viewBox="0 0 1000 14" preserveAspectRatio="none" aria-hidden="true">
      {sizes.map(([name, size]) => {
        const width = (1000 * size) / total;
        const rect = <rect key={name} class={`part p-${name}`} x={x} y={0} width={Math.max(width - 2, 1)} height={14} />;
        x += width;
        return rect;
      })}
    </svg>
  );
}

function PartView({ part }: { part: Sent }) {
  const [isOpen, setOpen] = useState(part.change !== 'same');
  const name = PART_NAMES[part.from as keyof typeof PART_NAMES] ?? part.from;
  const isEdited = part.original !== undefined;
  return (
    <article class={`part ${part.change}`} data-index={part.index}>
      <button class="head" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Mark change={part.change} />
        <b>{part.role}</b>
        <span class="origin"><i class={`swatch p-${part.from}`} />{name}{part.index !== undefined && ` ${part.index}`}</span>
        {isEdited && <span class="edited">edited by an operator</span>}
        {!isOpen && part.message && <span class="preview"><bdi>{toLine(preview(part.message)).slice(0, 120)}</bdi></span>}
        <span class="count">{formatNumber(part.tokens)}</span>
      </button>
      {isOpen && (
        part.hidden ? <p class="quiet">hidden from clients</p>
        : part.message ? <MessageBody message={part.message} />
        : <p class="quiet">not recorded</p>
      )}
      {isOpen && part.original && !part.hidden && <><p class="caption-line">In the history</p><MessageBody message={part.original} /></>}
    </article>
  );
}

function Mark({ change }: { change: Change }) {
  return <span class={`mark ${change}`}><span aria-hidden="true">{MARKS[change]} </span>{change}</span>;
}

function OmittedPart({ part }: { part: Omitted }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <article class="part omitted" data-index={part.index}>
      <button class="head" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <span class="mark">left out</span>
        <b>{part.role}</b>
        <span class="origin">recent {part.index}</span>
        <span class="edited">{WHY[part.why] ?? part.why}</span>
        {!isOpen && <span class="preview">{part.text === undefined ? 'hidden from clients' : <del><bdi>{toLine(part.text).slice(0, 120)}</bdi></del>}</span>}
        <span class="count">{formatNumber(part.tokens)}</span>
      </button>
      {isOpen && (part.text === undefined ? <p class="quiet">hidden from clients</p> : <del class="whole"><Text text={part.text} /></del>)}
    </article>
  );
}

const WHY: Record<string, string> = {
  overflow: 'did not fit', steps: 'regular compression', refused: 'the provider refused the size', operator: 'removed by an operator',
};

function MessageBody({ message }: { message: Message }) {
  const text = textOf(message.content);
  const calls = message.toolCalls ?? [];
  return (
    <>
      {message.reasoning && <><p class="caption-line">Reasoning</p><Block text={message.reasoning} /></>}
      {(text || !calls.length) && <Block text={text} />}
      {calls.map(each => (
        <div key={each.id}>
          <p class="caption-line">Calls <bdi>{toLine(each.name)}</bdi></p>
          <div class="block mono"><Json value={each.arguments} /></div>
        </div>
      ))}
      <OmittedNote value={message} />
    </>
  );
}

function preview(message: Message): string {
  return textOf(message.content) || (message.toolCalls ?? []).map(each => each.name).join(', ');
}

function ToolView({ tool }: { tool: SentRequest['tools'][number] }) {
  const [isOpen, setOpen] = useState(false);
  const head = (
    <>
      <Mark change={tool.change} />
      <b><bdi>{tool.name ? toLine(tool.name) : 'hidden tool'}</bdi></b>
      <span class="preview"><bdi>{toLine(tool.description ?? (tool.hidden ? 'hidden from clients' : ''))}</bdi></span>
      <span class="count">{formatNumber(tool.tokens)}</span>
    </>
  );
  if (tool.hidden) return <article class="part"><div class="head">{head}</div></article>;
  return (
    <article class="part">
      <button class="head" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>{head}</button>
      {isOpen && <><Block text={tool.description ?? ''} /><div class="block mono"><Json value={tool.parameters} /></div><OmittedNote value={tool} /></>}
    </article>
  );
}

function Settings({ request }: { request: SentRequest }) {
  const settings = Object.entries(request.settings);
  return (
    <section class="section" aria-label="Settings">
      <h3>Settings</h3>
      <dl class="pairs">
        <div><dt>model</dt><dd><bdi>{toLine(request.model)}</bdi></dd></div>
        {settings.map(([name, value]) => <div key={name}><dt>{name}</dt><dd><bdi>{toLine(typeof value === 'string' ? value : JSON.stringify(value))}</bdi></dd></div>)}
      </dl>
      {request.answerSchema != null && <><p class="caption-line">JSON Schema of the answer</p><div class="block mono"><Json value={request.answerSchema} /></div></>}
      {request.problems?.map((each, k) => <p key={k} class="rebuilt"><b>Repaired</b> <Text text={each} /></p>)}
    </section>
  );
}

function Tries({ request }: { request: SentRequest }) {
  if (!request.tries.length) return null;
  return (
    <section class="section" aria-label="Tries">
      <h3 class="failed">Failed tries<span>{request.tries.length}</span></h3>
      {request.tries.map(each => (
        <div key={each.seq} class="try">
          <button class="link" onClick={() => moveTo(each.seq)}>✕ {each.status ? `${each.status} ` : ''}{toLine(each.code)} after {formatDuration(each.seconds * 1000)}</button>
          <span class="quiet">{each.retryIn === undefined ? 'not repeated' : `repeated after ${formatDuration(each.retryIn * 1000)}`}</span>
        </div>
      ))}
    </section>
  );
}
