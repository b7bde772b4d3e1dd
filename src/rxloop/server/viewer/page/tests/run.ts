// A small run for unit tests: two steps, a tool that fails, a nested agent, a retry and a pause.

import { Outline, type Event } from '../outline.ts';

const START = Date.parse('2026-01-01T00:00:00.000Z');

/** Make the events of a run. Each entry is the time in milliseconds, the kind and the fields. */
export function makeEvents(entries: [number, string, Record<string, unknown>?][]): Event[] {
  return entries.map(([ms, kind, fields = {}], k) => ({
    version: 1, kind: kind as 'custom', contextId: 'c', taskId: 'run', seq: k + 1, sub: 0, attempt: 1, timestamp: new Date(START + ms).toISOString(), ...fields,
  }) as Event);
}

const forecast = (id: string) => ({ step: '1', index: id === 'c1' ? 0 : 1, call: { id, name: 'get_forecast', arguments: { city: 'Oslo' } } });
const alerts = { step: '2', call: { id: 'c3', name: 'alerts', arguments: {} } };
const nested = { step: '1', taskId: 'nested', parentTaskId: 'run', agentPath: ['desk'] };

export const EVENTS = makeEvents([
  [0, 'task', { agentName: 'weather', model: 'glm', messages: [{ role: 'user', content: 'Oslo?' }] }],
  [0, 'status-update', { state: 'working' }],
  [10, 'llm-call', { step: '1', model: 'glm', estimatedInputTokens: 90, messageCount: 1 }],
  [1000, 'usage', { step: '1', inputTokens: 100, outputTokens: 20 }],
  [1000, 'content-complete', { step: '1', content: '', toolCalls: [forecast('c1').call, forecast('c2').call], finishReason: 'tool_calls', firstToken: 0.4 }],
  [1010, 'tool-start', forecast('c1')],
  [1020, 'tool-start', forecast('c2')],
  [1500, 'tool-complete', { ...forecast('c1'), success: true, content: '11 °C', duration: 0.49 }],
  [2000, 'tool-complete', { ...forecast('c2'), success: false, error: 'get_forecast failed. Try again.', content: 'no' }],
  [2010, 'llm-call', { step: '2', model: 'glm', estimatedInputTokens: 150, messageCount: 4 }],
  [2110, 'llm-failed', { step: '2', error: { code: 'rate_limited', message: 'later' }, status: 429, retryIn: 0.8 }],
  [3500, 'usage', { step: '2', inputTokens: 200, outputTokens: 30 }],
  [3500, 'content-complete', { step: '2', content: 'I ask.', toolCalls: [alerts.call], finishReason: 'tool_calls' }],
  [3510, 'tool-start', alerts],
  [3510, 'subtask', { step: '2', subtaskId: 'nested', agentName: 'desk', state: 'working', toolCallId: 'c3' }],
  [3520, 'llm-call', { ...nested, model: 'small', estimatedInputTokens: 10, messageCount: 1 }],
  [3900, 'usage', { ...nested, inputTokens: 50, outputTokens: 5 }],
  [3900, 'content-complete', { ...nested, content: 'Wind.', finishReason: 'stop' }],
  [3910, 'subtask', { step: '2', subtaskId: 'nested', agentName: 'desk', state: 'completed', toolCallId: 'c3' }],
  [3920, 'tool-complete', { ...alerts, success: true, content: 'Wind.', duration: 0.41 }],
  [4000, 'status-update', { state: 'completed', final: true, content: 'Go.' }],
]);

export function makeOutline(events: Event[] = EVENTS): Outline {
  const outline = new Outline();
  for (const event of events) outline.addEvent(event);
  return outline;
}
