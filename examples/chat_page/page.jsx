// Chat page for an agent, using `useChat` of the AI SDK. `examples/chat_page/build` bundles it into page.html.
import { Chat, useChat } from '@ai-sdk/react';
import { DefaultChatTransport, getToolName, isToolUIPart, lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai';
import { useState } from 'react';
import { createRoot } from 'react-dom/client';

const API = 'api/chat';

// Store the chat id in the URL, so that the chat can be reloaded or opened in another tab.
const chatId = location.hash.slice(1) || crypto.randomUUID();
history.replaceState(null, '', `#${chatId}`);

// Create the Chat ourselves, because it then expects resumed streams to start from their beginning.
const chat = new Chat({
  id: chatId,
  messages: await (await fetch(`${API}/${chatId}`)).json(),
  transport: new DefaultChatTransport({
    api: API,
    // Only send the last message, because the server stores the history.
    prepareSendMessagesRequest: ({ id, messages, trigger, messageId, body }) => ({
      body: { ...body, id, trigger, messageId, messages: messages.slice(-1) },
    }),
    // The run may have ended since the messages were loaded. With the cursor, the server streams it in this case.
    prepareReconnectToStreamRequest: ({ api, id }) => ({
      api: `${api}/${id}/stream?after=${chat.messages.at(-1)?.metadata?.rxloop.cursor ?? ''}`,
    }),
  }),
  // Send the approvals once all of them have been answered.
  sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
});

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

// If a step was retried, `data-rxloop-void` discards all parts before it in the same step.
const isValid = (part, index, parts) => {
  const rest = parts.slice(index + 1);
  const end = rest.findIndex(next => next.type === 'step-start');
  return !rest.slice(0, end < 0 ? undefined : end).some(next => next.type === 'data-rxloop-void');
};

function Part({ part, approve }) {
  if (part.type === 'text') return <p>{part.text}</p>;
  if (part.type === 'reasoning') return <p className="reasoning">{part.text}</p>;
  if (isToolUIPart(part)) return <Tool part={part} approve={approve} />;
  return null;
}

function App() {
  const { messages, status, error, sendMessage, regenerate, stop, addToolApprovalResponse } = useChat({ chat, resume: true });
  const [text, setText] = useState('');
  const busy = status === 'submitted' || status === 'streaming';

  const approve = (id, approved) => addToolApprovalResponse({ id, approved });
  const send = event => {
    event.preventDefault();
    if (text.trim() === '') return;
    sendMessage({ text });
    setText('');
  };
  // `stop` only closes the stream, so cancel the run first.
  const cancel = async () => {
    await fetch(`${API}/${chatId}/stop`, { method: 'POST' });
    await stop();
  };

  return (
    <main data-status={status}>
      {messages.map(message => (
        <article key={message.id} className={message.role}>
          {message.parts
            .filter((part, index) => isToolUIPart(part) || isValid(part, index, message.parts))
            .map((part, index) => (
              <Part key={index} part={part} approve={approve} />
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
