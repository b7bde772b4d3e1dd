// Form that starts a new run from the selected event, with another prompt, model or result.

import { signal } from '@preact/signals';
import { useEffect, useState } from 'preact/hooks';
import { explain } from '../act.ts';
import type { AgentInfo } from '../api.ts';
import { wholeOf } from '../bodies.ts';
import { describePlan, makeForkDraft, makeSettings, planFork, readFork, readResult } from '../forks.ts';
import { mayAct } from '../questions.ts';
import { api, forkAt, go, info, me, toApiError, useModel } from '../store.ts';
import { toLine } from '../text.ts';
import { Fault, FormField } from './form.tsx';

const agents = signal<AgentInfo[] | null>(null);

/** Button that opens the form, for readers who may start runs. */
export function ForkButton({ seq }: { seq: number }) {
  if (!mayAct.value) return null;
  const isOpen = forkAt.value === seq;
  return <button aria-expanded={isOpen} title="Start a new run from here (F)" onClick={() => { forkAt.value = isOpen ? 0 : seq; }}>Fork here</button>;
}

export function Fork({ seq }: { seq: number }) {
  useEffect(() => {
    if (!agents.value) void api.agents().then(answer => { agents.value = answer.agents; }, () => { agents.value = []; });
  }, []);
  const { outline, rowOf } = useModel();
  if (!mayAct.value || forkAt.value !== seq) return null;
  const event = wholeOf(seq);
  const end = rowOf[outline.find(seq)]?.end;
  const last = end ? wholeOf(end) : null;
  if (!agents.value || event === undefined || last === undefined) return <div class="section quiet">Loading the event…</div>;
  return <Form key={seq} seq={seq} event={event} shown={readResult(event, last)} agent={agents.value.find(each => each.name === info.value?.agent)} />;
}

interface Props {
  seq: number;
  event: ReturnType<typeof wholeOf>;
  /** Result of the call before it is changed, or null if the event is not a call. */
  shown: string | null;
  agent: AgentInfo | undefined;
}

function Form({ seq, event, shown, agent }: Props) {
  const { outline, taskId } = useModel();
  const [settings] = useState(() => makeSettings(agent?.settings ?? []));
  const [draft, setDraft] = useState(() => makeForkDraft(settings, shown));
  const [errors, setErrors] = useState<ReadonlyMap<string, string>>(new Map());
  const [fault, setFault] = useState('');
  const [isBusy, setBusy] = useState(false);
  const mayRepeat = me.value?.scopes.includes('effects') === true;
  const hasResult = shown !== null && draft.result.trim() !== '' && draft.result !== shown;
  const model = draft.model || agent?.model || '';
  const plan = describePlan(planFork(outline, seq), { seq, model, hasPrompt: draft.prompt.trim() !== '', hasResult, mayRepeat });
  const submit = async (press: Event) => {
    press.preventDefault();
    const { body, errors: found } = readFork(seq, draft, settings, event ?? null, shown);
    setErrors(found);
    setFault('');
    if (found.size || isBusy) return;
    setBusy(true);
    try {
      const run = await api.fork(taskId, body);
      forkAt.value = 0;
      go({ page: 'diff', taskId, other: run.taskId });
    } catch (error) {
      const refused = toApiError(error);
      setErrors(new Map(Object.entries(refused.fields)));
      setFault(explain(refused));
    }
    setBusy(false);
  };
  return (
    <form class="section fork" aria-label={`Fork at event ${seq}`} onSubmit={event => void submit(event)} noValidate>
      <h3>Fork at event {seq}</h3>
      <label class="field">{seq === 1 ? 'New prompt' : 'Message after the copied events'}<small>optional</small>
        <textarea rows={2} value={draft.prompt} onInput={event => setDraft({ ...draft, prompt: event.currentTarget.value })} />
      </label>
      {shown !== null && (
        <label class="field">Result of <bdi>{toLine((event && 'call' in event && event.call?.name) || '')}</bdi>, as JSON
          <textarea class="mono" rows={4} spellcheck={false} value={draft.result} aria-invalid={errors.has('result')} onInput={event => setDraft({ ...draft, result: event.currentTarget.value })} />
          {!mayRepeat && <small>Without the scope effects, only results of client tools can be replaced.</small>}
        </label>
      )}
      <Fault text={errors.get('result')} />
      {!!agent?.models?.length && (
        <label class="field">Model
          <select value={draft.model} onChange={event => setDraft({ ...draft, model: event.currentTarget.value })}>
            <option value="">{toLine(agent.model)}</option>
            {agent.models.filter(each => each !== agent.model).map(each => <option key={each} value={each}>{toLine(each)}</option>)}
          </select>
        </label>
      )}
      {settings.fields.length > 0 && (
        <details><summary>Settings</summary><FormField field={settings} draft={draft.settings} path="settings" errors={errors} label="Settings" onChange={next => setDraft({ ...draft, settings: next })} /></details>
      )}
      <p role="status" class="plan">{plan}</p>
      <Fault text={fault} />
      <div class="choices"><button class="primary" disabled={isBusy}>Start the fork</button><button type="button" onClick={() => { forkAt.value = 0; }}>Close</button></div>
    </form>
  );
}
