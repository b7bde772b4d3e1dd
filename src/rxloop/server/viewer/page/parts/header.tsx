// The frame of every page: logo, path, figures and actions.

import type { ComponentChildren } from 'preact';
import { copyLink, toggleTheme } from '../commands.ts';
import { isHelpOpen } from '../store.ts';

export function Header({ path, children }: { path: ComponentChildren; children?: ComponentChildren }) {
  return (
    <header class="top">
      <a class="logo" href="#/" aria-label="rxloop, list of runs">
        <svg viewBox="0 0 32 12" width="30" height="12" aria-hidden="true">
          <line x1="0" y1="6" x2="32" y2="6" stroke="var(--model)" stroke-width="1.6" />
          <circle cx="6" cy="6" r="3.6" fill="var(--model)" />
          <rect x="13" y="3" width="6.4" height="6.4" rx="1.2" transform="rotate(45 16 6)" fill="var(--thought)" />
          <rect x="23" y="2.6" width="7" height="7" rx="1.8" fill="var(--tool)" />
        </svg>
        <span>rxloop</span>
      </a>
      <nav class="path">{path}</nav>
      <div class="stats">{children}</div>
      <div class="actions">
        <button onClick={copyLink} title="Copy the link to this place (c)">Copy link</button>
        <button aria-label="Keys" title="Keys (?)" onClick={() => { isHelpOpen.value = true; }}>?</button>
        <button aria-label="Dark or light" title="Dark or light (t)" onClick={toggleTheme}>◐</button>
      </div>
    </header>
  );
}

const LOOKS: Record<string, string> = {
  working: '●', submitted: '○', completed: '✓', failed: '✕', canceled: '⊘', 'input-required': '◐', 'auth-required': '◐',
  active: '●', done: '✓', dropped: '⊘',
};
export const STATE_WORDS: Record<string, string> = { 'input-required': 'waits', 'auth-required': 'waits' };

export function State({ state }: { state: string }) {
  return <span class={`state ${state}`}><i aria-hidden="true">{LOOKS[state] ?? '○'}</i> {STATE_WORDS[state] ?? state}</span>;
}

export function Figure({ value, label }: { value: string; label: string }) {
  return <div class="figure"><b>{value}</b><span>{label}</span></div>;
}

/** Field of the filter. The text is part of the address. */
export function Filter({ value, hint, label, onChange }: { value: string; hint: string; label: string; onChange: (text: string) => void }) {
  return (
    <label class="filter">
      <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><circle cx="7" cy="7" r="4.6" fill="none" stroke="currentColor" stroke-width="1.5" /><line x1="10.5" y1="10.5" x2="14" y2="14" stroke="currentColor" stroke-width="1.5" /></svg>
      <input type="search" aria-label={label} placeholder={hint} value={value} onInput={event => onChange(event.currentTarget.value)} />
      <kbd>/</kbd>
    </label>
  );
}
