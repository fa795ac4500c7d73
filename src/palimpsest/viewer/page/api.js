// API requests. An exported file has embedded answers instead of a server.

function embedded() {
  const container = document.getElementById("embedded");
  return container ? JSON.parse(container.textContent) : null;
}

const embeddedAnswers = embedded();

export const exported = embeddedAnswers !== null;

// True if a path is available. A server answers every path.
export function hasPath(path) {
  return embeddedAnswers === null || path in embeddedAnswers;
}

// A search in an exported file covers its embedded memories.
function searchEmbedded(path) {
  const [, episode, queryText] = /^(.*)\/search\?text=(.*)$/.exec(path) || [];
  if (!episode) return null;
  const normalize = (text) => text.toLowerCase().replace(/\s+/g, " ").trim();
  const query = normalize(decodeURIComponent(queryText)), turns = [];
  for (let turn = 0; `${episode}/turns/${turn}` in embeddedAnswers; turn += 1) {
    const memory = embeddedAnswers[`${episode}/turns/${turn}`].memory;
    if (query && memory && normalize(memory.after).includes(query)) turns.push(turn);
  }
  return { text: query, turns };
}

export async function get(path) {
  if (embeddedAnswers) {
    const searchResult = searchEmbedded(path);
    if (searchResult) return searchResult;
    for (const name of [path, path.split("?", 1)[0]]) if (name in embeddedAnswers) return embeddedAnswers[name];
    throw new Error("missing from this exported file: " + path);
  }
  let response;
  try {
    // The origin contains no key: fetch rejects addresses like x:KEY@host.
    response = await fetch(location.origin + path, { headers: { accept: "application/json" } });
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new Error(`the viewer does not answer (${error.message}): if it has ended, start palimpsest view again`);
  }
  const value = await response.json().catch(() => ({ error: "the viewer answered " + response.status }));
  if (!response.ok) {
    const error = new Error(value.error || "the viewer answered " + response.status);
    error.status = response.status;
    throw error;
  }
  return value;
}

// Automatic refresh: palimpsest view --follow, or the button above.
export const following = { now: "follow" in document.documentElement.dataset };

// Calls `action` every `seconds` while the page follows and is visible. Returns a function that stops it.
export function poll(seconds, action) {
  let stopped = false, timer = 0;
  async function run() {
    if (stopped) return;
    if (following.now && !document.hidden) await Promise.resolve(action()).catch(() => null);
    if (!stopped) timer = setTimeout(run, seconds * 1000);
  }
  timer = setTimeout(run, seconds * 1000);
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}
