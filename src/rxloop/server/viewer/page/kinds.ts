// Letter, family and role of each event kind. The letters are those of marble diagrams in tests and documents.

export type Family = 'model' | 'thought' | 'tool' | 'agent' | 'failed' | 'you' | 'run';
export type Role = 'begin' | 'end' | 'point';

const TABLE: Record<string, [letter: string, family: Family, role: Role]> = {
  task: ['t', 'run', 'begin'],
  'status-update': ['w', 'run', 'begin'],
  'message-added': ['m', 'you', 'end'],
  checkpoint: ['k', 'run', 'begin'],
  'context-compressed': ['n', 'run', 'begin'],
  'thinking-failed': ['q', 'failed', 'end'],
  'tools-unavailable': ['v', 'failed', 'end'],
  'input-required': ['i', 'you', 'begin'],
  'input-received': ['r', 'you', 'end'],
  stage: ['g', 'run', 'point'],
  'auth-required': ['y', 'you', 'begin'],
  'artifact-update': ['f', 'tool', 'point'],
  subtask: ['b', 'agent', 'begin'],
  'memory-noted': ['M', 'thought', 'point'],
  'memory-recalled': ['H', 'thought', 'point'],
  'memory-forgotten': ['R', 'thought', 'point'],
  'thinking-noted': ['T', 'thought', 'point'],
  'goals-updated': ['G', 'thought', 'point'],
  custom: ['z', 'run', 'point'],
  gap: ['j', 'failed', 'point'],
  'llm-call': ['l', 'model', 'begin'],
  'llm-failed': ['e', 'failed', 'end'],
  'llm-notice': ['N', 'model', 'point'],
  'server-tool': ['S', 'tool', 'begin'],
  'content-complete': ['c', 'model', 'end'],
  'thought-stream': ['h', 'thought', 'end'],
  'tool-start': ['s', 'tool', 'begin'],
  'tool-complete': ['x', 'tool', 'end'],
  'tool-voided': ['V', 'tool', 'end'],
  usage: ['u', 'model', 'point'],
  hidden: ['·', 'run', 'point'],
};

export const FAILED = 1;
export const RETRIED = 2;
export const REFUSED = 4;
export const HIDDEN = 8;
export const CUT = 16;
export const WAITS = 32;
export const VOIDED = 64;

/** Kind of events that this reader must not receive. */
export const HIDDEN_KIND = 'hidden';

export const THINK_ALOUD = 'think_aloud';

/** Kinds that exist for readers of the stream only and are never numbered. */
export const TRANSIENT = new Set(['content-delta', 'thought-delta', 'tool-call-delta', 'tool-progress', 'gap']);

export const letter = (kind: string): string => TABLE[kind]?.[0] ?? '?';

export const role = (kind: string): Role => TABLE[kind]?.[2] ?? 'point';

export function family(kind: string, flags = 0): Family {
  return flags & FAILED ? 'failed' : TABLE[kind]?.[1] ?? 'run';
}
