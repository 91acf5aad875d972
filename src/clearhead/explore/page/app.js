// The page starts here: opens the source, makes the panes, and updates them when the state changes.

import { checkScene, openSource } from "./data/source.js";
import { isDark, readLook } from "./draw/colours.js";
import { afterQuiet, byId } from "./draw/elements.js";
import { Centre } from "./panes/centre_pane.js";
import { fillDefinitions, listenToTerms } from "./panes/definitions.js";
import { Explanation } from "./panes/explanation.js";
import { announce, copyLink, saveCsv, saveJson, savePng, saveSvg } from "./panes/export_menu.js";
import { Atlas } from "./panes/head_atlas.js";
import { FOCUS, focusOn, hintAtArrows, listenToKeys, openHelp } from "./panes/keyboard.js";
import { TextPane } from "./panes/text_pane.js";
import { TokenPane } from "./panes/token_pane.js";
import { Finder } from "./panes/token_search.js";
import { Tour } from "./panes/tour.js";
import { Explorer } from "./state/explorer.js";
import { DEFAULTS, firstHead, partOf, Store, stateOf, writeAddress } from "./state/store.js";
import { nextLanguage, say, setLanguage, translate } from "./words/languages.js";

const NOTHING_CHOSEN = { pins: [], step: null, view: null, cursor: null, other: null }; // as after reading a text

class Page {
  constructor(scene, source) {
    const store = new Store({ ...firstHead(scene), ...stateOf(location.hash, scene), part: scene.view ?? 0 });
    const explorer = new Explorer(scene, source, store);
    this.explorer = explorer;
    this.applyTheme();
    this.centre = new Centre(explorer);
    this.atlas = new Atlas(explorer);
    this.texts = new TextPane(explorer);
    this.tokens = new TokenPane(explorer, this.centre);
    this.explanation = new Explanation(explorer, this.centre);
    this.tour = new Tour(explorer);
    listenToTerms();
    this.finder = new Finder(explorer, this.centre);
    this.remember = afterQuiet(150, () => writeAddress(explorer.state));
    this.follow = afterQuiet(70, () => this.updateTexts());
    store.listen((changed) => this.update(changed));
    this.listen();
  }

  /** Sets theme and language, as chosen or as the system has them. */
  applyTheme() {
    const { explorer } = this;
    document.documentElement.dataset.theme = isDark(explorer.state.theme) ? "dark" : "light";
    setLanguage(explorer.state.language);
    translate(document);
    fillDefinitions();
    explorer.look = readLook(explorer.state.colours);
  }

  /** Shows another scene in all panes. */
  renew() {
    this.centre.renew();
    this.texts.renew();
    this.tokens.renew();
    this.atlas.renew();
    this.explanation.update();
    this.showChoices();
  }

  /** Updates what depends on these values and events of the store. */
  update(changed) {
    const any = (...keys) => keys.some((key) => changed.has(key));
    if (any("coming")) this.replace(this.explorer.coming);
    if (any("scene")) return this.renew();
    if (any("rows")) this.explorer.nameRows();
    if (any("theme", "language", "colours")) {
      this.applyTheme();
      return this.renewPanes();
    }
    if (any("painted")) {
      this.atlas.loadThumbs();
      this.tour.startAtFirstVisit();
    }
    if (any("name", "head", "other", "direction", "drawing", "averaged", "curve", "rows")) this.centre.build();
    else if (any("pins", "step", "cursor", "weights", "pictures", "ablation")) this.centre.repaint();
    if (any("picking")) this.centre.showPicking();
    if (any("sort") && this.explorer.state.sort === "effect") this.sortByEffect();
    if (any("name", "head", "other", "sort", "order", "role")) this.atlas.build();
    if (any("name", "head", "other", "pins", "direction", "step", "rows", "shading", "drawing", "averaged")) {
      this.updateTexts();
    } else if (any("pictures")) this.updateTexts();
    else if (any("cursor")) this.follow();
    if (any("ablation")) this.showAblation();
    if (any("drawing") || (any("pins") && this.centre.pictured)) this.centre.repaint();
    if (any("name", "head", "drawing")) this.tour.render();
    if ([...changed].some((key) => key in DEFAULTS)) this.remember();
  }

  async sortByEffect() {
    const { explorer } = this;
    try {
      announce(say("switching"));
      await explorer.findEffects();
      announce(explorer.noEffects ? say("noEffects") : "");
    } catch (problem) {
      announce(problem.message);
    }
    if (explorer.noEffects) explorer.store.set({ sort: "layer" });
    this.atlas.rebuild();
    this.centre.build();
  }

  renewPanes() {
    this.centre.build();
    this.texts.renew();
    this.tokens.renew();
    this.atlas.rebuild();
    this.explanation.update();
    this.tour.render();
    this.showChoices();
    this.remember();
  }

  updateTexts() {
    this.texts.update();
    this.tokens.update();
    this.explanation.update();
    if (this.centre.pictured) this.centre.repaint();
    this.showChoices();
  }

  showAblation() {
    this.tokens.paintModel();
    this.texts.update();
    this.explanation.update();
    byId(this.explorer.ablation.pane)?.scrollIntoView({ block: "nearest" });
  }

  showChoices() {
    const { rows, state } = this.explorer;
    byId("curve").value = state.curve;
    byId("colours").value = state.colours;
    byId("rows").classList.toggle("absent", !rows);
    for (const button of byId("rows").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.value === rows));
    }
  }

  listen() {
    const { explorer, centre } = this;
    const { store } = explorer;
    const actions = {
      pinCursor: () => this.pinCursor(),
      escape: () => this.escape(),
      switchTheme: () => store.set({ theme: explorer.look.dark ? "light" : "dark" }),
      switchLanguage: () => store.set({ language: nextLanguage() }),
      switchRows: () => explorer.rows && store.set({ rows: explorer.rows === "written" ? "read" : "written" }),
      play: () => this.texts.play(),
      startTour: () => this.tour.start(),
      switchDrawing: () => store.set({ drawing: centre.nextDrawing }),
    };
    const on = (id, type, heard) => byId(id).addEventListener(type, heard);
    on("language", "click", actions.switchLanguage);
    on("theme", "click", actions.switchTheme);
    on("help-button", "click", () => openHelp(explorer, centre, actions));
    on("save-svg", "click", () => saveSvg(explorer, centre));
    on("save-png", "click", () => savePng(explorer, centre));
    on("save-json", "click", () => saveJson(explorer, centre));
    on("save-csv", "click", () => saveCsv(explorer, centre));
    on("copy-link", "click", () => copyLink(explorer));
    for (const id of ["curve", "colours", "averaged"]) {
      on(id, "change", (event) => store.set({ [id]: event.target.value }));
    }
    on("views", "change", (event) => explorer.open(explorer.source.scene(Number(event.target.value))));
    on("skip", "click", (event) => {
      event.preventDefault(); // the address is for the view
      focusOn(FOCUS.map)();
    });
    on("another", "submit", (event) => this.readAnotherText(event));
    on("another-text", "input", () => this.warnOfLength());
    on("another-cancel", "click", () => explorer.source.cancel());
    on("another-file", "change", (event) => this.readAnotherFile(event.target));
    for (const [id, key] of [
      ["drawings", "drawing"],
      ["rows", "rows"],
      ["directions", "direction"],
    ]) {
      for (const button of byId(id).querySelectorAll("button[value]")) {
        button.addEventListener("click", () => store.set({ [key]: button.value }));
      }
    }
    listenToKeys(explorer, centre, actions);
    hintAtArrows();
    window.matchMedia?.("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.applyTheme();
      this.renewPanes();
    });
    window.addEventListener("pagehide", () => {
      centre.rememberView(); // who leaves at once comes back to the same view
      writeAddress(explorer.state);
    });
    window.addEventListener("hashchange", (event) => {
      const fragment = new URL(event.newURL).hash; // the address itself may be rewritten before the event comes
      if (partOf(fragment, explorer.scene) !== explorer.state.part) return location.reload();
      const { name, head, cursor, part, ...usual } = DEFAULTS;
      const wanted = { ...usual, ...stateOf(fragment, explorer.scene) };
      centre.stale = true;
      store.set(wanted);
      centre.repaint();
    });
  }

  pinCursor() {
    const { explorer } = this;
    const { state, attention, asked } = explorer;
    const index = state.direction === "at" ? state.cursor?.q : state.cursor?.k;
    const side = state.direction === "at" ? 0 : 1;
    if (Number.isInteger(index)) explorer.pin(asked.name, index + attention.first[side]);
    else explorer.pin(asked.name, explorer.subject.positions.at(-1));
  }

  escape() {
    const { explorer } = this;
    const { state } = explorer;
    if (state.cursor) this.centre.point(this.centre.views[0], null, null); // and its tip
    if (state.picking) explorer.store.set({ picking: false });
    else if (byId("find").value) this.finder.clear();
    else if (state.pins.length) explorer.unpin();
    else if (state.other) explorer.store.set({ other: null });
    else if (state.role) explorer.store.set({ role: null });
    else if (state.view) this.centre.fit();
  }

  /** Sends another text to the model. */
  readAnotherText(event) {
    event.preventDefault();
    const text = byId("another-text").value.trim();
    const limit = this.explorer.scene.limits?.[0] ?? Infinity;
    if (Array.from(text).length > limit) return this.warnOfLength();
    if (!text) byId("another-problem").textContent = say("noText");
    else if (!byId("another").hasAttribute("aria-busy")) this.explorer.open(this.explorer.source.look(text));
  }

  /** Says that a text is too long, before it is sent. */
  warnOfLength() {
    const length = Array.from(byId("another-text").value.trim()).length;
    const limit = this.explorer.scene.limits?.[0] ?? Infinity;
    const [count, most] = [length, limit].map((number) => number.toLocaleString("en"));
    byId("another-problem").textContent = length > limit ? say("tooLong", { count, most }) : "";
  }

  /** Shows for how long a text is being read; the function that it returns ends that. */
  showProgress() {
    const button = byId("another").querySelector("button");
    const begin = performance.now();
    const tick = () => {
      const seconds = Math.floor((performance.now() - begin) / 1000);
      button.textContent = seconds ? say("readingFor", { seconds }) : say("switching");
      byId("another-cancel").hidden = seconds < 1 || !this.explorer.source.reading;
    };
    tick();
    const timer = setInterval(tick, 500);
    return () => {
      clearInterval(timer);
      byId("another-cancel").hidden = true;
      button.textContent = say("look");
    };
  }

  /** Sends another picture or sound to the model. */
  readAnotherFile(input) {
    const [file] = input.files;
    if (file && !byId("another").hasAttribute("aria-busy")) this.explorer.open(this.explorer.source.lookAtFile(file));
    input.value = ""; // the same file may be chosen again
  }

  /** Replaces the scene of the page by another one, once it has come. */
  async replace(coming) {
    const { explorer } = this;
    byId("another").setAttribute("aria-busy", "true");
    byId("another-problem").textContent = "";
    const done = this.showProgress();
    try {
      const scene = checkScene(await coming);
      const { name, head } = explorer.state;
      explorer.renew(scene);
      const same = explorer.attentionOf(name)?.heads.some(({ number }) => number === head);
      explorer.store.set({ part: scene.view ?? 0, ...NOTHING_CHOSEN, ...(same ? {} : firstHead(scene)) });
      explorer.store.emit("scene");
      this.remember();
      byId("another-text").blur();
      if (explorer.state.sort === "effect") this.sortByEffect(); // those of the text before say nothing about this one
    } catch (problem) {
      byId("another-problem").textContent = problem.message;
    }
    byId("another").removeAttribute("aria-busy");
    done();
  }
}

/** Shows an error instead of the page. */
function fail(problem) {
  document.documentElement.dataset.ready = "failed";
  const parts = document.querySelectorAll("header, main, footer, .skip");
  for (const part of parts) part.hidden = true; // keys reach nothing behind the message
  byId("failed").hidden = false;
  byId("failed-reason").textContent = problem.message;
  byId("retry").addEventListener("click", () => location.reload());
}

async function start() {
  setLanguage("auto");
  translate(document);
  try {
    const { scene: first, source } = await openSource();
    const part = partOf(location.hash, first);
    const page = new Page(part === (first.view ?? 0) ? first : checkScene(await source.scene(part)), source);
    const { explorer } = page;
    if (source.lost) {
      explorer.store.set(NOTHING_CHOSEN); // the address is about tokens of the text that is lost
      byId("another-problem").textContent = source.lost.message;
    }
    page.renew();
    document.documentElement.dataset.shown = "yes";
    if (explorer.state.sort === "effect") page.sortByEffect(); // a link may ask for it
  } catch (problem) {
    fail(problem);
  }
}

start();
