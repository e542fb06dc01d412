// The page: its state, what changes it, and the keys.

/** Unpacks what a view shows when it is first looked at, and keeps it. */
class Library {
  kept = new Map();

  get(view) {
    if (!this.kept.has(view.codes)) this.kept.set(view.codes, this.#read(view));
    return this.kept.get(view.codes);
  }

  async #read(view) {
    const text = document.getElementById(view.codes).textContent;
    const [codes, image] = await Promise.all([unpack(text), loaded(view.pixels)]);
    const attention = new Attention(codes, view);
    const distances = Array.from({ length: view.layers }, (_, layer) =>
      Array.from({ length: view.kept }, (_, head) => attention.distance(layer, head)),
    );
    return { attention, image, distances };
  }
}

async function loaded(source) {
  const image = new Image();
  image.src = source;
  await image.decode();
  return image;
}

class Explorer {
  state = {
    mode: "attention", // or "rollout"
    layers: 1, // of the first panel's model: layer and depth count in these
    layer: 0,
    depth: 0,
    head: MEAN,
    place: null, // [down, across] as shares of the photo; null: the class token, or all tokens
    held: false,
    opacity: 0.7,
    stretched: false,
  };

  constructor(data) {
    this.data = data;
    this.library = new Library();
    this.ramp = rampOf(data.ramp);
    this.panels = [];
    document.getElementById("precision").textContent = data.precision;
    this.controls = Object.fromEntries(
      ["layer", "depth", "head", "opacity", "stretched", "compare"].map((id) => [id, document.getElementById(id)]),
    );
    const several = data.views.length > 1;
    document.getElementById("compare-control").hidden = !several;
    document.getElementById("controls").classList.toggle("several", several);
    this.#listen();
  }

  async start() {
    await this.#add(0, 0);
    const { view } = this.first;
    this.change({ layers: view.layers, layer: view.layers - 1, depth: view.layers });
    document.documentElement.dataset.ready = "true";
  }

  get first() {
    return this.panels[0];
  }

  async #add(photo, model) {
    const panel = new Panel(this.data, this.library, this.ramp, this);
    this.panels.push(panel);
    document.getElementById("panels").append(panel.element);
    await panel.open(photo, model);
  }

  /** Everything that changes what is shown comes through here. */
  change(part) {
    Object.assign(this.state, part);
    const { state } = this;
    const { view } = this.first;
    const within = (at, low, high) => Math.max(low, Math.min(high, at));
    state.layer = within(state.layer, 0, state.layers - 1);
    state.depth = within(state.depth, 0, state.layers);
    const most = Math.max(...this.panels.map((panel) => panel.view?.kept ?? 1));
    state.head = most > 1 ? within(state.head, MEAN, most - 1) : MEAN;
    this.#fillControls(view, most);
    if (!this.pending) {
      this.pending = requestAnimationFrame(() => {
        this.pending = 0;
        for (const panel of this.panels) panel.show(state);
      });
    }
  }

  #fillControls(view, most) {
    const { controls, state } = this;
    const rollout = state.mode === "rollout";
    const set = (id, value, max, words) => {
      controls[id].max = max;
      controls[id].value = value;
      controls[id].setAttribute("aria-valuetext", words);
      document.getElementById(`${id}-shown`).textContent = words;
    };
    set("layer", state.layer, state.layers - 1, `${state.layer + 1} of ${state.layers}`);
    set("depth", state.depth, state.layers, state.depth ? `1 to ${state.depth}` : "none");
    const averaged = most > 1 && !rollout ? "mean" : `mean of ${view.heads}`;
    set("head", rollout ? MEAN : state.head, most > 1 ? most - 1 : MEAN, state.head === MEAN || rollout ? averaged : `${state.head + 1} of ${most}`);
    set("opacity", Math.round(100 * state.opacity), 100, `${Math.round(100 * state.opacity)} %`);
    controls.head.disabled = rollout || most === 1;
    controls.stretched.checked = state.stretched;
    document.getElementById("layer-control").hidden = rollout;
    document.getElementById("depth-control").hidden = !rollout;
    document.querySelector(`[name="mode"][value="${state.mode}"]`).checked = true;
  }

  #listen() {
    const { controls } = this;
    for (const id of ["layer", "depth", "head"]) {
      controls[id].addEventListener("input", () => this.change({ [id]: +controls[id].value }));
    }
    controls.opacity.addEventListener("input", () => this.change({ opacity: controls.opacity.value / 100 }));
    controls.stretched.addEventListener("change", () => this.change({ stretched: controls.stretched.checked }));
    controls.compare.addEventListener("change", () => this.compare(controls.compare.checked));
    for (const radio of document.querySelectorAll('[name="mode"]')) {
      radio.addEventListener("change", () => this.change({ mode: radio.value }));
    }
    const help = document.getElementById("help");
    document.getElementById("open-help").addEventListener("click", () => help.showModal());
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  // What panels and keys ask for.

  async open(panel, photo, model) {
    await panel.open(photo, model);
    if (panel === this.first && panel.view.layers !== this.state.layers) {
      const { layer, layers } = this.state;
      const share = layers > 1 ? layer / (layers - 1) : 1;
      const now = panel.view.layers;
      this.change({ layers: now, layer: Math.round(share * (now - 1)), depth: now });
    } else {
      this.change({});
    }
  }

  point(place) {
    if (!this.state.held) this.change({ place });
  }

  /** Hold the patch at a place, or let go of the one that is held. */
  hold(place) {
    this.change({ place, held: !this.state.held && place !== null });
  }

  whole() {
    this.change({ place: null, held: false });
  }

  choose(panel, layer, head) {
    this.change({ mode: "attention", layer: this.#ours(layer, panel.view.layers - 1, this.state.layers - 1), head });
  }

  deepen(panel, depth) {
    this.change({ depth: this.#ours(depth, panel.view.layers, this.state.layers) });
  }

  /** A layer of a panel's model as one of the first panel's. */
  #ours(at, of, to) {
    return of > 0 ? Math.round((at / of) * to) : 0;
  }

  async compare(two) {
    this.controls.compare.checked = two;
    document.getElementById("panels").classList.toggle("two", two);
    if (two && this.panels.length === 1) {
      const { photo, model } = this.first.view;
      const { models, photos } = this.data;
      await (models.length > 1
        ? this.#add(photo, (model + 1) % models.length)
        : this.#add((photo + 1) % photos.length, model));
    } else if (!two) {
      for (const panel of this.panels.splice(1)) panel.element.remove();
    }
    this.change({});
  }

  move(down, across) {
    const { grid } = this.first.view;
    const [row, column] = this.state.place
      ? cellAt(this.state.place, grid)
      : [Math.floor(grid[0] / 2) - down, Math.floor(grid[1] / 2) - across]; // from the middle
    const within = (at, count) => (Math.max(0, Math.min(count - 1, at)) + 0.5) / count;
    this.change({ place: [within(row + down, grid[0]), within(column + across, grid[1])] });
  }

  step(by) {
    const { state } = this;
    this.change(state.mode === "rollout" ? { depth: state.depth + by } : { layer: state.layer + by });
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("help").open) return;
    const { state } = this;
    const keys = {
      "[": () => this.step(-1),
      "]": () => this.step(1),
      "-": () => state.mode === "attention" && this.change({ head: state.head - 1 }),
      "=": () => state.mode === "attention" && this.change({ head: state.head + 1 }),
      "+": () => keys["="](),
      c: () => this.whole(),
      r: () => this.change({ mode: state.mode === "rollout" ? "attention" : "rollout" }),
      o: () => this.change({ opacity: state.opacity ? 0 : 0.7 }),
      s: () => this.change({ stretched: !state.stretched }),
      v: () => this.data.views.length > 1 && this.compare(this.panels.length === 1),
      "?": () => document.getElementById("help").showModal(),
      Escape: () => this.change({ held: false }),
    };
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const owned = event.target.closest("input, select, button, summary, a");
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key in moves && !owned) {
      this.move(...moves[key]);
    } else if (key === "Enter" && event.target.matches("canvas.photo")) {
      this.hold(state.place);
    } else if (Object.hasOwn(keys, key) && !event.target.matches("select")) {
      keys[key]();
    } else {
      return;
    }
    event.preventDefault();
  }
}

function explain(error) {
  const trouble = document.getElementById("trouble");
  trouble.textContent = typeof DecompressionStream === "undefined"
    ? "This browser cannot unpack the page: it needs Chrome or Edge 93, Firefox 113 or Safari 16.4, or later."
    : `The page could not be shown: ${error.message}`;
  trouble.hidden = false;
}

const explorer = new Explorer(JSON.parse(document.getElementById("views").textContent));
window.explorer = explorer; // for the browser's console
explorer.start().catch(explain);
