// API requests: to the server, or to the answers embedded in an exported file.

function embedded() {
  const holder = document.getElementById("embedded");
  return holder ? JSON.parse(holder.textContent) : null;
}

const kept = embedded();

export const exported = kept !== null;

// True if a path is available: always from a server, in an exported file if embedded.
export function holds(path) {
  return kept === null || path in kept;
}

// A search in an exported file covers its embedded memories.
function searched(path) {
  const [, episode, asked] = /^(.*)\/search\?text=(.*)$/.exec(path) || [];
  if (!episode) return null;
  const flat = (text) => text.toLowerCase().replace(/\s+/g, " ").trim();
  const wanted = flat(decodeURIComponent(asked)), turns = [];
  for (let turn = 0; `${episode}/turns/${turn}` in kept; turn += 1) {
    const memory = kept[`${episode}/turns/${turn}`].memory;
    if (wanted && memory && flat(memory.after).includes(wanted)) turns.push(turn);
  }
  return { text: wanted, turns };
}

export async function get(path) {
  if (kept) {
    const found = searched(path);
    if (found) return found;
    for (const name of [path, path.split("?", 1)[0]]) if (name in kept) return kept[name];
    throw new Error("missing from this exported file: " + path);
  }
  let answer;
  try {
    // The origin contains no key: fetch rejects addresses like x:KEY@host.
    answer = await fetch(location.origin + path, { headers: { accept: "application/json" } });
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new Error(`the viewer does not answer (${error.message}): if it has ended, start palimpsest view again`);
  }
  const value = await answer.json().catch(() => ({ error: "the viewer answered " + answer.status }));
  if (!answer.ok) {
    const error = new Error(value.error || "the viewer answered " + answer.status);
    error.status = answer.status;
    throw error;
  }
  return value;
}

// Automatic refresh: palimpsest view --follow, or the button above.
export const following = { now: "follow" in document.documentElement.dataset };

// Calls `action` every `seconds` while the page follows and is visible; returns a function that stops it.
export function every(seconds, action) {
  let stopped = false, timer = 0;
  async function again() {
    if (stopped) return;
    if (following.now && !document.hidden) await Promise.resolve(action()).catch(() => null);
    if (!stopped) timer = setTimeout(again, seconds * 1000);
  }
  timer = setTimeout(again, seconds * 1000);
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}
