// Open questions of a run, with a form for the answer.

import { useMemo, useState } from 'preact/hooks';
import { explain, hostOf, locate, makeDraft, makeField, readDraft, readJson, toLabel, type Question as PendingQuestion } from '../act.ts';
import { answer, mayAct, notices, questions, refusals, sent } from '../questions.ts';
import { toLine } from '../text.ts';
import { Fault, FormField } from './form.tsx';
import { Json } from './json.tsx';
import { LongText } from './text.tsx';

export function Questions() {
  return (
    <>
      {notices.value.map((text, k) => (
        <section class="question notice" role="alert" key={k}>
          <div class="prompt"><LongText text={text} /></div>
          <button onClick={() => { notices.value = notices.value.filter((_, other) => other !== k); }}>Close</button>
        </section>
      ))}
      {questions.value.map((each, k) => <Question key={each.inputId} question={each} number={k + 1} count={questions.value.length} />)}
    </>
  );
}

function Question({ question, number, count }: { question: PendingQuestion; number: number; count: number }) {
  const isSent = sent.value.has(question.inputId);
  const name = question.call ? ` · ${question.call.name}` : question.provider ? ` · ${question.provider}` : '';
  const from = question.agentPath?.length ? `${question.agentPath.join(' / ')}: ` : '';
  return (
    <section class="question" aria-label={count > 1 ? `Question ${number} of ${count}` : 'Question'} tabIndex={-1} data-input={question.inputId}>
      <h3><span class="state input-required"><i aria-hidden="true">◐</i> waits for you</span><bdi>{toLine(name)}</bdi>{count > 1 && <small>{number} of {count}</small>}</h3>
      <div class="prompt">{from && <b><bdi>{toLine(from)}</bdi></b>}<LongText text={question.prompt} /></div>
      {question.call && Object.keys(question.call.arguments ?? {}).length > 0 && <details><summary>Arguments</summary><div class="block mono"><Json value={question.call.arguments} /></div></details>}
      {isSent && <p class="quiet" role="status">Sent, waiting for the run.</p>}
      {/* The form keeps its texts, because the server may refuse the answer. */}
      {mayAct.value ? <div hidden={isSent}><Answer question={question} /></div> : <p class="quiet">This page cannot answer. The server has no agents.</p>}
    </section>
  );
}

function Answer({ question }: { question: PendingQuestion }) {
  if (question.inputKind === 'credential') return <Credential question={question} />;
  if (question.options) return <Options question={question} options={question.options} />;
  if (question.inputKind === 'confirmation') return <Confirmation question={question} />;
  if (question.inputKind === 'tool') return <ToolResult question={question} />;
  return <SchemaForm question={question} />;
}

/** The reason why the last answer was refused, unless a field shows it. */
function Refusal({ question }: { question: PendingQuestion }) {
  const refused = refusals.value.get(question.inputId);
  return <Fault text={refused && (refused.fields[`inputs.${question.inputId}`] ?? explain(refused))} />;
}

function Confirmation({ question }: { question: PendingQuestion }) {
  const { call } = question;
  return (
    <div class="choices">
      <button class="primary" onClick={() => void answer(question, true)}>{call ? <>Approve and run <bdi>{toLine(call.name)}</bdi></> : 'Yes'}</button>
      <button onClick={() => void answer(question, false)}>{call ? 'Refuse' : 'No'}</button>
      <Refusal question={question} />
    </div>
  );
}

function Options({ question, options }: { question: PendingQuestion; options: unknown[] }) {
  return (
    <div class="choices" role="group" aria-label="Options">
      {options.map((each, k) => <button key={k} onClick={() => void answer(question, each)}><bdi>{toLine(toLabel(each))}</bdi></button>)}
      <Refusal question={question} />
    </div>
  );
}

const TEXT = { type: 'string' };

function SchemaForm({ question, label }: { question: PendingQuestion; label?: string }) {
  const field = useMemo(() => makeField(question.inputKind === 'text' ? TEXT : question.answerSchema), [question.inputId]);
  const [draft, setDraft] = useState(() => makeDraft(field));
  const [errors, setErrors] = useState<ReadonlyMap<string, string>>(new Map());
  const refused = refusals.value.get(question.inputId);
  const clause = refused?.fields[`inputs.${question.inputId}`];
  const all = clause && !errors.size ? new Map([[locate(field, draft, clause), clause]]) : errors;
  const submit = (event: Event) => {
    event.preventDefault();
    const reading = readDraft(field, draft);
    setErrors(reading.errors);
    if (!reading.errors.size) void answer(question, reading.value);
  };
  return (
    <form onSubmit={submit} noValidate>
      <FormField field={field} draft={draft} path="" errors={all} label={label} onChange={setDraft} />
      <div class="choices"><button class="primary">Send the answer</button>{!clause && <Refusal question={question} />}</div>
    </form>
  );
}

/** Result of a call that the client executes. */
function ToolResult({ question }: { question: PendingQuestion }) {
  const [isError, setError] = useState(false);
  const [text, setText] = useState('');
  const [fault, setFault] = useState('');
  const choices = (
    <div class="choices" role="radiogroup" aria-label="Outcome of the call">
      <label><input type="radio" name={question.inputId} checked={!isError} onChange={() => setError(false)} /> Result</label>
      <label><input type="radio" name={question.inputId} checked={isError} onChange={() => setError(true)} /> Error</label>
    </div>
  );
  const isOpen = !question.answerSchema || !Object.keys(question.answerSchema).length;
  if (!isError && !isOpen) return <>{choices}<SchemaForm question={question} label="Result" /></>;
  const submit = (event: Event) => {
    event.preventDefault();
    const reading = isError ? { value: { error: text }, errors: new Map<string, string>() } : readJson(text);
    setFault(reading.errors.get('') ?? '');
    if (!reading.errors.size) void answer(question, reading.value);
  };
  return (
    <form onSubmit={submit}>
      {choices}
      <label class="field">{isError ? 'Error message' : 'Result as JSON'}<textarea class={isError ? '' : 'mono'} rows={3} value={text} onInput={event => setText(event.currentTarget.value)} /></label>
      <Fault text={fault} />
      <div class="choices"><button class="primary">{isError ? 'Send the error' : 'Send the result'}</button><Refusal question={question} /></div>
    </form>
  );
}

/** Sign-in. The page shows the address as text, and sends only credentials that the reader has encrypted. */
function Credential({ question }: { question: PendingQuestion }) {
  const [text, setText] = useState('');
  const host = question.url ? hostOf(question.url) : null;
  return (
    <>
      {question.url && (
        <p>Sign in at {host ? <b><bdi>{toLine(host)}</bdi></b> : 'this address'}: <code><bdi>{toLine(question.url)}</bdi></code>{' '}
          <button onClick={() => void navigator.clipboard?.writeText(question.url!)}>Copy the address</button></p>
      )}
      {question.publicKey ? (
        <form onSubmit={event => { event.preventDefault(); if (text.trim()) void answer(question, text.trim()); }}>
          <p>Encrypt the credential with this public key, and send only the result:</p>
          <div class="block mono"><LongText text={question.publicKey} /></div>
          <label class="field">Encrypted credential<textarea class="mono" rows={3} spellcheck={false} value={text} onInput={event => setText(event.currentTarget.value)} /></label>
          <div class="choices"><button class="primary">Send the encrypted credential</button><Decline question={question} /></div>
        </form>
      ) : (
        <div class="choices"><span class="quiet">This page does not send credentials without encryption. Answer with the application or with <code>rxloop resume</code>.</span><Decline question={question} /></div>
      )}
      <Refusal question={question} />
    </>
  );
}

function Decline({ question }: { question: PendingQuestion }) {
  return <button type="button" onClick={() => void answer(question, null)}>Decline to sign in</button>;
}
