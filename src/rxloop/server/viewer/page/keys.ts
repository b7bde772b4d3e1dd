// Keys of the page. Single letters never fire in a field, and can be switched off.

import { TABS, type Address } from './address.ts';

export interface Binding {
  keys: string[];
  command: string;
  help: string;
  where: 'everywhere' | 'run' | 'runs' | 'diff';
}

export const BINDINGS: Binding[] = [
  { keys: ['?'], command: 'help', help: 'show or hide this list', where: 'everywhere' },
  { keys: ['/'], command: 'find', help: 'find a text, or filter. Enter goes to the next match', where: 'everywhere' },
  { keys: ['g r'], command: 'runs', help: 'list of runs', where: 'everywhere' },
  { keys: ['g p'], command: 'problemsOfAll', help: 'problems of all runs', where: 'everywhere' },
  { keys: ['g x'], command: 'experiments', help: 'experiments', where: 'everywhere' },
  { keys: ['.'], command: 'addRuns', help: 'show new runs', where: 'runs' },
  { keys: ['j', 'ArrowDown'], command: 'nextRun', help: 'next run of the list', where: 'runs' },
  { keys: ['k', 'ArrowUp'], command: 'previousRun', help: 'run above', where: 'runs' },
  { keys: [' '], command: 'markRun', help: 'mark up to two runs', where: 'runs' },
  { keys: ['m'], command: 'compareRuns', help: 'compare the marked runs', where: 'runs' },
  { keys: ['t'], command: 'theme', help: 'dark or light', where: 'everywhere' },
  { keys: ['c'], command: 'copy', help: 'copy the link to this place', where: 'everywhere' },
  { keys: ['Escape'], command: 'close', help: 'close, then clear the filter', where: 'everywhere' },
  ...TABS.map((tab, i): Binding => ({ keys: [String(i + 1)], command: tab, help: tab, where: 'run' })),
  { keys: ['j', 'ArrowRight'], command: 'next', help: 'next event within the filter', where: 'run' },
  { keys: ['k', 'ArrowLeft'], command: 'previous', help: 'event before', where: 'run' },
  { keys: ['ArrowDown'], command: 'nextRow', help: 'next row', where: 'run' },
  { keys: ['ArrowUp'], command: 'previousRow', help: 'row above', where: 'run' },
  { keys: ['e'], command: 'fold', help: 'fold or unfold the selected row', where: 'run' },
  { keys: [']'], command: 'nextInLane', help: 'next event of the same track', where: 'run' },
  { keys: ['['], command: 'previousInLane', help: 'event before, of the same track', where: 'run' },
  { keys: ['n'], command: 'nextProblem', help: 'next problem', where: 'run' },
  { keys: ['p'], command: 'previousProblem', help: 'problem before', where: 'run' },
  { keys: ['l'], command: 'childThought', help: 'thought that follows from the selected one', where: 'run' },
  { keys: ['h'], command: 'parentThought', help: 'thought that led to the selected one', where: 'run' },
  { keys: ['Enter'], command: 'inspect', help: 'open the inspector', where: 'run' },
  { keys: ['m'], command: 'mark', help: 'compare states with this event', where: 'run' },
  { keys: ['W'], command: 'wrap', help: 'break long lines of JSON', where: 'run' },
  { keys: ['F'], command: 'fork', help: 'start a new run from the selected event', where: 'run' },
  { keys: [';'], command: 'nextDifference', help: 'next difference', where: 'diff' },
  { keys: [','], command: 'previousDifference', help: 'difference before', where: 'diff' },
  { keys: ['+', '=', 'w'], command: 'zoomIn', help: 'zoom in (also Ctrl and the wheel)', where: 'run' },
  { keys: ['-', 's'], command: 'zoomOut', help: 'zoom out', where: 'run' },
  { keys: ['a'], command: 'panLeft', help: 'earlier', where: 'run' },
  { keys: ['d'], command: 'panRight', help: 'later', where: 'run' },
  { keys: ['f'], command: 'zoomToSelection', help: 'zoom to the selected row', where: 'run' },
  { keys: ['0'], command: 'zoomAll', help: 'the whole run', where: 'run' },
  { keys: [' '], command: 'play', help: 'play or pause', where: 'run' },
  { keys: ['.'], command: 'live', help: 'follow the newest event', where: 'run' },
  { keys: ['x'], command: 'trueTime', help: 'true time, or pauses cut out', where: 'run' },
];

export interface Press {
  key: string;
  isField: boolean;
  hasModifier: boolean;
  /** The focused element reacts to Enter and Space itself. */
  isControl: boolean;
  page: Address['page'];
  lettersOff: boolean;
}

/** Return the function that finds the command of a key press. It remembers the first key of a pair. */
export function makeKeymap(): (press: Press) => string | null {
  let before = '';
  return press => {
    const first = before;
    before = '';
    if (press.hasModifier) return null;
    if (press.isField) return press.key === 'Escape' ? 'leave' : null;
    if (press.isControl && (press.key === 'Enter' || press.key === ' ')) return null;
    if (press.lettersOff && /^[a-zA-Z0-9.,;\[\]+=-]$/.test(press.key)) return null;
    const keys = first ? `${first} ${press.key}` : press.key;
    const found = BINDINGS.find(each => each.keys.includes(keys) && (each.where === 'everywhere' || each.where === press.page));
    if (found) return found.command;
    if (press.key === 'g') before = 'g';
    return null;
  };
}
