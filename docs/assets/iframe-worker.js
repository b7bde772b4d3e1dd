// Replacement for web workers in pages that are opened as files, where browsers do not load the scripts of workers.
// The search of the site runs in a hidden frame instead. Its script is loaded by a script element.
if (location.protocol === "file:") {
    window.Worker = class extends EventTarget {
        constructor(url) {
            super();
            this.frame = document.createElement("iframe");
            this.frame.hidden = true;
            this.ready = new Promise((resolve) => {
                const load = () => {
                    document.body.append(this.frame);
                    this.fill(url, resolve);
                };
                document.body ? load() : addEventListener("DOMContentLoaded", load);
            });
        }

        fill(url, resolve) {
            const { contentWindow, contentDocument } = this.frame;
            contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
            const script = contentDocument.createElement("script");
            contentDocument.head.append(Object.assign(script, { src: url, onload: resolve }));
        }

        async postMessage(data) {
            await this.ready;
            this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
        }

        terminate() {
            this.frame.remove();
        }
    };
}
