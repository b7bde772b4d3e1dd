// Forks of a run at an event: what the new run repeats, and the request that starts it.

import { makeDraft, makeField, readDraft, readJson, type Draft, type Field } from './act.ts';
import type { Event, Outline } from './outline.ts';
import { plural } from './time.ts';

/** What a fork at an event does before anything else. */
export interface Plan {
  /** Step from which the model is asked. */
  step: string;
  /** Names of started calls without a copied result. */
  calls: string[];
  /** True if the event itself starts the last one of these calls. */
  isStart: boolean;
  /** Number of calls of the copied messages that were not started. */
  unstarted: number;
  /** True if the copied events contain the final answer, so that only a new message continues the run. */
  isOver: boolean;
}

/** Describe a fork that copies the events up to `seq`. */
export function planFork(outline: Outline, seq: number): Plan {
  const open = new Map<number, string>();
  let [step, isAnswered, answered] = ['', true, -1];
  const last = outline.find(seq);
  for (let i = 0; i <= last; i++) {
    if (outline.path[i] || outline.branch[i]) continue;
    const kind = outline.kind[i];
    if (kind === 'llm-call') [step, isAnswered] = [outline.step[i], false];
    else if (kind === 'content-complete') [isAnswered, answered] = [true, i];
    else if (kind === 'tool-start') open.set(outline.seq[i], outline.name[i]);
    else if (kind === 'tool-complete' || kind === 'tool-voided') open.delete(outline.opens[i]);
  }
  const isLast = answered >= 0 && isAnswered && outline.final && !isContinued(outline, answered);
  return { step: step ? (isAnswered ? String(Number(step) + 1) : step) : '1', calls: [...open.values()], isStart: outline.kind[last] === 'tool-start', unstarted: Math.max((outline.calls[last] ?? 0) - open.size, 0), isOver: isLast };
}

/** True if the run calls tools or the model after an answer. */
function isContinued(outline: Outline, answered: number): boolean {
  for (let i = answered + 1; i < outline.size; i++) {
    const kind = outline.kind[i];
    if (!outline.path[i] && !outline.branch[i] && (kind === 'llm-call' || kind === 'tool-start' || kind === 'tool-complete')) return true;
  }
  return false;
}

/** Say what the reader pays for. */
export function describePlan(plan: Plan, { seq, model, hasPrompt, hasResult, mayRepeat }: { seq: number; model: string; hasPrompt: boolean; hasResult: boolean; mayRepeat: boolean }): string {
  const copied = seq === 1 ? 'Starts from the beginning.' : `Copies ${seq} events.`;
  const name = model || 'the model';
  if (plan.isOver && !hasPrompt && !hasResult) return `${copied} The copied events contain the final answer, so that nothing is asked.`;
  const calls = hasResult && plan.isStart ? plan.calls.slice(0, -1) : plan.calls;
  const count = calls.length + plan.unstarted;
  const others = plan.unstarted ? ` Executes ${plan.unstarted} ${plural(plan.unstarted, 'call')}${mayRepeat ? '' : `, unless ${plan.unstarted === 1 ? 'it was' : 'they were'} started later by a tool that is not idempotent`}.` : '';
  const started = calls.length ? ` Calls that were started (${calls.join(', ')}) are repeated if their tools are idempotent, and interrupted otherwise.` : '';
  const repeated = !hasPrompt ? others + started : count ? ` Cancels ${count} open ${plural(count, 'call')}.` : '';
  return `${copied}${repeated} Asks ${name} again from step ${plan.step}.`;
}

/** Fields of model settings, by their names. */
const SETTINGS: Record<string, Record<string, unknown>> = {
  temperature: { type: 'number', title: 'Temperature' },
  topP: { type: 'number', title: 'Top p' },
  maxTokens: { type: 'integer', title: 'Maximum number of tokens' },
  seed: { type: 'integer', title: 'Seed' },
  stop: { type: 'array', title: 'Stop texts', items: { type: 'string' } },
  reasoningEffort: { title: 'Reasoning effort', enum: ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'] },
};

/** Make the form for the settings that clients may set. */
export function makeSettings(names: readonly string[]): Field {
  const properties = Object.fromEntries(names.filter(each => Object.hasOwn(SETTINGS, each)).map(each => [each, SETTINGS[each]]));
  return makeField({ type: 'object', properties });
}

/** Return the text of a result that the reader can change, or null if the event is not a call. */
export function readResult(event: Event | null | undefined, end: Event | null | undefined): string | null {
  if (event?.kind !== 'tool-start' && event?.kind !== 'tool-complete') return null;
  if (event.parentTaskId || event.branch) return null;
  const result = event.kind === 'tool-complete' ? event : end;
  return result?.kind === 'tool-complete' && result.success ? JSON.stringify(result.result ?? null, null, 2) : '';
}

export interface ForkDraft {
  prompt: string;
  model: string;
  settings: Draft;
  /** JSON of the result, or the text that was shown at first if it is not replaced. */
  result: string;
}

export interface ForkRequest {
  body: Record<string, unknown>;
  errors: Map<string, string>;
}

/** Read the form. The result is only sent if it was changed. */
export function readFork(seq: number, draft: ForkDraft, settings: Field, call: Event | null, shown: string | null): ForkRequest {
  const body: Record<string, unknown> = { at: seq };
  const chosen = readDraft(settings, draft.settings, 'settings');
  const errors = new Map(chosen.errors);
  if (draft.prompt.trim()) body.input = draft.prompt;
  if (draft.model) body.model = draft.model;
  const values = Object.entries((chosen.value ?? {}) as Record<string, unknown>).filter(([, each]) => !(Array.isArray(each) && !each.length));
  if (values.length) body.settings = Object.fromEntries(values);
  if (call && shown !== null && draft.result.trim() && draft.result !== shown) {
    const reading = readJson(draft.result, 'result');
    for (const [path, text] of reading.errors) errors.set(path, text);
    body.results = { [`${call.step}/${'index' in call ? call.index : 0}`]: reading.value };
  }
  return { body, errors };
}

export const makeForkDraft = (settings: Field, result: string | null): ForkDraft => ({ prompt: '', model: '', settings: makeDraft(settings), result: result ?? '' });

