// The server's API. The token comes from the fragment of the address, which no server and no log sees.

const KEY = "staddle-token";

/** Take the token from the address, if it has one, and remove it there. Returns whether there is a token. */
export function takeToken() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (found) {
    useToken(decodeURIComponent(found[1]));
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY) !== null;
}

export const useToken = (token) => sessionStorage.setItem(KEY, token);
const token = () => sessionStorage.getItem(KEY) ?? "";

/** An error of the server: what, why, fix. */
export class ApiError extends Error {
  constructor(status, found) {
    super(found.what);
    Object.assign(this, { status, what: found.what, why: found.why, fix: found.fix, type: found.type });
  }
}

/** The path of a sandbox, with more parts and a query. */
export function at(sandbox, ...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined);
  const path = ["/v1/sandboxes", sandbox, ...parts].map((part, index) => (index ? encoded(part) : part)).join("/");
  return path + (pairs.length ? `?${pairs.map(([name, value]) => `${name}=${encoded(String(value))}`).join("&")}` : "");
}

/** Text as a part of a path or query. Bytes that are no UTF-8 are lone surrogates, as Python has them. */
export const encoded = (text) =>
  text.replace(/\p{Cs}|[^\p{Cs}]+/gu, (part) =>
    /\p{Cs}/u.test(part) ? `%${(part.charCodeAt(0) & 0xff).toString(16)}` : encodeURIComponent(part));

/** Make a request, with bytes or data; return the response. */
export async function send(method, path, body, signal) {
  const headers = { Authorization: `Bearer ${token()}` };
  const isBytes = body instanceof Uint8Array;
  if (body !== undefined) headers["Content-Type"] = isBytes ? "application/octet-stream" : "application/json";
  const response = await fetch(path, {
    method, headers, signal, body: body === undefined || isBytes ? body : JSON.stringify(body), credentials: "omit", cache: "no-store",
  });
  if (response.ok) return response;
  const found = await response.json().catch(() => ({}));
  throw new ApiError(response.status, found.error ?? { what: `the server answered ${response.status}` });
}

export const get = async (path, signal) => (await send("GET", path, undefined, signal)).json();
export const post = async (path, body = {}) => (await send("POST", path, body)).json();
export const remove = async (path) => (await send("DELETE", path)).json();

/** Open the WebSocket of a terminal. A browser cannot set its headers: the token is the name of a subprotocol. */
export function attached(sandbox, terminal, offset) {
  const path = at(sandbox, "terminals", terminal, "attach", { offset });
  const text = btoa(token()).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const socket = new WebSocket(location.origin.replace(/^http/, "ws") + path, ["staddle.terminal", `staddle.token.${text}`]);
  socket.binaryType = "arraybuffer";
  return socket;
}
