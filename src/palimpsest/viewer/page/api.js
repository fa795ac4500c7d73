// What the page asks for: of the server, or, in an exported file, of what is embedded under that path.

function embedded() {
  const holder = document.getElementById("embedded");
  return holder ? JSON.parse(holder.textContent) : null;
}

const kept = embedded();

export const exported = kept !== null;

// Whether the page can ask for a path: of a server always, of an exported file where it is embedded.
export function holds(path) {
  return kept === null || path in kept;
}

// In an exported file a search looks through the memories that it holds.
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
    throw new Error("this file was exported without it: " + path);
  }
  let answer;
  try {
    // The origin has no key in it: an address with one, x:KEY@host, may not be fetched.
    answer = await fetch(location.origin + path, { headers: { accept: "application/json" } });
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new Error(`the viewer doesn't answer (${error.message}): start palimpsest view again if it has ended`);
  }
  const value = await answer.json().catch(() => ({ error: "the viewer answered " + answer.status }));
  if (!answer.ok) {
    const error = new Error(value.error || "the viewer answered " + answer.status);
    error.status = answer.status;
    throw error;
  }
  return value;
}

// Whether the page asks again by itself: palimpsest view --follow, or the button above.
export const following = { now: "follow" in document.documentElement.dataset };

// Calls `action` every `seconds` while the page follows and is in sight; the function that comes back stops it.
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
