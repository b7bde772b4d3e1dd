// The state of the page, as signals. Only this file writes the address, the settings of the browser, and the model.

import { batch, computed, effect, signal } from '@preact/signals';
import { formatAddress, parseAddress, seqOf, type Address } from './address.ts';
import { Api, ApiError, follow, type Hit, type Me, type Problem, type RunInfo } from './api.ts';
import { makeBlockReader, makeFileFetch } from './file.ts';
import { applyFilter, findWords } from './filter.ts';
import { RunModel } from './model.ts';
import type { Event } from './outline.ts';
import { visibleRows, type Row } from './rows.ts';
import type { Window } from './time.ts';

const KEY = 'rxloop.key';

export const address = signal<Address>(parseAddress(location.hash));
export const theme = signal(readSetting('theme') ?? (matchMedia('(prefers-color-scheme: light)').matches ? 'light' : 'dark'));
export const inspectorWidth = signal(Math.min(Math.max(Number(readSetting('width')) || 428, 320), 720));
export const isInspectorOpen = signal(innerWidth > 1000);
export const lettersOff = signal(readSetting('letters') === 'off');
export const isHelpOpen = signal(false);
/** Long lines of JSON are broken. */
export const isWrapped = signal(readSetting('wrap') !== 'off');
export const needsKey = signal(false);
export const me = signal<Me | null>(null);
export const announcement = signal('');
/** True while the announcement is also visible. */
export const isNotice = signal(false);
let noticeTimer = 0;

/** Tell all readers the outcome of an action, for a few seconds. */
export function notify(text: string): void {
  clearTimeout(noticeTimer);
  batch(() => {
    announcement.value = text;
    isNotice.value = true;
  });
  noticeTimer = window.setTimeout(() => { isNotice.value = false; }, 3000);
}

const base = document.querySelector<HTMLMetaElement>('meta[name=rxloop-api]')?.content ?? '../';
const findBlock = (name: string): string | null => document.querySelector(`script[type="application/gzip"][data-name="${name}"]`)?.textContent ?? null;
/** True if the page is a file that contains its run. */
export const isFile = findBlock('meta') !== null;
const fetchAny = isFile ? makeFileFetch(makeBlockReader(findBlock)) : (url: string, init?: RequestInit) => fetch(url, init);
export const api = new Api(base, () => sessionStorage.getItem(KEY) ?? '', fetchAny);

// -- one run

export const model = signal(new RunModel(''));
/** Incremented whenever the model has changed. */
export const revision = signal(0);
/** Return the model, and let the calling component render again after each change. */
export function useModel(): RunModel {
  revision.value;
  return model.value;
}
export const info = signal<RunInfo | null>(null);
export const failure = signal<ApiError | null>(null);
/** Problems of the run, or null until they are known. */
export const problems = signal<Problem[] | null>(null);
export const isLoading = signal(false);
export const connection = signal<{ isConnected: boolean; since: number }>({ isConnected: true, since: 0 });
/** The playhead follows the newest event. */
export const isFollowing = signal(true);
/** Milliseconds from the start of the run to the present, or to its end. */
export const now = signal(0);
/** Shown part of the axis, or null for the whole. */
export const window_ = signal<Window | null>(null);
export const collapsed = signal<ReadonlySet<number>>(new Set());
export const hovered = signal(0);
/** The `seq` of the event with which states are compared, or 0 for the event before the selected one. */
export const marked = signal(0);
/** The `seq` of the event whose form for a fork is open, or 0. */
export const forkAt = signal(0);
export const speed = signal(1);
export const isPlaying = signal(false);

/** The `seq` of the selected event, or 0. */
export const selected = computed(() => seqOf(address.value.at));
/** The `seq` of the playhead. */
export const playhead = computed(() => {
  revision.value;
  const last = model.value.outline.last;
  return isFollowing.value || !selected.value ? last : Math.min(selected.value, last);
});
export const playheadTime = computed(() => {
  revision.value;
  const { outline } = model.value;
  const i = outline.find(playhead.value);
  return isAtEnd.value ? now.value : i < 0 ? 0 : outline.time[i];
});
export const isAtEnd = computed(() => {
  revision.value;
  return isFollowing.value || !selected.value;
});
export const shownWindow = computed<Window>(() => {
  revision.value;
  const end = model.value.axis.toPosition(Math.max(now.value, model.value.outline.duration));
  return window_.value ?? { from: 0, to: Math.max(end * 1.02, 1) };
});

/** Texts of the run that contain the words of the filter. */
export interface Matches {
  taskId: string;
  text: string;
  hits: Hit[];
  /** The `seq` of the last event that was searched. */
  searched: number;
  isLoading: boolean;
  failure: string;
}

export const matches = signal<Matches | null>(null);
/** Words for which the texts of the run are searched. */
export const words = computed(() => (address.value.page === 'run' ? findWords(address.value.q).slice(0, 200) : ''));
/** The result of the search for these words, or null until it has begun. */
export const currentMatches = computed(() => {
  const found = matches.value;
  return found && found.text === words.value && found.taskId === model.value.taskId ? found : null;
});
const matchingRows = computed(() => {
  revision.value;
  const { outline, rowOf } = model.value;
  return new Set(currentMatches.value?.hits.map(each => rowOf[outline.find(each.seq)]));
});
export const filtered = computed(() => {
  revision.value;
  return applyFilter(model.value.rows, address.value.page === 'run' ? address.value.q : '', now.peek(), matchingRows.value);
});
export const shownRows = computed<Row[]>(() => {
  revision.value;
  return visibleRows(model.value.rows, collapsed.value, filtered.value?.shown ?? null);
});
export const selectedRow = computed<Row | null>(() => {
  revision.value;
  const i = selected.value ? model.value.outline.find(selected.value) : -1;
  return i < 0 ? null : model.value.rowOf[i] ?? null;
});

let stop = new AbortController();
let received = 0;
let isDirty = false;
let builtAt = 0;
let buildCost = 0;

/** Load a run and follow it until its end. */
export async function openRun(taskId: string): Promise<void> {
  stop.abort();
  stop = new AbortController();
  const { signal } = stop;
  const run = new RunModel(taskId);
  batch(() => {
    model.value = run;
    info.value = null;
    failure.value = null;
    problems.value = null;
    isLoading.value = true;
    collapsed.value = new Set();
    isFollowing.value = !address.value.at;
    marked.value = 0;
    forkAt.value = 0;
    isPlaying.value = false;
    readWindow();
    revision.value++;
  });
  try {
    await signIn();
    const found = await api.run(taskId);
    if (signal.aborted) return;
    info.value = found;
    await loadOutline(run, signal);
  } catch (error) {
    if (!signal.aborted) fail(error);
    return;
  }
  if (signal.aborted) return;
  isLoading.value = false;
  collapseDeepRows(run);
  checkProblems(0);
  if (selected.peek()) requestAnimationFrame(() => dispatchEvent(new CustomEvent('reveal')));
  if (!run.outline.final) void followRun(run, signal);
}

/** Follow the open run again after it has been resumed. */
export function followAgain(): void {
  const run = model.peek();
  run.outline.final = false;
  void followRun(run, stop.signal);
}

/** Show the part of the axis that is in the address. */
function readWindow(): void {
  const { from, to } = address.peek();
  window_.value = from != null && to != null && to > from ? { from: from * 1000, to: to * 1000 } : null;
}

async function loadOutline(run: RunModel, signal: AbortSignal): Promise<void> {
  for (let last = -1; last !== run.outline.last; ) {
    last = run.outline.last;
    const page = await api.outline(run.taskId, last);
    if (signal.aborted) return;
    run.addPage(page);
    received = performance.now();
    if (model.peek() === run) rebuild();
    if (page.last >= (page.seq as number)) return;
  }
}

/** Long runs open with two levels. */
function collapseDeepRows(run: RunModel): void {
  if (run.rows.length > 400) collapsed.value = new Set(run.rows.filter(row => row.level >= 2 && row.kids.length).map(row => row.id));
}

/** Reasons of a gap after which the events of the run are different. */
const REPLACED = new Set(['lost-attempt', 'unknown-cursor', 'log-went-back']);

async function followRun(run: RunModel, signal: AbortSignal): Promise<void> {
  received = performance.now();
  requestAnimationFrame(() => tick(run));
  await follow(api, run.taskId, {
    cursor: () => run.cursor(),
    onEvent: event => {
      received = performance.now();
      // The events that this page has are no longer those of the log.
      if (event.kind === 'gap' && REPLACED.has(event.reason)) return void openRun(run.taskId);
      if (!run.addEvent(event)) return;
      isDirty = true;
      if (event.sub === 0) checkProblems(1000);
      if (run.outline.unresolved.size) void resolve(run);
      announce(event);
    },
    onConnection: isConnected => {
      if (isConnected !== connection.peek().isConnected) connection.value = { isConnected, since: Date.now() };
    },
    onFailure: fail,
    onEnd: () => void finish(run, signal),
  }, signal);
}

let resolving: RunModel | null = null;

/** Fetch values of new events that only the log knows. */
async function resolve(run: RunModel): Promise<void> {
  if (resolving === run) return;
  resolving = run;
  try {
    run.outline.resolve(await api.outline(run.taskId, Math.min(...run.outline.unresolved) - 1));
    isDirty = true;
  } catch {
    // The next event tries again, and a broken connection is reported by the stream.
  } finally {
    resolving = null;
  }
}

async function finish(run: RunModel, signal: AbortSignal): Promise<void> {
  if (run.outline.guessed || run.outline.unresolved.size) {
    // Ends were matched to their starts by name. The log knows the exact pairs.
    const exact = new RunModel(run.taskId);
    // The page keeps its rows until all of the new ones are known. The model stays the same one, so that nothing else is loaded
    // again and the reader keeps open items and selections.
    const isLoaded = await loadOutline(exact, signal).then(() => true, () => false);
    if (signal.aborted) return;
    if (isLoaded) run.replaceOutline(exact.outline);
  }
  checkProblems(0);
  const found = await api.run(run.taskId).catch(() => info.peek());
  if (signal.aborted) return;
  info.value = found;
  // No later frame draws the last events.
  rebuild();
}

/** Draw one frame of a live run. */
function tick(run: RunModel): void {
  if (model.peek() !== run || stop.signal.aborted) return;
  flush();
  // The last events may have to wait because drawing takes long.
  if (!run.outline.final || isDirty) requestAnimationFrame(() => tick(run));
}

function flush(): void {
  const isDue = performance.now() - builtAt > buildCost * 10;
  if (isDirty && isDue) return rebuild();
  const at = presentTime();
  if (Math.abs(at - now.peek()) < 16) return;
  batch(() => {
    model.peek().setEnd(at);
    now.value = at;
  });
}

function rebuild(): void {
  const run = model.peek();
  isDirty = false;
  builtAt = performance.now();
  run.build(presentTime());
  buildCost = performance.now() - builtAt;
  batch(() => {
    now.value = presentTime();
    revision.value++;
  });
}

/** Time of the run at this moment. While it waits for a person, the time of its newest event. */
function presentTime(): number {
  const { outline } = model.peek();
  const i = outline.size - 1;
  const isIdle = outline.final || (i >= 0 && outline.kind[i] === 'status-update' && outline.name[i] !== 'working' && !outline.path[i]);
  return outline.duration + (isIdle ? 0 : performance.now() - received);
}

function fail(error: unknown): void {
  const problem = toApiError(error);
  if (problem.status === 401) needsKey.value = true;
  batch(() => {
    failure.value = problem;
    isLoading.value = false;
  });
}

export function toApiError(error: unknown): ApiError {
  return error instanceof ApiError ? error : new ApiError(0, 'network', 'the server cannot be reached');
}

let checking = 0;

/** Fetch the problems of the run after a pause, unless that is already planned. */
function checkProblems(pause: number): void {
  if (checking && pause) return;
  clearTimeout(checking);
  const { taskId } = model.peek();
  checking = window.setTimeout(async () => {
    checking = 0;
    try {
      const answer = await api.problems(taskId);
      if (model.peek().taskId === taskId) problems.value = answer.problems;
    } catch (error) {
      if (model.peek().taskId === taskId) fail(error);
    }
  }, pause);
}

let announcedAt = 0;

/** Tell screen readers about steps, failures, questions and the end, at most once in three seconds. */
function announce(event: Event): void {
  const text =
    event.kind === 'llm-call' ? `step ${event.step}`
    : event.kind === 'tool-complete' && !event.success ? `${event.call.name} failed`
    : event.kind === 'input-required' ? `question: ${event.input.prompt}`
    : event.kind === 'status-update' && event.final && !event.parentTaskId ? `run ${event.state}`
    : '';
  if (!text || isNotice.peek() || Date.now() - announcedAt < 3000) return;
  announcedAt = Date.now();
  announcement.value = text;
}

// -- the place of the reader

/** Move to an event. The view does not follow new events any more. */
export function select(seq: number): void {
  const run = model.peek();
  const i = run.outline.find(seq);
  if (i < 0) return;
  isFollowing.value = false;
  const at = `${run.outline.attemptOf(run.outline.seq[i])}.${run.outline.seq[i]}.0`;
  change({ at });
}

/** Change the address without a new entry in the history. */
export function change(part: Partial<Address>): void {
  const next = { ...address.peek(), ...part };
  history.replaceState(null, '', formatAddress(next));
  address.value = next;
}

/** Go to another page, with an entry in the history. */
export function go(part: Partial<Address>): void {
  location.hash = formatAddress(part);
}

export function goLive(): void {
  isFollowing.value = true;
  change({ at: '' });
}

/** Show a part of the axis, and keep it in the address. */
export function show(part: Window | null): void {
  window_.value = part;
  change({ from: part && part.from / 1000, to: part && part.to / 1000 });
}

export function toggle(row: Row): void {
  const next = new Set(collapsed.peek());
  if (!next.delete(row.id)) next.add(row.id);
  collapsed.value = next;
}

export async function signIn(): Promise<void> {
  if (me.peek()) return;
  try {
    me.value = await api.me();
    api.visibility = me.value.may.internal ? 'all' : 'public';
    needsKey.value = false;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) needsKey.value = true;
    throw error;
  }
}

/** True if the reader has entered a key in this tab. */
export const hasKey = (): boolean => sessionStorage.getItem(KEY) !== null;

export function useKey(key: string): void {
  sessionStorage.setItem(KEY, key);
  me.value = null;
  needsKey.value = false;
  open();
}

/** Open the page of the address. */
export function open(): void {
  const next = parseAddress(location.hash);
  const before = address.peek();
  const isSame = next.page === 'run' && next.taskId === model.peek().taskId && !failure.peek();
  address.value = next;
  if (next.page !== 'run') {
    stop.abort();
    model.value = new RunModel('');
  } else if (!isSame) void openRun(next.taskId);
  else {
    if (next.at !== before.at) isFollowing.value = !next.at;
    readWindow();
  }
  if (location.hash !== formatAddress(next) && next.page === 'run') history.replaceState(null, '', formatAddress(next));
}

function readSetting(name: string): string | null {
  try {
    return localStorage.getItem(`rxloop.${name}`);
  } catch {
    return null;
  }
}

export function keepSetting(name: string, value: string): void {
  try {
    localStorage.setItem(`rxloop.${name}`, value);
  } catch {
    // Without storage, the setting lasts until the page is closed.
  }
}

export function toggleWrap(): void {
  isWrapped.value = !isWrapped.value;
  keepSetting('wrap', isWrapped.value ? 'on' : 'off');
}

effect(() => {
  document.documentElement.dataset.theme = theme.value;
});
