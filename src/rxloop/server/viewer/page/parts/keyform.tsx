import { useState } from 'preact/hooks';
import { hasKey } from '../store.ts';

/** Field for the key of a server that asks for one. The key is kept until the tab is closed. */
export function KeyForm({ onKey }: { onKey: (key: string) => void }) {
  const [key, setKey] = useState('');
  const submit = (event: Event) => {
    event.preventDefault();
    if (key.trim()) onKey(key.trim());
  };
  return (
    <main class="empty">
      <h1>This server asks for a key</h1>
      <p>The key is sent with each request. It is kept in this tab only.</p>
      {hasKey() && <p role="alert" class="offline">The server does not accept this key.</p>}
      <form onSubmit={submit}>
        <input type="password" aria-label="Key" value={key} autofocus onInput={event => setKey(event.currentTarget.value)} />
        <button class="primary">Open</button>
      </form>
    </main>
  );
}
