import { useEffect, useRef } from 'preact/hooks';
import { BINDINGS } from '../keys.ts';
import { isHelpOpen, keepSetting, lettersOff } from '../store.ts';

const NAMES: Record<string, string> = { ' ': 'Space', ArrowRight: '→', ArrowLeft: '←', ArrowUp: '↑', ArrowDown: '↓', Escape: 'Esc' };

export function Help() {
  const shown = BINDINGS.map(({ keys, help, command }) => (
    <div class="binding" key={command}>
      <dt>{keys.filter(key => key !== '=').map(key => <kbd key={key}>{NAMES[key] ?? key}</kbd>)}</dt>
      <dd>{help}</dd>
    </div>
  ));
  const switchLetters = () => {
    lettersOff.value = !lettersOff.value;
    keepSetting('letters', lettersOff.value ? 'off' : 'on');
  };
  const box = useRef<HTMLElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    box.current!.focus();
    return () => before?.focus();
  }, []);
  return (
    <div class="veil" onClick={() => { isHelpOpen.value = false; }}>
      <section class="dialog" role="dialog" aria-label="Keys" tabIndex={-1} ref={box} onClick={event => event.stopPropagation()}>
        <h2>Keys</h2>
        <dl>{shown}</dl>
        <label><input type="checkbox" checked={lettersOff.value} onChange={switchLetters} /> Switch off single letters</label>
      </section>
    </div>
  );
}
