// Requests to the HTTP API, and the stream of a run as newline-delimited JSON that continues after a broken connection.

import { readFrames, type Frame } from './frames.ts';
import type {
  AccessInfo as Me, AgentList, Outline as OutlinePage, ProblemList, RequestList, RunComparison, RunInfo, RunPage, SentRequest, StateInfo, SearchPage,
} from './http_api.d.ts';
import { noteOmissions, OMITTED } from './omissions.ts';
import type { Event } from './outline.ts';
import { parseFileName } from './share.ts';

export type {
  AccessInfo as Me, AgentInfo, ProblemPage, RunInfo, RunProblem as Problem, SearchHit as Hit, SearchResults,
} from './http_api.d.ts';

/** Longer texts, lists and objects are fetched completely only if the reader asks for them. */
const MAX_TEXT = 65_536;

export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string, message: string, readonly fields: Record<string, string> = {}) {
    super(message);
  }
}

export type Fetch = (url: string, init?: RequestInit) => Promise<Response>;

export class Api {
  visibility = 'public';

  constructor(private base: string, private getKey: () => string, private fetch: Fetch) {}

  async get<T>(path: string, query: Record<string, string | number> = {}): Promise<T> {
    const response = await this.request(path, query, 'application/json');
    return (await response.json()) as T;
  }

  me = (): Promise<Me> => this.get<Me>('me');

  runs = (query: Record<string, string | number>): Promise<RunPage> => this.get('runs', query);

  /** Yield the frames of a live list: its page, then each run that has changed. */
  async *runFrames(query: Record<string, string | number>, signal: AbortSignal): AsyncGenerator<Frame> {
    const response = await this.request('runs', query, 'text/event-stream', signal);
    if (response.body) yield* readFrames(response.body);
  }

  /** Return a file made from a run, and its name. */
  async file(id: string, query: Record<string, string | number>, signal: AbortSignal): Promise<{ blob: Blob; name: string }> {
    const response = await this.request(`runs/${encodeURIComponent(id)}/export`, query, 'application/octet-stream', signal);
    return { blob: await response.blob(), name: parseFileName(response.headers.get('content-disposition')) };
  }

  run = (id: string): Promise<RunInfo> => this.get(`runs/${encodeURIComponent(id)}`);

  outline = (id: string, after: number, visibility = this.visibility): Promise<OutlinePage> =>
    this.get(`runs/${encodeURIComponent(id)}/outline`, { after, limit: 20_000, visibility });

  sentRequest = (id: string, seq: number, isWhole: boolean): Promise<SentRequest> =>
    this.getShort(`runs/${encodeURIComponent(id)}/requests/${seq}`, {}, isWhole);

  sentRequests = (id: string, after: number): Promise<RequestList> =>
    this.get(`runs/${encodeURIComponent(id)}/requests`, { after, visibility: this.visibility });

  problems = (id: string): Promise<ProblemList> => this.get(`runs/${encodeURIComponent(id)}/problems`, { visibility: this.visibility });

  state = (id: string, seq: number, messagesFrom: number, isWhole: boolean): Promise<StateInfo> =>
    this.getShort(`runs/${encodeURIComponent(id)}/state`, { seq, messagesFrom }, isWhole);

  search = (id: string, q: string, after: number, limit: number): Promise<SearchPage> =>
    this.get(`runs/${encodeURIComponent(id)}/search`, { q, after, limit, visibility: this.visibility });

  diff = (id: string, other: string): Promise<RunComparison> =>
    this.get(`runs/${encodeURIComponent(id)}/diff`, { with: other, visibility: this.visibility });

  fork = (id: string, body: Record<string, unknown>): Promise<RunInfo> => this.post(`runs/${encodeURIComponent(id)}/fork`, body);

  agents = (): Promise<AgentList> => this.get('agents');

  /** Append a run to the cases of the server. */
  addCase = (id: string, expected?: string): Promise<{ id: string; count: number; file: string }> => this.post(`runs/${encodeURIComponent(id)}/case`, expected === undefined ? {} : { expected });

  /** Answer a question. */
  answer = (id: string, inputs: Record<string, unknown>): Promise<RunInfo> => this.post(`runs/${encodeURIComponent(id)}/resume`, { inputs });

  /** Resume an ended run, unless it has continued after the cursor. */
  resume = (id: string, after: string): Promise<RunInfo> => this.post(`runs/${encodeURIComponent(id)}/resume`, { after });

  say = (id: string, input: string, interrupt: boolean): Promise<RunInfo> => this.post(`runs/${encodeURIComponent(id)}/say`, { input, interrupt });

  cancel = (id: string, reason: string): Promise<RunInfo> => this.post(`runs/${encodeURIComponent(id)}/cancel`, reason ? { reason } : {});

  /** Return a document, whose long values are shortened unless `isWhole` is set. */
  private async getShort<T extends { omitted?: Record<string, number> }>(path: string, query: Record<string, number>, isWhole: boolean): Promise<T> {
    const document = await this.get<T>(path, { ...query, visibility: this.visibility, ...(!isWhole && { maxText: MAX_TEXT }) });
    return noteOmissions(document, document.omitted);
  }

  /** Return the events with a `seq` in a range. Their long values are shortened unless `isWhole` is set. */
  async events(id: string, from: number, to: number, isWhole: boolean): Promise<Event[]> {
    const query = { from, to, visibility: this.visibility, ...(!isWhole && { maxText: MAX_TEXT }) };
    const response = await this.request(`runs/${encodeURIComponent(id)}/events`, query, 'application/x-ndjson');
    if (response.status === 204) return [];
    return parseLines(await response.text());
  }

  /** Yield the events after a cursor until the server ends the stream. Returns true if more events will follow. */
  async *stream(id: string, after: string, signal: AbortSignal): AsyncGenerator<Event, boolean> {
    const query = { after, visibility: this.visibility };
    const response = await this.request(`runs/${encodeURIComponent(id)}/events`, query, 'application/x-ndjson', signal);
    if (response.status === 204 || !response.body) return false;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return true;
      const lines = (rest + value).split('\n');
      rest = lines.pop()!;
      for (const line of lines) if (line.trim()) yield JSON.parse(line) as Event;
    }
  }

  private async post<T>(path: string, body: unknown): Promise<T> {
    const response = await this.request(path, {}, 'application/json', undefined, JSON.stringify(body));
    return (await response.json()) as T;
  }

  private async request(
    path: string, query: Record<string, string | number>, accept: string, signal?: AbortSignal, body?: string,
  ): Promise<Response> {
    const words = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)])).toString();
    const headers: Record<string, string> = { accept };
    if (this.getKey()) headers.authorization = `Bearer ${this.getKey()}`;
    if (body !== undefined) headers['content-type'] = 'application/json';
    const init = { method: body === undefined ? 'GET' : 'POST', headers, body, signal };
    const response = await this.fetch(`${this.base}${path}${words ? `?${words}` : ''}`, init);
    if (response.ok) return response;
    const { error } = (await response.json().catch(() => null)) ?? {};
    throw new ApiError(response.status, error?.code ?? 'http', error?.message ?? `the server answered ${response.status}`, error?.fields ?? {});
  }
}

function parseLines(text: string): Event[] {
  return text.split('\n').filter(line => line.trim()).map(line => {
    const event = JSON.parse(line) as Event;
    return noteOmissions(event, event.metadata?.[OMITTED] as Record<string, number> | undefined);
  });
}

export interface Follower {
  /** Cursor of the newest event that the caller has, or an empty string. */
  cursor: () => string;
  onEvent: (event: Event) => void;
  onConnection: (isConnected: boolean) => void;
  onEnd: () => void;
  onFailure: (error: ApiError) => void;
}

export const PAUSES = [500, 1000, 2000, 4000, 8000];

/** Follow a run until its end. A broken connection is opened again after the last cursor. */
export async function follow(api: Pick<Api, 'stream'>, id: string, follower: Follower, signal: AbortSignal, wait = pause): Promise<void> {
  for (let failures = 0; !signal.aborted; ) {
    try {
      const stream = api.stream(id, follower.cursor(), signal);
      let step = await stream.next();
      follower.onConnection(true);
      for (; !step.done; step = await stream.next()) {
        failures = 0;
        follower.onEvent(step.value);
      }
      if (!step.value) return follower.onEnd();
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status < 500 && error.status !== 429) return follower.onFailure(error);
      follower.onConnection(false);
    }
    await wait(PAUSES[Math.min(failures++, PAUSES.length - 1)], signal);
  }
}

export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(done => {
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', () => (clearTimeout(timer), done()), { once: true });
  });
}
