// Addresses of pages, kept in the hash: `#/r/{taskId}/events?at=1.29.0&from=6.1&to=8.9&q=ok:no&in=json`.

export const TABS = ['timeline', 'conversation', 'thoughts', 'context', 'events', 'problems'] as const;
export type Tab = (typeof TABS)[number];

export interface Address {
  page: 'runs' | 'run' | 'problems' | 'diff' | 'experiments' | 'experiment';
  /** Id of the run, or name of the experiment. */
  taskId: string;
  /** The second of two compared runs. */
  other: string;
  tab: Tab;
  /** Selected event, `attempt.seq.sub`, or number of the selected difference of two runs. */
  at: string;
  /** Window in seconds. */
  from: number | null;
  to: number | null;
  q: string;
  /** Tab of the inspector. */
  in: string;
  /** Reader for whom a conversation is shown. */
  as: 'person' | 'model';
}

/** Pages whose address is their name. */
const PAGES = ['problems'] as const;

const HOME: Address = { page: 'runs', taskId: '', other: '', tab: 'timeline', at: '', from: null, to: null, q: '', in: 'event', as: 'person' };

export function parseAddress(hash: string): Address {
  const text = hash.replace(/^#/, '');
  const cursor = /^([^/?]+)\/(\d+\.\d+\.\d+)$/.exec(text);
  if (cursor) return { ...HOME, page: 'run', taskId: decode(cursor[1]), at: cursor[2] };
  const [path, query = ''] = text.split('?', 2);
  const [, word, id, tab] = path.split('/');
  const isDiff = word === 'diff' && !!id && !!tab;
  const values = new URLSearchParams(query);
  const seconds = (name: string) => (values.has(name) && Number.isFinite(Number(values.get(name))) ? Number(values.get(name)) : null);
  return {
    page: word === 'x' ? (id ? 'experiment' : 'experiments') : word === 'r' && id ? 'run' : isDiff ? 'diff' : PAGES.find(each => each === word) ?? 'runs',
    taskId: (word === 'r' || word === 'x' || isDiff) && id ? decode(id) : '',
    other: isDiff ? decode(tab) : '',
    tab: TABS.find(each => each === tab) ?? 'timeline',
    at: (isDiff ? /^\d+$/ : /^\d+\.\d+\.\d+$/).test(values.get('at') ?? '') ? values.get('at')! : '',
    from: seconds('from'),
    to: seconds('to'),
    q: values.get('q') ?? '',
    in: values.get('in') ?? 'event',
    as: values.get('as') === 'model' ? 'model' : 'person',
  };
}

export function formatAddress(address: Partial<Address>): string {
  const { page, taskId, other, tab, at, from, to, q, in: inspector, as } = { ...HOME, ...address };
  const path = page === 'run' ? `#/r/${encodeURIComponent(taskId)}${tab === 'timeline' ? '' : `/${tab}`}` : page === 'diff' ? `#/diff/${encodeURIComponent(taskId)}/${encodeURIComponent(other)}` : page === 'runs' ? '#/' : page === 'experiments' ? '#/x' : page === 'experiment' ? `#/x/${encodeURIComponent(taskId)}` : `#/${page}`;
  const query = [
    at && `at=${at}`,
    from != null && to != null && `from=${round(from)}&to=${round(to)}`,
    q && `q=${encodeURIComponent(q).replaceAll('%3A', ':').replaceAll('%20', '+')}`,
    inspector !== 'event' && `in=${encodeURIComponent(inspector)}`,
    as === 'model' && 'as=model',
  ].filter(Boolean);
  return query.length ? `${path}?${query.join('&')}` : path;
}

/** The `seq` in a place such as `1.29.0`, or 0. */
export const seqOf = (at: string): number => Number(at.split('.')[1] ?? 0);

const round = (seconds: number): number => Math.round(seconds * 1000) / 1000;

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
