// A file with one run: answers the requests of the page from the data blocks of the document.

import type { Fetch, Me, Problem, RunInfo } from './api.ts';
import type { OutlinePage } from './outline.ts';
import type { Omitted, SentRequest } from './requests.ts';
import { OMITTED, shorten } from './omissions.ts';
import { findTexts } from './search.ts';
import type { StateInfo } from './state.ts';

export interface Meta {
  format: number;
  taskId: string;
  run: RunInfo;
  me: Me;
  /** The `seq` of the last event in the file, and of the last event of the run. */
  last: number;
  total: number;
  /** First `seq` of each block of events. */
  blocks: number[];
}

/** Return the text of a data block, or null. */
export type ReadBlock = (name: string) => Promise<string | null>;

const FORMAT = 1;
const KEPT_BLOCKS = 12;

/** Return a function that decompresses the data blocks of a document. Events stay compressed until they are displayed. */
export function makeBlockReader(find: (name: string) => string | null): ReadBlock {
  const texts = new Map<string, Promise<string>>();
  return async name => {
    const data = find(name);
    if (data === null) return null;
    const known = texts.get(name) ?? decompress(data);
    texts.delete(name);
    texts.set(name, known);
    for (const old of [...texts.keys()].slice(0, -KEPT_BLOCKS)) texts.delete(old);
    return known;
  };
}

function decompress(data: string): Promise<string> {
  const bytes = Uint8Array.from(atob(data.trim()), character => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
}

/** Return a `fetch` that answers from a file. */
export function makeFileFetch(read: ReadBlock): Fetch {
  const meta = once(async () => {
    const found = JSON.parse((await read('meta'))!) as Meta;
    if (found.format > FORMAT) throw new Error(`the file has the format ${found.format}, which this page cannot read`);
    return found;
  });
  return async (url, init) => {
    const [path, query = ''] = url.replace(/^(\.\.?\/)+/, '').split('?', 2);
    const accept = new Headers(init?.headers).get('accept') ?? '';
    return answer(path.split('/').map(decodeURIComponent), new URLSearchParams(query), accept, read, await meta());
  };
}

async function answer(path: string[], query: URLSearchParams, accept: string, read: ReadBlock, meta: Meta): Promise<Response> {
  const number = (name: string, otherwise: number) => Number(query.get(name) ?? otherwise);
  const problems = async () => JSON.parse((await read('problems'))!) as Problem[];
  const [first, taskId, what, seq] = path;
  if (first === 'me') return json(meta.me);
  if (first === 'runs' && !taskId) return accept === 'text/event-stream' ? stream(meta.run) : json({ runs: fitsText(meta.run, query.get('q')) ? [meta.run] : [] });
  if (first === 'problems') return json({ runs: [{ run: meta.run, problems: await problems() }] });
  if (first === 'experiments') return taskId ? refuse(404, 'the file contains a single run') : json({ experiments: [] });
  if (first === 'search') {
    const { next, ...found } = await searchEvents(read, meta, query);
    return json({ ...found, runs: [meta.run], ...(next && { next: `${meta.taskId}/${next}` }) });
  }
  if (first !== 'runs' || taskId !== meta.taskId) return refuse(404, 'the file contains a single run');
  if (!what) return json(meta.run);
  if (what === 'outline') {
    const pages = JSON.parse((await read('outline'))!) as OutlinePage[];
    const page = pages.find(each => Number(each.first) === number('after', 0) + 1);
    return page ? json(page) : json({ ...pages.at(-1)!, ...empty(pages.at(-1)!) });
  }
  if (what === 'problems') return json({ problems: await problems() });
  if (what === 'events') {
    if (!query.has('from')) return new Response(null, { status: 204 });
    const from = number('from', 1);
    return new Response(await readRange(read, meta, from, Math.min(number('to', from + 399), from + 399), number('maxText', Infinity)));
  }
  if (what === 'search') return json(await searchEvents(read, meta, query));
  const short = (value: object) => {
    const [document, omitted] = shorten(value, number('maxText', Infinity));
    return json({ ...document, omitted });
  };
  if (what === 'state') return short(await readState(read, meta, number('seq', meta.last), number('messagesFrom', 0)));
  if (what === 'requests' && seq) {
    const request = await readRequest(read, Number(seq));
    return request ? short(request) : refuse(404, 'the file does not contain this request, because files have at most 200,000 messages in requests');
  }
  if (what === 'requests') return json({ requests: JSON.parse((await read('requests')) ?? '[]') });
  return refuse(404, 'the file does not contain this part of the run');
}

/** Return the lines of the events in a range. */
async function readRange(read: ReadBlock, { blocks }: Meta, from: number, to: number, maxText: number): Promise<string> {
  const lines: string[] = [];
  for (let k = 0; k < blocks.length; k++) {
    if (blocks[k] > to || (blocks[k + 1] ?? Infinity) <= from) continue;
    for (const line of ((await read(`events-${blocks[k]}`)) ?? '').split('\n')) {
      if (!line) continue;
      const event = JSON.parse(line) as { seq: number; metadata?: object };
      if (event.seq >= from && event.seq <= to) lines.push(line.length > maxText ? shortenEvent(event, maxText) : line);
    }
  }
  return lines.join('\n');
}

function shortenEvent(event: { metadata?: object }, maxText: number): string {
  const [short, omitted] = shorten(event, maxText);
  return JSON.stringify({ ...short, metadata: { ...short.metadata, [OMITTED]: omitted } });
}

interface States {
  /** Index of the text of each message. */
  messages: number[];
  /** The `seq` of events, and the fields of the state that have changed. */
  states: [seq: number, changed: Partial<StateInfo>][];
}

/** Return the state after an event, with the messages from an index on. */
async function readState(read: ReadBlock, meta: Meta, seq: number, from: number): Promise<StateInfo> {
  const { messages, states } = JSON.parse((await read('states')) ?? '{"messages":[],"states":[]}') as States;
  const state = { taskId: meta.taskId } as unknown as StateInfo;
  for (const [at, changed] of states) {
    if (at > seq) break;
    Object.assign(state, changed);
  }
  const getText = await readTexts(read, messages.slice(from, state.messageCount));
  return { ...state, seq, messages: messages.slice(from, state.messageCount).map(each => getText(each) as StateInfo['messages'][number]) };
}

const BLOCK_TEXTS = 200;
const BLOCK_REQUESTS = 50;

/** Read the blocks of some texts, and return the function that returns these texts. */
async function readTexts(read: ReadBlock, indexes: (number | undefined)[]): Promise<(index: number) => unknown> {
  const lines = new Map<number, string[]>();
  for (const index of indexes) {
    const block = index === undefined ? -1 : index - (index % BLOCK_TEXTS);
    if (block >= 0 && !lines.has(block)) lines.set(block, ((await read(`texts-${block}`)) ?? '').split('\n'));
  }
  return index => JSON.parse(lines.get(index - (index % BLOCK_TEXTS))?.[index % BLOCK_TEXTS] ?? 'null') as unknown;
}

type Stored<T> = { [K in keyof T]: K extends 'message' | 'original' ? number | undefined : T[K] };

interface StoredRequest extends Omit<SentRequest, 'parts' | 'tools' | 'leftOut'> {
  parts: Stored<SentRequest['parts'][number]>[];
  tools: number[];
  leftOut: number[];
}

/** Return a request as it was sent, or null. Its messages and tools are stored once for all requests. */
async function readRequest(read: ReadBlock, seq: number): Promise<object | null> {
  const k = (JSON.parse((await read('sent')) ?? '[]') as number[]).indexOf(seq);
  const block = k - (k % BLOCK_REQUESTS);
  const request = k < 0 ? undefined : (JSON.parse((await read(`sent-${block}`)) ?? '[]') as StoredRequest[])[k - block];
  if (!request) return null;
  const { parts, tools, leftOut, ...fields } = request;
  const getText = await readTexts(read, [...parts.flatMap(each => [each.message, each.original]), ...tools, ...leftOut]);
  const load = (index: number | undefined) => (index === undefined ? undefined : getText(index));
  return {
    ...fields,
    parts: parts.map(each => ({ ...each, message: load(each.message), original: load(each.original) })),
    tools: tools.map(getText),
    leftOut: leftOut.map(each => getText(each) as Omitted),
  };
}

/** Search the texts of the events, like the server. */
async function searchEvents(read: ReadBlock, meta: Meta, query: URLSearchParams): Promise<{ hits: object[]; searched: number; next?: number }> {
  const limit = Number(query.get('limit') ?? 50);
  const after = Number(query.get('after')?.split('/').at(-1) ?? 0);
  const hits: object[] = [];
  for (const [k, first] of meta.blocks.entries()) {
    if ((meta.blocks[k + 1] ?? Infinity) <= after) continue;
    for (const line of ((await read(`events-${first}`)) ?? '').split('\n')) {
      if (!line) continue;
      const event = JSON.parse(line) as Record<string, unknown> & { seq: number; kind: string };
      if (event.seq <= after) continue;
      hits.push(...findTexts(event, query.get('q') ?? '').map(each => ({ taskId: meta.taskId, seq: event.seq, kind: event.kind, ...each })));
      if (hits.length >= limit) return { hits, searched: event.seq, next: event.seq };
    }
  }
  return { hits, searched: meta.last };
}

function empty(page: OutlinePage): object {
  const columns = Object.entries(page).filter(([, value]) => Array.isArray(value)).map(([name]) => [name, []]);
  return { ...Object.fromEntries(columns), first: Number(page.last) + 1 };
}

const fitsText = (run: RunInfo, text: string | null): boolean => !text || `${run.title ?? ''} ${run.taskId}`.toLowerCase().includes(text.toLowerCase());

/** A list of runs that never changes. */
function stream(run: RunInfo): Response {
  const frame = `event: page\ndata: ${JSON.stringify({ runs: [run] })}\n\n`;
  return new Response(new ReadableStream({ start: controller => controller.enqueue(new TextEncoder().encode(frame)) }));
}

const json = (value: unknown): Response => new Response(JSON.stringify(value));

const refuse = (status: number, message: string): Response => new Response(JSON.stringify({ error: { code: 'file', message } }), { status });

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined;
  return () => (made ??= make());
}
