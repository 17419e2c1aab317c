// Search without a server: a page that was opened from the disk may start no Worker, so its script runs in a hidden frame.
// Material for MkDocs would fetch such a stand-in from the internet.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.body.appendChild(document.createElement("iframe"));
      this.frame.hidden = true;
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
      this.ready = this.load(url);
    }

    load(url) {
      const page = this.frame.contentDocument;
      const script = Object.assign(page.createElement("script"), { src: new URL(url, location.href).href });
      return new Promise((done, failed) => {
        script.onload = done;
        script.onerror = () => failed(new Error(`cannot load ${url}`));
        page.body.appendChild(script);
      });
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
