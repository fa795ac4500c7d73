// Search of a site opened from disk: browsers run no worker there, so its script runs in a hidden frame.
if (location.protocol === "file:") {
  globalThis.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = inner.document.createElement("script");
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      script.onerror = (event) => this.onerror?.(event);
      script.src = new URL(url, location.href);
      inner.document.head.append(script);
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow?.onmessage({ data: structuredClone(data) }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
