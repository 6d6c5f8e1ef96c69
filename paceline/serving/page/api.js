// Talks to the server: JSON, and answers as streams of server-sent events. Knows nothing of the page.

export async function getJson(path, key) {
  const answer = await fetch(path, { headers: headers(key) });
  if (!answer.ok) throw new Error(await problem(answer));
  return answer.json();
}

// Yields the bodies of a stream's events; throws what the server says went wrong.
export async function* stream(path, body, key, signal) {
  const answer = await fetch(path, {
    method: "POST", signal, body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", ...headers(key) },
  });
  if (!answer.ok) throw new Error(await problem(answer));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      if (data === "[DONE]") return;
      const told = JSON.parse(data);
      if (told.error) throw new Error(told.error.message);
      yield told;
    }
  }
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function problem(answer) {
  if (answer.status === 401) return "this server asks for an API key: enter it in the panel under Server";
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the server answered ${answer.status}`;
  }
}
