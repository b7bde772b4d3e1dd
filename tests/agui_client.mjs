// The official client of AG-UI, driven by lines of JSON: one process for many agents and runs.
// Each command names an agent, which is made when it is first named and keeps its messages, and what it is to do.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(process.env.CLIENTS + "/");
const { HttpAgent, runHttpRequest, transformHttpEventStream } = require("@ag-ui/client");

class ConnectingAgent extends HttpAgent {
  connectAgent(parameters, subscriber) {
    this.pendingInterrupts = []; // those that are open come with the answer
    return super.connectAgent(parameters, subscriber);
  }

  connect(input) {
    return transformHttpEventStream(runHttpRequest(() => this.fetch(this.url + "connect", this.requestInit(input))));
  }
}

const agents = new Map();
let warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = (...words) => warnings.push(words.join(" "));

async function carryOut(command) {
  const { agent: name, url, headers, threadId, say, set, parameters, connect, abortAfter } = command;
  if (!agents.has(name)) agents.set(name, new ConnectingAgent({ url, headers, threadId }));
  const agent = agents.get(name);
  if (set) agent.setMessages(set);
  for (const message of say ?? []) agent.addMessage(message);
  const events = [];
  warnings = [];
  const subscriber = {
    onEvent({ event }) {
      events.push(event);
      if (events.length === abortAfter) agent.abortRun();
    },
  };
  let error = null;
  let outcome = {};
  try {
    outcome = connect ? await agent.connectAgent(parameters, subscriber) : await agent.runAgent(parameters, subscriber);
  } catch (thrown) {
    error = String(thrown);
  }
  const { messages, state, pendingInterrupts } = agent;
  if (command.last) agents.delete(name);
  return { ...outcome, events, messages, state, pendingInterrupts, error, warnings };
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await carryOut(JSON.parse(line))) + "\n");
}
