// A page that talks to an agent with `useChat` of the AI SDK. `examples/chat_page/build` makes page.html of it.
import { Chat, useChat } from '@ai-sdk/react';
import { DefaultChatTransport, getToolName, isToolUIPart, lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai';
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

const API = 'api/chat';

// The chat stands in the address, so that a reload, or another tab, comes back to it.
const chatId = location.hash.slice(1) || crypto.randomUUID();
history.replaceState(null, '', `#${chatId}`);

const messagesOf = async () => (await fetch(`${API}/${chatId}`)).json();

// Made here and not by useChat: a Chat of one's own knows that a stream which is gone on with comes from its beginning.
const chat = new Chat({
  id: chatId,
  messages: await messagesOf(),
  transport: new DefaultChatTransport({
    api: API,
    // The server has the history: the last message is all that it needs.
    prepareSendMessagesRequest: ({ id, messages, trigger, messageId, body }) => ({
      body: { ...body, id, trigger, messageId, messages: messages.slice(-1) },
    }),
  }),
  // Approvals are sent once all of them are given.
  sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
});

// Goes on with a run that is under way. One that came to its end in between is in the history by now.
async function comeBack() {
  const works = chat.messages.at(-1)?.metadata?.rxloop?.state === 'working';
  await chat.resumeStream();
  if (works && chat.messages.at(-1).metadata.rxloop.state === 'working') chat.messages = await messagesOf();
}

function Tool({ part, approve }) {
  return (
    <section className="tool" data-state={part.state}>
      <code>
        {getToolName(part)} {JSON.stringify(part.input)}
      </code>
      {part.state === 'approval-requested' && (
        <p>
          {part.approval.descriptor.prompt}{' '}
          <button onClick={() => approve(part.approval.id, true)}>Approve</button>{' '}
          <button onClick={() => approve(part.approval.id, false)}>Refuse</button>
        </p>
      )}
      {part.state === 'output-available' && <code>{JSON.stringify(part.output)}</code>}
      {part.state === 'output-error' && <em>{part.errorText}</em>}
      {part.state === 'output-denied' && <em>refused</em>}
    </section>
  );
}

// A step that was tried again: what stands before this part in the step does not count.
const counts = (part, place, parts) => {
  const rest = parts.slice(place + 1);
  const end = rest.findIndex(each => each.type === 'step-start');
  return !rest.slice(0, end < 0 ? undefined : end).some(each => each.type === 'data-rxloop-void');
};

function Part({ part, approve }) {
  if (part.type === 'text') return <p>{part.text}</p>;
  if (part.type === 'reasoning') return <p className="reasoning">{part.text}</p>;
  if (isToolUIPart(part)) return <Tool part={part} approve={approve} />;
  return null;
}

function App() {
  const { messages, status, error, sendMessage, regenerate, stop, addToolApprovalResponse } = useChat({ chat });
  const [text, setText] = useState('');
  const busy = status === 'submitted' || status === 'streaming';
  useEffect(() => void comeBack(), []);

  const approve = (id, approved) => addToolApprovalResponse({ id, approved });
  const send = event => {
    event.preventDefault();
    if (text.trim() === '') return;
    sendMessage({ text });
    setText('');
  };
  // `stop` alone leaves the run, which goes on for whoever comes back.
  const cancel = async () => {
    await fetch(`${API}/${chatId}/stop`, { method: 'POST' });
    await stop();
  };

  return (
    <main data-status={status}>
      {messages.map(message => (
        <article key={message.id} className={message.role}>
          {message.parts
            .filter((part, place) => isToolUIPart(part) || counts(part, place, message.parts))
            .map((part, place) => (
              <Part key={place} part={part} approve={approve} />
            ))}
        </article>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form onSubmit={send}>
        <input value={text} onChange={event => setText(event.target.value)} placeholder="Ask" autoFocus />
        {busy ? (
          <button type="button" onClick={cancel}>
            Stop
          </button>
        ) : (
          <button>Send</button>
        )}
        {!busy && messages.length > 0 && (
          <button type="button" onClick={() => regenerate()}>
            Again
          </button>
        )}
      </form>
    </main>
  );
}

createRoot(document.getElementById('root')).render(<App />);
