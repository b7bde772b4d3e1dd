// Dialog that exports a run as a file.

import { computed, effect, signal } from '@preact/signals';
import { useEffect, useRef, useState } from 'preact/hooks';
import { bodyOfKind } from '../bodies.ts';
import { api, isFile, me, model, playhead, toApiError, useModel } from '../store.ts';
import { Outline } from '../outline.ts';
import { findHidden, makeCase } from '../share.ts';
import { toLine } from '../text.ts';
import { formatNumber, formatSize, plural } from '../time.ts';
import { download } from './download.ts';
import { Text } from './text.tsx';

export const isShareOpen = signal(false);
const openTaskId = computed(() => model.value.taskId);
effect(() => {
  openTaskId.value;
  isShareOpen.value = false;
});

const FORMS = [
  ['html', 'Page', 'This page with the run, in one file that works without a server.'],
  ['jsonl', 'JSON lines', 'One event per line, for rxloop import. Without internal data, the run can only be viewed there.'],
  ['markdown', 'Markdown', 'The conversation as text.'],
  ['otlp', 'OpenTelemetry', 'Spans as OTLP/JSON.'],
  ['pytest', 'pytest', 'A test that repeats the run with its recorded messages and results.'],
  ['case', 'Case', 'The question and the answer, as a case of an experiment.'],
] as const;

interface Made {
  blob: Blob;
  name: string;
  form: string;
}

export function ShareButton() {
  if (isFile) return null;
  return <><CaseButton /><button title="Export this run" onClick={() => { isShareOpen.value = true; }}>Share</button></>;
}

/** Button that appends the run to the cases of the server, with its answer or an edited one. */
function CaseButton({ expected }: { expected?: string }) {
  const { taskId } = model.value;
  const [note, setNote] = useState<{ taskId: string; text: string } | null>(null);
  if (!me.value?.may.cases) return null;
  const add = () => {
    const show = (text: string) => setNote({ taskId, text });
    show('Adding');
    api.addCase(taskId, expected).then(({ count, file }) => show(`Case ${formatNumber(count)} added to ${toLine(file)}`), error => show(toApiError(error).message));
  };
  const text = note?.taskId === taskId ? note.text : '';
  return <><span class="filenote" role="status">{text}</span><button title="Append this run to the file of cases" disabled={text === 'Adding'} onClick={add}>Make a case</button></>;
}

/** Note in a file that the run cannot be changed there. */
export function FileNote() {
  return isFile ? <span class="filenote" title="Use the server of the run to answer questions or to cancel it.">File, read only</span> : null;
}

/** Note that the log itself lacks the internal data of a run. */
export function PublicNote() {
  useModel();
  const isImported = me.value?.may.internal && model.value.outline.size > 0 && bodyOfKind(1, 'task')?.publicForm;
  return isImported ? <span class="filenote" title="This run was imported without hidden calls, system prompts and metadata.">Public form</span> : null;
}

async function loadOutline(taskId: string, visibility: string): Promise<Outline> {
  const outline = new Outline();
  for (let page; !page || (page.last < Number(page.seq) && page.kind.length); ) outline.addPage((page = await api.outline(taskId, outline.last, visibility)));
  return outline;
}

/** The data of the run that readers of the public form do not receive. */
function HiddenPart({ until }: { until: number }) {
  const { taskId } = model.value;
  const [outlines, setOutlines] = useState<Outline[] | null>(null);
  const [failure, setFailure] = useState('');
  useEffect(() => {
    let isOpen = true;
    Promise.all([api.visibility, 'public'].map(each => loadOutline(taskId, each))).then(
      both => { if (isOpen) setOutlines(both); }, error => { if (isOpen) setFailure(toApiError(error).message); },
    );
    return () => { isOpen = false; };
  }, [taskId]);
  if (!outlines) return <p class="quiet">{failure || 'Comparing the public form'}</p>;
  const { events, count, calls, whole, part, requests } = findHidden(outlines[0], outlines[1], until);
  const list = (groups: [string, number][], more: string) => groups.map(([name, times]) => <li key={name + more}>{formatNumber(times)} <bdi>{toLine(name)}</bdi>{more}</li>);
  return (
    <>
      <p><b>{formatNumber(count)} of {formatNumber(events)} events</b>{calls > 0 && `, with ${formatNumber(calls)} ${plural(calls, 'call')}`}</p>
      <ul tabIndex={0} aria-label="Hidden data">
        {list(whole, api.visibility === 'all' ? '' : ', also from you')}
        {list(part, ' without hidden calls and texts')}
        {requests > 0 && <li>system prompts, settings and hidden tools of {formatNumber(requests)} {plural(requests, 'model request')}</li>}
        <li>internal metadata and provider state</li>
      </ul>
    </>
  );
}

export function ShareDialog() {
  const [form, setForm] = useState('html');
  const [isWhole, setWhole] = useState(false);
  const [isPart, setPart] = useState(false);
  const [made, setMade] = useState<Made | null>(null);
  const [failure, setFailure] = useState('');
  const { taskId } = model.value;
  const until = isPart ? playhead.value : 0;
  useEffect(() => {
    setMade(null);
    setFailure('');
    const stop = new AbortController();
    api.file(taskId, { form, visibility: isWhole ? 'all' : 'public', ...(until && { until }) }, stop.signal)
      .then(file => setMade({ ...file, form }), error => { if (!stop.signal.aborted) setFailure(toApiError(error).message); });
    return () => stop.abort();
  }, [taskId, form, isWhole, until]);
  const [line, setLine] = useState('');
  const [expected, setExpected] = useState('');
  useEffect(() => {
    setLine('');
    if (made?.form !== 'case') return;
    let isOpen = true;
    void made.blob.text().then(text => {
      if (!isOpen) return;
      setLine(text.trim());
      setExpected(String((JSON.parse(text) as { expected?: unknown }).expected ?? ''));
    });
    return () => { isOpen = false; };
  }, [made]);
  const edited = line && makeCase(line, expected);
  const close = () => { isShareOpen.value = false; };
  const box = useRef<HTMLElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    box.current!.focus();
    return () => before?.focus();
  }, []);
  // The keys of the page do not apply while the dialog is open.
  const onKey = (event: KeyboardEvent) => {
    event.stopPropagation();
    if (event.key === 'Escape') close();
  };
  return (
    <div class="veil" onClick={close}>
      <section class="dialog share" role="dialog" aria-modal="true" aria-label="Share" tabIndex={-1} ref={box} onClick={event => event.stopPropagation()} onKeyDown={onKey}>
        <h2>Share</h2>
        <fieldset>
          <legend>Form</legend>
          {FORMS.map(([value, title, text]) => (
            <label key={value}><input type="radio" name="form" checked={form === value} onChange={() => setForm(value)} /> <b>{title}</b> <span class="quiet">{text}</span></label>
          ))}
        </fieldset>
        <fieldset>
          <legend>Audience</legend>
          <label><input type="radio" name="audience" checked={!isWhole} onChange={() => setWhole(false)} /> <b>Public</b> <span class="quiet">Without hidden calls, system prompts and metadata.</span></label>
          {me.value?.may.internal && <label><input type="radio" name="audience" checked={isWhole} onChange={() => setWhole(true)} /> <b>Internal</b> <span class="quiet">Everything in the log.</span></label>}
        </fieldset>
        {!isWhole && <fieldset><legend>Hidden from readers</legend><HiddenPart until={until} /></fieldset>}
        <fieldset>
          <legend>Part</legend>
          <label><input type="radio" name="part" checked={!isPart} onChange={() => setPart(false)} /> <b>All events</b></label>
          <label><input type="radio" name="part" checked={isPart} onChange={() => setPart(true)} /> <b>Up to event {formatNumber(playhead.value)}</b></label>
        </fieldset>
        {edited && (
          <fieldset>
            <legend>Case</legend>
            <label>Expected answer<textarea value={expected} onInput={event => setExpected(event.currentTarget.value)} /></label>
            <pre tabIndex={0} aria-label="Line of the case"><Text text={edited} /></pre>
          </fieldset>
        )}
        <p role="status">{failure ? <span class="offline">{failure}</span> : made ? `${formatSize(made.blob.size)}, ${made.name}` : 'Creating the file'}</p>
        <p><button class="primary" disabled={!made} onClick={() => made && download([edited ? `${edited}\n` : made.blob], made.name)}>Download</button>{edited && <> <button onClick={() => void navigator.clipboard?.writeText(edited)}>Copy</button> <CaseButton expected={expected} /></>} <button onClick={close}>Close</button></p>
      </section>
    </div>
  );
}
