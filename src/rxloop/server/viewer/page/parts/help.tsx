import { useEffect, useRef } from 'preact/hooks';
import { BINDINGS, type Binding } from '../keys.ts';
import { isHelpOpen, keepSetting, lettersOff } from '../store.ts';

const NAMES: Record<string, string> = { ' ': 'Space', ArrowRight: '→', ArrowLeft: '←', ArrowUp: '↑', ArrowDown: '↓', Escape: 'Esc' };

const PLACES = [['everywhere', 'On every page'], ['run', 'Run'], ['runs', 'List of runs'], ['diff', 'Comparison']] as const;

function Bindings({ where, title }: { where: Binding['where']; title: string }) {
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      <dl>
        {BINDINGS.filter(each => each.where === where).map(({ keys, help, command }) => (
          <div class="binding" key={command}>
            <dt>{keys.filter(key => key !== '=').map(key => <kbd key={key}>{NAMES[key] ?? key}</kbd>)}</dt>
            <dd>{help}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

export function Help() {
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
  const close = () => { isHelpOpen.value = false; };
  return (
    <div class="veil" onClick={close}>
      <section class="dialog keys-dialog" role="dialog" aria-label="Keys" tabIndex={-1} ref={box} onClick={event => event.stopPropagation()}>
        <h2>Keys<button class="plain" aria-label="Close the keys" onClick={close}>✕</button></h2>
        {PLACES.map(([where, title]) => <Bindings key={where} where={where} title={title} />)}
        <label><input type="checkbox" checked={lettersOff.value} onChange={switchLetters} /> Switch off single letters</label>
      </section>
    </div>
  );
}
