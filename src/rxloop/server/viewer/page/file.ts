// A file with one run: answers the requests of the page from the data blocks of the document.

import type { Fetch, Me, Problem, RunInfo } from './api.ts';
import type { OutlinePage } from './outline.ts';

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
  const [first, taskId, what] = path;
  if (first === 'me') return json(meta.me);
  if (first === 'runs' && !taskId) return accept === 'text/event-stream' ? stream(meta.run) : json({ runs: fitsText(meta.run, query.get('q')) ? [meta.run] : [] });
  if (first === 'problems') return json({ runs: [{ run: meta.run, problems: await problems() }] });
  if (first === 'experiments') return taskId ? refuse(404, 'the file contains a single run') : json({ experiments: [] });
  if (first === 'search') return json({ hits: [], runs: [] });
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
    return new Response(await readRange(read, meta, from, Math.min(number('to', from + 399), from + 399)));
  }
  return refuse(404, 'the file does not contain this part of the run');
}

/** Return the lines of the events in a range. */
async function readRange(read: ReadBlock, { blocks }: Meta, from: number, to: number): Promise<string> {
  const lines: string[] = [];
  for (let k = 0; k < blocks.length; k++) {
    if (blocks[k] > to || (blocks[k + 1] ?? Infinity) <= from) continue;
    for (const line of ((await read(`events-${blocks[k]}`)) ?? '').split('\n')) {
      if (!line) continue;
      const { seq } = JSON.parse(line) as { seq: number };
      if (seq >= from && seq <= to) lines.push(line);
    }
  }
  return lines.join('\n');
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
