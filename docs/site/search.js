// Changes the theme's search in five ways.
//
// A word of a query that begins no word of the pages becomes the commonest one that is one typing error away.
// An option such as --beside is sent without its hyphens, by which the theme would look for pages without the word.
// A query is sent without words such as "a", "the" and "how": the theme looks for all words that begin with them.
// A page comes first if the query is one of its search words (docs/site/search_words.yml), else if they have most of its words.
// The search also works in a page that was opened from a file: browsers start no Worker there, so the worker's script runs in
// an iframe. mkdocs-material recognises such a stand-in by its name.
const SMALL_WORDS =
  /(^|\s)(a|an|and|are|at|be|by|can|do|does|for|from|how|i|in|is|it|its|me|my|of|on|or|our|the|there|this|to|what|when|where|which|with)(?=\s)/gi;
const SETUP = 0; // the theme's numbers for such messages
const QUERY = 2;
const RESULT = 3;
let asked = [];
let counts = new Map(); // of the words of all pages
const shorten = (text) => text.replace(SMALL_WORDS, "").trim() || text;
// "Pub/Sub", "pubsub" and "pub sub" are one word, "rate limits" and "rate limiting" another.
const stem = (word) => word.replace(/(?<=\p{L}{3})(ing|ed|s)$/u, "");
const words = (text) =>
  (shorten(text).toLowerCase().replace(/<[^>]*>/g, "").match(/[\p{L}\p{N}.+#]+/gu) ?? []).map(stem); // the theme marks what matches
const plain = (text) => words(text).join("");

// Returns how well a query fits a page: it is one of the page's search words, else how many of its words they have.
function meant(page) {
  const known = page.flatMap(({ tags, title }) => (tags ? [title, ...tags] : []));
  if (known.some((word) => plain(word) === asked.join(""))) return asked.length + 1;
  const single = new Set(known.flatMap(words));
  return asked.filter((word) => single.has(word)).length;
}

function count(pages) {
  const texts = pages.flatMap(({ title, text, tags = [] }) => [title, text, ...tags]).join(" ");
  for (const word of texts.toLowerCase().match(/\p{L}{4,}/gu) ?? []) counts.set(word, (counts.get(word) ?? 0) + 1);
}

// Returns whether one letter more, less, changed or exchanged with the next makes one word the other.
function isNear(one, other) {
  const least = Math.min(one.length, other.length);
  let start = 0, end = 0;
  while (start < least && one[start] === other[start]) start++;
  while (end < least - start && one.at(-1 - end) === other.at(-1 - end)) end++;
  const [left, right] = [one, other].map((word) => word.slice(start, word.length - end));
  return Math.max(left.length, right.length) < 2 || (left.length === 2 && left === right[1] + right[0]);
}

function corrected(word) {
  const typed = word.toLowerCase(), known = [...counts.keys()];
  if (known.some((other) => other.startsWith(typed))) return word;
  return known.filter((other) => isNear(typed, other)).sort((one, other) => counts.get(other) - counts.get(one))[0] ?? word;
}

function outgoing(message) {
  if (message.type === SETUP) count(message.data.docs);
  if (message.type !== QUERY) return message;
  const query = message.data.replace(/(^|\s)[-+]+(?=\S)/g, "$1").replace(/\p{L}{4,}/gu, corrected);
  asked = words(query);
  return { ...message, data: shorten(query) };
}

function incoming(message) {
  if (message.type === RESULT) message.data.items.sort((one, other) => meant(other) - meant(one));
  return message;
}

if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(script) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = `<script src="${script}"></script>`;
      this.ready = new Promise((resolve) => this.frame.addEventListener("load", resolve));
      document.body.append(this.frame);
      this.ready.then(() => {
        this.frame.contentWindow.postMessage = (data) =>
          this.dispatchEvent(new MessageEvent("message", { data: incoming(data) }));
      });
    }

    postMessage(message) {
      const data = outgoing(message);
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
} else {
  window.Worker = class extends Worker {
    constructor(...script) {
      super(...script);
      super.addEventListener("message", ({ data }) => incoming(data)); // the first listener, so that the theme sees the new order
    }

    postMessage(message) {
      super.postMessage(outgoing(message));
    }
  };
}
