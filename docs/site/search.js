// Changes the theme's search in two ways.
//
// A query is sent without words such as "a", "the" and "how": the theme looks for all words that begin with them.
// The search also works in a page that was opened from a file: browsers start no Worker there, so the worker's script runs in
// an iframe. mkdocs-material recognises such a stand-in by its name.
const SMALL_WORDS =
  /(^|\s)(a|an|and|are|at|be|by|can|do|does|for|from|how|i|in|is|it|its|me|my|of|on|or|our|the|there|this|to|what|when|where|which|with)(?=\s)/gi;
const QUERY = 2; // the theme's number for such a message
const shorten = (message) =>
  message.type === QUERY ? { ...message, data: message.data.replace(SMALL_WORDS, "").trim() || message.data } : message;

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
        this.frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      });
    }

    postMessage(message) {
      const data = shorten(message);
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
} else {
  window.Worker = class extends Worker {
    postMessage(message) {
      super.postMessage(shorten(message));
    }
  };
}
