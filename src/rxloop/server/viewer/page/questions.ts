// Questions of the open run, and what this page has sent to the run.

import { computed, effect, signal } from '@preact/signals';
import { explain, type Question } from './act.ts';
import type { ApiError } from './api.ts';
import { api, followAgain, forkAt, info, isInspectorOpen, me, model, revision, select, toApiError } from './store.ts';

interface Sent {
  question: Question;
}

/** Answers that the run has not applied yet, by the id of the question. */
export const sent = signal<ReadonlyMap<string, Sent>>(new Map());
/** Reasons why the last answers were refused, by the id of the question. */
export const refusals = signal<ReadonlyMap<string, ApiError>>(new Map());
/** Messages about questions that are no longer open. */
export const notices = signal<string[]>([]);
/** Text of the message that the run has not read yet, or null. */
export const unread = signal<{ text: string; after: number } | null>(null);
export const isCancelling = signal(false);

/** Open questions, and those with an answer that the run has not applied yet. */
export const questions = computed<Question[]>(() => {
  const open = info.value?.pending ?? [];
  const known = new Set(open.map(each => each.inputId));
  return [...open, ...[...sent.value.values()].map(each => each.question).filter(each => !known.has(each.inputId))];
});
export const openCount = computed(() => questions.value.filter(each => !sent.value.has(each.inputId)).length);

const OVER = new Set(['completed', 'failed', 'canceled']);
/** True if the page may change the run. */
export const mayAct = computed(() => me.value?.may.act === true);
export const isActive = computed(() => {
  revision.value;
  return info.value !== null && !OVER.has(info.value.state) && !model.value.outline.final;
});

/** Explains how an ended run can continue: by itself, as a fork at its last checkpoint, or not at all. */
export const continuation = computed<'resume' | 'fork' | null>(() => {
  revision.value;
  const run = info.value;
  if (!run || isActive.value || run.state === 'completed') return null;
  const isSuperseded = run.reason === 'superseded';
  if (run.state === 'canceled' ? !isSuperseded : run.error?.retryable) return 'resume';
  return lastCheckpoint() ? 'fork' : null;
});

/** Return the `seq` of the last checkpoint of the run, or 0. */
function lastCheckpoint(): number {
  const { outline } = model.peek();
  for (let i = outline.size - 1; i >= 0; i--) if (outline.kind[i] === 'checkpoint' && !outline.path[i]) return outline.seq[i];
  return 0;
}

/** Resume the run. Returns the reason why it was refused, or null. */
export async function resume(): Promise<string | null> {
  const { taskId } = model.peek();
  const cursor = info.peek()?.cursor ?? '';
  return act(taskId, () => api.resume(taskId, cursor), followAgain);
}

/** Open the form for a fork at the last checkpoint. */
export function forkAtCheckpoint(): void {
  const seq = lastCheckpoint();
  isInspectorOpen.value = true;
  select(seq);
  forkAt.value = seq;
}

/** Answer a question. Returns true if the server has accepted the answer. */
export async function answer(question: Question, value: unknown): Promise<boolean> {
  const { taskId } = model.peek();
  const { inputId } = question;
  if (sent.peek().has(inputId)) return false;
  refusals.value = without(refusals.peek(), inputId);
  sent.value = new Map([...sent.peek(), [inputId, { question }]]);
  try {
    const run = await api.answer(taskId, { [inputId]: value });
    if (model.peek().taskId === taskId) info.value = run;
    return true;
  } catch (error) {
    if (model.peek().taskId !== taskId) return false;
    const refused = toApiError(error);
    sent.value = without(sent.peek(), inputId);
    if (refused.status === 409) notices.value = [...notices.peek(), `${question.prompt}\n${explain(refused)}`];
    else refusals.value = new Map([...refusals.peek(), [inputId, refused]]);
    await refresh();
    return false;
  }
}

/** Send a message to the run. Returns the reason why it was refused, or null. */
export async function say(text: string, interrupt: boolean): Promise<string | null> {
  const { taskId, outline } = model.peek();
  const after = outline.last;
  return act(taskId, () => api.say(taskId, text, interrupt), () => { unread.value = { text, after }; });
}

export async function cancel(reason: string): Promise<string | null> {
  const { taskId } = model.peek();
  return act(taskId, () => api.cancel(taskId, reason), () => { isCancelling.value = !model.peek().outline.final; });
}

async function act(taskId: string, send: () => Promise<typeof info.value>, onSent: () => void): Promise<string | null> {
  try {
    const run = await send();
    if (model.peek().taskId !== taskId) return null;
    onSent();
    info.value = run;
    settle();
    return null;
  } catch (error) {
    await refresh();
    return explain(toApiError(error));
  }
}

async function refresh(): Promise<void> {
  const { taskId } = model.peek();
  if (!taskId) return;
  const run = await api.run(taskId).catch(() => null);
  if (run && model.peek().taskId === taskId) info.value = run;
}

let opened = '';
let checked = 0;
const QUESTIONS = new Set(['input-required', 'auth-required', 'input-received', 'tool-complete', 'status-update']);

/** Kinds of events after which a question has no unapplied answer. A question may be asked again. */
const ANSWERED = new Set(['input-required', 'auth-required', 'input-received']);

/** Apply the events that have arrived since the last call. */
function settle(): void {
  const { taskId, outline } = model.peek();
  const first = outline.find(checked) + 1;
  checked = outline.last;
  let isChanged = false;
  for (let i = first; i < outline.size; i++) {
    const kind = outline.kind[i];
    isChanged ||= QUESTIONS.has(kind) && (kind !== 'tool-complete' || questions.peek().length > 0);
    if (ANSWERED.has(kind)) void confirm(taskId, outline.seq[i]);
    if (kind === 'message-added' && unread.peek() && outline.seq[i] > unread.peek()!.after) unread.value = null;
  }
  if (outline.final) {
    sent.value = new Map();
    unread.value = null;
    isCancelling.value = false;
  }
  if (isChanged) void refresh();
}

/** Forget the answer that an event has applied. */
async function confirm(taskId: string, seq: number): Promise<void> {
  if (!sent.peek().size) return;
  const [event] = await api.events(taskId, seq, seq, true).catch(() => []);
  if (model.peek().taskId !== taskId || !event) return;
  const id = 'inputId' in event ? event.inputId : event.kind === 'input-required' ? event.input.inputId : '';
  sent.value = without(sent.peek(), id);
}

function without<T>(map: ReadonlyMap<string, T>, key: string): Map<string, T> {
  return new Map([...map].filter(([each]) => each !== key));
}

effect(() => {
  revision.value;
  const { taskId, outline } = model.value;
  if (taskId !== opened) {
    opened = taskId;
    checked = 0;
    sent.value = new Map();
    refusals.value = new Map();
    notices.value = [];
    unread.value = null;
    isCancelling.value = false;
  }
  if (checked) return settle();
  checked = outline.last;
  if (checked > (info.peek()?.seq ?? checked)) void refresh();
});
