// Messages to a run, its cancellation, and its continuation after its end.

import { useState } from 'preact/hooks';
import { cancel, continuation, forkAtCheckpoint, isActive, isCancelling, mayAct, resume, say, unread } from '../questions.ts';
import { info } from '../store.ts';
import { Fault } from './form.tsx';

/** Field for a message, and a button that cancels the run. Only for active runs that this reader may change. */
export function Send() {
  const [fault, setFault] = useState('');
  const [isAsking, setAsking] = useState(false);
  if (!mayAct.value) return null;
  if (!isActive.value) return <Continue key={info.value?.cursor} />;
  return (
    <section class="send" aria-label="Act on the run">
      {isCancelling.value ? <p class="quiet" role="status">Cancelling, waiting for the run.</p>
        : isAsking ? <Cancel onClose={() => setAsking(false)} onFault={setFault} />
        : <><Message onFault={setFault} /><button onClick={() => setAsking(true)}>Cancel run…</button></>}
      {unread.value && <p class="quiet" role="status">Message sent, waiting for the run.</p>}
      <Fault text={fault} />
    </section>
  );
}

/** Button that resumes an ended run, or forks it if it cannot be resumed. */
function Continue() {
  const [fault, setFault] = useState('');
  const [isBusy, setBusy] = useState(false);
  if (!continuation.value) return null;
  const start = async () => {
    setBusy(true);
    setFault((await resume()) ?? '');
    setBusy(false);
  };
  return (
    <section class="send" aria-label="Act on the run">
      {continuation.value === 'fork' ? <button onClick={forkAtCheckpoint}>Fork from the last checkpoint</button>
        : <button disabled={isBusy} title="Start another attempt, which repeats no finished call" onClick={() => void start()}>Resume run</button>}
      <Fault text={fault} />
    </section>
  );
}

function Message({ onFault }: { onFault: (text: string) => void }) {
  const [text, setText] = useState('');
  const [interrupt, setInterrupt] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!text.trim() || isBusy) return;
    setBusy(true);
    const fault = await say(text, interrupt);
    setBusy(false);
    onFault(fault ?? '');
    if (!fault) setText('');
  };
  return (
    <form onSubmit={event => void submit(event)}>
      <input type="text" aria-label="Message to the run" placeholder="Send a message to the run" maxLength={100_000} value={text} onInput={event => setText(event.currentTarget.value)} />
      <label title="Stop the answer that is being generated"><input type="checkbox" checked={interrupt} onChange={event => setInterrupt(event.currentTarget.checked)} /> interrupt</label>
      <button disabled={isBusy}>Send</button>
    </form>
  );
}

function Cancel({ onClose, onFault }: { onClose: () => void; onFault: (text: string) => void }) {
  const [reason, setReason] = useState('');
  const submit = async (event: Event) => {
    event.preventDefault();
    onFault((await cancel(reason.trim())) ?? '');
    onClose();
  };
  return (
    <form onSubmit={event => void submit(event)}>
      <b>Cancel this run?</b>
      <input type="text" aria-label="Reason" placeholder="Reason, optional" maxLength={1_000} value={reason} onInput={event => setReason(event.currentTarget.value)} />
      <button class="danger">Cancel it</button>
      <button type="button" onClick={onClose}>Keep it running</button>
    </form>
  );
}
