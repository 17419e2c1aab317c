/*
 * What the trace viewer of torch-tb-profiler (Chrome's catapult, built on Polymer 1) needs of Web Components v0,
 * which browsers no longer have: the old custom elements built from today's, and a few small names around them.
 * Polymer finds no Element.prototype.createShadowRoot, and so puts its elements' inner nodes into the page itself
 * ("shady DOM"): it needs nothing of the old shadow DOM.
 */
(() => {
  "use strict";

  const createNative = Document.prototype.createElement;
  const inert = document.implementation.createHTMLDocument("");  // no element is upgraded in this one
  const registered = new Set();  // the names of the elements that are written as tags of their own

  /** The attributes that set properties of a Polymer element: the ones whose changes it must be notified of. */
  function watchedAttributes(prototype) {
    return Object.values(prototype._propertyInfo || {}).map(info => info.attribute);
  }

  /** Give a prototype the callbacks of today, which call the old ones. atStart: see elementClass. */
  function addCallbacks(prototype, atStart) {
    const changed = prototype.attributeChangedCallback;
    prototype.connectedCallback = function () { this.attachedCallback?.(); };
    prototype.disconnectedCallback = function () { this.detachedCallback?.(); };
    prototype.attributeChangedCallback = function (name, before, after) {
      if (!atStart.get(this).delete(name)) changed?.call(this, name, before, after);
    };
  }

  /** Let an element's blur() also take the focus from its descendants, as with a shadow root. */
  function addBlur(prototype) {
    if (Object.hasOwn(prototype, "blur")) return;  // a table, which has its own
    prototype.blur = function () {
      const focused = document.activeElement;
      HTMLElement.prototype.blur.call(this.contains(focused) ? focused : this);
    };
  }

  /**
   * A class for today's registry around a prototype written for the old one. Today an element's callback is also called
   * for the attributes that it had before its upgrade; the old one was not, so the first call for each is dropped.
   */
  function elementClass(prototype, base) {
    const atStart = new WeakMap();  // element -> the names of those attributes
    function Registered() {
      const element = Reflect.construct(base, [], new.target);
      atStart.set(element, new Set(element.getAttributeNames()));
      element.createdCallback?.();
      return element;
    }
    Registered.observedAttributes = watchedAttributes(prototype);
    Registered.prototype = prototype;
    addCallbacks(prototype, atStart);
    addBlur(prototype);
    return Registered;
  }

  /** document.registerElement of v0. A type of a built-in element (extends) is written <template is="...">. */
  function registerElement(name, {prototype, extends: tag}) {
    const base = tag ? createNative.call(document, tag).constructor : HTMLElement;
    customElements.define(name, elementClass(prototype, base), tag ? {extends: tag} : undefined);
    if (!tag) registered.add(name);
    return prototype.constructor;
  }

  /**
   * document.createElement of v0, where a new element might have children and attributes at once. Today's fails
   * then, but copying a node does not: so the element is created in the inert document, then imported into this one.
   * The viewer's "overlay" becomes a div, as today only known names can have a shadow root.
   */
  function createElement(name, type) {
    name = String(name).toLowerCase();
    if (name === "overlay") name = "div";
    if (this === document && registered.has(name)) return document.importNode(createNative.call(inert, name), true);
    return createNative.call(this, name, typeof type === "string" ? {is: type} : type);
  }

  /** A getter for a property of an object of the browser. */
  function define(object, name, get) {
    Object.defineProperty(object, name, {get, configurable: true});
  }

  document.registerElement = registerElement;
  Document.prototype.createElement = createElement;
  define(Event.prototype, "path", function () { return this.composedPath(); });
  define(document, "_currentScript", () => document.currentScript);
  // Old custom elements are available (useNative), the old shadow DOM is not (no hasNative).
  window.CustomElements = {useNative: true, instanceof: (object, type) => object instanceof type};
  window.wrap = window.unwrap = node => node;  // the polyfill of the old shadow DOM had wrapped nodes

  // Only the viewer's overlays ask for this; Polymer looks for the name without "webkit" and must not find it.
  HTMLElement.prototype.webkitCreateShadowRoot = function () { return this.attachShadow({mode: "open"}); };

  document.addEventListener("DOMContentLoaded", () => document.dispatchEvent(new Event("WebComponentsReady")));
})();
